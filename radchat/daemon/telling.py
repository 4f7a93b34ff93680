"""What is told of a request: what the engine says of it, and each answer; their shapes."""

from __future__ import annotations

from typing import Any

from radchat.daemon import options
from radchat.daemon.asked import Asked
from radchat.daemon.beginning import followed
from radchat.daemon.heard import Heard
from radchat.engine import request as engine
from radchat.protocol import Event
from radchat_sessions.messages import Begun, Ended, Placed


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
    def parent(self) -> str:
        """The message that is answered."""
        return followed(self._asked, self._begun)

    def answer(self, choice: Heard, ended: Ended | None) -> dict[str, Any]:
        """One sample, in the shape of ``ask --json``; ``ended`` None: nothing of it is kept."""
        plan, params = self._asked.prepared.plan, self._asked.request.params
        placed = choice.begun.placed if ended is None or ended.placed is None else ended.placed
        branch = None if placed is None else placed.branch
        is_nowhere = ended is None and not (choice.index == 0 and self._begun.messages)
        if placed is not None and is_nowhere:  # there is none
            branch = plan.place.branch if plan.says is None else None
        usage, cache = choice.counts
        body: dict[str, Any] = {
            "session": self._begun.session,
            "message": None if ended is None else choice.id,
            "parent": self.parent,
            "branch": branch,
            "model": self._asked.model,
            "dtype": self._asked.dtype,
            "choice": self._asked.first + choice.index,
            "seed": params.seed,
            "text": choice.text,
            "reasoning": choice.reasoning or None,
            "finish_reason": choice.reason.value,
            "usage": usage,
            "cache": cache,
            "timing": choice.timing(self._asked.asked_at),
        }
        if self._asked.request.grammar is not None:
            kind = self._asked.request.grammar.grammar.kind
            data = {"data": None} if kind == "json_schema" else {}
            if kind != "tools":
                body |= {"grammar": kind, **data, **choice.judged}
        if choice.reader is not None:
            body["calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in choice.calls
            ]
            if self._asked.call_parts:
                for told, text in zip(body["calls"], choice.call_texts, strict=True):
                    told["arguments_text"] = text
            if choice.call_error is not None:
                body["call_error"] = choice.call_error
        if params.logprobs is not None:
            body["logprobs"] = [options.logprob_json(each) for each in choice.logprobs]
        return body
