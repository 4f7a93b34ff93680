"""Lines read where nothing can be painted (TERM=dumb): the terminal's own line editing and echo.

What was typed before has no echo yet: it is written behind the mark, and goes on being typed there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from radchat.chat.keyboard import lent, not_read
from radchat.chat.text import KEYS, clean, typed

PIECE = 1 << 16
HOW = "Enter sends this, Ctrl+C drops it, other words replace it"


class PlainLines:
    def __init__(self) -> None:
        self._ahead = ""  # typed, and not read yet
        self._held = ""  # to be offered, and not sent

    def take(self) -> None:
        """What was typed until now is for the next line, whatever becomes of it there."""
        self._ahead = _edited(self._ahead + not_read())

    def hold(self) -> None:
        """What was taken is offered with the next message, and not sent."""
        self._held = "\n".join(filter(None, (self._held, self._ahead.strip("\n"))))
        self._ahead = ""

    def offer(self, default: str) -> str:
        """Nothing can stand in the line before it is typed: what would is shown above it."""
        text = "\n".join(filter(None, (default, self._held)))
        self._held = ""
        if text:
            _write(f"{clean(text)}\n{HOW}\n")
        return text

    def message(self, mark: str, whole: Callable[[str], str | None]) -> str:
        """Lines until they are what ``whole`` takes for one, as it gives it back.

        Raises EOFError (Ctrl+D in an empty line), KeyboardInterrupt (Ctrl+C).
        """
        try:
            with lent():
                self.take()
                _write(mark)  # behind it a key is the terminal's affair
                return self._lines(whole)
        except (EOFError, KeyboardInterrupt):
            self._ahead = ""
            _write("\n")
            raise

    def _lines(self, whole: Callable[[str], str | None]) -> str:
        text = ""
        while True:
            line, end, _ = self._ahead.partition("\n")
            _write(line + end)  # that had no echo
            text += self._read()
            if (message := whole(text)) is not None:
                return message
            text += "\n"

    def _read(self) -> str:
        """The next line. What came just before the terminal was lent has another Enter."""
        while "\n" not in self._ahead:
            try:
                piece = os.read(sys.stdin.fileno(), PIECE)
            except OSError:  # hung up
                piece = b""
            if not piece:
                raise EOFError
            self._ahead += typed(piece.decode("utf-8", "replace"))
        line, _, self._ahead = self._ahead.partition("\n")
        return line


def _edited(keys: str) -> str:
    """The text these keys make, where the terminal edited no lines."""
    lines = [""]
    for key in KEYS.sub("", keys):
        if key in "\r\n":
            lines.append("")
        elif key in "\b\x7f":
            lines[-1] = lines[-1][:-1]
        elif key == "\x15":  # Ctrl+U
            lines[-1] = ""
        elif key == "\t" or key.isprintable():
            lines[-1] += key
    return "\n".join(lines)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
