"""The daemon's socket: bound where only its user can connect, once a stale one is gone."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

from radchat.errors import Busy, ConfigInvalid, RadchatError
from radchat.paths import Places, private_folder

BACKLOG = 128


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
