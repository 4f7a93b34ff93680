"""What a ``load`` has brought from disk before anybody asked for it, and no row has read yet.

A chat restores its path while one types. The answer that comes then finds it on the device, but it
is the disk that saved the work: so the first one whose rows attend to these tokens counts them as
restored, and no other does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from radchat.engine.raw_ids import ID_BYTES, common_len

_MOST = 64  # runs remembered; older ones count as found on the device


@dataclass(slots=True, eq=False)
class Run:
    """Tokens [start, end) of the path ``raw``."""

    raw: bytes
    start: int
    end: int


class Ahead:
    def __init__(self) -> None:
        self._runs: deque[Run] = deque(maxlen=_MOST)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, raw: bytes, start: int, end: int) -> None:
        """``raw``: ids of the path, to ``end`` at least."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.end == start and raw.startswith(last.raw[: start * ID_BYTES]):
            start = self._runs.pop().start
        self._runs.append(Run(raw[: end * ID_BYTES], start, end))

    def evicted(self, raw: bytes, end: int) -> None:
        """The path ``raw`` is cached no further than ``end``."""
        for run in self._runs:
            if common_len(run.raw, raw, 0, len(raw)) > end:
                run.end = min(run.end, end)
        self._drop_empty()

    def claim(self, raw: bytes) -> Iterator[tuple[int, int]]:
        """The tokens of these ids that were brought and are read now for the first time."""
        for run in self._runs:
            end = min(run.end, common_len(run.raw, raw, 0, len(raw)))
            if end > run.start:
                yield run.start, end
                run.start = end
        self._drop_empty()

    def _drop_empty(self) -> None:
        if any(run.start >= run.end for run in self._runs):
            self._runs = deque((r for r in self._runs if r.start < r.end), maxlen=_MOST)
