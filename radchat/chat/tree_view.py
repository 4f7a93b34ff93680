"""The picture of a session's tree (docs/cli.md, "The model in the user's head").

One row a message, letters only. Its input is the JSON of ``radchat tree --json``; its output is a
list of lines that hold no control characters. Colour is added by the caller's ``paint`` and never
carries meaning alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from radchat.chat.footer import count, counted, size
from radchat.chat.text import one_line
from radchat.chat.tree_rows import HEAD_BELOW, HEAD_MARK, Row, Rows
from radchat.chat.tree_shape import TIERS, short_ids
from radchat.chat.width import cut, pad, width

Paint = Callable[[str, str], str]  # (text, style) -> text; styles: "dim", "bold"

MIN_TEXT, PLAIN_TEXT = 10, 36  # columns of the text column: at least; and where nothing limits it
MAX_PLAIN_TEXT = 60
LEGEND = "G device  H host  D disk  - none  * pinned    lru 1 goes first"


def unpainted(text: str, style: str) -> str:  # noqa: ARG001 - a Paint that paints nothing
    return text


def render(
    tree: Mapping[str, Any],
    *,
    columns: int | None,
    cache: bool = False,
    ids: bool = False,
    folds: bool = True,
    paint: Paint = unpainted,
) -> list[str]:
    """The lines of the picture. ``columns``: the terminal's width; None = cut to nothing.
    ``folds``: a row for the middle of a long run of messages in which nothing is named or forks.
    """
    messages = tree["messages"]
    if not messages:
        hides = tree.get("num_messages")
        return [_header(tree, cache), "(none of these)" if hides else "(no messages yet)"]
    names = {m["id"]: m["id"] for m in messages} if ids else short_ids(m["id"] for m in messages)
    rows, layout = _laid_out(Rows.of(tree, names, folds=folds), columns, cache)
    lines = [*_fold(_header(tree, cache), "   KV ", columns), paint(layout.head(), "dim")]
    lines += [paint(layout.line(row), "bold") if row.is_head else layout.line(row) for row in rows]
    if cache:
        lines += [paint(line, "dim") for line in _fold(_legend(tree), "    shared ", columns)]
    return lines


def _fit(line: str, columns: int | None) -> str:
    return line if columns is None else cut(line, columns)


def _fold(line: str, at: str, columns: int | None) -> list[str]:
    """The line, or two where the terminal is too narrow for one."""
    if columns is None or width(line) <= columns or at not in line:
        return [_fit(line, columns)]
    first, rest = line.split(at, 1)
    return [_fit(first, columns), _fit(at.lstrip() + rest, columns)]


def _header(tree: Mapping[str, Any], cache: bool) -> str:
    messages = int(tree.get("num_messages", len(tree["messages"])))
    parts = [f"session {one_line(str(tree.get('name') or '-'))} ({str(tree['session'])[:4]})"]
    if tree.get("model"):
        dtype = f" {tree['dtype']}" if cache and tree.get("dtype") else ""
        parts.append(one_line(str(tree["model"])) + dtype)
    parts.append(counted(messages, "message"))
    parts.append(counted(len(tree.get("branches") or {}), "branch"))
    line = "  ".join(parts)
    tiers = tree.get("tiers") or {}
    if cache and tiers:
        used = [
            f"{letter} {size(tiers[key].get('kept_bytes') or tiers[key].get('bytes') or 0)}"
            for key, letter, _ in TIERS
            if tiers.get(key)
        ]
        line += "   KV " + "  ".join(used)
        device = tiers.get("device") or {}
        if device.get("budget_bytes"):
            line += f"  budget {100 * (device.get('bytes') or 0) / device['budget_bytes']:.0f}%"
    return line


def _legend(tree: Mapping[str, Any]) -> str:
    shared, legend = tree.get("shared_tokens"), LEGEND
    if any("remote" in (message.get("cached") or {}) for message in tree["messages"]):
        legend = f"R remote: its engine knows  {LEGEND}"
    if not shared:
        return legend
    return f"{legend}    shared by all branches: {count(shared)} tokens, computed once"


def _laid_out(tree: Rows, columns: int | None, cache: bool) -> tuple[list[Row], _Layout]:
    """The rows where all of them fits: the text gives way first, then the space between numbers,
    then indentation, then numbers; what branches are called and where HEAD is, last.
    """
    if columns is None:
        rows = tree.indented(None)
        return rows, _Layout.of(rows, None, cache, ROOMY)
    wide, narrow = max(columns // 4, 6), max(columns // 10, 4)
    for limit, shape in (
        (wide, ROOMY),
        (wide, TIGHT),
        (narrow, TIGHT),
        *((narrow, replace(TIGHT, shown=shown)) for shown in FEWER),
    ):
        rows = tree.indented(limit)
        layout = _Layout.of(rows, columns, cache, shape)
        if layout.fits:
            break
    return rows, layout


@dataclass(frozen=True, slots=True)
class _Shape:
    """What stands between the columns, and which of the cache's are shown."""

    before: int  # columns of space before the first of them, and before the labels
    between: int
    shown: tuple[int, ...] = (0, 1, 2, 3)


