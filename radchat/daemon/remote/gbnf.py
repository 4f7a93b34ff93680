"""A regular expression in llama.cpp's grammar form (GBNF), where it can be said in it.

Python's own parser takes it apart. What has no counterpart (look-around, back references, anchors
in the midst) is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from re import _constants as codes
    from re import _parser as parser

_CLASSES = {
    codes.CATEGORY_DIGIT: "0-9",
    codes.CATEGORY_WORD: "a-zA-Z0-9_",
    codes.CATEGORY_SPACE: " \\t\\n\\r",
}
_NOT_CLASSES = {
    codes.CATEGORY_NOT_DIGIT: "[^0-9]",
    codes.CATEGORY_NOT_WORD: "[^a-zA-Z0-9_]",
    codes.CATEGORY_NOT_SPACE: "[^ \\t\\n\\r]",
}
_MANY = 1 << 16  # repeats from here on are without end


class NoForm(ValueError):
    """It can't be said so."""


def of_regex(source: str) -> str:
    """The whole answer is of it. Raises NoForm."""
    try:
        parsed = parser.parse(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise NoForm(str(error)) from error
    return f"root ::= {_sequence(parsed)}"


def literal(text: str) -> str:
    told = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{told}"'


def _sequence(items: Iterable[Any]) -> str:
    return " ".join(_item(*item) for item in items) or '""'


def _item(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return literal(chr(value))
    if code is codes.NOT_LITERAL:
        return f"[^{_in_class(value)}]"
    if code is codes.ANY:
        return "[^\\n]"
    if code is codes.IN:
        return _class(value)
    if code is codes.BRANCH:
        return f"({' | '.join(_sequence(each) for each in value[1])})"
    if code is codes.SUBPATTERN:
        return f"({_sequence(value[3])})"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most, what = value
        end = "" if most is codes.MAXREPEAT or most >= _MANY else str(most)
        return f"({_sequence(what)}){{{least},{end}}}"
    if code is codes.AT and value in (codes.AT_BEGINNING, codes.AT_END):
        return '""'
    raise NoForm(f"it has {str(code).lower()}")


def _class(items: Iterable[Any]) -> str:
    inner, begin = "", "["
    for code, value in items:
        if code is codes.NEGATE:
            begin = "[^"
        elif code is codes.LITERAL:
            inner += _in_class(value)
        elif code is codes.RANGE:
            inner += f"{_in_class(value[0])}-{_in_class(value[1])}"
        elif code is codes.CATEGORY and value in _CLASSES:
            inner += _CLASSES[value]
        elif code is codes.CATEGORY and not inner and begin == "[":
            return _NOT_CLASSES[value]
        else:
            raise NoForm(f"a set has {str(value).lower()}")
    return f"{begin}{inner}]"


def _in_class(number: int) -> str:
    char = chr(number)
    if char in "\\]^-[":
        return f"\\x{number:02X}"
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, char)
