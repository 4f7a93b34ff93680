"""The picture of a session's tree (docs/cli.md, "The model in the user's head").

One row a message, letters only. Its input is the JSON of ``radchat tree --json``; its output is a
list of lines that hold no control characters. Colour is added by the caller's ``paint`` and never
carries meaning alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from radchat.chat.footer import age, count, size
from radchat.chat.text import one_line
from radchat.chat.tree_shape import WHO, steps, walk
from radchat.chat.width import cut, pad, width

Paint = Callable[[str, str], str]  # (text, style) -> text; styles: "dim", "bold"

MIN_TEXT, PLAIN_TEXT = 10, 36  # columns of the text column: at least; and where nothing limits it
MAX_PLAIN_TEXT = 60
HEAD_MARK = "<- HEAD"
TIERS = (("device", "G", "device"), ("host", "H", "host"), ("disk", "D", "disk"))
LEGEND = "G device  H host  D disk  - none  * pinned    lru 1 goes first"


def unpainted(text: str, style: str) -> str:  # noqa: ARG001 - a Paint that paints nothing
    return text


@dataclass(slots=True)
class Row:
    """A message, ready to be laid out."""

    indent: int
    id: str
    who: str
    text: str
    tokens: str
    cache: tuple[str, str, str, str]  # kv, used, hits, lru
    labels: tuple[str, ...]  # branches and labels; where HEAD is, its mark is the last
    is_head: bool


def render(
    tree: Mapping[str, Any],
    *,
    columns: int | None,
    cache: bool = False,
    ids: bool = False,
    paint: Paint = unpainted,
) -> list[str]:
    """The lines of the picture. ``columns``: the terminal's width; None = cut to nothing."""
    messages = tree["messages"]
    if not messages:
        return [_header(tree, cache), "(no messages yet)"]
    names = {m["id"]: m["id"] for m in messages} if ids else short_ids(m["id"] for m in messages)
    rows, layout = _laid_out(tree, names, columns, cache)
    lines = [*_fold(_header(tree, cache), "   KV ", columns), paint(layout.head(), "dim")]
    lines += [paint(layout.line(row), "bold") if row.is_head else layout.line(row) for row in rows]
    if cache:
        lines += [paint(line, "dim") for line in _fold(_legend(tree), "    shared ", columns)]
    return lines


def short_ids(ids: Iterable[str], least: int = 4) -> dict[str, str]:
    """Each id's shortest prefix, of ``least`` or more, that no other id begins with."""
    ordered = sorted(ids)
    names = {}
    for i, full in enumerate(ordered):
        near = ordered[max(i - 1, 0) : i] + ordered[i + 1 : i + 2]
        need = least
        while need < len(full) and any(other.startswith(full[:need]) for other in near):
            need += 1
        names[full] = full[:need]
    return names


def _fit(line: str, columns: int | None) -> str:
    return line if columns is None else cut(line, columns)


def _fold(line: str, at: str, columns: int | None) -> list[str]:
    """The line, or two where the terminal is too narrow for one."""
    if columns is None or width(line) <= columns or at not in line:
        return [_fit(line, columns)]
    first, rest = line.split(at, 1)
    return [_fit(first, columns), _fit(at.lstrip() + rest, columns)]


def _header(tree: Mapping[str, Any], cache: bool) -> str:
    messages = tree.get("num_messages", len(tree["messages"]))
    branches = len(tree.get("branches") or {})
    parts = [f"session {one_line(str(tree.get('name') or '-'))} ({str(tree['session'])[:4]})"]
    if tree.get("model"):
        dtype = f" {tree['dtype']}" if cache and tree.get("dtype") else ""
        parts.append(one_line(str(tree["model"])) + dtype)
    parts.append(f"{messages} message{'' if messages == 1 else 's'}")
    parts.append(f"{branches} branch{'' if branches == 1 else 'es'}")
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
    shared = tree.get("shared_tokens")
    if not shared:
        return LEGEND
    return f"{LEGEND}    shared by all branches: {count(shared)} tokens, computed once"