ROOMY, TIGHT = _Shape(3, 2), _Shape(1, 1)
FEWER = ((0, 2, 3), (0, 3))
CELLS = ("kv", "used", "hits", "lru")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the columns are. A row indented past a column pushes its own text to the right."""

    who: int
    text: int
    end: int  # column after the text and tokens columns
    tokens: int  # width of the tokens column
    shape: _Shape
    cells: tuple[int, ...] | None  # widths of kv, used, hits, lru
    labels: int  # room for them
    fits: bool
    columns: int | None

    @classmethod
    def of(cls, rows: Sequence[Row], columns: int | None, cache: bool, shape: _Shape) -> _Layout:
        longest_id = max(len(row.id) for row in rows)
        who = max(7, longest_id + 2)
        text = who + 6
        tokens = max(6, *(len(row.tokens) for row in rows))
        cells = None
        tail = 0
        if cache:
            cells = tuple(
                max(len(name), *(len(row.cache[i]) for row in rows)) for i, name in enumerate(CELLS)
            )
            between = shape.between * (len(shape.shown) - 1)
            tail = shape.before + sum(cells[i] for i in shape.shown) + between
        labels = max((width("  ".join(row.labels)) for row in rows), default=0)
        tail += labels + shape.before if labels else 0
        deepest = max(cls._text_at(row, who, text) for row in rows)
        longest = max(cls._text_at(row, who, text) + width(row.text) for row in rows)
        wish = max(text + PLAIN_TEXT, min(longest + 1, deepest + MAX_PLAIN_TEXT))
        lacking = 0
        if columns is not None:
            room = columns - tail - tokens
            wish = max(min(max(text + PLAIN_TEXT, longest + 1), room), deepest + MIN_TEXT)
            lacking = max(wish - room, 0)
        return cls(
            who, text, wish + tokens, tokens, shape, cells, labels - lacking, not lacking, columns
        )

    @staticmethod
    def _text_at(row: Row, who: int, text: int) -> int:
        return max(text, max(who, row.indent + len(row.id) + 1) + 5)

    def head(self) -> str:
        line = "id".ljust(self.who) + "who".ljust(self.text - self.who) + "text"
        line = line.ljust(self.end - self.tokens) + "tokens".rjust(self.tokens)
        return _fit(line + self._cells(CELLS), self.columns)

    def line(self, row: Row) -> str:
        who_at = max(self.who, row.indent + len(row.id) + 1)
        text_at = max(self.text, who_at + 5)
        line = (" " * row.indent + row.id).ljust(who_at) + row.who.ljust(text_at - who_at)
        line += pad(row.text, self.end - self.tokens - text_at - 1) + " "
        line += row.tokens.rjust(self.tokens) + self._cells(row.cache)
        if row.labels:
            line += " " * self.shape.before + self._named(row.labels)
        return _fit(line.rstrip(), self.columns)

    def _cells(self, cells: tuple[str, ...]) -> str:
        if self.cells is None:
            return ""
        shown = [
            cells[i].rjust(self.cells[i]) if i > 1 else cells[i].ljust(self.cells[i])
            for i in self.shape.shown
        ]
        return " " * self.shape.before + (" " * self.shape.between).join(shown)

    def _named(self, labels: tuple[str, ...]) -> str:
        """The labels, where there is no room for them cut; HEAD's mark never."""
        text = "  ".join(labels)
        if width(text) <= self.labels:
            return text
        *names, mark = labels
        if mark not in (HEAD_MARK, HEAD_BELOW):
            return cut(text, max(self.labels, 0))
        return f"{cut('  '.join(names), max(self.labels - len(mark) - 2, 0))}  {mark}".lstrip()
