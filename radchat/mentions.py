"""Files that a text names: ``@PATH``, or ``@"PATH"`` where it has spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+))')
_BEHIND = ".,;:!?)]}'\""  # what a sentence goes on with behind a name


def mentioned(text: str) -> list[Sequence[str]]:
    """Of each, what may be its path: the first of them that is a file."""
    return [
        (quoted,) if quoted else (bare, bare.rstrip(_BEHIND))
        for quoted, bare in _MENTION.findall(text)
    ]


def without_mentions(text: str) -> str:
    return _MENTION.sub("", text)
