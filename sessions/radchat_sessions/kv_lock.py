"""One process a KV folder: an exclusive flock on ``kv/lock``, kept for life."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from radchat_sessions.kv_blocks import KVUnavailable

PATIENCE_S = 0.3  # one that is ending, or only looks, holds it for a moment
_LOOK_S = 0.02


class FolderLock:
    """The file is never removed: a lock on a name that others may make again is no lock."""

    def __init__(self, path: Path) -> None:
        """Raises KVUnavailable: another holds it, or locks can't be had there; OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except BlockingIOError:
            holder = self._holder()
            os.close(self._descriptor)
            raise KVUnavailable(
                f"another radchat{holder} keeps its KV in {path.parent}: "
                "stop it, or set RADCHAT_CACHE_DIR to another folder"
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        with suppress(OSError):  # a full disk: it is only for whoever finds it held
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def is_there(self) -> bool:
        """Is the locked file still the one at the path? False: the folder was removed."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def _take(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
            time.sleep(_LOOK_S)

    def release(self) -> None:
        os.close(self._descriptor)

    def _holder(self) -> str:
        pid = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
        return f" (pid {pid})" if pid.isdigit() else ""
