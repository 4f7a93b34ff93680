"""`cache top` as lines: how full the tiers are, then a row for each branch, what goes next first.

Letters only; what has changed since the last look is told in words of letters, too: ``G>D``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from radchat.chat.footer import age, count, size
from radchat.chat.text import one_line
from radchat.chat.tree_rows import kv_cell
from radchat.chat.tree_shape import TIERS
from radchat.chat.width import cut, hang, table, width

Result: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str | None, str | None]

BAR = 20  # columns of a budget's bar
GAP = "  "
NAME_COLUMNS, TEXT_COLUMNS = 24, 48  # of what is no terminal
SESSION_LEAST, BRANCH_LEAST, TEXT_LEAST = 10, 24, 16
NAMES_MOST = 40  # so that there is text
WIDE = 110  # columns from which on there is room for words
HEAD = ["lru", "kv", "now", "lock", "tokens", "room", "used", "hits"]
GO_FIRST = ("hits", "room", "used", "tokens", "lock", "now")  # where there is no room for all
RIGHT = ("lru", "tokens", "room", "hits")
SEVERAL = "(several)"  # sessions that have it in common
KINDS = {"shared": "(shared)", "unnamed": "(no branch)", "running": "(now)"}
LEGEND = "G device  D disk  - none  * pinned  L locked    lru 1 goes first"
KEPT_LOOKS = 5  # a change is marked for so many looks


def lines(result: Result, columns: int | None) -> list[str]:
    """All of it, once."""
    said = [piece for line in header(result) for piece in _fold(line, columns)]
    rows = ordered(result["rows"], "lru")
    shown = (
        body(result, rows, None, columns) if rows else ["nothing is cached, and there is no branch"]
    )
    return [*said, *shown, *_fold(LEGEND, columns)]


def _fold(line: str, columns: int | None) -> list[str]:
    return [line] if columns is None else hang(line, columns, 2)


# -- the head ------------------------------------------------------------------------------------


def header(result: Result) -> list[str]:
    model = " ".join(one_line(str(result[key])) for key in ("model", "dtype") if result.get(key))
    parts = [model or "no model is loaded"]
    parts += [f"{key} {count(result[key])}" for key in ("running", "waiting")]
    if result.get("hit_rate") is not None:
        parts.append(f"hit rate {100 * result['hit_rate']:.1f}%")
    tiers = result.get("tiers") or {}
    told = [
        "  ".join(parts),
        *(_tier(*each[1:], tiers[each[0]]) for each in TIERS if tiers.get(each[0])),
    ]
    if result.get("total_tokens") is not None:
        kinds = ("free", "evictable", "pinned", "locked")
        counts = [f"{kind} {count(result[f'{kind}_tokens'])}" for kind in kinds]
        told.append("  ".join([f"tokens {count(result['total_tokens'])}:", *counts]))
    return told


def _tier(letter: str, name: str, tier: Mapping[str, Any]) -> str:
    """`G device [###.................] 0.31 GiB of 2.00 GiB`"""
    used, budget = tier.get("bytes") or 0, tier.get("budget_bytes") or 0
    line = f"{letter} {name:<6} "
    if not budget:
        return f"{line}{size(used)}"
    return f"{line}[{bar(used / budget)}] {size(used)} of {size(budget)}"


def bar(share: float) -> str:
    """Empty only where nothing is there, full only where nothing is free."""
    marks = min(BAR, math.floor(share * BAR))
    marks = max(marks, 1) if share > 0 else 0
    return "#" * marks + "." * (BAR - marks)


# -- the rows ------------------------------------------------------------------------------------


def ordered(rows: Sequence[Result], by: str) -> list[Result]:
    return sorted(rows, key=ORDERS[by])


def _by_lru(row: Result) -> tuple[Any, ...]:
    """What goes first; what can't go; what is on disk, the last used last; what is nowhere."""
    there = 0 if row["held_tokens"] else 1 if row["cached"]["disk"] else 2
    return row["lru_rank"] or math.inf, there, -(row["last_used_s"] or 0.0), *_by_session(row)


def _by_size(row: Result) -> tuple[Any, ...]:
    return -row["held_tokens"], -row["cached"]["disk"], *_by_session(row)


def _by_used(row: Result) -> tuple[Any, ...]:
    used = row["last_used_s"]
    return math.inf if used is None else used, *_by_session(row)


def _by_session(row: Result) -> tuple[Any, ...]:
    return row["name"] or "", row["session"] or "", row["kind"] != "shared", row["branch"] or ""


ORDERS: dict[str, Callable[[Result], tuple[Any, ...]]] = {
    "lru": _by_lru,
    "size": _by_size,
    "used": _by_used,
    "session": _by_session,
}


