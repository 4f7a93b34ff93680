"""Many answers beside each other: the layout alone, from texts to lines.

As many columns as one can read in are side by side. Where not even two fit, the answers are
stacked: a line each, and the text of the selected one below. No line is wider than asked; texts are
clean (text.py), and wrapped by cluster.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from radchat.chat.width import cluster_width, clusters, cut, pad, width, wrap

Line: TypeAlias = list[tuple[str, str]]  # as screen.py has it: (style, text)

LEAST = 24  # columns in which a sentence can still be read
NARROW = 18  # in which one can still be watched: four of them in 80
GAP = "  "
TAB = 4
ASK_LINES = 2  # of what was asked, above its answer
_STYLING = re.compile("\x1b\\[[0-9;]*m")


def fit(columns: int, least: int = LEAST) -> int:
    """How many answers there is room for side by side: one at least."""
    return max((columns + len(GAP)) // (least + len(GAP)), 1)


def room(columns: int, count: int) -> int:
    """Columns of each of ``count`` answers side by side."""
    return max((columns - len(GAP) * (count - 1)) // count, 1)


def page(count: int, most: int, selected: int) -> int:
    """The first of the ``most`` that are seen at a time, the selected one among them."""
    return max(min(selected // most * most, count - most), 0)


def fold(text: str, columns: int) -> list[str]:
    """The text's lines, broken at spaces where there are any; nothing of it is lost.

    A word that is wider than the column, as a sentence of Chinese is, begins where it stands.
    """
    lines: list[str] = []
    for line in text.expandtabs(TAB).split("\n"):
        kept: list[str] = []
        was_hewn = False
        for piece in wrap(line, columns):
            whole = f"{kept[-1]} {piece}" if kept else piece
            is_wide = width(piece) > columns
            if is_wide or (was_hewn and width(whole) <= columns):
                kept[-1:] = _hewn(whole, columns)
            else:
                kept.append(piece)
            was_hewn = is_wide
        lines += kept
    return lines


def _hewn(line: str, columns: int) -> list[str]:
    """A word that is wider than the column, in pieces; a letter that is, as a question mark."""
    pieces, piece, used = [], "", 0
    for cluster in clusters(line):
        taken, shown = cluster_width(cluster), cluster
        if taken > columns:
            taken, shown = 1, "?"
        if used + taken > columns:
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + shown, used + taken
    return [*pieces, piece]


def asked(text: str, columns: int) -> list[str]:
    """The beginning of what was asked."""
    lines = fold(text, columns) if text else []
    if len(lines) <= ASK_LINES:
        return lines
    return [*lines[: ASK_LINES - 1], cut(f"{lines[ASK_LINES - 1]} ...", columns)]


def apart(text: str) -> str:
    """Without marks at its beginning, which would belong to the letter that stands before it."""
    while text and cluster_width(text[0]) == 0:
        text = text[1:]
    return text


def tail(text: str, columns: int) -> str:
    """The end of a line, as much of it as there is room for."""
    kept = list(clusters(text))
    used = sum(map(cluster_width, kept))
    start = 0
    while used > columns:
        used -= cluster_width(kept[start])
        start += 1
    return "".join(kept[start:])


class Folder:
    """Folds a text that only grows: what ends in a newline is folded once for a width."""

    def __init__(self) -> None:
        self._columns = 0
        self._done = ""  # of the text, with the newline it ends in
        self._lines: list[str] = []

    def lines(self, text: str, columns: int) -> list[str]:
        if columns != self._columns or not text.startswith(self._done):
            self._columns, self._done, self._lines = columns, "", []
        end = text.rfind("\n") + 1
        if end > len(self._done):
            self._lines += fold(text[len(self._done) : end - 1], columns)
            self._done = text[:end]
        return [*self._lines, *fold(text[end:], columns)] if text else []


@dataclass(slots=True)
class Cell:
    """One answer as it is seen."""

    title: str  # its number and name
    state: str
    text: str = ""
    ask: str = ""  # what was asked, where the others were asked something else
    style: str = ""  # of the text
    top: int | None = None  # the first line seen; None: the newest lines are
    folder: Folder = field(default_factory=Folder)

    def lines(self, columns: int) -> list[Line]:
        """All of it, what was asked first."""
        lines: list[Line] = [[("italic", line)] for line in asked(self.ask, columns)]
        lines += [[]] if lines else []
        return lines + [[(self.style, line)] for line in self.folder.lines(self.text, columns)]

    def seen(self, columns: int, rows: int) -> tuple[int, int, list[Line]]:
        """Where the lines that are seen begin, how many there are in all, and those seen."""
        lines = self.lines(columns)
        last = max(len(lines) - rows, 0)
        start = last if self.top is None else max(min(self.top, last), 0)
        return start, len(lines), lines[start : start + rows]


@dataclass(frozen=True, slots=True)
class Plan:
    """What has its place where, on a screen of so many columns and rows."""

    above: int  # rows of the header
    below: int  # and of the footer
    seen: int  # answers that are seen at a time
    columns: int  # of a text
    rows: int  # of a text
    is_beside: bool


def plan(count: int, columns: int, rows: int, num_footer: int) -> Plan:
    above = 1 if rows > 6 else 0
    below = min(num_footer, max((rows - 6) // 2, 0))
    left = max(rows - above - below, 1)
    if fit(columns) > 1 or count == 1:
        seen = min(count, fit(columns, NARROW))
        return Plan(above, below, seen, room(columns, seen), max(left - 3, 0), is_beside=True)
    seen = min(count, max(left // 2, 1))
    return Plan(above, below, seen, columns, max(left - seen - 1, 0), is_beside=False)


def painted(
    cells: Sequence[Cell],
    selected: int,
    columns: int,
    rows: int,
    *,
    header: str,
    footer: Sequence[str],
) -> list[Line]:
    """A whole screen: exactly ``rows`` lines."""
    places = plan(len(cells), columns, rows, len(footer))
    first = page(len(cells), places.seen, selected)
    numbers = range(first, first + places.seen)
    lay = _beside if places.is_beside else _stacked
    seen = f"  {first + 1}-{first + places.seen} of {len(cells)}"
    top = cut(header, columns)
    if places.seen < len(cells) and len(seen) < columns:
        top = pad(header, columns - len(seen)) + seen
    lines: list[Line] = [[("bold", top)]] * places.above
    lines += lay(cells, numbers, selected, places)
    end = rows - places.below
    lines = lines[:end] + [[]] * (end - len(lines))
    return lines + [[("", cut(line, columns))] for line in footer[: places.below]]


def shorter(state: str, columns: int) -> str:
    """Without the last of its parts that there is no room for; `reading 45%`."""
    while width(state) > columns and (parts := re.split("[,:] ", state))[1:]:
        state = state[: -len(parts[-1]) - 2]
    first, *more = state.split() or [""]
    is_share = width(state) > columns and more and more[-1].endswith("%")
    return f"{first} {more[-1]}" if is_share else state


def _marked(cell: Cell, is_selected: bool) -> str:
    return f"{'>' if is_selected else ' '} {cell.title}"


def _rule(cell: Cell, start: int, count: int, places: Plan, *, is_selected: bool) -> str:
    """Under a heading; of one that was scrolled, with the lines that are seen."""
    mark, seen = "=" if is_selected else "-", ""
    if cell.top is not None:
        seen = f"{mark} {start + 1}-{min(start + places.rows, count)} of {count} "
    return cut(seen.ljust(places.columns, mark), places.columns)


def _beside(
    cells: Sequence[Cell], numbers: Sequence[int], selected: int, places: Plan
) -> list[Line]:
    blocks: list[list[Line]] = []
    for number in numbers:
        cell, is_selected = cells[number], number == selected
        style = "bold" if is_selected else ""
        start, count, lines = cell.seen(places.columns, places.rows)
        rule = _rule(cell, start, count, places, is_selected=is_selected)
        heading = (_marked(cell, is_selected), f"  {shorter(cell.state, places.columns - 2)}", rule)
        blocks.append([*([(style, text)] for text in heading), *lines])
    return [_joined(blocks, row, places.columns) for row in range(max(map(len, blocks)))]


def _joined(blocks: Sequence[list[Line]], row: int, columns: int) -> Line:
    joined: Line = []
    for place, block in enumerate(blocks):
        style, text = (block[row] or [("", "")])[0] if row < len(block) else ("", "")
        joined += [("", GAP)] if place else []
        joined.append((style, pad(apart(text), columns)))
    return joined


def _stacked(
    cells: Sequence[Cell], numbers: Sequence[int], selected: int, places: Plan
) -> list[Line]:
    most = max(min(max(places.columns * 2 // 5, NARROW), places.columns - 2), 1)
    name = min(max(width(cells[number].title) for number in numbers), most)
    lines: list[Line] = []
    for number in numbers:
        cell, is_selected = cells[number], number == selected
        title = f"{'>' if is_selected else ' '} {pad(cell.title, name)}{GAP}"
        words = apart(" ".join(cell.text[-4 * places.columns :].split()))
        left = places.columns - width(title)
        state = cut(shorter(cell.state, left // 2 if words else left), left)
        left -= width(state) + len(GAP)
        told = f"{title}{state}{GAP}{apart(tail(words, max(left, 0)))}".rstrip()
        lines.append([("bold" if is_selected else "", cut(told, places.columns))])
    cell = cells[selected]
    start, count, seen = cell.seen(places.columns, places.rows)
    return [*lines, [("", _rule(cell, start, count, places, is_selected=True))], *seen]


# --- what stays when all has been said ---


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that has ended."""

    name: str  # with its number
    at: str  # its message: `@e1c7`
    state: str
    ask: str
    text: str


