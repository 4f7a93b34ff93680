"""A table of Markdown: columns aligned, cells broken where it is too wide, or a list of records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from radchat.chat.markdown_flow import Flow
from radchat.chat.markdown_inline import BOLD, DIM, Span, spans
from radchat.chat.width import visible_width, width

GAP = "  "
NARROW = 6  # columns a cell needs to be read
_DIVIDES = re.compile(":?-+:?")
_BAR = re.compile(r"(?<!\\)\|")


def divides(line: str) -> bool:
    """Is it the line below a table's head?"""
    return all(map(_DIVIDES.fullmatch, _cells(line)))


def num_cells(line: str) -> int:
    return len(_cells(line))


def table_lines(source: Sequence[str], columns: int, *, paints: bool) -> list[str]:
    """Of the head, the line below it, and the rows."""
    head, ruled, *rows = [_cells(line) for line in source]
    count = len(head)
    sides = [_side(cell) for cell in (*ruled, *[""] * count)][:count]
    cells = [[spans(cell, paints=paints) for cell in _fit(row, count)] for row in rows]
    heads = [
        [(f"{BOLD};{style}".strip(";"), text) for style, text in spans(cell, paints=paints)]
        for cell in head
    ]
    natural = [max(_width(row[i]) for row in (heads, *cells)) for i in range(count)]
    widths = _shrunk(natural, columns - len(GAP) * (count - 1))
    if widths is None:
        return _records(heads, cells, columns, paints=paints)
    rule = Flow(columns, paints=paints, cuts=True)
    rule.line([(DIM, GAP.join("-" * room for room in widths))])
    blocks = [_row(row, widths, sides, paints=paints) for row in (heads, *cells)]
    lines = [*blocks[0], rule.take().rstrip("\n")]
    is_tall = any(len(block) > 1 for block in blocks[1:])
    for number, block in enumerate(blocks[1:]):
        lines += [""] if is_tall and number else []
        lines += block
    return lines


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("|")
    if line.endswith("|") and not line.endswith("\\|"):
        line = line[:-1]
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(line)]


def _fit(row: list[str], count: int) -> list[str]:
    """As many cells as the head has; what is more stays in the last: no word is lost."""
    if len(row) > count:
        return [*row[: count - 1], " | ".join(row[count - 1 :])]
    return row + [""] * (count - len(row))


def _side(rule: str) -> str:
    if rule.endswith(":"):
        return "center" if rule.startswith(":") else "right"
    return "left"


def _width(cell: Sequence[Span]) -> int:
    return sum(width(text) for _, text in cell)


def _shrunk(natural: list[int], room: int) -> list[int] | None:
    """The widest columns made as narrow as it takes; None: too narrow to be read."""
    if sum(natural) <= room:
        return natural
    rooms = range(NARROW, min(max(natural), room + 1))
    most = max((n for n in rooms if sum(min(w, n) for w in natural) <= room), default=None)
    if most is None:
        return None
    left = room - sum(min(w, most) for w in natural)
    widths = []
    for w in natural:
        extra = 1 if w > most and left else 0
        left -= extra
        widths.append(min(w, most + extra))
    return widths


def _filled(cell: Sequence[Span], columns: int, *, paints: bool) -> list[str]:
    flow = Flow(columns, paints=paints, cuts=True)
    flow.begin([], [])
    flow.add(cell)
    flow.end_line()
    return flow.take().rstrip("\n").split("\n")


def _row(
    row: Sequence[Sequence[Span]], widths: list[int], sides: list[str], *, paints: bool
) -> list[str]:
    columns = [_filled(cell, room, paints=paints) for cell, room in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*columns, fillvalue=""):
        line = ""
        for part, room, side in zip(parts, widths, sides, strict=True):
            free = max(room - visible_width(part), 0)
            before = {"left": 0, "right": free, "center": free // 2}[side]
            line += f"{' ' * before}{part}{' ' * (free - before)}{GAP}"
        lines.append(line.rstrip())
    return lines


def _records(
    heads: Sequence[Sequence[Span]],
    rows: Sequence[Sequence[Sequence[Span]]],
    columns: int,
    *,
    paints: bool,
) -> list[str]:
    """A line a cell, its head before it."""
    flow = Flow(columns, paints=paints, cuts=True)
    for number, row in enumerate(rows or [[]]):
        if number:
            flow.line([])
        for head, cell in zip_longest(heads, row, fillvalue=()):
            flow.begin([], [("", GAP)])
            flow.add([*head, ("", ": "), *cell] if cell else head)
            flow.end_line()
    return flow.take().removesuffix("\n").split("\n")
