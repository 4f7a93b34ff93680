"""Grammars of thoughts, as they travel: a kind and its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Grammar: TypeAlias = Mapping[str, Any]

# what no line has: controls, other ends of lines, and marks that turn the direction of text
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"


def line(most: int) -> str:
    """A pattern: one line of 1 to ``most`` characters, the first of them no space."""
    return rf"[^\s{_HIDDEN}][^{_HIDDEN}]{{0,{most - 1}}}"


def sentence(most: int) -> str:
    """A pattern: a sentence of about ``most`` characters at most, that is no item of a list. It is
    over at its first full stop; one with no space after it (``3.5``) is none.
    """
    begin = rf"[^\s{_HIDDEN}\d#*•.!?。！？-]"
    inside = rf"(?:[^{_HIDDEN}.!?。！？]|[.!?][^\s{_HIDDEN}.!?。！？])"
    return rf"{begin}{inside}{{0,{most - 2}}}[.!?。！？]"


def regex(pattern: str) -> Grammar:
    """Rust's syntax of regular expressions, without look-around."""
    return {"kind": "regex", "source": pattern}


def choices(texts: Sequence[str]) -> Grammar:
    """One of these."""
    each = list(dict.fromkeys(texts))
    if not each or not all(each):
        raise ValueError("choices: want one text or more, none of them empty")
    return {"kind": "choices", "source": json.dumps(each)}


def numbered(pattern: str, count: int) -> Grammar:
    """A list of ``count`` lines, ``1. …`` and so on, each of the pattern."""
    return regex(r"\n".join(rf"{number}\. (?:{pattern})" for number in range(1, count + 1)))


def pattern_of(grammar: Grammar) -> str | None:
    """The grammar as a regular expression, where it is one."""
    if grammar["kind"] == "choices":
        return "|".join(re.escape(text) for text in json.loads(grammar["source"]))
    return str(grammar["source"]) if grammar["kind"] == "regex" else None
