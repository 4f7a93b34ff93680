"""Folders for as long as an agent lives: of its commands, and of a session that is not kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from pathlib import Path

PREFIX = "radchat-agent-"
YOUNG_S = 60.0  # so old it has its lock, if somebody has it


class Temporary:
    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._held = _open(self.path)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def close(self) -> None:
        _remove(self.path)
        os.close(self._held)


def sweep() -> None:
    """Those of agents that were killed: what commands put there is nobody's any more."""
    now = time.time()
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid != os.getuid() or now - found.st_mtime < YOUNG_S:
                continue
            held = _open(path)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(held)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove(path: Path) -> None:
    """Not by shutil: a command can make folders deeper than it can go."""
    subprocess.run(["rm", "-rf", "--", str(path)], stderr=subprocess.DEVNULL, check=False)
