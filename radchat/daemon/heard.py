"""What one sample has said so far: ids, words, reasoning, when, and how it ended."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from radchat.daemon.options import Counts, usage_json
from radchat.daemon.tools import call_id, call_part
from radchat.engine.conversation import ToolCall
from radchat.engine.request import Finished, FinishReason, Ids, Request, TokenLogprob, Tokens
from radchat.errors import Busy, RadchatError
from radchat_sessions.content import Part, reasoning_part, text_part
from radchat_sessions.messages import BegunAnswer

if TYPE_CHECKING:
    from radchat.engine.detokenize import Detokenizer
    from radchat.engine.reasoning import ReasoningSplitter
    from radchat.engine.tool_calls import CallPart, CallSplitter


@dataclass
class Heard:
    """One sample on its way to be a message."""

    begun: BegunAnswer
    index: int  # which of the request's choices
    splitter: ReasoningSplitter
    ids: Ids
    reader: CallSplitter | None = None  # of its calls, where it may have some
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    call_texts: list[str] = field(default_factory=list)  # of each, its arguments as written
    logprobs: list[TokenLogprob] = field(default_factory=list)
    detokenizer: Detokenizer | None = None  # where log probabilities wait for their words
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    finished: Finished | None = None  # what the engine said at its end
    error: str | None = None
    is_cut: bool = False  # by the daemon's end, in the midst of a step
    num_thought: int = 0  # ids spent on reasoning, its marks included
    is_away: bool = False  # in the store, or known to be nothing
    failure: BaseException | None = None  # in the daemon: what its command fails with
    judged: dict[str, Any] = field(default_factory=dict)  # what it is under a schema
    body: dict[str, Any] = field(default_factory=dict)  # as it was told
    _num_unsure: int = 0  # ids of what may become the opening mark
    _call_parts: list[CallPart] = field(default_factory=list)
    _begins: list[int] = field(default_factory=list)  # of each token: characters whole before it
    _whole: int = 0  # characters
    _shown: int = 0  # characters that the engine let through
    _told: int = 0  # log probabilities

    @property
    def id(self) -> str:
        """Of the message it becomes."""
        return self.begun.id

    @property
    def reason(self) -> FinishReason:
        if self.finished is not None:
            return self.finished.reason
        return FinishReason.ABORT if self.is_cut else FinishReason.ERROR

    def take(self, event: Tokens, now: float) -> tuple[str, str]:
        """A step's ids; the new reasoning and the new words."""
        self.first_at = self.first_at or now
        self.last_at = now
        self.ids.extend(event.ids)
        self.logprobs.extend(event.logprobs)
        self._shown += len(event.text)
        if self.detokenizer is not None:
            for token in event.ids:
                self._begins.append(self._whole)
                self._whole += len(self.detokenizer.push(token))
        was_closed = self.splitter.is_closed
        words = self.hear(event.text)
        self._num_unsure += len(event.ids)
        if self.splitter.is_thinking or self.splitter.is_closed > was_closed:
            self.num_thought += self._num_unsure
        if not self.splitter.is_unsure:
            self._num_unsure = 0
        return words

    def hear(self, text: str) -> tuple[str, str]:
        reasoning, content = self.splitter.push(text)
        return self._keep(reasoning, content)

    def end(self, event: Finished, said: int) -> tuple[str, str]:
        """The last words; what is kept of the ids is what the engine says, after ``said``."""
        self.finished, self.error = event, event.error
        self.ended_at = time.monotonic()
        del self.ids[said + event.kept :]
        del self.logprobs[event.kept :]
        reasoning, content = self.splitter.push(event.text)
        more_reasoning, more_content = self.splitter.flush()
        words = self._keep(reasoning + more_reasoning, content + more_content)
        if self.reader is None:
            return words
        last = self.reader.flush()
        self.text += last
        return words[0], words[1] + last

    def take_logprobs(self) -> list[TokenLogprob]:
        """Those not told yet of tokens whose words were shown: what a stop string may still take
        away waits, and is told at the end or never.
        """
        end = len(self.logprobs)
        if self.detokenizer is not None and self.finished is None:
            end = bisect_left(self._begins, self._shown)
        told, self._told = self.logprobs[self._told : end], max(self._told, end)
        return told

    def take_call_parts(self) -> list[CallPart]:
        """With ids, each in its call's first part."""
        parts, self._call_parts = self._call_parts, []
        return parts

    def fail(self, error: BaseException) -> None:
        """It ends here, because of something in the daemon; whose words may be the user's."""
        self.failure = error
        if self.finished is not None:
            return
        self.is_cut = isinstance(error, Busy)
        if not self.is_cut:
            self.error = error.message if isinstance(error, RadchatError) else type(error).__name__
        self.ended_at = self.ended_at or time.monotonic()

    @property
    def trouble(self) -> BaseException | None:
        """Why there is no answer, or none that may count as one."""
        if self.failure is None and self.reason == FinishReason.ERROR:
            return RadchatError(self.error or "the engine could not go on with this answer")
        return self.failure

    @property
    def call_error(self) -> str | None:
        """Of an answer that ends in what should have been a call."""
        return None if self.reader is None else self.reader.error

    def _keep(self, reasoning: str, content: str) -> tuple[str, str]:
        """The words among what came; the calls among it are put by."""
        if self.reader is not None:
            content, calls = self.reader.push(content)
            for call in calls:
                made = call.id or call_id(self.id, len(self.calls))
                self.calls.append(ToolCall(made, call.name, call.arguments))
                self.call_texts.append(call.text)
            self._call_parts += [
                replace(part, id=part.id or call_id(self.id, part.index))
                for part in self.reader.take_parts()
            ]
        self.reasoning += reasoning
        self.text += content
        return reasoning, content

    @property
    def parts(self) -> list[Part]:
        thought = [reasoning_part(self.reasoning)] if self.reasoning else []
        rest = "" if self.reader is None else self.reader.rest
        calls = [call_part(call) for call in self.calls]
        return [*thought, text_part(self.text + rest), *calls]

    @property
    def counts(self) -> tuple[Counts | None, Counts | None]:
        """Usage and tiers as they are told; None before the engine has said them."""
        if self.finished is None:
            return None, None
        usage, tiers = usage_json(self.finished.usage)
        return {**usage, "reasoning_tokens": self.num_thought}, tiers

    def timing(self, asked_at: float) -> dict[str, float | None]:
        """Seconds since the command came in, and tokens a second after the first: of an answer in
        which anything was drawn, for one that was forced has no speed.
        """
        rate = None
        usage = None if self.finished is None else self.finished.usage
        num = 0 if usage is None else usage.output_tokens
        is_drawn = usage is not None and num - usage.forced_tokens > 1
        if self.first_at is not None and self.last_at is not None and is_drawn:
            spent = self.last_at - self.first_at
            rate = (num - 1) / spent if spent > 0 else None
        return {
            "first_token_s": None if self.first_at is None else self.first_at - asked_at,
            "total_s": None if self.ended_at is None else self.ended_at - asked_at,
            "tokens_per_s": rate,
        }


def paths_of(request: Request, answers: Iterable[Heard], *, unnamed: bool) -> list[tuple[str, Ids]]:
    """What was read and said on the branches of a turn, by their names; ``unnamed``: of every
    answer, by its id, so that it is kept when its branch moves on. Only of what was put away.
    """
    prompt = request.ids[: len(request.ids) - request.said]
    found = []
    for each in answers:
        name = each.id if unnamed else each.body.get("branch")
        if each.body.get("message") is not None and name is not None:
            found.append((str(name), prompt + each.ids))
    return found
