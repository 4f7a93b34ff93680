"""Sessions as a list, and when one was last used in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from radchat.chat.footer import SEPARATOR, count, counted, place, where
from radchat.chat.text import one_line
from radchat.chat.width import ELLIPSIS, cut, first_line, pad, table, width

NAME_COLUMNS = 32
EPHEMERAL = " (ephemeral)"
LEAST_TEXT = 20  # columns
LISTED = 20  # sessions, where one looks at them and did not say how many
_WEEK = 7


def day_of(used: float, now: float | None = None) -> str:
    """today, yesterday, Tuesday, 2026-01-31: the day of a wall-clock time."""
    today = datetime.fromtimestamp(time.time() if now is None else now).astimezone().date()
    then: date = datetime.fromtimestamp(used).astimezone().date()
    days = (today - then).days
    if days <= 0:
        return "today"
    if days == 1:
        return "yesterday"
    return then.strftime("%A") if days < _WEEK else then.isoformat()


def messages(number: int) -> str:
    return counted(number, "message")


def last_line(last: dict[str, Any]) -> str:
    """What a new chat says of the one before: `last: NAME, yesterday, 14 messages: -c`."""
    parts = [one_line(str(last.get("name") or last.get("id")))]
    if isinstance(last.get("used"), int | float):
        parts.append(day_of(last["used"]))
    if last.get("messages") is not None:
        parts.append(messages(last["messages"]))
    return f"last: {', '.join(parts)}: -c"


def opened_line(session: Mapping[str, Any]) -> str:
    """What a chat says of the session it goes on with: `NAME · branch@id · model · N messages`."""
    here = where(session)
    if "at" in session:
        name = here.partition(SEPARATOR)[0]
        at = session["at"][:4] if session["at"] else "the beginning"
        here = f"{name}{SEPARATOR}a new branch at {at}"
    parts = [here, one_line(str(session.get("model") or ""))]
    parts.append(messages(session.get("messages") or 0))
    return SEPARATOR.join(part for part in parts if part)


def last_words(path: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """The last turn of a path in short: what was said on a line, the answer on one or two."""
    room = columns or 80
    lines = []
    for message in path:
        text = one_line(str(message.get("text") or ""))
        if message["role"] == "user":
            lines = [cut(f"> {text}", room)]
        elif message["role"] == "assistant":
            first = first_line(text, room)
            rest = text[len(first) :].strip()
            lines += [first.rstrip(), *([cut(rest, room)] if rest else [])]
    return lines


def marked_name(session: Mapping[str, Any], columns: int | None = None) -> str:
    """Its name; with `(ephemeral)` after it where nothing of it is on disk."""
    name = one_line(str(session.get("name") or "-"))
    mark = EPHEMERAL if session.get("ephemeral") else ""
    return (name if columns is None else cut(name, columns - width(mark))) + mark


def listing(sessions: Sequence[dict[str, Any]], columns: int | None) -> list[str]:
    """One line a session; the current one is starred."""
    if not sessions:
        return ["no sessions yet"]
    rows = [_row(session) for session in sessions]
    head = ("", "id", "name", "used", "messages", "branches", "model")
    widths = [max(width(row[i]) for row in (head, *rows)) for i in range(len(head))]
    widths[2] = min(widths[2], NAME_COLUMNS)
    lines = []
    for row in (head, *rows):
        cells = [
            cell.rjust(widths[i]) if i in (4, 5) else pad(cell, widths[i])  # numbers
            for i, cell in enumerate(row)
        ]
        line = "  ".join(cells).rstrip()
        lines.append(line if columns is None else cut(line, columns))
    return lines


def hits_listing(hits: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """One line a hit of a search: session, branch@id, day, and the words around the match."""
    if not hits:
        return []
    rows = [
        [
            marked_name(hit, NAME_COLUMNS),
            place(hit.get("branch"), hit.get("short")),
            datetime.fromtimestamp(hit["created"]).astimezone().date().isoformat(),
        ]
        for hit in hits
    ]
    begin = table(rows, ["session", "at", "date"])
    wide = max(map(width, begin)) + 2
    room = None if columns is None else max(columns - wide, LEAST_TEXT)
    texts = ["text", *(marked(str(hit["snippet"]), hit["marks"], room) for hit in hits)]
    lines = [f"{pad(start, wide)}{text}" for start, text in zip(begin, texts, strict=True)]
    return lines if columns is None else [cut(line, columns) for line in lines]


def marked(snippet: str, marks: Sequence[Sequence[int]], room: int | None = None) -> str:
    """On one line, each match between [ and ]; ``room``: so that the first is within so many
    columns.
    """
    pieces, done = [], 0
    for start, stop in marks:
        pieces.append(f"{snippet[done:start]}[{snippet[start:stop]}]")
        done = stop
    before = one_line(snippet[: marks[0][0]]) if marks else ""
    text = one_line("".join([*pieces, snippet[done:]]))
    if room is None or width(text) <= room or width(before) <= room // 3:
        return text
    first = before.removeprefix(ELLIPSIS)
    while width(first) > room // 3:
        first = first.partition(" ")[2] if " " in first else first[len(first) // 2 + 1 :]
    return f"{ELLIPSIS}{first}{text[len(before) :]}"


def _row(session: dict[str, Any]) -> tuple[str, ...]:
    used = session.get("used")
    branches = session.get("branches")
    return (
        "*" if session.get("current") else "",
        str(session["id"])[:8],
        marked_name(session, NAME_COLUMNS),
        day_of(used) if isinstance(used, int | float) else "-",
        count(session.get("messages") or 0),
        str(len(branches) if isinstance(branches, list | dict) else branches or 0),
        one_line(str(session.get("model") or "-")),
    )
