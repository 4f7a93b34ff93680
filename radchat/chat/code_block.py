"""The code in an answer: what -x takes out of it."""

from __future__ import annotations

import re

_OPENS = re.compile(r"([ \t]*)(`{3,}|~{3,})([^\n]*)")


def first_block(text: str) -> str | None:
    """The first fenced code block without its fences, less the fence's indent; None where there is
    none, or none that was closed.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = _OPENS.fullmatch(line.rstrip("\r"))
        if found is None or ("`" in found[2] and "`" in found[3]):  # the latter is code in a line
            continue
        closes = re.compile(rf"[ \t]*{found[2][0]}{{{len(found[2])},}}\s*")
        inside: list[str] = []
        for each in lines[number + 1 :]:
            if closes.fullmatch(each):
                return "\n".join(inside)
            inside.append(each.removeprefix(found[1]))
        return None
    return None
