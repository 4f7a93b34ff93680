"""How many columns a text takes, and where it may be cut: by cluster, never inside one.

A small table-free rule over the Unicode database: a cluster is a base and what extends it
(combining marks, joiners and what they join, variation selectors, skin tones, the second regional
indicator of a flag). It is two columns wide if any part is East Asian wide or asks for emoji form.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

ELLIPSIS = "..."
_ZWJ = "\u200d"
_EMOJI_FORM = "\ufe0f"
_STYLES = re.compile("\x1b\\[[0-9;]*m")
_ZERO = frozenset(("Mn", "Me", "Cf"))


def clusters(text: str) -> Iterator[str]:
    """The text in pieces that must not be cut."""
    cluster = ""
    for char in text:
        if cluster and _extends(cluster, char):
            cluster += char
            continue
        if cluster:
            yield cluster
        cluster = char
    if cluster:
        yield cluster


def _extends(cluster: str, char: str) -> bool:
    if unicodedata.category(char) in _ZERO or cluster[-1] == _ZWJ:
        return True
    code = ord(char)
    if 0x1F3FB <= code <= 0x1F3FF:  # skin tones
        return True
    if 0x1160 <= code <= 0x11FF:  # Hangul vowels and finals after their initial
        return 0x1100 <= ord(cluster[0]) <= 0x115F
    return _is_flag_half(char) and len(cluster) == 1 and _is_flag_half(cluster)


def _is_flag_half(char: str) -> bool:
    return 0x1F1E6 <= ord(char) <= 0x1F1FF


def cluster_width(cluster: str) -> int:
    if unicodedata.category(cluster[0]) in _ZERO and len(cluster) == 1:
        return 0
    wide = any(unicodedata.east_asian_width(char) in "WF" for char in cluster)
    return 2 if wide or _EMOJI_FORM in cluster or _is_flag_half(cluster[0]) else 1


def width(text: str) -> int:
    """Columns of a line without control characters."""
    if text.isascii():
        return len(text)
    return sum(cluster_width(cluster) for cluster in clusters(text))


def visible_width(text: str) -> int:
    """Columns of a line that may be painted."""
    return width(_STYLES.sub("", text))


def cut(text: str, columns: int) -> str:
    """At most ``columns`` columns of the text, with ``...`` where it was cut and there is room."""
    if width(text) <= columns:
        return text
    room = columns - len(ELLIPSIS) if columns > len(ELLIPSIS) else columns
    kept, used = [], 0
    for cluster in clusters(text):
        used += cluster_width(cluster)
        if used > room:
            break
        kept.append(cluster)
    return "".join(kept).rstrip() + (ELLIPSIS if columns > len(ELLIPSIS) else "")


def first_line(text: str, columns: int) -> str:
    """As much of the text's beginning as a line takes, cut at a space where there is one."""
    kept, used = "", 0
    for cluster in clusters(text):
        used += cluster_width(cluster)
        if used > columns:
            return kept[: kept.rfind(" ") + 1] or kept
        kept += cluster
    return kept


def wrap(text: str, columns: int) -> list[str]:
    """The lines of the text, broken at spaces into such as take ``columns`` columns at most.

    A word that takes more stays whole: a path or a command can still be copied.
    """
    lines = []
    for line in text.split("\n"):
        kept, used = "", 0
        for word in line.split(" ") if width(line) > columns else ():
            room = width(word)
            if kept.strip(" ") and used + room > columns:
                lines.append(kept.rstrip(" "))
                kept, used = "", 0
            kept, used = f"{kept}{word} ", used + room + 1
        lines.append(kept.rstrip(" ") if kept else line)
    return lines


def hang(line: str, columns: int, indent: int) -> list[str]:
    """The line, broken at words; those after the first begin ``indent`` columns in, as its text."""
    first, *rest = wrap(line[indent:], max(columns - indent, 1))
    return [line[:indent] + first, *(" " * indent + each for each in rest)]


def pad(text: str, columns: int) -> str:
    """The text cut or filled with spaces to exactly ``columns`` columns."""
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def table(rows: list[list[str]], head: list[str], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows in columns, two spaces apart; ``right`` names the columns of numbers."""
    every = [head, *rows]
    widths = [max(width(row[i]) for row in every) for i in range(len(head))]
    lines = []
    for row in every:
        cells = []
        for i, (cell, room) in enumerate(zip(row, widths, strict=True)):
            space = " " * (room - width(cell))
            cells.append(space + cell if i in right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines
