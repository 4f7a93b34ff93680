"""What a user's program prints: on stderr, for it is no data, and above the line of progress."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable


class Printed(io.TextIOBase):
    """``print`` writes a line in pieces, and programs run at once: each thread's lines are whole.
    ``above`` writes some.
    """

    def __init__(self, above: Callable[[str], None]) -> None:
        self._above, self._own = above, threading.local()

    def write(self, text: str) -> int:
        whole, newline, rest = (self._begun() + text).rpartition("\n")
        self._own.text = rest
        if newline:
            self._above(whole + newline)
        return len(text)

    def flush(self) -> None:
        """Also of a line that has no end yet: a question that is asked."""
        begun, self._own.text = self._begun(), ""
        if begun:
            self._above(begun)

    def _begun(self) -> str:
        return getattr(self._own, "text", "")

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stderr.encoding
