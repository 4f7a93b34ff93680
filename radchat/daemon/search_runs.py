"""One ``search.ask``: all its requests side by side in the engine, and each ask stored as it ends.

What fails fails alone, and what was ended before it was whole leaves nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from radchat.daemon import reuse, telling
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import Disk, kept_name
from radchat.daemon.grammar_asked import GrammarAsked, compiled, is_whole, judged
from radchat.daemon.handing import beside
from radchat.daemon.heard import Heard
from radchat.daemon.outgoing import unexpected
from radchat.daemon.prepared import Prepared
from radchat.daemon.program_runs import hear
from radchat.daemon.search_asks import Ask, extra_of, num_answers, prepared, require_free, said_ids
from radchat.daemon.search_going import GIVEN_UP, NOBODY, NOTHING, Going, give
from radchat.daemon.search_saving import save
from radchat.daemon.searches import Search
from radchat.daemon.whole import sums
from radchat.daemon.worker import Worker
from radchat.engine.request import Event as EngineEvent
from radchat.engine.request import (
    Finished,
    FinishReason,
    Priority,
    Request,
    SamplingParams,
    Started,
    Tokens,
)
from radchat.errors import Interrupted, RadchatError
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.engine.grammars import Compiled


class Asking:
    """``run`` is a task of its own; ``cancel`` may come at any time."""

    def __init__(
        self,
        search: Search,
        asks: Sequence[Ask],
        params: Sequence[SamplingParams],
        desk: Desk,
        disk: Disk,
        worker: Worker,
        say: Callable[[Event], None],
    ) -> None:
        self._search, self._asks, self._params = search, asks, params
        self._desk, self._disk, self._worker, self._say = desk, disk, worker, say
        self._asked_at = time.monotonic()
        self._of: dict[str, tuple[Going, int]] = {}  # by request: the number of its first choice
        self._ended: asyncio.Queue[Going | None] = asyncio.Queue()
        self._grammars: dict[tuple[str, ...], Compiled] = {}
        self._cancelled: set[int | None] = set()  # numbers of asks; None is all
        self._totals = NOTHING
        self._num_going = sum(num_answers(ask) for ask in asks)
        search.going += self._num_going

    def release(self) -> None:
        """Others may go. More than once is once."""
        self._search.going -= self._num_going
        self._num_going = 0

    def cancel(self, number: int | None = None) -> bool:
        """Drop what has not ended: of all asks, or of one. False: there is no such one."""
        if number is not None and not 0 <= number < len(self._asks):
            return False
        self._cancelled.add(number)
        for request, (going, _) in self._of.items():
            if number in (None, going.number):
                self._worker.abort(request)
        return True

    async def run(self) -> None:
        ready = []
        for number in range(len(self._asks)):
            try:
                ready.append(await self._prepare(number))
            except Exception as error:
                self._fail(number, error)
        ready = await self._fitting(ready)
        storing = asyncio.create_task(self._store_all())
        try:
            await self._hear(ready)
            self._ended.put_nowait(None)
            await storing
        finally:
            storing.cancel()
            await asyncio.wait({storing})
        session = await self._desk.run(lambda: self._search.store.session(self._search.session))
        usage, cache = self._totals
        self.release()  # whoever hears of the end may ask for as many again
        named = {"session": session.id, "name": session.name}
        self._say(Event("done", {**named, "usage": usage, "cache": cache}))

    # -- before ------------------------------------------------------------------------------------

    async def _prepare(self, number: int) -> Going:
        search, ask, params = self._search, self._asks[number], self._params[number]
        loaded, says = search.loaded, ask.get("says")
        extra = extra_of(search, ask)
        await self._desk.run(lambda: require_free(search, ask.get("names") or ()))
        thinks = search.thinks and says is None
        made = await self._desk.run(
            lambda: prepared(search, ask["at"], ask["text"], extra, thinks=thinks)
        )
        grammar = ask.get("grammar")
        under = None if grammar is None else await self._compiled(grammar, made)
        requests = [
            Request(
                secrets.token_hex(8),
                made.ids,
                params,
                n=num,
                priority=Priority.BACKGROUND,
                first_choice=first,
                namespace=search.namespace(),
                grammar=under,
                jump=search.jump,
            )
            for first, num in self._split(num_answers(ask))
        ]
        splitter = partial(loaded.template.splitter, opened=made.opens_reasoning)
        choices = [
            Heard(NOBODY, index, splitter(), array("I")) for index in range(num_answers(ask))
        ]
        is_ephemeral = search.store is self._desk.ephemeral
        blocks = self._disk.blocks(loaded.model.fingerprint)
        asked = Asked(
            made,
            requests[0],
            loaded.name,
            loaded.dtype,
            loaded.loaded_at,
            search.limit,
            self._asked_at,
            partial(self._disk.excuse, is_ephemeral=is_ephemeral),
            lambda: [] if blocks is None else blocks.spans(made.ids.tobytes()),
        )
        if says is None:
            return Going(number, ask, asked, requests, choices, len(choices))
        ids = await self._desk.run(lambda: [said_ids(search, made, text) for text in says])
        for choice, text, own in zip(choices, says, ids, strict=True):
            give(choice, text, own)
        return Going(number, ask, asked, (), choices, 0)

    def _split(self, num: int) -> list[tuple[int, int]]:
        """First choice and number of each request: the same noise, shared or not."""
        return [(0, num)] if self._search.cache else [(first, 1) for first in range(num)]

    async def _compiled(self, asked: GrammarAsked, made: Prepared) -> Compiled:
        """A model that reasons first may do so freely."""
        search = self._search
        thinks = made.opens_reasoning or search.thinks
        after = search.loaded.template.facts.form.close_mark if thinks else ""
        key = (asked["kind"], asked["source"], str(asked.get("lenient")), after)
        if key not in self._grammars:
            self._grammars[key] = await compiled(search.loaded, asked, self._say, after)
        return self._grammars[key]

    async def _fitting(self, ready: Sequence[Going]) -> list[Going]:
        """Those whose requests the engine will take: one that it refuses is no other's trouble."""
        engine = self._search.loaded.engine

        def check() -> list[RadchatError | None]:
            found: list[RadchatError | None] = []
            for going in ready:
                try:
                    for request in going.requests:
                        engine.check_request(request)
                    found.append(None)
                except RadchatError as error:
                    found.append(error)
            return found

        errors = await self._worker.call(check)
        for going, error in zip(ready, errors, strict=True):
            if error is not None:
                self._fail(going.number, error)
        return [going for going, error in zip(ready, errors, strict=True) if error is None]

    # -- while the engine works --------------------------------------------------------------------

    async def _hear(self, ready: Sequence[Going]) -> None:
        requests: list[Request] = []
        for going in ready:
            if self._cancelled & {None, going.number}:
                self._fail(going.number, Interrupted(GIVEN_UP))
                continue
            if not going.requests:
                self._ended.put_nowait(going)
            for request in going.requests:
                self._of[request.id] = going, request.first_choice
                requests.append(request)
        if requests:
            await hear(self._worker, self._search.loaded.key, requests, self._take)

    def _take(self, event: EngineEvent) -> None:
        going, first = self._of[event.request_id]
        if isinstance(event, Tokens):
            choice = going.choices[first + event.choice]
            words = choice.take(event, time.monotonic())
            self._say_words(going, choice, *words, forced=event.forced)
        elif isinstance(event, Finished):
            choice = going.choices[first + event.choice]
            self._say_words(going, choice, *choice.end(event, 0), forced=False)
            going.spans = going.spans or event.spans
            going.left -= 1
            if not going.left:
                self._ended.put_nowait(going)
            elif choice.reason == FinishReason.ERROR:  # the others are of no use without it
                for request in going.requests:
                    self._worker.abort(request.id)
        elif not isinstance(event, Started) and (told := telling.of_engine(event)) is not None:
            self._say(Event(told.name, {"ask": going.number, **told.data}))

    def _say_words(
        self, going: Going, choice: Heard, reasoning: str, words: str, *, forced: bool
    ) -> None:
        for name, text in (("reasoning", reasoning), ("delta", words)):
            if text:
                body = {"ask": going.number, "choice": choice.index, "text": text}
                self._say(Event(name, {**body, "forced": forced}))

    # -- after -------------------------------------------------------------------------------------

    async def _store_all(self) -> None:
        while (going := await self._ended.get()) is not None:
            try:
                await self._store(going)
            except Exception as error:
                self._fail(going.number, error)

    async def _store(self, going: Going) -> None:
        if (trouble := going.trouble) is not None:
            raise trouble
        asked, search = going.asked, self._search
        under = asked.request.grammar
        if under is not None and under.grammar.kind == "json_schema":
            for choice in going.choices:
                whole = is_whole(choice.finished, asked.request)
                look = partial(judged, under.grammar, choice.text, is_whole=whole)
                choice.judged = await beside(look)
        record = await self._reuse(going)
        user = await self._disk.saving(
            lambda: self._desk.run(
                lambda: save(
                    search,
                    asked,
                    going.choices,
                    going.ask.get("names"),
                    record,
                    is_said=not going.requests,
                )
            )
        )
        self._keep(going)
        body = going.body(user)
        usage, cache = self._totals
        self._totals = sums([usage, body["usage"]]), sums([cache, body["cache"]])
        self._say(Event("answer", body))

    async def _reuse(self, going: Going) -> dict[str, Any] | None:
        """How the prompt was made up, for the record kept with its answers."""
        if not going.requests:
            return None
        ids = going.asked.prepared.ids
        spans = reuse.whole(going.spans, len(ids))
        parts = await reuse.explained(going.asked, lambda asked: reuse.parts_of(asked, spans))
        return reuse.record(ids, spans, parts, self._search.loaded.tokenizer.decode)

    def _keep(self, going: Going) -> None:
        """Have its paths on disk, when the engine is idle, where those without a branch are."""
        search, disk = self._search, self._disk
        is_kept = disk.store is not None and disk.keeps_unnamed and going.requests
        if not is_kept or not search.cache or search.store is not self._desk.stored:
            return
        paths = [
            (kept_name(search.session, choice.id), going.asked.prepared.ids + choice.ids)
            for choice in going.choices
        ]
        self._worker.keep(search.loaded.key, paths)

    def _fail(self, number: int, error: Exception) -> None:
        told = error if isinstance(error, RadchatError) else unexpected("search.ask", error)
        self._say(Event("failed", {"ask": number, "error": told.to_json()}))
