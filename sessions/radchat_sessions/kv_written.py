"""How much was written within the last hour, in a small file beside the index: it outlives both."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from radchat_sessions.kv_files import Damaged, Files, write_file

_LARGEST = 1 << 16  # bytes; a line a minute is far less


class Written:
    """Minutes since 1970 and bytes, a line each. A file that is damaged or gone is 0."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self._path = files, path
        self._minutes: Counter[int] = Counter()
        with suppress(OSError, Damaged, ValueError):
            for line in files.read(path, 0, _LARGEST).decode("ascii").splitlines():
                minute, num_bytes = line.split()
                self._minutes[int(minute)] += int(num_bytes)

    def within_the_hour(self, now: float) -> int:
        """To the minute. A clock that was set back leaves minutes to come, which don't count."""
        return sum(self._kept(now).values())

    def add(self, num_bytes: int, now: float) -> None:
        """Raises OSError: then it is counted in this life only. Not worth a sync."""
        self._minutes = self._kept(now)
        self._minutes[int(now // 60)] += num_bytes
        lines = "".join(f"{minute} {count}\n" for minute, count in sorted(self._minutes.items()))
        part = self._path.parent / "tmp" / self._path.name
        self._files.remove(part)
        write_file(self._files, part, [lines.encode()], sync=False)
        self._files.rename(part, self._path)

    def _kept(self, now: float) -> Counter[int]:
        last = int(now // 60)
        return Counter({m: n for m, n in self._minutes.items() if last - 60 < m <= last})
