"""Whole results that were too long for the context, kept beside a session's journal."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from radchat.errors import NotFound

MAX_BYTES = 16 * 1024 * 1024  # of one result
_KEY = re.compile(r"o[1-9][0-9]{0,8}")


@dataclass
class KeptOutputs:
    """Files ``o1``, ``o2`` … in a folder of their own."""

    folder: Path

    def keep(self, data: bytes) -> str:
        """Its key. Of one that is larger than MAX_BYTES, the first of it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = 1 + max((int(name[1:]) for name in self._names()), default=0)
        while True:
            path = self.folder / f"o{number}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                file = os.open(path, flags, 0o600)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(file, "wb") as out:
                out.write(data[:MAX_BYTES])
            return path.name

    def read(self, key: str) -> bytes:
        if not _KEY.fullmatch(key):
            raise NotFound(f"no output {key!r}: they are named o1, o2, ...")
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            known = ", ".join(sorted(self._names(), key=lambda name: int(name[1:]))) or "none"
            raise NotFound(f"no output {key}: there are {known}") from None

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return [name for name in os.listdir(self.folder) if _KEY.fullmatch(name)]  # noqa: PTH208
