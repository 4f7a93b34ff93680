"""From a begun answer to its message: what the engine says is heard, saved, then told.

Each step's ids are in the running file before a word of them is sent. Whatever goes wrong, every
answer that was begun ends here: as a message, or as nothing where nothing was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radchat.daemon import reuse, telling
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import Disk
from radchat.daemon.fullness import Filled, crossing
from radchat.daemon.heard import Heard
from radchat.daemon.loaded import Loaded
from radchat.daemon.telling import Telling
from radchat.daemon.worker import Worker
from radchat.engine import request as engine
from radchat.engine.meters import PromptCost
from radchat.engine.request import FinishReason
from radchat.errors import Busy, RadchatError
from radchat.protocol import Event
from radchat_sessions.errors import SaveFailed
from radchat_sessions.messages import Begun, Ended, Placed
from radchat_sessions.store import Store

log = logging.getLogger(__name__)

SAVE_AGAIN_S = 2.0


class Listening:
    """One request: one sample, or n. ``hear`` needs the engine, ``put_away`` does not."""

    def __init__(
        self,
        asked: Asked,
        begun: Begun,
        loaded: Loaded,
        store: Store,
        desk: Desk,
        worker: Worker,
        disk: Disk,
        say: Callable[[Event], None],
    ) -> None:
        self._asked, self._begun = asked, begun
        self._store, self._desk, self._worker, self._say = store, desk, worker, say
        self._disk, self._decode = disk, loaded.tokenizer.decode
        self._inbox = worker.inbox()
        prepared, template = asked.prepared, loaded.template
        self._telling = Telling(asked, begun)
        self._choices = [
            Heard(
                begun_answer,
                index,
                template.splitter(opened=prepared.opens_reasoning),
                array("I", prepared.said),
            )
            for index, begun_answer in enumerate(begun.answers)
        ]
        self._is_admitted, self._promised = False, 0  # tokens that were told to be on disk
        self._reuse: dict[str, Any] | None = None  # how the prompt was made up; if admitted
        self._why: reuse.Part | None = None  # of that, what is worth a reason
        self._cost: PromptCost | None = None  # of prompts, as the engine has measured
        self._left = 0  # choices the engine has not ended yet
        self._submitted = False
        self._cancelled = False
        self._is_warned = False  # that words are not in the running file yet
        self._told_unsaved = False
        self._error: BaseException | None = None
        self.last_chance = asyncio.Event()  # what can't be saved after it is left to the file

    def cancel(self) -> None:
        self._cancelled = True
        if self._submitted:
            self._worker.abort(self._asked.request.id)

    @property
    def said(self) -> tuple[str, engine.Request, Sequence[Heard]]:
        """In which session, to what, and the answers."""
        return self._begun.session, self._asked.request, self._choices

    # -- while the engine works --------------------------------------------------------------------

    async def hear(self, loaded: Loaded) -> None:
        """All events of the request. Never raises: an error waits until all is put away."""
        try:
            await self._submit(loaded)
            while self._left:
                await self._take(await self._inbox.batch())
            self._cost = loaded.engine.prompt_cost
        except BaseException as error:
            self._error = error
            await self._give_up()

    async def _submit(self, loaded: Loaded) -> None:
        request, prepared = self._asked.request, self._asked.prepared
        if prepared.plan.cut is not None:  # continue: the words so far belong to the answer
            detokenizer = loaded.tokenizer.detokenizer()  # half a character is no word
            first = self._choices[0]
            first.hear("".join(detokenizer.push(token) for token in prepared.said))
            said = list(prepared.said)
            await self._append(lambda: self._store.append_ids(first.id, said, first.text))
        session = await self._desk.run(lambda: self._store.session(self._begun.session))
        self._say(self._telling.init(session, loaded.context_length))
        self._say_branch(self._begun.answers[0].placed)
        self._submitted, self._left = True, len(self._choices)
        try:
            await self._worker.submit(loaded.key, request, self._inbox.put_nowait)
        except Exception:
            self._left = 0  # refused: no event will come
            raise
        if self._cancelled:
            self._worker.abort(request.id)

    async def _give_up(self) -> None:
        """End the request, and wait until the engine has let go of it, or we of the engine."""
        if self._left:
            self._worker.abort(self._asked.request.id)
        with contextlib.suppress(Busy):
            while self._left:
                self._left -= isinstance(await self._inbox.get(), engine.Finished)

    def _say_branch(self, placed: Placed | None) -> None:
        if placed is not None and placed.moved_on:
            self._say(telling.branched(placed))

    async def _take(self, batch: list[engine.Event]) -> None:
        """Save the new words with their ids; then tell everything, in order."""
        now = time.monotonic()
        words = {
            place: self._choices[event.choice].take(event, now)
            for place, event in enumerate(batch)
            if isinstance(event, engine.Tokens)
        }
        if words:
            await self._append(lambda: self._append_words(batch, words))
        for place, event in enumerate(batch):
            if isinstance(event, engine.Tokens):
                self._say_words(event.choice, *words[place])
            elif isinstance(event, engine.Finished):
                self._left -= 1
                await self._finish(event)
            else:
                self._pass_on(event)

    def _append_words(
        self, batch: list[engine.Event], words: Mapping[int, tuple[str, str]]
    ) -> None:
        for place, (reasoning, content) in words.items():
            event = batch[place]
            assert isinstance(event, engine.Tokens)
            answer = self._choices[event.choice].id
            kind, text = ("reasoning", reasoning) if reasoning else ("text", content)
            self._store.append_ids(answer, event.ids, text, kind)
            if reasoning and content:
                self._store.append_ids(answer, (), content)

    async def _append(self, work: Callable[[], None]) -> None:
        """What can't be written to the running file now is written with the next words."""
        try:
            await self._desk.run(work)
        except RadchatError as error:
            if not self._is_warned:
                log.warning("the running file could not be written: %s", error.message)
            self._is_warned = True

    def _say_words(self, choice: int, reasoning: str, content: str) -> None:
        if reasoning:
            self._say(Event("reasoning", {"choice": choice, "text": reasoning}))
        if content:
            self._say(Event("delta", {"choice": choice, "text": content}))

    def _pass_on(self, event: engine.Event) -> None:
        if isinstance(event, engine.Started):
            self._is_admitted, self._promised = True, event.disk_tokens
        told = telling.of_engine(event)
        if told is not None:
            self._say(told)

    async def _finish(self, event: engine.Finished) -> None:
        choice = self._choices[event.choice]
        self._say_words(event.choice, *choice.end(event, self._asked.request.said))
        if self._is_admitted:
            ids = self._asked.request.ids
            spans = reuse.whole(event.spans, len(ids))
            parts = await reuse.explained(self._asked, lambda asked: reuse.parts_of(asked, spans))
            self._reuse = reuse.record(ids, spans, parts, self._decode)
            self._why = reuse.worth_telling(parts)
        self._say_unread(event)
        if event.error and event.reason != FinishReason.ERROR:
            self._say(Event("notice", {"text": event.error, "code": "ended"}))
        await self._save(choice)

    def _say_unread(self, event: engine.Finished) -> None:
        """What was told to be on disk and could not be read was computed: once, where it counts."""
        lost, self._promised = self._promised - event.usage.disk, 0
        if event.reason != FinishReason.ABORT and lost > reuse.WORTH_SAYING:
            text = f"{lost:,} tokens on disk could not be read: they were computed again"
            self._say(Event("notice", {"text": text, "code": "recompute", "tokens": lost}))

    # -- after -------------------------------------------------------------------------------------

    async def put_away(self) -> None:
        """Every answer becomes a message, however long the disk takes; then the end is told."""
        while True:
            is_last = self.last_chance.is_set()
            for choice in self._choices:
                if not choice.is_away:
                    await self._save_or_leave(choice)
            if all(choice.is_away for choice in self._choices) or is_last:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.last_chance.wait(), SAVE_AGAIN_S)
        if self._error is not None:
            raise self._error
        self._raise_failure()
        session = await self._desk.run(lambda: self._store.session(self._begun.session))
        bodies = [choice.body for choice in self._choices]
        done = self._telling.done(session, bodies, self._cost, self._why)
        now = Filled(**done["context"])
        for event in crossing(Filled(len(self._asked.request.ids), now.limit), now):
            self._say(event)
        self._say(Event("done", done))

    def _raise_failure(self) -> None:
        for choice in self._choices:
            if not choice.is_away:
                raise RadchatError("the answer is not saved: the next daemon finds it where it ran")
            if choice.reason == FinishReason.ERROR:
                reason = choice.error or "the engine could not go on with this answer"
                raise RadchatError(reason)

    async def _save_or_leave(self, choice: Heard) -> None:
        try:
            await self._save(choice)
        except Exception as error:
            log.exception("answer %s stays in its running file", choice.id[:8])
            self._error = self._error or error
            choice.is_away = True

    async def _save(self, choice: Heard) -> None:
        """As a message, and tell it. A full disk costs a line and time, not the answer."""
        if self._error is not None and choice.finished is None:
            choice.fail(self._error)
        try:
            ended = await self._disk.saving(lambda: self._desk.run(lambda: self._end(choice)))
        except RadchatError as error:
            if not isinstance(error.__cause__, SaveFailed):
                raise
            if not self._told_unsaved:
                text = f"the answer is not saved yet: {error.message}"
                self._say(Event("notice", {"text": text, "code": "not_saved"}))
                self._told_unsaved = True
            return
        choice.is_away = True
        placed = None if ended is None else ended.placed
        self._say_branch(placed)
        choice.body = self._telling.answer(choice, ended)
        self._say(Event("message", choice.body))

    def _end(self, choice: Heard) -> Ended | None:
        """On the desk. An answer of which nothing came is none. May be called again."""
        reason = choice.reason
        if len(choice.ids) == self._asked.request.said and reason in ("abort", "error"):
            if self._store.find_running(choice.id) is not None:
                self._store.abandon(choice.id)
            self._take_back_branch(choice)
            return None
        counts, cache = choice.counts
        usage = None if counts is None else {**counts, "cache": cache, "reuse": self._reuse}
        extra: dict[str, Any] = {"context": self._asked.limit}
        return self._store.finish(
            choice.id,
            ids=choice.ids,
            parts=choice.parts,
            finish_reason=reason.value,
            usage=usage,
            timing=choice.timing(self._asked.asked_at),
            stopped=choice.finished is not None and choice.finished.stopped,
            holds=choice.reasoning or None,
            extra=extra | ({"error": choice.error} if choice.error else {}),
        )

    def _take_back_branch(self, choice: Heard) -> None:
        """A branch made for an answer that never came, unless it is where the new message is."""
        placed, store = choice.begun.placed, self._store
        is_first = choice.index == 0
        if placed is None or not placed.made or (is_first and self._begun.messages):
            return
        session, place = self._begun.session, self._asked.prepared.plan.place
        branch = store.find_branch(session, placed.branch)
        if branch is None or branch.message != self._telling.parent:
            return  # somebody went on from it
        if branch.is_head:
            before = None if place.branch is None else store.find_branch(session, place.branch)
            store.move_head(
                session,
                branch=None if before is None else before.name,
                message=place.message,
            )
        store.delete_branch(session, placed.branch)