def body(
    result: Result, rows: Sequence[Result], marks: Mapping[Key, str] | None, columns: int | None
) -> list[str]:
    """The head of the columns, and a line a row. ``marks`` None: of one look.

    Where there is little room numbers go first, then sessions get shorter: branches are what one
    looks for. Where there is much the text has it.
    """
    per_token = result.get("bytes_per_token")
    asked = {answer["message"]: answer for answer in result.get("answers") or ()}
    cells = [_cells(row, (marks or {}).get(key_of(row), ""), per_token) for row in rows]
    names = [(_session(row), _branch(row)) for row in rows]
    head = [name for name in HEAD if name != "now" or marks is not None]
    wanted = [max(map(width, each)) for each in zip(("session", "branch"), *names, strict=True)]
    least = sum(map(min, wanted, (SESSION_LEAST, BRANCH_LEAST)))
    text = TEXT_LEAST + len(GAP) if columns is not None and columns >= WIDE else 0
    for name in GO_FIRST:
        if columns is None or _room(head, cells, columns) - text >= least:
            break
        head = [each for each in head if each != name]
    if columns is None:
        rooms = [NAME_COLUMNS, NAME_COLUMNS, TEXT_COLUMNS]
    else:
        rooms = _rooms(_room(head, cells, columns), wanted, text)
    lines = [[*head, "session", "branch", *(["text"] if rooms[2] else [])]]
    for row, cell, pair in zip(rows, cells, names, strict=True):
        line = [cell[key] for key in head] + [cut(*each) for each in zip(pair, rooms, strict=False)]
        lines.append(line + ([_text(row, asked, rooms[2])] if rooms[2] else []))
    right = frozenset(head.index(name) for name in RIGHT if name in head)
    shown = table(lines[1:], lines[0], right)
    return shown if columns is None else [cut(line, columns) for line in shown]


def _room(head: Sequence[str], cells: Sequence[Mapping[str, str]], columns: int) -> int:
    """What the columns of numbers leave."""
    taken = [max(map(width, (name, *(cell[name] for cell in cells)))) for name in head]
    return columns - sum(room + len(GAP) for room in taken)


def _rooms(left: int, wanted: Sequence[int], text: int) -> list[int]:
    """Of session, branch and text."""
    names = max(left - text - len(GAP), 2)
    branch = max(min(wanted[1], names - min(wanted[0], SESSION_LEAST)), 1)
    session = max(min(wanted[0], names - branch), 1)
    if not text:
        return [session, branch, 0]
    session, branch = min(session, NAMES_MOST), min(branch, NAMES_MOST)
    return [session, branch, max(left - session - branch - 2 * len(GAP), TEXT_LEAST)]


def _cells(row: Result, mark: str, per_token: int | None) -> dict[str, str]:
    held = row["held_tokens"]
    return {
        "lru": "-" if row["lru_rank"] is None else str(row["lru_rank"]),
        "kv": kv(row),
        "now": mark or "-",
        "lock": _lock(row),
        "tokens": count(row["tokens"]) if row["tokens"] else "-",
        "room": size(held * per_token) if held and per_token else "-",
        "used": age(row["last_used_s"]),
        "hits": "-" if row["hits"] is None else count(row["hits"]),
    }


def _session(row: Result) -> str:
    if row["kind"] == "shared" and row["session"] is None:
        return SEVERAL
    return one_line(str(row["name"] or "-")) + (" (ephemeral)" if row["ephemeral"] else "")


def _branch(row: Result) -> str:
    return KINDS.get(row["kind"]) or one_line(str(row["branch"]))


def kv(row: Result) -> str:
    """As in the tree; what has no messages of its own is told by the room it takes."""
    pinned = bool(row["pinned_tokens"])
    if not row["tokens"]:
        return f"G{'*' if pinned else ''}" if row["held_tokens"] else "-"
    return kv_cell({**row, "pinned": pinned, "role": "assistant"})


def _lock(row: Result) -> str:
    """`L`, `L3`: for three answers in progress."""
    if not row["locked_tokens"]:
        return "-"
    return f"L{len(row['answers'])}" if len(row["answers"]) > 1 else "L"


def _text(row: Result, asked: Mapping[str, Result], columns: int) -> str:
    """What is asked there now, else the branch's last words."""
    told = [asked[each] for each in row["answers"] if each in asked]
    if told:
        each = told[0]
        more = f", and {len(told) - 1:,} more" if told[1:] else ""
        name = one_line(str(each["branch"] or each["name"]))
        return cut(f"for {name}: {one_line(str(each['text']))}", columns - width(more)) + more
    return cut(one_line(str(row["text"] or "")), columns)


# -- what has changed ----------------------------------------------------------------------------


def key_of(row: Result) -> Key:
    return row["kind"], row["session"], row["branch"]


def change(before: Result | None, now: Result) -> str:
    """`G>D` gone from the device, kept on disk; `G>-` gone; `D>G` restored; `+` computed."""
    device, disk = _held(now)
    had, had_disk = (0, 0) if before is None else _held(before)
    if device > had:
        return "D>G" if disk < had_disk else "+"
    if device < had:
        return "G>D" if disk > had_disk else "G>-"
    return "D>-" if disk < had_disk else ""


def _held(row: Result) -> tuple[int, int]:
    cached = row["cached"]
    return (cached["device"] if row["tokens"] else row["held_tokens"]), cached["disk"]


class Changes:
    """What has become of each row since one began to look."""

    def __init__(self) -> None:
        self._before: dict[Key, Result] | None = None
        self._marks: dict[Key, tuple[str, int]] = {}  # and for how many looks more

    def look(self, rows: Sequence[Result]) -> dict[Key, str]:
        """The marks of the rows as they are now; a mark stays for a few looks."""
        before, now = self._before, {key_of(row): row for row in rows}
        marks = {key: (mark, left - 1) for key, (mark, left) in self._marks.items() if left > 1}
        if before is not None:
            for key, row in now.items():
                if mark := change(before.get(key), row):
                    marks[key] = mark, KEPT_LOOKS
        self._before, self._marks = now, marks
        return {key: mark for key, (mark, _) in marks.items()}
