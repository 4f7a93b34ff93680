"""Hashes of renderings and settings: the same in every process, whatever its masks are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from radchat.engine.conversation import Point, Turn
from radchat.engine.rendering import View
from radchat.engine.tokenizer import Tokenizer

SETTINGS_PARTS = ("template", "tools", "system", "switch", "clock")


class Digests:
    """Hashes of the beginnings of one rendering."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._masks = tokenizer.mask_spans(text)
        self._known: dict[int, str] = {}

    def at(self, chars: int) -> str:
        """Of the first ``chars`` characters; "" (no hash) beyond the end or inside a mask."""
        if chars > len(self._text) or any(start < chars < end for start, end in self._masks):
            return ""
        if chars not in self._known:
            data = self._tokenizer.canonical(self._text[:chars])
            self._known[chars] = hashlib.blake2b(data, digest_size=16).hexdigest()
        return self._known[chars]

    def fits(self, point: Point) -> bool:
        return point.digest != "" and self.at(point.chars) == point.digest


def settings_hash(
    source: str,
    tokenizer: Tokenizer,
    view: View,
    turns: Sequence[Turn],
    shown: Sequence[Mapping[str, Any]] = (),
) -> str:
    """One short hash for each of SETTINGS_PARTS, so that a change can be named. ``shown``: tools
    that a message has in its text.
    """
    system = []
    for turn in turns:
        if turn.role not in ("system", "developer"):
            break
        system.append([turn.role, turn.text])
    parts = (
        source,
        json.dumps(view.tools or tuple(shown)),
        json.dumps(system),
        json.dumps(view.switches, sort_keys=True),
        view.clock.isoformat(),
    )
    return "-".join(
        hashlib.blake2b(tokenizer.canonical(part), digest_size=6).hexdigest() for part in parts
    )


def settings_changes(old: str, new: str) -> list[str]:
    """Names of the parts that differ."""
    pairs = zip(SETTINGS_PARTS, old.split("-"), new.split("-"), strict=False)
    return [name for name, a, b in pairs if a != b]
