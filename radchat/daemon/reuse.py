"""How a prompt is made up: what of it was reused, and why each other part of it is computed.

The one place for the causes. Asked twice of every answer: before it runs, with what a probe finds,
for the line that tells of work done again; and at its end, with where its KV really came from, for
the record kept with the answer (`radchat cache why`) and the reason in the line under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from radchat.daemon.disk_paths import num_in
from radchat.daemon.handing import beside
from radchat.engine.request import Ids, Span

if TYPE_CHECKING:
    from radchat.daemon.asked import Asked
    from radchat.engine.meters import PromptCost

T = TypeVar("T")
WORTH_SAYING = 256  # tokens computed again before it is said first
WORTH_A_REASON = 16  # and under an answer, where it was most of the work; a page is no question
ASK_S = 0.5  # the disk is asked for a reason no longer
AROUND = 8  # tokens shown before and after the one where reuse ended

Cause = Literal[
    "new",  # the first time anybody says this
    "edited",  # this turn said something else before
    "evicted",  # computed before, and no longer cached
    "model",  # another model or dtype read it last, or ids of its own
    "template",  # the chat template says the past differently now
    "system",  # another system prompt: the path is said again
    "last",  # the last token always runs: the next is drawn from its row
]
AGAIN = frozenset(("evicted", "model", "template", "system"))


class Excuse(NamedTuple):
    """Why what is no longer cached is not restored."""

    text: str = ""  # goes on a sentence
    short: str = ""


FASTER = "computing it is faster than loading it from disk"
NO_EXCUSE, TOO_SLOW = Excuse(), Excuse(f", and {FASTER}", FASTER)


class Part(NamedTuple):
    """Tokens [start, end) of a prompt that are computed, and why."""

    start: int
    end: int
    cause: Cause
    why: str
    why_short: str  # for the line under an answer


async def explained(asked: Asked, look: Callable[[Asked], T]) -> T:
    """What ``look`` finds, away from the event loop: it asks the disk. Without that where it hangs:
    no answer waits for a reason.
    """
    try:
        return await asyncio.wait_for(beside(lambda: look(asked)), ASK_S)
    except TimeoutError:
        return look(replace(asked, on_disk=list, excuse=lambda _since: NO_EXCUSE))


def parts_of(asked: Asked, spans: Sequence[Span]) -> list[Part]:
    """The computed parts of a prompt whose KV comes from ``spans``, in order."""
    num = len(asked.prepared.ids)
    layout = list(_layout(asked))
    found: list[Part] = []
    for span in spans:
        if span.tier != "computed":
            continue
        if (span.start, span.end) == (num - 1, num):
            found.append(Part(*span[:2], "last", "the next token is drawn from it", ""))
            continue
        start = span.start
        for stop, cause, why in layout:
            end = min(stop, span.end)
            if end > start:
                excuse = _of_the_disk(asked, start, end) if cause == "evicted" else NO_EXCUSE
                found.append(Part(start, end, cause, why + excuse.text, excuse.short or why))
                start = end
    return found


def _of_the_disk(asked: Asked, start: int, end: int) -> Excuse:
    if num_in(asked.on_disk(), start, end) > (end - start) // 2:
        return TOO_SLOW
    last = asked.prepared.last_answer
    return NO_EXCUSE if last is None else asked.excuse(last.created)


def foreseen(num: int, device: int, disk: int, ranges: Iterable[tuple[int, int]]) -> list[Span]:
    """Where the KV of a prompt of ``num`` tokens will come from: ``device`` of them, then ``disk``
    of what is in the ranges, and the last one runs in any case.
    """
    at = min(device, num - 1)
    spans = [Span(0, at, "device")] if at else []
    for begin, end in ranges:
        start = max(begin, at)
        stop = min(end, start + disk, num - 1)
        if stop <= start:
            continue
        if start > at:
            spans.append(Span(at, start, "computed"))
        spans.append(Span(start, stop, "disk"))
        at, disk = stop, disk - (stop - start)
    return [*spans, Span(at, num, "computed")]


def _layout(asked: Asked) -> Iterator[tuple[int, Cause, str]]:
    """Where each stretch of the prompt ends, and why it would be computed were it not cached."""
    prepared = asked.prepared
    how, plan, num = prepared.how, prepared.plan, len(prepared.ids)
    if how is None or isinstance(prepared.prompt, str):  # these very ids were asked before
        yield num, *_lost(asked)
        return
    # the last token of an answer has not run before something follows it
    yield how.kept - (how.reason == "append"), *_lost(asked)
    num_fresh = 1 if plan.rebuilt else len(plan.new)  # with another system prompt: copies, and one
    old_end = num - sum(how.shares[max(0, len(how.shares) - num_fresh) :])
    if prepared.retold:
        yield old_end, "model", prepared.retold
    elif plan.rebuilt:
        yield old_end, "system", plan.rebuilt
    elif how.rebuilt:
        yield how.kept + how.rebuilt, "template", how.reason
    if plan.edits:
        yield num, "edited", "this turn said something else before"
    else:
        yield num, "new", "the first time"


def _lost(asked: Asked) -> tuple[Cause, str]:
    """Why tokens that were computed before are not there."""
    last = asked.prepared.last_answer
    if last is not None and (last.model, last.dtype) != (asked.model, asked.dtype):
        return "model", f"{last.model} {last.dtype} read it last"
    if last is not None and last.created < asked.loaded_at:
        return "evicted", "it is no longer cached: the model was loaded since"
    return "evicted", "it is no longer cached"


def computed_again(parts: Sequence[Part]) -> tuple[int, Part | None]:
    """Tokens that were computed before and are again, and the part with most of them."""
    again = [part for part in parts if part.cause in AGAIN]
    most = max(again, key=lambda part: part.end - part.start, default=None)
    return sum(part.end - part.start for part in again), most


def worth_telling(parts: Sequence[Part]) -> Part | None:
    """The part whose reason stands under the answer: where much was computed again, or that was
    most of what was computed.
    """
    again, most = computed_again(parts)
    computed = sum(part.end - part.start for part in parts)
    is_most = again > WORTH_A_REASON and 2 * again > computed
    return most if again > WORTH_SAYING or is_most else None


def about_s(num_tokens: int, cost: PromptCost | None) -> str:
    """How long a prompt of so many takes; nothing before that was measured."""
    return about(None if cost is None else cost.of(num_tokens))


def about(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", about {seconds:.1f} s" if seconds >= 0.1 else ", less than 0.1 s"


def whole(spans: Sequence[Span], num: int) -> Sequence[Span]:
    """What an abort left uncomputed of a prompt counts as computed: it would have been."""
    done = spans[-1].end if spans else 0
    return spans if done == num else [*spans, Span(done, num, "computed")]


def record(
    ids: Ids, spans: Sequence[Span], parts: Sequence[Part], decode: Callable[[Ids], str]
) -> dict[str, Any]:
    """What is kept with an answer whose prompt was admitted: where its KV came from."""
    ended = None
    if parts and parts[0].cause != "last":
        at = parts[0].start
        ended = {
            "position": at,
            "before": decode(ids[max(0, at - AROUND) : at]),
            "token": decode(ids[at : at + 1]),
            "after": decode(ids[at + 1 : at + 1 + AROUND]),
        }
    sums = {
        tier: sum(span.end - span.start for span in spans if span.tier == tier)
        for tier in ("device", "disk", "computed")
    }
    return {
        "matched": sums["device"],
        "restored": sums["disk"],
        "computed": sums["computed"],
        "parts": [dict(zip(Part._fields[:4], part[:4], strict=True)) for part in parts],
        "from_disk": [span[:2] for span in spans if span.tier == "disk"],
        "ended": ended,
    }
