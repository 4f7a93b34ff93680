"""What is stored of a search: which messages are of it, and what a client is told of them.

The user's messages that a search made say so in their ``extra``: ``{"search": {"number": 1, …}}``.
Its answers, and whatever was said after them, are what follows. Where a session was imported, that
is somebody else's JSON: what is no such thing is of no search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from radchat_sessions import scores
from radchat_sessions.messages import Label, Message
from radchat_sessions.scores import Score

NAME = re.compile(r"s[1-9][0-9]{0,8}")


def numbered(of: Message | str) -> int | None:
    """The number of the search that made a message, or that has this name."""
    if isinstance(of, str):
        return int(of[1:]) if NAME.fullmatch(of) else None
    asked = of.extra.get("search") if of.role == "user" else None
    number = asked.get("number") if isinstance(asked, Mapping) else None
    return number if type(number) is int and number > 0 else None


def last_number(messages: Iterable[Message]) -> int:
    """Of the last search; 0 where there was none."""
    return max((numbered(message) or 0 for message in messages), default=0)


def of_search(messages: Iterable[Message], number: int) -> list[Message]:
    """What it made and all below that, in the order of ``messages``: parents before children."""
    found: dict[str, Message] = {}
    for message in messages:
        if message.parent in found or numbered(message) == number:
            found[message.id] = message
    return list(found.values())


def found_json(messages: Sequence[Message], labels: Iterable[Label]) -> list[dict[str, Any]]:
    scored = scores.by_message(labels)
    return [_message_json(each, scored.get(each.id, scores.NO_SCORE)) for each in messages]


def _message_json(message: Message, score: Score) -> dict[str, Any]:
    """``tokens``: that the model generated for it."""
    logprob = message.extra.get("logprob")
    return {
        "id": message.id,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "extra": dict(message.extra),
        "name": score.name,
        "score": score.number,
        "choice": message.choice,
        "finish_reason": message.finish_reason,
        "tokens": (message.usage or {}).get("output_tokens") or 0,
        "logprob": logprob if isinstance(logprob, float) else None,
    }
