"""Rows of a search's tree, laid out: a thought's name, its score, how it stands, its first words.

Letters carry all of it; no colour does.
"""

from __future__ import annotations

from collections.abc import Sequence

from radchat.chat.search_tree import Row
from radchat.chat.width import cut, pad

HEAD = ("name", "score", "state", "thought")
GAP = "  "
LEAST_TEXT = 12  # columns in which first words still say something


def laid_out(rows: Sequence[Row], columns: int) -> list[str]:
    """The rows under their heads, none wider than ``columns``.

    Indentation gives way first, then the names' beginnings; the words are cut.
    """
    score = max(len(HEAD[1]), *(len(row.score) for row in rows))
    state = max(len(HEAD[2]), *(len(row.state) for row in rows))
    rest = score + state + 3 * len(GAP)
    names = _named(rows, max(columns - rest - LEAST_TEXT, len(HEAD[0])))
    name = max(len(HEAD[0]), *map(len, names))
    text = max(columns - rest - name, 0)
    lines = []
    for label, row in zip((HEAD[0], *names), (None, *rows), strict=True):
        cells = HEAD[1:] if row is None else (row.score, row.state, row.text)
        line = GAP.join((pad(label, name), cells[0].rjust(score), cells[1].ljust(state)))
        lines.append(cut(f"{line}{GAP}{cut(cells[2], text)}".rstrip(), columns))
    return lines


def _named(rows: Sequence[Row], room: int) -> list[str]:
    """The names behind their indentation, as wide as there is room for."""
    for step in (2, 1, 0):
        names = [" " * (step * row.depth) + row.name for row in rows]
        if max(map(len, names)) <= room:
            return names
    return [_end(name, room) for name in names]


def _end(name: str, columns: int) -> str:
    """`..2.1.3`: where a name ends tells it from its siblings."""
    return name if len(name) <= columns else ".." + name[len(name) - columns + 2 :].lstrip(".")
