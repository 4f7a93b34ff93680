"""What is told of a command as a whole: its beginning and its end, over all of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from radchat.daemon.beginning import followed
from radchat.daemon.listening import Listening
from radchat.daemon.options import Counts
from radchat.engine.raw_ids import common_len
from radchat.engine.request import Ids
from radchat.protocol import Event
from radchat_sessions.messages import Session

Requests = Sequence[Listening]


def init(request: str, session: Session, requests: Requests, context: int) -> Event:
    """``context``: what the engine holds, tokens."""
    first = requests[0]
    placed = first.begun.answers[0].placed
    rows = [
        {
            "choice": each.asked.first + heard.index,
            "branch": None if heard.begun.placed is None else heard.begun.placed.branch,
            "message": heard.id,
            "user": followed(each.asked, each.begun),
            "text": each.asked.prepared.plan.says,
        }
        for each in requests
        for heard in each.choices
    ]
    body = {
        "request": request,
        "session": session.id,
        "name": session.name,
        "branch": None if placed is None else placed.branch,
        "parent": first.asked.prepared.plan.parent,
        "user": rows[0]["user"],
        "messages": [row["message"] for row in rows],
        "branches": rows,
        "model": first.asked.model,
        "dtype": first.asked.dtype,
        "context": context,
        "input_tokens": sum(len(each.asked.prepared.ids) for each in requests),
        "head": _head(first, None if placed is None else placed.branch, None),
    }
    cut = first.asked.prepared.plan.cut
    return Event("init", body if cut is None else {**body, "continues": cut.text})


def done(session: Session, requests: Requests) -> dict[str, Any]:
    """The whole result. Samples of one request have read its prompt once."""
    bodies = [heard.body for each in requests for heard in each.choices if heard.body]
    read = [told for each in requests if (told := _read(each)) is not None]
    why = next((each.why for each in requests if each.why is not None), None)
    plan = requests[0].asked.prepared.plan
    return {
        "session": session.id,
        "name": session.name,
        "parent": bodies[0]["parent"] if len(requests) == 1 else plan.parent,
        "branches": bodies,
        "usage": {
            **sums(body["usage"] for body in bodies if body["usage"] is not None),
            **sums({name: body["usage"][name] for name in READ} for body in read),
        },
        "cache": sums(body["cache"] for body in read),
        "timing": _timing([body["timing"] for body in bodies]),
        "head": _head(requests[0], bodies[0]["branch"], bodies[0]["message"]),
        "context": {"used": _used(requests), "limit": requests[0].asked.limit},
        "shared": _shared(requests),
        "why": None if why is None else why.why,
        "why_short": None if why is None else why.why_short,
        "saved_s": _saved(requests),
    }


READ = ("input_tokens", "cached_input_tokens")


def _read(request: Listening) -> dict[str, Any] | None:
    """A body that tells how the prompt of a request was read; None where the engine did not say."""
    told = (heard.body for heard in request.choices if heard.body)
    return next((body for body in told if body["usage"] is not None), None)


def sums(counts: Iterable[Counts]) -> Counts:
    """Of each count; with one that is not known, the sum is not known either."""
    total: Counts = {}
    for each in counts:
        for name, number in each.items():
            before = total.get(name, 0)
            total[name] = None if before is None or number is None else before + number
    return total


def _timing(each: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """To the first word of any and the last of all; tokens a second of all together."""

    def known(name: str) -> list[float]:
        return [value for timing in each if (value := timing[name]) is not None]

    rates = known("tokens_per_s")
    return {
        "first_token_s": min(known("first_token_s"), default=None),
        "total_s": max(known("total_s"), default=None),
        "tokens_per_s": sum(rates) if rates else None,
    }


def _used(requests: Requests) -> int:
    """Tokens of the longest path."""
    return max(
        len(each.asked.request.ids)
        + (0 if heard.counts[0] is None else heard.counts[0]["output_tokens"] or 0)
        for each in requests
        for heard in each.choices
    )


def _saved(requests: Requests) -> float | None:
    saved = None
    for each in requests:
        body = _read(each)
        if each.cost is not None and body is not None:
            read, cached = (body["usage"][name] for name in READ)
            saved = (saved or 0.0) + each.cost.saved(read, cached)
    return saved


def _head(first: Listening, branch: str | None, answer: str | None) -> dict[str, str | None]:
    """Where one stands: at the answer, else at the unanswered message, or where one was."""
    plan, new = first.asked.prepared.plan, first.begun.messages
    is_named = first.begun.answers[0].placed is not None
    if plan.says is not None or not is_named or (answer is None and not new):
        return {"branch": plan.place.branch, "message": plan.place.message}
    return {"branch": branch, "message": answer or new[-1]}


def _shared(requests: Requests) -> dict[str, int] | None:
    """The common beginning of all the prompts: how much of it was there when the first began, and
    how much was computed since, which is the rest of it where they were not ended before. None for
    one answer, or where the engine told of none.
    """
    started = [(each.started_at, each) for each in requests if each.started_at and each.spans]
    if not started or sum(len(each.choices) for each in requests) < 2:
        return None
    _, first = min(started, key=lambda pair: pair[0])
    prompts = [each.asked.request.ids for each in requests]
    num = common(prompts)
    cached = sum(
        max(0, min(span.end, num) - span.start) for span in first.spans if span.tier != "computed"
    )
    read = max(min(each.spans[-1].end, num) for _, each in started)
    new = sum(len(ids) - num for ids in prompts)
    return {"tokens": num, "cached": cached, "computed": read - cached, "new": new}


def common(prompts: Sequence[Ids]) -> int:
    """How long all begin alike."""
    first, *others = (ids.tobytes() for ids in prompts)
    lengths = (common_len(first, other, 0, min(len(first), len(other))) for other in others)
    return min(lengths, default=len(prompts[0]))
