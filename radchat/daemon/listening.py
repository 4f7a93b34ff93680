"""From begun answers to their messages: what the engine says of a request is heard, saved, told.

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

from radchat.daemon import ending, reuse, telling
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import Disk
from radchat.daemon.grammar_asked import calls_of, is_whole, judged
from radchat.daemon.handing import Sink, beside
from radchat.daemon.heard import Heard
from radchat.daemon.loaded import Loaded
from radchat.daemon.options import logprob_json
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
    """One request: one sample, or n. ``hear`` needs the engine, ``put_away`` does not. What is told
    of a choice has its number among all of the command (``Asked.first``).
    """

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
        told: set[str],
    ) -> None:
        """``told``: codes of what is said once in a command, whichever of its requests it is of."""
        self.asked, self.begun = asked, begun
        self._store, self._desk, self._worker, self._say = store, desk, worker, say
        self._disk, self._decode = disk, loaded.tokenizer.decode
        self._inbox = worker.inbox()
        prepared, template = asked.prepared, loaded.template
        self._telling = Telling(asked, begun)
        self.choices = [
            Heard(
                begun_answer,
                index,
                template.splitter(opened=prepared.opens_reasoning),
                array("I", prepared.said),
                calls_of(asked.request.grammar),
            )
            for index, begun_answer in enumerate(begun.answers)
        ]
        params = asked.request.params
        if params.logprobs is not None and params.stop:
            for choice in self.choices:
                choice.detokenizer = loaded.tokenizer.detokenizer(after=prepared.said)
        self.started_at: float | None = None  # when the engine admitted it
        self.spans: Sequence[engine.Span] = ()  # of the prompt, as far as it was read
        self.cost: PromptCost | None = None  # of prompts, as the engine has measured
        self.why: reuse.Part | None = None  # of how the prompt was made up, what is worth a reason
        self._reuse: dict[str, Any] | None = None  # and all of it
        self._told_calls = [0] * len(begun.answers)  # calls of each choice that were told
        self._promised = 0  # tokens that were told to be on disk
        self._left = 0  # choices the engine has not ended yet
        self._cancelled: set[int | None] = set()  # None: all
        self._is_warned = False  # that words are not in the running file yet
        self._told = told

    def cancel(self, choice: int | None = None) -> None:
        self._cancelled.add(choice)
        if self._left:
            self._worker.abort(self.asked.request.id, choice)

    # -- while the engine works --------------------------------------------------------------------

    async def open(self, loaded: Loaded) -> None:
        """Before the request is submitted."""
        prepared = self.asked.prepared
        if prepared.plan.cut is not None:  # continue: the words so far belong to the answer
            detokenizer = loaded.tokenizer.detokenizer()  # half a character is no word
            first = self.choices[0]
            first.hear("".join(detokenizer.push(token) for token in prepared.said))
            said = list(prepared.said)
            await self._append(lambda: self._store.append_ids(first.id, said, first.text))

    def submitting(self) -> tuple[engine.Request, Sink]:
        """What the engine is now given."""
        self._left = len(self.choices)
        return self.asked.request, self._inbox.put_nowait

    def submitted(self) -> None:
        """The engine has it, and is told what was cancelled before."""
        for choice in self._cancelled:
            self._worker.abort(self.asked.request.id, choice)

    def refused(self) -> None:
        """No event will come."""
        self._left = 0

    async def hear(self, loaded: Loaded) -> None:
        """All events of the request. Never raises: an error waits until all is put away."""
        try:
            while self._left:
                await self._take(await self._inbox.batch())
            self.cost = loaded.engine.prompt_cost
        except BaseException as error:
            await self.fail(error)

    async def fail(self, error: BaseException) -> None:
        """End the request, and wait until the engine has let go of it, or we of the engine."""
        for choice in self.choices:
            if not choice.is_away:
                choice.fail(error)
        if self._left:
            self._worker.abort(self.asked.request.id)
        with contextlib.suppress(Busy):
            while self._left:
                self._left -= isinstance(await self._inbox.get(), engine.Finished)

    def say_branch(self, placed: Placed | None) -> None:
        if placed is not None and placed.moved_on:
            self._say(telling.branched(placed))

    async def _take(self, batch: list[engine.Event]) -> None:
        """Save the new words with their ids; then tell everything, in order."""
        now = time.monotonic()
        words = {
            place: self.choices[event.choice].take(event, now)
            for place, event in enumerate(batch)
            if isinstance(event, engine.Tokens)
        }
        if words:
            await self._append(lambda: self._append_words(batch, words))
        for place, event in enumerate(batch):
            if isinstance(event, engine.Tokens):
                self._say_words(event.choice, *words[place], forced=event.forced)
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
            answer = self.choices[event.choice].id
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

    def _say_words(
        self, choice: int, reasoning: str, content: str, *, forced: bool = False
    ) -> None:
        number, said = self.asked.first + choice, self.choices[choice].ids
        tokens = len(said) - self.asked.request.said
        for name, text in (("reasoning", reasoning), ("delta", content)):
            if text:
                body = {"choice": number, "text": text, "tokens": tokens}
                self._say(Event(name, {**body, "forced": True} if forced else body))
        self._say_logprobs(choice)
        self._say_calls(choice)

    def _say_logprobs(self, choice: int) -> None:
        """Where they were asked for; of each token once, when its words are or may be told."""
        told = self.choices[choice].take_logprobs()
        if told:
            body = {"choice": self.asked.first + choice, "logprobs": [*map(logprob_json, told)]}
            self._say(Event("logprobs", body))

    def _say_calls(self, choice: int) -> None:
        """Those that have become whole; and what is written of them, where that is wanted."""
        for part in self.choices[choice].take_call_parts() if self.asked.call_parts else ():
            body = {"choice": self.asked.first + choice, "index": part.index, "text": part.text}
            first = {} if part.name is None else {"id": part.id, "name": part.name}
            self._say(Event("call_part", {**body, **first}))
        calls, told = self.choices[choice].calls, self._told_calls[choice]
        for index, call in enumerate(calls[told:], told):
            body = {"choice": self.asked.first + choice, "index": index, "id": call.id}
            self._say(Event("call", {**body, "name": call.name, "arguments": call.arguments}))
        self._told_calls[choice] = len(calls)

    def _pass_on(self, event: engine.Event) -> None:
        if isinstance(event, engine.Started):
            self.started_at, self._promised = time.monotonic(), event.disk_tokens
        told = telling.of_engine(event)
        if told is not None:
            self._say(Event(told.name, {**told.data, "choice": self.asked.first}))

    async def _finish(self, event: engine.Finished) -> None:
        choice = self.choices[event.choice]
        self._say_words(event.choice, *choice.end(event, self.asked.request.said))
        if self.started_at is not None:
            ids, self.spans = self.asked.request.ids, event.spans
            spans = reuse.whole(event.spans, len(ids))
            parts = await reuse.explained(self.asked, lambda asked: reuse.parts_of(asked, spans))
            self._reuse = reuse.record(ids, spans, parts, self._decode)
            self.why = reuse.worth_telling(parts)
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

    async def put_away(self, last_chance: asyncio.Event) -> None:
        """Every answer becomes a message, however long the disk takes. What can't be saved after
        ``last_chance`` is left to the running file.
        """
        while True:
            is_last = last_chance.is_set()
            for choice in self.choices:
                if not choice.is_away:
                    await self._save_or_leave(choice)
            if all(choice.is_away for choice in self.choices) or is_last:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(last_chance.wait(), SAVE_AGAIN_S)
        for choice in self.choices:
            if not choice.is_away:
                choice.failure = choice.failure or RadchatError(
                    "the answer is not saved: the next daemon finds it where it ran"
                )

    async def _save_or_leave(self, choice: Heard) -> None:
        try:
            await self._save(choice)
        except Exception as error:
            log.exception("answer %s stays in its running file", choice.id[:8])
            choice.failure = choice.failure or error
            choice.is_away = True
            choice.body = self._telling.answer(choice, None)
            self._say(Event("message", choice.body))

    def _end(self, choice: Heard) -> Ended | None:
        """On the desk. May be called again."""
        return ending.end(self._store, self.asked, self.begun, choice, self._reuse)

    async def _save(self, choice: Heard) -> None:
        """As a message, and tell it. A full disk costs a line and time, not the answer."""
        if (under := self.asked.request.grammar) is not None and not choice.judged:
            text, whole = choice.text, is_whole(choice.finished, self.asked.request)
            choice.judged = await beside(lambda: judged(under.grammar, text, is_whole=whole))
        try:
            ended = await self._disk.saving(lambda: self._desk.run(lambda: self._end(choice)))
        except RadchatError as error:
            if not isinstance(error.__cause__, SaveFailed):
                raise
            if "not_saved" not in self._told:
                text = f"the answer is not saved yet: {error.message}"
                self._say(Event("notice", {"text": text, "code": "not_saved"}))
                self._told.add("not_saved")
            return
        choice.is_away = True
        placed = None if ended is None else ended.placed
        self.say_branch(placed)
        choice.body = self._telling.answer(choice, ended)
        self._say(Event("message", choice.body))
