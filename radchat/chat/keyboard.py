"""The terminal's line discipline while a chat is open.

Between prompts nothing typed is echoed into an answer; it waits, with Enter still Enter. Ctrl+C and
Ctrl+Z stay signals, take nothing typed with them, and after `fg` all is as it was.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

NEXT_PIECE_S = 0.02  # a terminal that pastes much fills the queue again so soon
_IFLAG, _LFLAG = 0, 3  # of termios.tcgetattr
_as_found: list[list[Any]] = []  # how the terminal was before `quiet`
_wanted: list[list[Any] | None] = []  # how it is to be; None: another program's affair


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
    silent[_LFLAG] |= termios.NOFLSH
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, silent)
    _as_found.append(before)
    _wanted.append(silent)
    old = signal.signal(signal.SIGCONT, _on_continue)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, old)
        _wanted.pop()
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
    _wanted.append(None)
    try:
        yield
    finally:
        _wanted.pop()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, now)


def waiting() -> bytes:
    """What was typed and not read yet; waits for nobody."""
    descriptor = sys.stdin.fileno()
    pieces: list[bytes] = []
    with contextlib.suppress(OSError):  # hung up: the next prompt will see it
        while select.select([descriptor], [], [], NEXT_PIECE_S if pieces else 0)[0]:
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                break
            pieces.append(piece)
    return b"".join(pieces)


def _on_continue(_number: int, _frame: FrameType | None) -> None:
    """`fg`: the shell has set the terminal as it likes it."""
    import termios

    mode = _wanted[-1] if _wanted else None
    with contextlib.suppress(termios.error, OSError, ValueError):
        descriptor = sys.stdin.fileno()
        if mode is not None and os.tcgetpgrp(descriptor) == os.getpgrp():
            termios.tcsetattr(descriptor, termios.TCSANOW, mode)
