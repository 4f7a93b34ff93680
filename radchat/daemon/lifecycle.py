"""One daemon a home: the lock, the socket, the start. Light: both sides of the socket import it.

The lock beside the database is the truth: the daemon holds an exclusive flock on it for life, and
the kernel lets go of it however the daemon ends. What the file says (pid, address, build) is
information for whoever finds it held; a pid from a file whose lock is free means nothing.

Order in the daemon: take the lock, then clear a stale socket, bind, write the address into the lock
file, say ``ok`` on the readiness pipe. Whoever sees ``ok`` can connect: the socket listens already.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.errors import Busy, ConfigInvalid, RadchatError, Unreachable, from_json
from radchat.paths import Places, private_file, private_folder
from radchat.protocol import PROTOCOL, build_id

if TYPE_CHECKING:
    from subprocess import Popen

READY_FD = "RADCHAT_READY_FD"  # the daemon writes ``ok`` or an error as JSON here, once
LIFE_FD = "RADCHAT_LIFE_FD"  # a private daemon ends when this pipe's other end is closed
COMMAND = (sys.executable, "-P", "-m", "radchat", "daemon", "start", "--foreground")
BACKLOG = 128
STOPPING = "the daemon is stopping"  # with data {"stopping": true}: nothing was begun, ask again
PROBE_PATIENCE = 0.3  # seconds; a client that asks "is it held?" holds it for microseconds


def awake_time() -> float:
    """Seconds that the machine was awake since it booted; no setting of a clock moves it.

    What is idle or kept ages on it alone, so that a laptop opened in the morning still has the
    model and the cache it was closed with (docs/adr/0011-time-awake.md).
    """
    return time.monotonic()  # Linux and macOS stop it while they sleep


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


# -- the socket ------------------------------------------------------------------------------------


def bind(places: Places, *, private: bool = False) -> socket.socket:
    """A listening Unix socket, 0600 in a folder that is ours alone. Call with the lock held.

    The proper place first; where that can't be used (a runtime folder that is not there, another
    home's daemon in it) the short one under the temp folder.
    """
    problem: Exception | None = None
    for path in dict.fromkeys((places.socket(), replace(places, run=None).socket())):
        path = path.with_name(f"p{os.getpid()}.sock") if private else path  # noqa: PLW2901
        try:
            return _bind(path)
        except (OSError, ConfigInvalid, Busy) as error:
            problem = problem or error
    assert problem is not None
    if isinstance(problem, RadchatError):
        raise problem
    raise RadchatError(f"no place for the daemon's socket: {problem}") from problem


def _bind(path: Path) -> socket.socket:
    private_folder(path.parent)
    _clear_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)  # before listen: until then nobody can connect
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _clear_stale(path: Path) -> None:
    """Remove a socket that refuses. Anything else in the way is left alone: raises Busy."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Busy(f"{path} is in the way and is no socket: move it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:  # a full backlog, a timeout: somebody lives there
        raise Busy(f"another program listens at {path}: {error}") from error
    raise Busy(f"another program listens at {path}")


# -- the start, seen from the client ---------------------------------------------------------------


@dataclass(slots=True)
class Spawned:
    """A daemon this process has started. ``life``: close it and a private daemon ends."""

    process: Popen[bytes]
    life: int | None = None


def spawn(
    places: Places,
    *,
    command: Sequence[str] = COMMAND,
    private: bool = False,
    on_wait: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> Spawned:
    """Start a daemon and return when its socket listens. No deadline: a start takes its time.

    Raises what the daemon said it died of, else Unreachable with the last lines of its log.
    ``on_wait`` is called about four times a second meanwhile.
    """
    import subprocess  # 25 ms; only whoever starts one pays

    private_folder(places.state)
    log = os.open(private_file(places.log), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    written = os.fstat(log).st_size
    ready, ready_child = os.pipe()
    pipes = [ready_child]
    life = life_child = None
    child_env = {**(os.environ if env is None else env), **places.environ()}
    child_env[READY_FD] = str(ready_child)
    child_env.pop("RADCHAT_NO_DAEMON", None)
    child_env.pop(LIFE_FD, None)
    if private:
        life_child, life = os.pipe()
        pipes.append(life_child)
        child_env[LIFE_FD] = str(life_child)
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=places.state,
            env=child_env,
            pass_fds=pipes,
            start_new_session=True,
        )
    finally:
        for descriptor in (log, *pipes):
            os.close(descriptor)
    try:
        said = _read_ready(ready, on_wait)
    except BaseException:
        if life is not None:
            os.close(life)
        raise
    finally:
        os.close(ready)
    if said == b"ok":
        return Spawned(process, life)
    if life is not None:
        os.close(life)
    process.wait()
    raise _start_failure(places, said, written)


def _read_ready(pipe: int, on_wait: Callable[[], None] | None) -> bytes:
    import select

    said = b""
    while True:
        if not select.select([pipe], [], [], 0.25)[0]:
            if on_wait is not None:
                on_wait()
            continue
        piece = os.read(pipe, 65536)
        said += piece
        if not piece or said == b"ok":
            return said


def _start_failure(places: Places, said: bytes, written: int) -> RadchatError:
    try:
        return from_json(json.loads(said))
    except (ValueError, AttributeError):
        lines = log_tail(places.log, 15, since=written)
        text = "\n".join(["the daemon did not start", *(f"  {line}" for line in lines)])
        return Unreachable(f"{text}\n  (log: {places.log})")


def log_tail(log: Path, lines: int, *, since: int = 0) -> list[str]:
    """The last lines of the log, at most 64 KiB of it, from byte ``since`` on."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            since = since if since <= size else 0  # rotated meanwhile
            file.seek(max(since, size - 65536))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines > 0 else []


# -- the start, seen from the daemon ---------------------------------------------------------------


def inherited_pipe(name: str) -> int | None:
    """A descriptor the starter passed, taken out of the environment so that no child sees it."""
    value = os.environ.pop(name, None)
    if value is None or not value.isdecimal():
        return None
    descriptor = int(value)
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
    except OSError:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor


def tell_starter(pipe: int | None, outcome: RadchatError | None = None) -> None:
    """``ok``, or the error the start died of; then the pipe is closed."""
    if pipe is None:
        return
    body: Any = b"ok" if outcome is None else json.dumps(outcome.to_json()).encode()
    try:
        os.write(pipe, body)
    except BrokenPipeError:
        pass  # the client was interrupted; the daemon it started stays
    finally:
        os.close(pipe)
