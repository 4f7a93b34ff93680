"""Whether a stored path is one that any model may be asked to go on from."""

from __future__ import annotations

from collections.abc import Sequence

from radchat.daemon.tools import calls_in, result_of
from radchat_sessions.messages import Message


def problems(path: Sequence[Message]) -> list[str]:
    """What is wrong with the calls and results of a path; a last answer may wait for results."""
    found: list[str] = []
    waiting: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(path):
        if message.role == "tool":
            call = result_of(message.parts)[1]
            if call not in waiting:
                found.append(f"message {number}: a result of no open call {call}")
            else:
                waiting.remove(call)
            continue
        if waiting:
            found.append(f"message {number}: {message.role} while {waiting} wait for results")
        calls = [call.id for call in calls_in(message.parts)]
        if calls and message.role != "assistant":
            found.append(f"message {number}: calls of a {message.role}")
        if seen & set(calls) or len(set(calls)) < len(calls):
            found.append(f"message {number}: an id of a call is there twice")
        if calls and message.finish_reason not in ("stop", None) and "" in calls:
            found.append(f"message {number}: a call without an id")
        seen |= set(calls)
        waiting = calls
    return found