Render: TypeAlias = Callable[[str, int], list[str]]  # a text as lines of at most so many columns


def printed(
    answers: Sequence[Whole],
    columns: int,
    *,
    render: Render | None = None,
    title: Callable[[str], str] = str,
) -> list[str]:
    """Every answer whole: side by side where all fit, else one after the other.

    Lines may be styled, by ``render`` and by ``title``, which is given the first of an answer.
    Without a ``render`` lines that have all the width are left to the terminal to break.
    """
    if not 1 < len(answers) <= fit(columns):
        lines = []
        for each in answers:
            text = each.text.split("\n") if render is None else render(each.text, columns)
            lines += [*_heading(each, columns, title), "", *text, ""]
        return lines
    wide = room(columns, len(answers))
    headings = [_heading(each, wide, title) for each in answers]
    rows = max(map(len, headings)) + 1  # all texts begin in one row
    blocks = [
        [*heading, *[""] * (rows - len(heading)), *(render or fold)(each.text, wide)]
        for heading, each in zip(headings, answers, strict=True)
    ]
    return [*(_row(row, wide) for row in itertools.zip_longest(*blocks, fillvalue="")), ""]


def _heading(answer: Whole, columns: int, title: Callable[[str], str]) -> list[str]:
    left = columns - len(answer.at)
    name = cut(answer.name, left) + answer.at if left > LEAST // 2 else cut(answer.name, columns)
    state = cut(f"({shorter(answer.state, columns - 2)})", columns)
    return [title(name), state, *asked(answer.ask, columns)]


def _row(cells: Sequence[str], columns: int) -> str:
    shown = [apart(cell) for cell in cells]
    padded = [cell + " " * (columns - width(_STYLING.sub("", cell))) for cell in shown]
    return GAP.join(padded).rstrip()
