"""A terminal for tests: a program in a pty, its screen by pyte, every byte it wrote kept.

Answers the cursor-position request as a terminal does. ``wait_for`` reads until the screen, or the
predicate, says so; it fails with the screen in the message.

What was drawn before the text that was waited for is on the screen, what is drawn after it may not
be yet: wait for what is drawn last. A test that does not, finds out where reads are small:
``RADCHAT_TEST_READ_BYTES=24 pytest tests/chat`` (then 5). And what is drawn over again may never be
seen: wait for what stays. ``RADCHAT_TEST_READ_PAUSE=0.3`` finds out, reading late and seldom.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pexpect
import pyte

ROOT = Path(__file__).resolve().parents[2]
READ_BYTES = int(os.environ.get("RADCHAT_TEST_READ_BYTES", "65536"))  # at a time, at most
READ_PAUSE_S = float(os.environ.get("RADCHAT_TEST_READ_PAUSE", "0"))  # before each
HANGS_UP_S = 1.0  # for a program to end by itself when its terminal goes
_ASKS_CURSOR = b"\x1b[6n"


def clean_env(home: Path, **more: str) -> dict[str, str]:
    """An environment in which nothing of this machine's user is seen."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "RADCHAT_TEST_MODELS")
    env = {key: os.environ[key] for key in keep if key in os.environ}
    sources = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "sessions")]
    env |= {
        "RADCHAT_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sources),
        "TERM": "xterm-256color",
        "PYTHONWARNINGS": "error",
        "LC_CTYPE": "C.UTF-8",
    }
    return env | more


def radchat(*args: str) -> list[str]:
    return [sys.executable, "-m", "radchat", *args]


class Terminal:
    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: Path | None = None,
    ) -> None:
        self.raw = b""
        self._screen = pyte.HistoryScreen(columns, rows, history=20_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._asked = 0
        self.child: Any = pexpect.spawn(
            command[0],
            list(command[1:]),
            env=dict(env),
            dimensions=(rows, columns),
            cwd=str(cwd) if cwd else None,
            timeout=60,
        )
        self.child.delaybeforesend = None

    # --- the keyboard ---

    def type(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        for start in range(0, len(data), 512):  # a pty takes about 4 KiB at a time: keep reading
            self.child.send(data[start : start + 512])
            if len(data) > 512:
                self._read(0.0)

    def paste(self, text: str) -> None:
        """As a terminal pastes where bracketed paste is on."""
        self.type("\x1b[200~" + text + "\x1b[201~")

    def resize(self, rows: int, columns: int) -> None:
        self.child.setwinsize(rows, columns)
        self._screen.resize(rows, columns)

    # --- the screen ---

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._rows()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    @property
    def everything(self) -> str:
        """Scrolled-off lines too."""
        top = [self._row(line).rstrip() for line in self._screen.history.top]
        return "\n".join([*top, *self.lines]).rstrip()

    def _rows(self) -> list[str]:
        buffer = self._screen.buffer
        return [self._row(buffer[y]) for y in range(self._screen.lines)]

    def _row(self, line: Any) -> str:
        """Not pyte's ``display``, which fails where half a wide character is drawn over."""
        return "".join(line[x].data for x in range(self._screen.columns))

    def wait_for(self, what: str | Callable[[Terminal], bool], timeout: float = 60.0) -> float:
        """Seconds until the text is anywhere on the screen, or the predicate holds."""
        start = time.monotonic()
        while True:
            if self._shows(what):
                return time.monotonic() - start
            if time.monotonic() - start > timeout:
                name = what if isinstance(what, str) else "the predicate"
                raise AssertionError(f"never saw {name!r} on:\n{self.text}")
            if not self._read(0.02) and not self.child.isalive():
                self._read(0.05)
                if not self._shows(what):
                    raise AssertionError(f"ended without {what!r}:\n{self.text}")

    def _shows(self, what: str | Callable[[Terminal], bool]) -> bool:
        return what(self) if callable(what) else what in "\n".join(self._rows())

    def settle(self, quiet_s: float = 0.15, timeout: float = 5.0) -> None:
        """Read until nothing has come for a while, nor was anything about to: a program that waits
        for a processor is not quiet, only slow.
        """
        deadline = time.monotonic() + timeout
        last = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - last < quiet_s:
            if self._read(0.02) or self._is_at_work():
                last = time.monotonic()

    def _is_at_work(self) -> bool:
        """Linux only; elsewhere silence has to do."""
        with contextlib.suppress(OSError):
            for stat in Path(f"/proc/{self.child.pid}/task").glob("*/stat"):
                if stat.read_text(errors="replace").rpartition(")")[2].split()[0] in ("R", "D"):
                    return True
        return False

    def _read(self, timeout: float) -> bool:
        time.sleep(READ_PAUSE_S)
        try:
            data = self.child.read_nonblocking(READ_BYTES, timeout)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.raw += data
        self._stream.feed(data)
        while (at := self.raw.find(_ASKS_CURSOR, self._asked)) >= 0:
            self._asked = at + len(_ASKS_CURSOR)
            row, column = self._screen.cursor.y + 1, self._screen.cursor.x + 1
            self.child.send(f"\x1b[{row};{column}R")
        return bool(data)

    # --- the end ---

    def wait_end(self, timeout: float = 60.0) -> int:
        """The exit status; 128 + n where signal n ended it."""
        deadline = time.monotonic() + timeout
        while self.child.isalive():
            self._read(0.02)
            if time.monotonic() > deadline:
                raise AssertionError(f"did not end:\n{self.text}")
        while self._read(0.02):
            pass
        self.child.close()
        if self.child.signalstatus is not None:
            return 128 + int(self.child.signalstatus)
        return int(self.child.exitstatus)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Hang up; a program that does not go is killed and waited for, however long it takes:
        pexpect gives up 0.1 s after SIGKILL, which a busy machine needs more than.
        """
        pty = self.child.ptyproc
        if not pty.closed:
            pty.fileobj.close()
            pty.delayafterclose, pty.flag_eof = 0.0, False  # else ``isalive`` waits for ever
            deadline = time.monotonic() + HANGS_UP_S
            while pty.isalive():
                if time.monotonic() > deadline:
                    pty.kill(signal.SIGKILL)
                    pty.wait()
                    break
                time.sleep(0.01)
        self.child.close()
