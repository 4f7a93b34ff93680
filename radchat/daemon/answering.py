"""One generating command, from its words to the requests that the engine is given.

``Answer`` runs as a task of its own: a client that goes away cancels the requests, never the
bookkeeping, so the partial messages are always kept. Until ``has_begun`` nothing was done that the
client could not ask for again; from then on ``together.py`` sees the answers to their end.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from radchat.daemon import beginning, options, turns
from radchat.daemon.arguments import Generate
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import kept_name
from radchat.daemon.disk_paths import Ranges
from radchat.daemon.engines import Engines
from radchat.daemon.finding import find_place, find_session, located, require_key
from radchat.daemon.fullness import Filled, crossing
from radchat.daemon.grammar_asked import of_answer
from radchat.daemon.heard import paths_of
from radchat.daemon.loaded import Loaded
from radchat.daemon.past import as_messages
from radchat.daemon.prepared import Prepared, prepare
from radchat.daemon.remote.engine import RemoteEngine
from radchat.daemon.reuse import (
    WORTH_SAYING,
    Part,
    about,
    about_s,
    computed_again,
    explained,
    foreseen,
    parts_of,
)
from radchat.daemon.together import Together
from radchat.daemon.what_if import USUAL, is_many, naming, plans_of
from radchat.daemon.worker import Worker
from radchat.engine.request import Ids, Request, Span, Tiers
from radchat.errors import ContextOverflow, InvalidInput, NotFound, context_overflow
from radchat.models.registry import ModelEntry
from radchat.protocol import Event
from radchat_sessions.errors import Ambiguous
from radchat_sessions.kv_store import KVFolder
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.engine.grammars import Compiled


class Answer:
    """``say`` takes the events for the client; nobody may be listening any more."""

    def __init__(
        self,
        ask: Generate,
        desk: Desk,
        engines: Engines,
        worker: Worker,
        say: Callable[[Event], None],
    ) -> None:
        self.ask = ask
        self.id = ask.request or secrets.token_hex(8)
        self.has_begun = False  # from before the store is told: what may have begun has begun
        self._desk, self._engines, self._worker, self._say = desk, engines, worker, say
        self._store: Store = desk.ephemeral if ask.ephemeral else desk.stored
        self._asked_at = time.monotonic()
        self._made: str | None = None  # the session this command made
        self._messages: dict[int, list[dict[str, Any]]] = {}  # for an engine that takes no ids
        self._together: Together | None = None
        self._cancelled = False
        self._is_last_chance = False

    def cancel(self) -> bool:
        """End all answers at their next step. True: nothing has begun, so its task is to be
        cancelled (told once: what the task then puts away is not to be cut short).
        """
        again, self._cancelled = self._cancelled, True
        if self._together is not None:
            self._together.cancel()
        return not self.has_begun and not again

    def cancel_one(self, choice: int) -> bool:
        """End this answer and no other. False: it is not one that goes on."""
        return self._together is not None and self._together.cancel(choice)

    def last_chance(self) -> None:
        """The daemon ends: what can't be saved now is left to the running file."""
        self._is_last_chance = True
        if self._together is not None:
            self._together.last_chance.set()

    async def run(self) -> None:
        model = await self._desk.run(self._find)
        if self._store is self._desk.stored and (told := self._engines.disk.tell_once()):
            self._say(told)
        entry = await self._engines.choose(self.ask.model, model)
        together = await self._hear(entry)
        await together.put_away()

    async def _hear(self, entry: ModelEntry) -> Together:
        """All that needs the engine; it may go when this returns."""
        async with self._engines.using(entry, self.ask.dtype, self._say) as loaded:
            try:
                asked = await self._prepare(loaded)
                await self._check(asked, loaded)
                self.has_begun = True
                begun = await self._engines.disk.saving(
                    lambda: self._desk.run(lambda: beginning.begin(self._store, self.ask, asked))
                )
            except BaseException:
                await self._desk.run(self._forget)
                raise
            disk = self._engines.disk
            together = Together(
                self.id,
                asked,
                begun,
                loaded,
                self._store,
                self._desk,
                self._worker,
                disk,
                self._say,
            )
            self._together = together
            if self._cancelled:
                together.cancel()
            if self._is_last_chance:
                together.last_chance.set()
            await together.hear(loaded)
            self._keep(together, loaded)
            return together

    def _keep(self, together: Together, loaded: Loaded) -> None:
        """Have the paths of this command's branches on disk, when the engine is idle."""
        disk = self._engines.disk
        if disk.store is None or self._store is not self._desk.stored or self.ask.key:
            return
        for each in together.requests:
            paths = paths_of(each.asked.request, each.choices, unnamed=disk.keeps_unnamed)
            named = [(kept_name(together.session, name), ids) for name, ids in paths]
            self._worker.keep(loaded.key, named)

    # -- before --------------------------------------------------------------------------------

    def _find(self) -> str | None:
        """Which session is meant, once and for all; the model it talks with."""
        try:
            self._store, ask = located(self._desk, self.ask)
            if ask.new_session:
                return None
            session = find_session(self._store, ask.session, ask.where)
        except Ambiguous as error:
            if self.ask.key:  # what it might mean may be another's
                raise NotFound(f"no session {self.ask.session}") from error
            raise
        require_key(session, ask)
        self.ask = replace(ask, session=session.id)
        return session.model

    async def _prepare(self, loaded: Loaded) -> list[Asked]:
        think = self.ask.think or (
            "off" if self.ask.grammar is not None or self.ask.tools else None
        )
        switches, about = options.switches(loaded, think)
        if about is not None and self.ask.think:
            self._say(Event("notice", {"text": about, "code": "think"}))

        usual = USUAL if is_many(self.ask) else {}
        given = self._engines.given(loaded, self.ask.options, usual)
        limit = options.context_limit(loaded, given)
        self.ask = replace(self.ask, default_system=loaded.model.system)

        def work() -> list[Prepared]:
            place = find_place(self._store, self.ask)
            if self.ask.new_session:
                self._made = place.session.id
            found = []
            for index, plan in enumerate(plans_of(self._store, place, self.ask)):
                with naming(self.ask, index):
                    prepared = self._prepared(plan, loaded, switches, limit)
                found.append(prepared)
                if loaded.is_remote and plan.cut is None:
                    self._messages[index] = as_messages(self._store.path(plan.parent), plan.new)
            return found

        prepared = await self._desk.run(work)
        num_ctx = given.get("num_ctx")
        if num_ctx is not None and num_ctx > limit:
            text = f"a context of {num_ctx:,} was asked for: {loaded.name} has {limit:,} here"
            self._say(Event("notice", {"text": text, "code": "context", "limit": limit}))
        if made_up := prepared[0].plan.made_up:
            text = f"no result of {', '.join(made_up)}: it counts as interrupted"
            self._say(Event("notice", {"text": text, "code": "interrupted"}))
        compiled = await of_answer(self.ask, prepared[0], loaded, self._say)
        return self._asked(prepared, loaded, given, limit, compiled)

    def _prepared(
        self, plan: turns.Plan, loaded: Loaded, switches: dict[str, Any], limit: int
    ) -> Prepared:
        """On the desk. ContextOverflow where no room is left for an answer."""
        try:
            tools = self.ask.tools if self.ask.tools or self.ask.all_told else None
            prepared = prepare(self._store, plan, loaded, switches, limit, tools=tools)
            if len(prepared.ids) >= limit:
                raise context_overflow(len(prepared.ids), limit)
        except ContextOverflow as error:
            if "prompt_tokens" not in error.data or loaded.context_length <= limit:
                raise
            raise context_overflow(**error.data, most=loaded.context_length) from error
        return prepared

    def _forget(self) -> None:
        """A command that says nothing in the session it made leaves none behind."""
        made = self._made
        if made is not None and not self._store.message_ids(made):
            self._store.remove(made)

    def _asked(
        self,
        prepared: Sequence[Prepared],
        loaded: Loaded,
        given: Mapping[str, Any],
        limit: int,
        compiled: Compiled | None,
    ) -> list[Asked]:
        """A request for each; of several, each draws with the seed after the one before."""
        seed = given.get("seed")
        seed = secrets.randbits(32) if seed is None else seed
        _check_seeds(seed, len(prepared))
        disk = self._engines.disk
        is_here = not (self.ask.key or loaded.is_remote)
        blocks = disk.blocks(loaded.model.fingerprint) if is_here else None
        excuse = partial(disk.excuse, is_ephemeral=self._store is not self._desk.stored)
        asked = []
        for number, each in enumerate(prepared):
            request = self._request(number, each, loaded, {**given, "seed": seed + number}, limit)
            request.grammar = compiled
            if loaded.is_remote:
                request.messages = self._messages.get(number, ())
            asked.append(
                Asked(
                    each,
                    request,
                    loaded.name,
                    loaded.dtype,
                    loaded.loaded_at,
                    limit,
                    self._asked_at,
                    excuse,
                    partial(_on_disk, blocks, request.ids),
                    self.ask.call_parts,
                    number * self.ask.n,
                )
            )
        return asked

    def _request(
        self,
        number: int,
        prepared: Prepared,
        loaded: Loaded,
        given: Mapping[str, Any],
        limit: int,
    ) -> Request:
        room, most = limit - len(prepared.ids), given.get("max_tokens")
        if given.get("num_ctx") is not None:
            most = room if most is None else min(most, room)
        return Request(
            f"{self.id}.{number}" if number else self.id,
            array("I", prepared.ids),
            options.sampling_params(given, loaded, most),
            n=self.ask.n,
            namespace=self.ask.namespace,
            said=len(prepared.said),
            jump=self.ask.jump,
        )

    async def _check(self, asked: Sequence[Asked], loaded: Loaded) -> None:
        """Refuse what could never run, and tell what will be restored, or computed again: once, as
        what several requests have of it they have in common.
        """
        engine, first = loaded.engine, asked[0]
        if isinstance(engine, RemoteEngine):
            await self._check_remote(asked, engine)
            return
        num = len(first.request.ids)

        def check() -> Tiers:
            for index, each in enumerate(asked):
                with naming(self.ask, index):
                    engine.check_request(each.request)
            if self.ask.namespace:  # nothing of it is ever on disk
                return Tiers(engine.probe(first.request.ids, self.ask.namespace), 0)
            return engine.probe_tiers(first.request.ids)

        def look(asked: Asked) -> tuple[list[Span], list[Part]]:
            spans = foreseen(num, tiers.device, tiers.disk, asked.on_disk() if tiers.disk else [])
            return spans, parts_of(asked, spans)

        tiers = await self._worker.call(check)
        spans, parts = await explained(first, look)
        disk = sum(span.end - span.start for span in spans if span.tier == "disk")
        if disk > WORTH_SAYING:
            text = f"{num:,} tokens: {disk:,} on disk{about(engine.load_seconds(disk))}"
            self._say(Event("notice", {"text": text, "code": "restore", "tokens": disk}))
        again, most = computed_again(parts)
        if most is not None and again > WORTH_SAYING:
            cost = about_s(again, engine.prompt_cost)
            text = f"this recomputes {again:,} tokens{cost}: {most.why}"
            self._say(Event("notice", {"text": text, "code": "recompute", "tokens": again}))
        longest = max(len(each.request.ids) for each in asked)
        for event in crossing(first.prepared.before, Filled(longest, first.limit)):
            self._say(event)

    async def _check_remote(self, asked: Sequence[Asked], engine: RemoteEngine) -> None:
        """What its server has of it is not known before it answers."""

        def check() -> list[str]:
            for index, each in enumerate(asked):
                with naming(self.ask, index):
                    engine.check_request(each.request)
            return engine.remarks(asked[0].request)

        for text in await self._worker.call(check):
            self._say(Event("notice", {"text": text, "code": "remote"}))
        longest = max(len(each.request.ids) for each in asked)
        for event in crossing(asked[0].prepared.before, Filled(longest, asked[0].limit)):
            self._say(event)


def _check_seeds(first: int, num: int) -> None:
    """Each alone is the engine's to check; that the last is one too is said of what was given."""
    last = 2**64 - num
    if last < first < 2**64:
        raise InvalidInput(
            f"seed: {num} texts draw with it and those after it: want at most {last} (got {first})",
            field="seed",
        )


def _on_disk(blocks: KVFolder | None, ids: Ids) -> Ranges:
    return [] if blocks is None else blocks.spans(ids.tobytes())
