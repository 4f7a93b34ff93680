"""What a program did: a tree of its calls, with what each read, reused and made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.tree import Tree

USAGE = ("input_tokens", "cached_input_tokens", "output_tokens", "forced_tokens")
CACHE = ("device", "host", "disk", "computed")


@dataclass
class Call:
    """One call, and those made inside it. A fork's are its branches, in order."""

    kind: str  # program, branch, say, gen, select, fork, join
    name: str
    place: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None  # None: not begun, or not ended
    text: str = ""
    seed: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    _began: float = 0.0

    def add(self, kind: str, name: str, place: str) -> Call:
        call = Call(kind, name, place)
        self.calls.append(call)
        return call

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self, body: Mapping[str, Any] | None = None) -> None:
        """``body``: what the daemon answered."""
        self.seconds = time.monotonic() - self._began
        body = body or {}
        self.usage = dict(body.get("usage") or {})
        self.cache = dict(body.get("cache") or {})
        self.seed = body.get("seed")

    def span(self) -> tuple[float, float] | None:
        """When the first of it and of all inside it began, and the last ended."""
        spans = [span for each in self.calls if (span := each.span()) is not None]
        if self.seconds is not None:
            spans.append((self._began, self._began + self.seconds))
        return (min(b for b, _ in spans), max(e for _, e in spans)) if spans else None

    def took(self) -> float | None:
        """A fork's branches go on when the fork itself has long returned: with them."""
        span = self.span()
        return None if span is None else span[1] - span[0]

    def total(self, of: str) -> dict[str, int | None]:
        """Of ``usage`` or ``cache``, the sum over this call and all inside it; None: of one of them
        it is not known.
        """
        sums: dict[str, int | None] = dict.fromkeys(USAGE if of == "usage" else CACHE, 0)
        stack = [self]
        while stack:
            call = stack.pop()
            for name, value in getattr(call, of).items():
                before = sums.get(name, 0)
                if value is None or before is None:
                    sums[name] = None
                elif isinstance(value, int):
                    sums[name] = before + value
            stack += call.calls
        return sums

    def count(self, *kinds: str) -> int:
        """How many calls of these kinds there are in it."""
        return (self.kind in kinds) + sum(call.count(*kinds) for call in self.calls)

    def json(self) -> dict[str, Any]:
        """``seconds`` and the sums of ``usage`` and ``cache`` include the calls inside."""
        body: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "place": self.place,
            "seconds": self.took(),
        }
        if self.kind != "say":
            body |= {"usage": self.total("usage"), "cache": self.total("cache")}
        for name in ("text", "seed", "finish_reason", "error"):
            if getattr(self, name) not in (None, ""):
                body[name] = getattr(self, name)
        if self.calls:
            body["calls"] = [call.json() for call in self.calls]
        return body

    def tree(self) -> Tree:
        """For a terminal, by rich."""
        from radchat.programs.trace_view import tree

        return tree(self)
