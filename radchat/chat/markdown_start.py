"""How a line of Markdown begins, and so what it is: decided as early as no continuation can change
it, so that the rest of the line can be shown while it comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["blank", "text", "heading", "rule", "fence", "math", "table", "code"]

_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])([ \t]+|$)")
_HEADING = re.compile(r"#{1,6}(?:[ \t]+|$)")
_TICKS = re.compile(r"(`{3,})[^`]*|(~{3,}).*")
INDENT = 4  # of code
NESTED = 20  # quotes a line may be in, and items that may begin in it; what is more is its text


@dataclass(frozen=True, slots=True)
class Start:
    kind: Kind
    quotes: int = 0  # how many it is in
    indent: int = 0
    marker: str = ""  # of the item that begins here, or of a heading
    rest: str = ""  # the line after all that

    @property
    def offset(self) -> int:
        """Where the text begins."""
        return self.indent + len(self.marker)


def start_of(line: str, *, is_whole: bool, offset: int, goes_on: bool) -> Start | None:
    """None: not to be said yet. ``offset``: where the text of the list one is in begins, 0: in
    none; ``goes_on``: the line before is text that this one may belong to.
    """
    quotes, rest = 0, line
    while quotes < NESTED and (found := re.match(r" {0,3}>", rest)):
        quotes, rest = quotes + 1, rest[found.end() :]
        if not rest and not is_whole:
            return None
        rest = rest.removeprefix(" ")
    text = rest.lstrip(" \t")
    indent = len(rest[: len(rest) - len(text)].expandtabs(INDENT))
    if not text:
        return Start("blank", quotes) if is_whole else None
    if indent >= offset + INDENT and not goes_on and (not offset or not _ITEM.match(text)):
        return Start("code", quotes, rest=rest) if is_whole else None
    return _inside(Start("text", quotes, indent, rest=text), NESTED, is_whole=is_whole)


def _inside(start: Start, items: int, *, is_whole: bool) -> Start | None:
    """``items``: how many may begin in what is left of the line."""
    text = start.rest
    if is_ruled := _may_be_rule(text):
        if not is_whole:
            return None
        if is_ruled >= 3:
            return replace(start, kind="rule")
    if text[0] in "`~" and (kind := _fenced(text, is_whole=is_whole)) != "text":
        return kind and replace(start, kind=kind)
    if text[0] == "#":
        return _heading(start, is_whole=is_whole)
    if text[0] == "|" and not start.marker:
        return replace(start, kind="table") if is_whole else None
    if text[0] in "$\\" and (kind := _math(text, is_whole=is_whole)) != "text":
        return kind and replace(start, kind=kind)
    return _item(start, items, is_whole=is_whole) if items else start


def _may_be_rule(text: str) -> int:
    """The stars or dashes of a line that has nothing else."""
    bare = text.replace(" ", "").replace("\t", "")
    return len(bare) if bare[0] in "-*_" and not bare.strip(bare[0]) else 0


def _fenced(text: str, *, is_whole: bool) -> Kind | None:
    if not is_whole and (text.startswith(("```", "~~~")) or text in ("`", "``", "~", "~~")):
        return None if "`" not in text.lstrip("`") or text[0] == "~" else "text"
    return "fence" if _TICKS.fullmatch(text) else "text"


def _math(text: str, *, is_whole: bool) -> Kind | None:
    """Of more lines than this."""
    if not is_whole:
        return None if text in ("$", "\\") or text.startswith(("$$", "\\[")) else "text"
    closes = {"$$": "$$", "\\[": "\\]"}.get(text[:2])
    return "math" if closes and closes not in text[2:] else "text"


def _heading(start: Start, *, is_whole: bool) -> Start | None:
    found = _HEADING.match(start.rest)
    if found is None or (not is_whole and found.end() == len(start.rest)):
        may_be = start.rest.strip("# \t") == "" and not is_whole
        return None if may_be else start
    marker = f"{start.marker}{found[0].rstrip()} "
    return replace(start, kind="heading", marker=marker, rest=start.rest[found.end() :])


def _item(start: Start, items: int, *, is_whole: bool) -> Start | None:
    text = start.rest
    if not is_whole and re.fullmatch(r"[-*+]|\d{1,9}[.)]?", text):
        return None
    found = _ITEM.match(text)
    if found is None:
        return start
    if found.end() == len(text) and not is_whole:
        return None
    rest = text[found.end() :]
    gap = " " * len(found[2].expandtabs(INDENT)) if rest else ""
    marker = start.marker + found[1] + (gap if len(gap) <= INDENT else " ")
    start = replace(start, marker=marker, rest=rest)
    return _inside(start, items - 1, is_whole=is_whole) if rest.strip() else start
