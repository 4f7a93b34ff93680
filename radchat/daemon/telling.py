"""What is told of an answer: its beginning, what the engine says of it, its end; their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radchat.daemon import options
from radchat.daemon.asked import Asked
from radchat.daemon.heard import Heard
from radchat.daemon.reuse import Part
from radchat.engine import request as engine
from radchat.engine.meters import PromptCost
from radchat.protocol import Event
from radchat_sessions.messages import Begun, Ended, Placed, Session


def branched(placed: Placed) -> Event:
    """The branch this turn was meant for stands elsewhere: it got one of its own."""
    text = f"{placed.wanted} has moved on: this turn is on its own branch {placed.branch}"
    return Event("notice", {"text": text, "code": "branched"})


def of_engine(event: engine.Event) -> Event | None:
    """What is told of anything but words and the end; None where nothing is."""
    if isinstance(event, engine.Started):
        device, disk = event.cached_tokens, event.disk_tokens
        tiers = {"device": device, "host": 0, "disk": disk}
        computed = event.input_tokens - device - disk
        body = {"input_tokens": event.input_tokens, "cached": tiers, "computed": computed}
        return Event("start", body)
    if isinstance(event, engine.GaveWay):
        text = (
            f"{event.tokens:,} pinned tokens gave way: this answer needs their room, and they "
            "are kept again once they are computed again"
        )
        return Event("notice", {"text": text, "code": "pins", "tokens": event.tokens})
    if isinstance(event, engine.Progress) and event.computed_tokens < event.total_tokens:
        done, total = event.computed_tokens, event.total_tokens
        return Event("progress", {"stage": event.stage, "done": done, "total": total})
    return None


class Telling:
    """Of one request and what was begun for it."""

    def __init__(self, asked: Asked, begun: Begun) -> None:
        self._asked, self._begun = asked, begun

    @property
    def parent(self) -> str | None:
        """The message that is answered."""
        begun = self._begun
        return begun.messages[-1] if begun.messages else self._asked.prepared.plan.parent

    def init(self, session: Session, context: int) -> Event:
        """``context``: what the engine holds, tokens."""
        first = self._begun.answers[0].placed
        body = {
            "request": self._asked.request.id,
            "session": session.id,
            "name": session.name,
            "branch": None if first is None else first.branch,
            "parent": self._asked.prepared.plan.parent,
            "user": self.parent,
            "messages": list(self._begun.answer_ids),
            "model": self._asked.model,
            "dtype": self._asked.dtype,
            "context": context,
            "input_tokens": len(self._asked.prepared.ids),
        }
        return Event("init", body)

    def answer(self, choice: Heard, ended: Ended | None) -> dict[str, Any]:
        """One sample, in the shape of ``ask --json``; ``ended`` None: nothing of it is kept."""
        placed = choice.begun.placed if ended is None or ended.placed is None else ended.placed
        branch = None if placed is None else placed.branch
        if ended is None and not (choice.index == 0 and self._begun.messages):
            branch = self._asked.prepared.plan.place.branch
        params = self._asked.request.params
        usage, cache = choice.counts
        body: dict[str, Any] = {
            "session": self._begun.session,
            "message": None if ended is None else choice.id,
            "parent": self.parent,
            "branch": branch,
            "model": self._asked.model,
            "dtype": self._asked.dtype,
            "choice": choice.index,
            "seed": params.seed,
            "text": choice.text,
            "reasoning": choice.reasoning or None,
            "finish_reason": choice.reason.value,
            "usage": usage,
            "cache": cache,
            "timing": choice.timing(self._asked.asked_at),
        }
        if params.logprobs is not None:
            body["logprobs"] = [options.logprob_json(each) for each in choice.logprobs]
        return body

    def done(
        self,
        session: Session,
        bodies: Sequence[dict[str, Any]],
        cost: PromptCost | None,
        why: Part | None,
    ) -> dict[str, Any]:
        """The whole result, of the bodies of all its answers; ``cost`` of prompts, as measured;
        ``why``: the part of this one that was computed again and is worth a reason.
        """
        first = bodies[0]
        usage = first["usage"]
        read, cached = usage["input_tokens"], usage["cached_input_tokens"]
        outputs = {
            name: sum(body["usage"][name] for body in bodies)
            for name in ("output_tokens", "reasoning_tokens")
        }
        longest = max(body["usage"]["output_tokens"] for body in bodies)
        return {
            "session": session.id,
            "name": session.name,
            "parent": first["parent"],
            "branches": bodies,
            "usage": {**usage, **outputs},
            "cache": first["cache"],
            "timing": first["timing"],
            "head": self._head(first),
            "context": {
                "used": len(self._asked.request.ids) + longest,
                "limit": self._asked.limit,
            },
            "why": None if why is None else why.why,
            "why_short": None if why is None else why.why_short,
            "saved_s": None if cost is None else cost.saved(read, cached),
        }

    def _head(self, first: Mapping[str, Any]) -> dict[str, str | None]:
        """Where one stands now: at the answer, at the unanswered message, or where one was."""
        message = first["message"]
        if message is None:
            new = self._begun.messages
            message = new[-1] if new else self._asked.prepared.plan.place.message
        return {"branch": first["branch"], "message": message}