def _laid_out(
    tree: Mapping[str, Any], names: Mapping[str, str], columns: int | None, cache: bool
) -> tuple[list[Row], _Layout]:
    """The rows where all of them fits: the text gives way first, then the space between numbers,
    then indentation, then numbers; what branches are called and where HEAD is, last.
    """
    if columns is None:
        rows = _rows(tree, names, None)
        return rows, _Layout.of(rows, None, cache, ROOMY)
    wide, narrow = max(columns // 4, 6), max(columns // 10, 4)
    for limit, shape in (
        (wide, ROOMY),
        (wide, TIGHT),
        (narrow, TIGHT),
        *((narrow, replace(TIGHT, shown=shown)) for shown in FEWER),
    ):
        rows = _rows(tree, names, limit)
        layout = _Layout.of(rows, columns, cache, shape)
        if layout.fits:
            break
    return rows, layout


def _rows(tree: Mapping[str, Any], names: Mapping[str, str], limit: int | None) -> list[Row]:
    """``limit``: columns of indentation."""
    messages = {m["id"]: m for m in tree["messages"]}
    branches: dict[str, list[str]] = {}
    for name, message in (tree.get("branches") or {}).items():
        branches.setdefault(message, []).append(one_line(name))
    order = walk({key: message.get("parent") for key, message in messages.items()})
    deepest = max(depth for _, depth, _ in order)
    found = []
    for place in order:
        key, indent = place[0], 2 * steps(place, deepest, limit)
        found.append(
            _row(messages[key], names[key], indent, branches.get(key, []), tree.get("head"))
        )
    return found


def _row(
    message: Mapping[str, Any], name: str, indent: int, branches: list[str], head: str | None
) -> Row:
    is_head = message["id"] == head
    labels = [*branches, *(one_line(str(label)) for label in message.get("labels") or ())]
    if is_head:
        labels.append(HEAD_MARK)
    tokens = message.get("tokens")
    who = str(message["role"])
    return Row(
        indent=indent,
        id=name,
        who=WHO.get(who, one_line(who)[:4]),
        text=one_line(str(message.get("text") or "")),
        tokens="-" if tokens is None else count(tokens),
        cache=_cache_cells(message),
        labels=tuple(labels),
        is_head=is_head,
    )


def _cache_cells(message: Mapping[str, Any]) -> tuple[str, str, str, str]:
    used = age(message.get("last_used_s"))
    hits = message.get("hits")
    rank = message.get("lru_rank")
    return (
        kv_cell(message),
        used,
        "-" if hits is None else count(hits),
        "-" if rank is None else str(rank),
    )


def kv_cell(message: Mapping[str, Any]) -> str:
    """``G``, ``D``, ``-``, ``G*`` pinned, ``G 80%`` when only a part of the tokens is cached;
    ``G 80% D``: the rest is on disk, ``G 80% D 10%``: some of the rest.
    """
    cached = message.get("cached") or {}
    held = {letter: number for key, letter, _ in TIERS if (number := cached.get(key))}
    if not held:
        return "-"
    tokens, star = message.get("tokens") or 0, "*" if message.get("pinned") else ""
    cells = []
    for letter, number in held.items():
        cells += [f"{letter}{star}", f"{100 * number // tokens}%"]
        star = ""
    # the stop token of a newest answer is computed with the turn after it
    if sum(held.values()) >= tokens - (message.get("role") == "assistant"):
        cells.pop()
    return " ".join(cells)


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
        if labels[-1] != HEAD_MARK:
            return cut(text, max(self.labels, 0))
        names = cut("  ".join(labels[:-1]), max(self.labels - len(HEAD_MARK) - 2, 0))
        return f"{names}  {HEAD_MARK}".lstrip()
