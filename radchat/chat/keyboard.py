"""The terminal's line discipline while a chat is open.

Between prompts nothing typed is echoed into an answer; it waits, with Enter still Enter and a paste
marked as one. Ctrl+C and Ctrl+Z stay signals, take nothing typed with them, and after `fg` all is
as it was.
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
PASTES_MARKED, PASTES_UNMARKED = b"\x1b[?2004h", b"\x1b[?2004l"
_IFLAG, _LFLAG = 0, 3  # of termios.tcgetattr
_as_found: list[list[Any]] = []  # how the terminal was before `quiet`
_wanted: list[list[Any] | None] = []  # how it is to be; None: another program's affair
_cooked = bytearray()  # typed into the terminal's own line editing, and not read by anybody
_marks = False  # whether this terminal can tell a paste


@contextlib.contextmanager
def quiet(*, marks_pastes: bool = False) -> Iterator[None]:
    """No echo, no line editing; put back as it was, however it ends.

    ``marks_pastes``: it is a terminal that can tell a paste from keys.
    """
    global _marks  # noqa: PLW0603 - there is one terminal
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
    _cooked.extend(_waiting())
    _marks = marks_pastes
    _as_found.append(before)
    _wanted.append(silent)
    mark_pastes()
    old = {
        signal.SIGCONT: signal.signal(signal.SIGCONT, _on_continue),
        signal.SIGTSTP: signal.signal(signal.SIGTSTP, _on_stop),
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        _wanted.pop()
        _as_found.pop()
        mark_pastes(False)
        _marks = False
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)


def is_quiet() -> bool:
    """Is a chat open, with a prompt that what is typed now may wait for?"""
    return bool(_as_found)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """For a program run from within a chat: the terminal as it was before. Ctrl+C is the program's
    own then.
    """
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        with lent():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def lent() -> Iterator[None]:
    """The terminal as it was before, with its own line editing and echo."""
    if not _as_found:
        yield
        return
    import termios

    now = termios.tcgetattr(sys.stdin.fileno())
    mark_pastes(False)
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, _as_found[-1])
    _wanted.append(None)
    try:
        yield
    finally:
        _wanted.pop()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, now)
        _cooked.extend(_waiting())
        mark_pastes()


def mark_pastes(on: bool = True) -> None:
    """Ask the terminal for it again, after a prompt has ended: a paste into the answer is one.

    Also from a signal's handler, which may have interrupted a writer of stdout: past its buffer.
    """
    if _marks:
        with contextlib.suppress(OSError, ValueError):  # hung up
            os.write(sys.stdout.fileno(), PASTES_MARKED if on else PASTES_UNMARKED)


def cooked() -> str:
    """What was typed where Enter was not yet Enter: before the chat had the terminal, or into a
    program that did not read it. Told once.
    """
    text = _cooked.decode("utf-8", "replace")
    _cooked.clear()
    return text


def not_read() -> str:
    """All that was typed and that nobody read yet. Told once."""
    _cooked.extend(_waiting())
    return cooked()


def _waiting() -> bytes:
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


def _on_stop(number: int, _frame: FrameType | None) -> None:
    """Ctrl+Z: the terminal is the shell's; not every shell puts it in order by itself."""
    import termios

    if _wanted and _wanted[-1] is not None:
        mark_pastes(False)
        with contextlib.suppress(termios.error, OSError, ValueError):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, _as_found[-1])
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, _on_stop)


def _on_continue(_number: int, _frame: FrameType | None) -> None:
    """`fg`: the shell has set the terminal as it likes it."""
    import termios

    mode = _wanted[-1] if _wanted else None
    with contextlib.suppress(termios.error, OSError, ValueError):
        descriptor = sys.stdin.fileno()
        if mode is not None and os.tcgetpgrp(descriptor) == os.getpgrp():
            termios.tcsetattr(descriptor, termios.TCSANOW, mode)
            mark_pastes()
