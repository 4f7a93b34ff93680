"""The daemon's start, on both sides of the readiness pipe. Light: the client imports it.

Order in the daemon: take the lock, then clear a stale socket, bind, write the address into the lock
file, say ``ok`` on the readiness pipe. Whoever sees ``ok`` can connect: the socket listens already.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.errors import RadchatError, Unreachable, from_json
from radchat.paths import Places, private_file, private_folder

if TYPE_CHECKING:
    from subprocess import Popen

READY_FD = "RADCHAT_READY_FD"  # the daemon writes ``ok`` or an error as JSON here, once
LIFE_FD = "RADCHAT_LIFE_FD"  # a private daemon ends when this pipe's other end is closed
COMMAND = (sys.executable, "-P", "-m", "radchat", "daemon", "start", "--foreground")


# -- seen from the client --------------------------------------------------------------------------


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


def log_tail(log: Path, lines: int, *, since: int = 0, until: int | None = None) -> list[str]:
    """The last lines of the log, at most 64 KiB of it, from byte ``since`` on, before ``until``."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            size = size if until is None else min(size, until)
            since = since if since <= size else 0  # rotated meanwhile
            start = file.seek(max(since, size - 65536))
            text = file.read(size - start).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines > 0 else []


# -- seen from the daemon --------------------------------------------------------------------------


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
