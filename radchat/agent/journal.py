"""What an agent did, as it did it: append-only lines, each on the disk before what it says is done.

A session's folder holds it, with whole results and copies of changed files beside it. One agent at
a time has it, by a lock. ADR 0031.

    {"state": "started", "call", "name", "title", "message", "at"}     before a tool runs
    {"state": "ended", "call", "result": {...}, "changed": [...]}      before its result is sent
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radchat.errors import Busy, RadchatError

NAME = "journal.jsonl"


class Journal:
    """Of one session. Raises Busy where another agent has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 32).decode("ascii", "replace").strip()
            os.close(self._lock)
            who = f" (pid {owner})" if owner else ""
            raise Busy(
                f"another agent{who} works in this session: end it, or use another"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / NAME, flags, 0o600)
        self._end_torn_line()

    def append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps({"t": round(time.time(), 3), **entry}) + "\n"
        try:
            os.write(self._file, line.encode())
            os.fsync(self._file)
        except OSError as error:
            why = error.strerror or error
            raise RadchatError(f"the agent's journal can't be written: {why}") from error

    def read(self) -> list[dict[str, Any]]:
        """What a kill tore is left out."""
        found = []
        for line in (self.folder / NAME).read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    found.append(entry)
        return found

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _end_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
