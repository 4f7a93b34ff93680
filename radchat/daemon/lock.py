"""One daemon a home: the lock, and what it says. Light: both sides of the socket import it.

The lock beside the database is the truth: the daemon holds an exclusive flock on it for life, and
the kernel lets go of it however the daemon ends. What the file says (pid, address, build) is
information for whoever finds it held; a pid from a file whose lock is free means nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from radchat.errors import Busy, RadchatError
from radchat.paths import Places, private_file
from radchat.protocol import PROTOCOL, build_id

PROBE_PATIENCE = 0.3  # seconds; a client that asks "is it held?" holds it for microseconds


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What the lock file says. ``socket`` is None until the daemon has bound it."""

    pid: int
    started: float  # seconds since the epoch, for display
    build: str
    protocol: int
    socket: str | None
    private: bool = False  # RADCHAT_NO_DAEMON=1: it belongs to one command


def read_info(lock: Path) -> DaemonInfo | None:
    """What the holder wrote, or None where nothing readable is there. Says nothing about life."""
    try:
        body = json.loads(lock.read_bytes())
        return DaemonInfo(**{name: body[name] for name in DaemonInfo.__dataclass_fields__})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # also a write half seen: whoever needs it asks again


def is_held(lock: Path) -> bool:
    """Does a process hold the lock? Asks with a shared lock, so that askers don't meet."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class Lock:
    """An exclusive flock on a file of mode 0600, kept until ``release`` or the end of the process.

    The file is never removed: a lock on a name that others may re-create is no lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, patience: float = 0.0) -> Lock | None:
        """None: another process holds it, and still did after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while True:
            private_file(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    return None
                time.sleep(0.01)
                continue
            lock = cls(path, descriptor)
            if lock.intact():
                return lock
            os.close(descriptor)  # the file was replaced between open and flock

    def intact(self) -> bool:
        """Is the locked file still the one at the path? False: the home was removed."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def write(self, info: DaemonInfo | None) -> None:
        """Raises RadchatError: a full disk."""
        body = b"" if info is None else json.dumps(asdict(info)).encode() + b"\n"
        try:
            os.pwrite(self._descriptor, body, 0)
            os.ftruncate(self._descriptor, len(body))
        except OSError as error:
            raise RadchatError(f"{self.path} can't be written: {error.strerror}") from error

    def release(self) -> None:
        os.close(self._descriptor)


def take_daemon_lock(places: Places, *, private: bool) -> tuple[Lock, DaemonInfo]:
    """The daemon's claim on this home; raises Busy naming the pid that has it."""
    lock = Lock.take(places.lock, patience=PROBE_PATIENCE)
    if lock is None:
        raise Busy(f"a daemon {_pid_of(places)} already runs for {places.data}")
    info = DaemonInfo(os.getpid(), time.time(), build_id(), PROTOCOL, None, private)
    lock.write(info)
    return lock, info


def _pid_of(places: Places) -> str:
    info = read_info(places.lock)
    return "that is just starting" if info is None else f"(pid {info.pid})"


def is_suspended(pid: int) -> bool:
    """By SIGSTOP or a debugger. False where the system has no /proc to ask."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")
