"""How full the context is, said once when a turn goes past a mark (docs/cli.md, "Streams" 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from radchat.errors import WAYS_OUT
from radchat.protocol import Event
from radchat_sessions.messages import Message
from radchat_sessions.store import Store

MARKS = (75, 90, 100)  # per cent of the context


class Filled(NamedTuple):
    used: int = 0  # tokens, of prompt and answer
    limit: int = 0  # tokens that the context holds; 0: not known

    def mark(self) -> int:
        """The highest mark that is reached; 0 for none."""
        reached = [mark for mark in MARKS if self.limit and 100 * self.used >= mark * self.limit]
        return max(reached, default=0)


EMPTY = Filled()


def filled_by(store: Store, answer: Message | None, limit: int) -> Filled:
    """How full the context was at the end of an answer, by the limit that held then.

    An answer given as text, or none, has filled nothing yet: what follows it is told anew.
    """
    if answer is None or answer.prompt is None:
        return EMPTY
    used = store.prompt(answer.prompt).length + (answer.out_len or 0)
    return Filled(used, int(answer.extra.get("context") or limit))


def told_of(store: Store, at: str | None) -> dict[str, Any] | None:
    """What an answer one goes to was told as it ended: how full the context was then, and how much
    of its prompt was cached. None for what is no answer, or came as text.
    """
    answer = None if at is None else store.message(at)
    filled = filled_by(store, answer, 0)
    if answer is None or not filled.limit:
        return None
    usage = answer.usage or {}
    counts = ("input_tokens", "cached_input_tokens")
    return {"context": filled._asdict(), "usage": {key: usage.get(key) for key in counts}}


def crossing(before: Filled, now: Filled) -> Sequence[Event]:
    """The notice for going past a mark; none where it was reached before."""
    if now.mark() <= before.mark():
        return ()
    percent = 100 * now.used // now.limit
    text = (
        f"the context is {percent}% full, {now.used:,} of {now.limit:,} tokens; the ways out: "
        f"{WAYS_OUT}"
    )
    body = {"text": text, "code": "context_full", "used": now.used, "limit": now.limit}
    return (Event("notice", body),)
