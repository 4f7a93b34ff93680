"""How a prompt is made up: what of it was reused, and why each other part of it is computed.

The one place for the causes. Asked twice of every answer: before it runs, with what a probe finds,
for the line that tells of work done again; and when it is admitted, with what it really reuses, for
the record kept with the answer (`radchat cache why`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from radchat.engine.request import Ids

if TYPE_CHECKING:
    from radchat.daemon.asked import Asked
    from radchat.engine.meters import PromptCost

WORTH_SAYING = 256  # tokens computed again before it is said first
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


def parts_of(asked: Asked, cached: int) -> list[Part]:
    """The computed parts of a prompt of which ``cached`` tokens are reused, in order."""
    num = len(asked.prepared.ids)
    if cached == num - 1:
        return [Part(cached, num, "last", "the next token is drawn from it")]
    found: list[Part] = []
    start = cached
    for end, cause, why in _layout(asked):
        if end > start:
            found.append(Part(start, end, cause, why))
            start = end
    return found


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
    if cost is None:
        return ""
    seconds = cost.of(num_tokens)
    return f", about {seconds:.1f} s" if seconds >= 0.1 else ", less than 0.1 s"


def record(asked: Asked, cached: int, decode: Callable[[Ids], str]) -> dict[str, Any]:
    """What is kept with an answer whose prompt was admitted: only then it is known."""
    ids = asked.prepared.ids
    parts = parts_of(asked, cached)
    ended = None
    if parts[0].cause != "last":
        ended = {
            "position": cached,
            "before": decode(ids[max(0, cached - AROUND) : cached]),
            "token": decode(ids[cached : cached + 1]),
            "after": decode(ids[cached + 1 : cached + 1 + AROUND]),
        }
    return {
        "matched": cached,
        "restored": 0,
        "computed": len(ids) - cached,
        "parts": [part._asdict() for part in parts],
        "ended": ended,
    }
