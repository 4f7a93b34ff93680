"""Tries as people and programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from radchat.agent.tries.playing import Played
from radchat.agent.tries.race import Try
from radchat.chat.text import one_line
from radchat.chat.width import cut, pad

HEADINGS = ("try", "branch", "check", "files", "steps", "last words")


def lines(tries: Sequence[Try], columns: int) -> list[str]:
    rows = [HEADINGS]
    for one in tries:
        words = one.ended.text if one.ended is not None else ""
        if one.error is not None:
            words = one.error.message
        turns = str(one.ended.turns) if one.ended is not None else "-"
        files = str(len(one.entries.changed()))
        rows.append((str(one.number), one.branch, one.outcome, files, turns, one_line(words)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS) - 1)]
    return [
        cut("  ".join([*map(pad, row, widths), row[-1]]).rstrip(), max(columns, 20)) for row in rows
    ]


def summed(played: Played, what: Literal["usage", "cache"]) -> dict[str, int]:
    """Of all steps of all tries, those that were cancelled too."""
    total: dict[str, int] = {}
    each = [getattr(played.first, what)]
    each += (counts for one in played.tries for counts in getattr(one.steps, what))
    for counts in each:
        for name, number in counts.items():
            total[name] = total.get(name, 0) + number
    return total


def to_json(played: Played) -> list[dict[str, Any]]:
    return [_one(one, played, played.copies.get(one.number)) for one in played.tries]


def _one(one: Try, played: Played, copy: Path | None) -> dict[str, Any]:
    ended, checked = one.ended, one.checked
    head = one.steps.head or {}
    return {
        "try": one.number,
        "branch": one.branch,
        "message": ended.message if ended is not None else head.get("message"),
        "won": one is played.won,
        "ended": "error" if one.error is not None else ended.reason if ended else "cancelled",
        "turns": ended.turns if ended is not None else None,
        "check": None
        if checked is None
        else {
            "code": checked.code,
            "ended": checked.ended,
            "seconds": checked.seconds,
            "output": checked.tail,
            "whole": checked.key,
        },
        "changed": one.entries.changed(),
        "copy": None if copy is None else str(copy),
        "usage": dict(ended.usage) if ended is not None else None,
        "cache": dict(ended.cache) if ended is not None else None,
        "permission_denials": list(ended.denials) if ended is not None else [],
        **({} if one.error is None else {"error": one.error.to_json()}),
    }
