"""Long pastes: a placeholder in the line, the whole text in the message."""

from __future__ import annotations

import re

LINES, CHARS = 8, 1000  # from these on a paste is a long one
_PLACEHOLDER = re.compile(r"\[pasted #(\d+): [^\[\]\n]*\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: list[str] = []

    def shown(self, text: str) -> str:
        """What stands in the line for a paste: itself, or a placeholder."""
        if text.count("\n") + 1 < LINES and len(text) < CHARS:
            return text
        self._texts.append(text)
        lines = text.rstrip("\n").count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{len(self._texts)}: {size}]"

    def whole(self, text: str) -> str:
        def paste(match: re.Match[str]) -> str:
            return self._texts[int(match[1]) - 1] if self._knows(match) else match[0]

        return _PLACEHOLDER.sub(paste, text)

    def before(self, text: str) -> int:
        """The length of the placeholder that ends this text; 0: none."""
        return next((len(m[0]) for m in self._all(text) if m.end() == len(text)), 0)

    def behind(self, text: str) -> int:
        """The length of the placeholder that begins this text; 0: none."""
        match = _PLACEHOLDER.match(text)
        return len(match[0]) if match and self._knows(match) else 0

    def _all(self, text: str) -> list[re.Match[str]]:
        return [match for match in _PLACEHOLDER.finditer(text) if self._knows(match)]

    def _knows(self, match: re.Match[str]) -> bool:
        return 0 < int(match[1]) <= len(self._texts)
