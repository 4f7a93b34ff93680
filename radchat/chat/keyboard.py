"""The terminal's line discipline while a chat is open.

Between prompts nothing typed is echoed into an answer; it waits for the next prompt, with Enter
still Enter. Ctrl+C and Ctrl+Z stay signals.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_IFLAG, _LFLAG = 0, 3  # of termios.tcgetattr
_as_found: list[list[Any]] = []  # how the terminal was before `quiet`


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No echo, no line editing; put back as it was, however it ends."""
    import termios

    try:
        before = termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        yield
        return
    silent = list(before)
    silent[_IFLAG] &= ~termios.ICRNL
    silent[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, silent)
    _as_found.append(before)
    try:
        yield
    finally:
        _as_found.pop()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """For a program run from within a chat: the terminal as it was before."""
    if not _as_found:
        yield
        return
    import termios

    now = termios.tcgetattr(sys.stdin.fileno())
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, _as_found[-1])
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, now)
