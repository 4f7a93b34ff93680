r"""Text that a person is to approve: nothing in it is unseen, and what looks like something else is
told.

More than text.py, which makes text safe to print: here also what is merely invisible is shown
(``\u200b``), every space that is none, and line ends within a line.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from radchat.chat.text import join_surrogates
from radchat.chat.width import cluster_width, clusters

TAB = 4
TOLD = 4  # characters or words that are told one by one
_ODD = re.compile("[^\n\t\x20-\x7e]")
_UNSEEN = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
# letters and marks that are drawn as nothing, whatever their category says
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_WORD = re.compile(r"[^\W\d_]+")
# letters of other scripts that are drawn as Latin ones are
_TWINS = frozenset("асеорхуіјѕһԁԛԝкмтвнАВЕКМНОРСТХУІЈЅԌԚԜοανικρυχϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿօսոցհյԼՏՕѵѴӏӀ")


def seen(text: str) -> str:
    """In lines; all else that is not seen is shown as its number."""
    return _ODD.sub(_show, join_surrogates(text))


def seen_line(text: str) -> str:
    """On one line, which is not shortened."""
    return seen(text).replace("\n", "\\n").replace("\t", "\\t")


def _show(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\r":
        return "\\r"
    if not _is_unseen(char):
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _is_unseen(char: str) -> bool:
    return unicodedata.category(char) in _UNSEEN or _BLANK.match(char) is not None


def oddities(text: str) -> list[str]:
    """A line on what stands there unseen, and one on words that are not what they look like."""
    text = join_surrogates(text)
    if text.isascii() and text.isprintable():
        return []
    lines = []
    unseen = Counter(char for char in _ODD.findall(text) if char != "\r" and _is_unseen(char))
    if unseen:
        lines.append(f"not seen, and shown as numbers: {_listed([_name(c) for c in unseen])}")
    words = dict.fromkeys(word for word in _WORD.findall(text) if _is_disguised(word))
    if words:
        told = [f"{word} ({', '.join(_names(word))})" for word in words]
        lines.append(f"letters that are not what they look like: {_listed(told)}")
    return lines


def _is_disguised(word: str) -> bool:
    """Drawn as a word of Latin letters, and another."""
    if word.isascii():
        return False
    if any(unicodedata.normalize("NFKC", char).isascii() for char in word if not char.isascii()):
        return True
    foreign = [char for char in word if char in _TWINS]
    return bool(foreign) and all(char.isascii() or char in _TWINS for char in word)


def _names(word: str) -> Iterator[str]:
    return iter(dict.fromkeys(_name(char) for char in word if not char.isascii()))


def _name(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()


def _listed(each: list[str]) -> str:
    more = len(each) - TOLD
    return "; ".join(each[:TOLD]) + (f"; and {more} more" if more > 0 else "")


def hewn(line: str, columns: int) -> list[str]:
    """A line in such as fit, cut where they are full: every space of it is kept."""
    line = line.expandtabs(TAB)
    if line.isascii():
        starts = range(0, max(len(line), 1), columns)
        return [line[start : start + columns] for start in starts]
    rows, row, used = [], "", 0
    for cluster in clusters(line):
        room = cluster_width(cluster)
        if row and used + room > columns:
            rows.append(row)
            row, used = "", 0
        row, used = row + cluster, used + room
    return [*rows, row]
