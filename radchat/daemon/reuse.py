"""How a prompt is made up: what of it was reused, and why each other part of it is computed.

The one place for the causes. Asked twice of every answer: before it runs, with what a probe finds,
for the line that tells of work done again; and at its end, with where its KV really came from, for
the record kept with the answer (`radchat cache why`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from radchat.daemon.disk_paths import num_in
from radchat.engine.request import Ids, Span

if TYPE_CHECKING:
    from radchat.daemon.asked import Asked
    from radchat.engine.meters import PromptCost

WORTH_SAYING = 256  # tokens computed again before it is said first
WORTH_A_REASON = (
    16  # tokens computed again, under an answer: the rest of a page is nobody's question
)
FASTER = ", and computing it is faster than loading it from disk"
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


class Part(NamedTuple):
    """Tokens [start, end) of a prompt that are computed, and why."""

    start: int
    end: int
    cause: Cause
    why: str


def parts_of(asked: Asked, spans: Sequence[Span]) -> list[Part]:
    """The computed parts of a prompt whose KV comes from ``spans``, in order."""
    num = len(asked.prepared.ids)
    layout = list(_layout(asked))
    found: list[Part] = []
    for span in spans:
        if span.tier != "computed":
            continue
        if (span.start, span.end) == (num - 1, num):
            found.append(Part(*span[:2], "last", "the next token is drawn from it"))
            continue
        start = span.start
        for stop, cause, why in layout:
            end = min(stop, span.end)
            if end > start:
                reason = why + _of_the_disk(asked, start, end) if cause == "evicted" else why
                found.append(Part(start, end, cause, reason))
                start = end
    return found


def _of_the_disk(asked: Asked, start: int, end: int) -> str:
    """Why tokens that are no longer cached are not restored."""
    if num_in(asked.on_disk(), start, end) > (end - start) // 2:
        return FASTER
    last = asked.prepared.last_answer
    return "" if last is None else asked.excuse(last.created)


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


def computed_again(parts: Sequence[Part]) -> tuple[int, str]:
    """Tokens that were computed before and will be again, and why most of them are."""
    again = [part for part in parts if part.cause in AGAIN]
    if not again:
        return 0, ""
    most = max(again, key=lambda part: part.end - part.start)
    return sum(part.end - part.start for part in again), most.why


def about_s(num_tokens: int, cost: PromptCost | None) -> str:
    """How long a prompt of so many takes; nothing before that was measured."""
    return about(None if cost is None else cost.of(num_tokens))


def about(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", about {seconds:.1f} s" if seconds >= 0.1 else ", less than 0.1 s"


def record(asked: Asked, spans: Sequence[Span], decode: Callable[[Ids], str]) -> dict[str, Any]:
    """What is kept with an answer whose prompt was admitted: where its KV came from.

    What an abort left uncomputed counts as computed: it would have been.
    """
    ids = asked.prepared.ids
    done = spans[-1].end if spans else 0
    if done < len(ids):
        spans = [*spans, Span(done, len(ids), "computed")]
    parts = parts_of(asked, spans)
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
        "parts": [part._asdict() for part in parts],
        "from_disk": [span[:2] for span in spans if span.tier == "disk"],
        "ended": ended,
    }


def why(reuse: Mapping[str, Any] | None) -> str | None:
    """Why most of what was computed again was; None where nothing was."""
    parts = [] if reuse is None else [Part(**part) for part in reuse["parts"]]
    again, reason = computed_again(parts)
    return reason if again > WORTH_A_REASON else None
