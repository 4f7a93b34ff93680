"""Lines that are painted anew as things happen, on a terminal that is lent for it and given back.

The alternate screen is used, as by every view here: a resized window is painted anew, nothing of it
stays behind, and what is to stay is written when it has gone. It has no keys: what is typed waits
for who reads next, and Ctrl+C is the signal it always is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TextIO

EVERY_S = 0.1  # at least, from one painting to the next
LOOK_S = 0.25  # without news: is the window another size?
UP, DOWN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, NO_LINE, NO_MORE = "\x1b[H", "\x1b[2K", "\x1b[J"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"

Paint = Callable[[int, int], Sequence[str]]  # (columns, rows) -> what is seen, no wider, no taller


class Live:
    """``paint`` is called on a thread of its own, never twice at once."""

    def __init__(self, terminal: TextIO, paint: Paint) -> None:
        self._terminal, self._paint = terminal, paint
        self._news, self._is_over = threading.Event(), threading.Event()
        self._drawing = threading.RLock()  # again by a signal's handler, on the thread that has it
        self._is_up = False
        self._before: Any = None
        self._thread = threading.Thread(target=self._keep_painting, daemon=True)

    def begin(self) -> None:
        """On the main thread."""
        self._show()
        self._before = signal.signal(signal.SIGTSTP, self._on_stop)
        self._thread.start()

    def refresh(self) -> None:
        """Something has changed; from any thread."""
        self._news.set()

    def end(self) -> None:
        """The terminal as it was; nothing is painted any more. Also twice."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._hide()
        self._news.set()
        self._thread.join()
        signal.signal(signal.SIGTSTP, self._before)

    def _keep_painting(self) -> None:
        seen: object = None
        while not self._is_over.is_set():
            size = self._size()
            if self._news.is_set() or size != seen:
                self._news.clear()
                seen = size
                self._draw(*size)
                self._is_over.wait(EVERY_S)
            self._news.wait(LOOK_S)

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._terminal.fileno())
        except (OSError, ValueError):
            return 80, 24
        return columns or 80, rows or 24

    def _draw(self, columns: int, rows: int) -> None:
        """Each line is erased before it is written: behind it, its last column would go too."""
        lines = list(self._paint(columns, rows))[: rows - 1]
        body = "".join(f"{NO_LINE}{line}\r\n" for line in lines)
        self._write(f"{NO_WRAP}{HOME}{body}{NO_MORE}{WRAP}", needs_screen=True)

    def _show(self) -> None:
        with self._drawing:
            self._write(UP)
            self._is_up = True

    def _hide(self) -> None:
        with self._drawing:
            if self._is_up:
                self._write(DOWN)
            self._is_up = False

    def _write(self, text: str, *, needs_screen: bool = False) -> None:
        with self._drawing, contextlib.suppress(OSError, ValueError):  # hung up
            if self._is_up or not needs_screen:
                self._terminal.write(text)
                self._terminal.flush()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl+Z: the shell has its own screen until `fg`."""
        self._hide()
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        signal.signal(number, self._on_stop)
        self._show()
        self.refresh()
