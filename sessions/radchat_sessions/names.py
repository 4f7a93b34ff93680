"""Names of branches and sessions: which there can be, those nobody had to think of, short ids."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from radchat_sessions.content import clean
from radchat_sessions.errors import Refused

SHORTEST_ID: Final = 4  # hex digits shown and accepted for a message or session
NAME_LIMIT: Final = 64  # characters
AUTO_NAME_LIMIT: Final = 24
AUTO_NAME_WORDS: Final = 4

_KINDS = [
    "amber",
    "brisk",
    "calm",
    "clear",
    "dry",
    "early",
    "fair",
    "fond",
    "gentle",
    "glad",
    "keen",
    "kind",
    "late",
    "light",
    "lucid",
    "mellow",
    "mild",
    "neat",
    "odd",
    "plain",
    "pure",
    "quick",
    "quiet",
    "rare",
    "red",
    "round",
    "sharp",
    "silver",
    "slow",
    "soft",
    "still",
    "warm",
]
_THINGS = [
    "acorn",
    "aspen",
    "birch",
    "brook",
    "cedar",
    "cliff",
    "cloud",
    "delta",
    "ember",
    "fern",
    "field",
    "finch",
    "forest",
    "harbor",
    "hazel",
    "heron",
    "island",
    "lake",
    "larch",
    "maple",
    "marsh",
    "meadow",
    "moss",
    "oak",
    "pine",
    "reed",
    "ridge",
    "river",
    "stone",
    "thistle",
    "willow",
    "wren",
]


def auto_name(text: str) -> str:
    """The first words of a message as a name: lower case, hyphens, at most AUTO_NAME_LIMIT
    characters. "" where there are none (then the made-up name stays).
    """
    plain = unicodedata.normalize("NFC", text[:400]).lower().replace("'", "")
    words = re.findall(r"[^\W_]+", plain)[:AUTO_NAME_WORDS]
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:AUTO_NAME_LIMIT]
        if len(longer) > AUTO_NAME_LIMIT:
            break
        name = longer
    return "" if name.isdigit() or name == "head" else name


def made_up_name(session_id: str) -> str:
    """Two words chosen by the id: ``quiet-harbor``."""
    number = int(session_id[:8], 16)
    return f"{_KINDS[number % len(_KINDS)]}-{_THINGS[number // len(_KINDS) % len(_THINGS)]}"


def free_name(base: str, taken: Collection[str]) -> str:
    """``base`` if it is free, else ``base-2``, ``base-3`` … (``main-2`` leads to ``main-3``)."""
    return Names(set(taken)).take(base)


class Names:
    """Names that are taken, and free ones taken of them: in as many steps as names, however many
    of them begin alike.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._next: dict[str, int] = {}  # by stem: all numbers below are taken

    def take(self, base: str, *, whole: bool = False) -> str:
        """As ``free_name``, and from now on it is taken. ``whole``: a number at the end of ``base``
        is of somebody's words, and another goes behind it: ``cost-5-2``.
        """
        name = base
        if base in self._taken:
            stem = base if whole else re.sub(r"-\d+$", "", base)
            stem = stem[: NAME_LIMIT - 8] or base
            number = self._next.get(stem, 2)
            while f"{stem}-{number}" in self._taken:
                number += 1
            self._next[stem] = number + 1
            name = f"{stem}-{number}"
        self._taken.add(name)
        return name


def is_hex(text: str) -> bool:
    return bool(text) and all(c in "0123456789abcdef" for c in text)


def shortest(ids: Sequence[str]) -> Mapping[str, str]:
    """Each id's shortest beginning that no other of ``ids`` has, SHORTEST_ID digits at least."""
    ordered = sorted(ids)
    found = {}
    for i, this in enumerate(ordered):
        need = SHORTEST_ID
        for other in (*ordered[max(0, i - 1) : i], *ordered[i + 1 : i + 2]):
            while other[:need] == this[:need] and need < len(this):
                need += 1
        found[this] = this[:need]
    return found


def check_name(name: str, what: str = "branch") -> str:
    """``name``, if no REF can mean something else by it (a turn, HEAD, ``-``, ``SESSION:REF``)."""
    if not name or len(name) > NAME_LIMIT:
        why = f"1 to {NAME_LIMIT} characters"
    elif clean(name) != name or any(
        c.isspace() or unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in name
    ):
        why = "no white space or control characters"
    elif any(c in ":~" for c in name) or name[0] in "-#":
        why = "no ':' or '~', no '-' or '#' at the beginning"
    elif name.isdigit() or name.upper() == "HEAD":
        why = "not a number, not HEAD"
    else:
        return name
    raise Refused(f"{name[:NAME_LIMIT]!r} can't be the name of a {what}: {why}")
