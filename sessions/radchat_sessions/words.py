"""Words as the text index has them, and what a person asks for as a query for it.

The index (FTS5, ``unicode61``) splits at everything that is no letter or digit, folds case and
drops accents. Scripts written without spaces are cut into single characters here, so that any run
of them is found: the cut is a character that nobody sees, and ``shown`` takes it out again.
"""

from __future__ import annotations

import re
from typing import Final

CUT: Final = "\u200b"  # zero width space: the index splits there
MARK, UNMARK = "\x02", "\x03"  # around a match; no indexed text has them

# Thai to Lao, Burmese, Khmer, kana, ideographs: the letters of what is written without spaces
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_CUTS = re.compile(rf"(?<=[{_UNSPACED}])(?=\w)|(?<=\w)(?=[{_UNSPACED}])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")  # NUL would end a text early
_TERM = re.compile(r'"([^"]*)"(\*?)|(\S+)')
_MARKS = re.compile(f"[{MARK}{UNMARK}]")


def indexed(text: str) -> str:
    """``text`` in the form that goes into the index."""
    return _CUTS.sub(CUT, _CONTROL.sub(" ", text))


def query(asked: str) -> str:
    """An FTS5 query for texts with every word of ``asked``; "" where it has none.

    ``"two words"`` is a phrase, ``wor*`` a beginning. Whatever else stands there is text: there is
    no operator and no syntax error.
    """
    terms = []
    for phrase, star, word in _TERM.findall(indexed(asked)):
        is_prefix = bool(star) or word.endswith("*")
        text = (phrase or word.rstrip("*")).replace('"', " ").strip()
        if any(c.isalnum() for c in text):
            terms.append(f'"{text}"' + ("*" if is_prefix else ""))
    return " ".join(dict.fromkeys(terms))


def shown(snippet: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A snippet as a person reads it, and where in it the matches are: (start, stop)."""
    plain = snippet.replace(CUT, "")
    marks: list[tuple[int, int]] = []
    start = done = 0
    for count, found in enumerate(_MARKS.finditer(plain)):
        at = found.start() - count
        if found[0] == MARK:
            start = at
        elif start >= done and at > start:
            marks.append((start, at))
            done = at
    return _MARKS.sub("", plain), tuple(marks)
