"""Results of calls that wait for one when somebody goes on: from the journal, or made of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from radchat.agent.types import Call, Result

NOT_RUN = "not run: the turn ended before it"


def results_of(
    calls: Sequence[Call], entries: Iterable[dict[str, Any]]
) -> tuple[tuple[Result, ...], list[str]]:
    """A result for each; and a line for each that may have done something nobody heard of."""
    started: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.get("state") == "started":
            started[str(entry.get("call"))] = entry
        elif entry.get("state") == "ended":
            ended[str(entry.get("call"))] = entry
    results, notes = [], []
    for call in calls:
        if call.id in ended:
            found = ended[call.id].get("result") or {}
            text, status = str(found.get("text", "")), found.get("status", "ok")
            results.append(Result(call.id, call.name, text, status))
        elif call.id in started:
            entry = started[call.id]
            at = time.strftime("%H:%M:%S", time.localtime(entry.get("t", 0)))
            text = (
                f"interrupted: it was started at {at} and never heard of again; how far it came is "
                "not known"
            )
            results.append(Result(call.id, call.name, text, "interrupted"))
            notes.append(f"interrupted: {entry.get('title', call.name)} was running at {at}")
        else:
            results.append(Result(call.id, call.name, NOT_RUN, "interrupted"))
    return tuple(results), notes
