"""What an open program asks of the engine: generations, scores, and having ids cached."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radchat.daemon import options, telling
from radchat.daemon.grammar_asked import is_whole, judged
from radchat.daemon.program_states import State, Taken
from radchat.engine.request import Event as EngineEvent
from radchat.engine.request import (
    Finished,
    FinishReason,
    Ids,
    Priority,
    Request,
    SamplingParams,
    TokenLogprob,
    Tokens,
    Usage,
)
from radchat.errors import RadchatError
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.daemon.worker import Worker
    from radchat.engine.reasoning import ReasoningSplitter

Say = Callable[[Event], None]
SUMMED = ("input_tokens", "cached_tokens", "output_tokens", "device", "host", "disk", "computed")


async def hear(
    worker: Worker,
    key: str,
    requests: Sequence[Request],
    say: Callable[[EngineEvent], None],
    cancelled: Iterable[int | None] = (),
) -> None:
    """Run requests to their end; whoever is cancelled here has them ended. ``cancelled``: choices
    that were, before the engine had them.
    """
    inbox = worker.inbox()
    going = {request.id for request in requests}
    try:
        await worker.submit_all(key, [(request, inbox.put_nowait) for request in requests])
    except asyncio.CancelledError:
        for each in going:
            worker.abort(each)  # they may have got there
        raise
    try:
        for choice in cancelled:
            for each in going:
                worker.abort(each, choice)
        while going:
            event = await inbox.get()
            say(event)
            if isinstance(event, Finished) and event.last:
                going.discard(event.request_id)
    finally:
        for each in going:
            worker.abort(each)
        while going:
            event = await inbox.get()
            if isinstance(event, Finished) and event.last:
                going.discard(event.request_id)


def fill_request(ids: Ids, namespace: str, *, score_from: int | None = None) -> Request:
    """Of one that says nothing: it has ids cached, or scored."""
    return Request(
        secrets.token_hex(8),
        ids,
        SamplingParams(),
        priority=Priority.BACKGROUND,
        namespace=namespace,
        fill="warm" if score_from is None else "score",
        score_from=score_from or 0,
    )


@dataclass
class Output:
    """One sample, as it comes."""

    splitter: ReasoningSplitter | None  # None: all it says is text
    ids: list[int] = field(default_factory=list)
    raw: str = ""
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: Finished | None = None

    def hear(self, text: str, *, is_last: bool = False) -> tuple[str, str]:
        """The new reasoning and the new words."""
        self.raw += text
        if self.splitter is None:
            reasoning, words = "", text
        else:
            reasoning, words = self.splitter.push(text)
            if is_last:
                more = self.splitter.flush()
                reasoning, words = reasoning + more.reasoning, words + more.content
        self.reasoning += reasoning
        self.text += words
        return reasoning, words


class Generation:
    """One ``gen``: its samples, until all have ended."""

    def __init__(self, state: State, request: Request, say: Say) -> None:
        at = state.open
        assert at is not None
        opens = at.how.opens_reasoning
        splits = state.raw is None and not at.out
        make = state.frame.template.splitter
        self.request, self._state, self._say = request, state, say
        self.outputs = [Output(make(opened=opens) if splits else None) for _ in range(request.n)]
        self._asked_at = time.monotonic()
        self._first_at: float | None = None
        self._last_at = self._asked_at

    def take(self, event: EngineEvent) -> None:
        if isinstance(event, Tokens):
            self._last_at = time.monotonic()
            self._first_at = self._first_at or self._last_at
            output = self.outputs[event.choice]
            output.ids.extend(event.ids)
            output.logprobs.extend(event.logprobs)
            self._tell(event.choice, *output.hear(event.text), forced=event.forced)
        elif isinstance(event, Finished):
            self._last_at = time.monotonic()
            output = self.outputs[event.choice]
            output.end = event
            del output.ids[event.kept :]
            del output.logprobs[event.kept :]
            self._tell(event.choice, *output.hear(event.text, is_last=True), forced=False)
        elif (told := telling.of_engine(event)) is not None:
            self._say(told)

    def _tell(self, choice: int, reasoning: str, words: str, *, forced: bool) -> None:
        for name, text in (("reasoning", reasoning), ("delta", words)):
            if text:
                self._say(Event(name, {"choice": choice, "text": text, "forced": forced}))

    def taken(self) -> Taken:
        """What the state goes on with; RadchatError where there is none."""
        for output in self.outputs:
            if output.end is None or output.end.reason == FinishReason.ERROR:
                why = output.end and output.end.error
                raise RadchatError(why or "the engine could not go on with this")
        first = self.outputs[0]
        assert first.end is not None
        if first.end.reason == FinishReason.ABORT:
            raise RadchatError("this generation was cancelled: its state is as it was")
        return Taken(
            array("I", first.ids),
            first.raw,
            first.text,
            first.reasoning,
            first.end.stopped,
            first.end.reason,
            self.request.params.seed,
        )

    def judged(self) -> list[dict[str, Any]]:
        """What each output is under its schema. It may take long: on a thread beside."""
        made = self.request.grammar
        under = None if made is None else made.grammar
        return [
            judged(under, output.text, is_whole=is_whole(output.end, self.request))
            for output in self.outputs
        ]

    def body(self, judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Of ``done``."""
        rows = []
        for output, under in zip(self.outputs, judged, strict=True):
            end = output.end
            assert end is not None
            row: dict[str, Any] = {
                "text": output.text,
                "reasoning": output.reasoning or None,
                "finish_reason": end.reason.value,
                "tokens": end.usage.output_tokens,
                "forced_tokens": end.usage.forced_tokens,
                **under,
            }
            if end.error:
                row["error"] = end.error
            if self.request.params.logprobs is not None:
                row["logprobs"] = [options.logprob_json(each) for each in output.logprobs]
                row["logprob"] = sum(each.logprob for each in output.logprobs)
            rows.append(row)
        ends = [output.end.usage for output in self.outputs if output.end is not None]
        usage, cache = options.usage_json(ends[0])  # the prompt is every sample's
        for name in ("output_tokens", "forced_tokens"):
            usage[name] = sum(getattr(end, name) for end in ends)
        first = None if self._first_at is None else self._first_at - self._asked_at
        spent = self._last_at - (self._first_at or self._last_at)
        most = max(row["tokens"] for row in rows)
        is_drawn = any(row["tokens"] - row["forced_tokens"] > 1 for row in rows)
        timing = {
            "first_token_s": first,
            "total_s": self._last_at - self._asked_at,
            "tokens_per_s": (most - 1) / spent if is_drawn and spent > 0 else None,
        }
        seed = self.request.params.seed
        return {"outputs": rows, "seed": seed, "usage": usage, "cache": cache, "timing": timing}


class Scores:
    """One ``select``: what its choices score, each over the same ids."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._ends: dict[str, Finished] = {}
        self._requests = requests

    def take(self, event: EngineEvent) -> None:
        if isinstance(event, Finished):
            self._ends[event.request_id] = event

    def body(self) -> dict[str, Any]:
        """The choice whose tokens are likeliest on average; of equals the first."""
        ends = [self._ends[request.id] for request in self._requests]
        scores: list[float] = []
        for request, end in zip(self._requests, ends, strict=True):
            if end.reason != FinishReason.STOP or end.prompt_logprobs is None:
                raise RadchatError(end.error or "the choices could not be scored")
            known = [each.logprob for each in end.prompt_logprobs[request.score_from :] if each]
            scores.append(sum(known) / len(known))
        tokens = [len(request.ids) - request.score_from for request in self._requests]
        best = max(range(len(scores)), key=lambda index: scores[index])
        total = Usage(**{name: sum(getattr(end.usage, name) for end in ends) for name in SUMMED})
        usage, cache = options.usage_json(total)
        counts = {"tokens": tokens, "usage": usage, "cache": cache}
        return {"choice": best, "scores": scores, **counts}
