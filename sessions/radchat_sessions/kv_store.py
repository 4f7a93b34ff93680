"""The byte store for KV blocks: what of the cache outlives the daemon.

    kv/index.db    which blocks there are (kv_index.py); derived, made anew when it is broken
    kv/lock        held for life by the one process that uses the folder
    kv/written     how much was written within the last hour (kv_written.py)
    kv/tmp/        files being written; emptied at open
    kv/<fingerprint>/<first two digits of the key>/<key>.safetensors      (kv_files.py)

It knows ids and bytes, and nothing of engines. Any thread may call. Whatever goes wrong with the
disk after it was opened is a miss, or a write that says False and a line in ``trouble``; ValueError
is for what can't be meant.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Self

from radchat_sessions.kv_blocks import (
    BLOCK_TOKENS,
    ID_BYTES,
    Block,
    Bytes,
    KeyOf,
    KVEntry,
    KVStats,
    KVUnavailable,
    Verified,
    key_of,
)
from radchat_sessions.kv_files import DTYPES, TOKENS_AXIS, Files, pack, packed_size
from radchat_sessions.kv_folder import KVFolder
from radchat_sessions.kv_index import Index
from radchat_sessions.kv_schema import Row
from radchat_sessions.kv_shelf import Shelf, free_bytes
from radchat_sessions.kv_sweep import (
    Sweep,
    check,
    count_strays,
    in_order_of_going,
    read_all,
    remove_strays,
    shards,
    strays,
)

__all__ = [
    "BLOCK_TOKENS",
    "Block",
    "KVEntry",
    "KVFolder",
    "KVStats",
    "KVStore",
    "KVUnavailable",
    "Verified",
]

RESERVE = 256 << 20  # bytes of the disk that are left to conversations
LOG_BYTES = 16 << 20  # a write-ahead log longer than this is emptied before blocks have to go
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class KVStore(Shelf):
    hourly: int | None  # bytes that may be written an hour; None: any number
    _budget: int
    _reserve: int
    _sweep: Sweep

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        budget: int,
        hourly: int | None,
        clock: Callable[[], float] = time.time,
        free: Callable[[Path], int] = free_bytes,
        reserve: int = RESERVE,
        files: Files | None = None,
        key_of: KeyOf = key_of,
        block_tokens: int = BLOCK_TOKENS,
    ) -> Self:
        """Open or make the folder and take it for this process; O(1) in the number of blocks.

        ``clock`` gives wall time, ``free`` the free bytes of a folder's disk, ``files`` makes the
        calls that touch files; the last two arguments are for tests. Raises KVUnavailable: held by
        another process, read-only, no space for the index.
        """
        store = cls(
            folder,
            clock=clock,
            free=free,
            files=files or Files(),
            key_of=key_of,
            block_tokens=block_tokens,
        )
        store._budget, store.hourly = budget, hourly
        store._reserve = reserve
        return store

    def _begin_anew(self) -> None:
        self._sweep = Sweep(self)

    def of(self, fingerprint: str) -> KVFolder:
        """The blocks of one fingerprint, which names a folder."""
        if not _FOLDER_NAME.fullmatch(fingerprint) or fingerprint == "tmp":
            raise ValueError(f"{fingerprint!r} can't be the name of a folder")
        return KVFolder(self, fingerprint)

    # -- what there is -----------------------------------------------------------------------------

    @property
    def made_at(self) -> float:
        """Wall time at which the index was made: what is older than it can't be in it."""
        index = self._index
        return self._clock() if index is None else index.made_at

    def stats(self) -> KVStats:
        """Waits for nobody who writes."""
        index = self._index
        totals = index.totals() if index is not None and self._whole() else {}
        try:
            left = self._free(self.folder)
        except OSError:
            left = 0
        return KVStats(
            blocks=sum(blocks for blocks, _, _ in totals.values()),
            tokens=sum(tokens for _, tokens, _ in totals.values()),
            bytes=sum(size for _, _, size in totals.values()),
            budget=self._budget,
            free_bytes=left,
            written_bytes=self.written.within_the_hour(self._clock()),
            hourly=self.hourly,
            by_fingerprint=totals,
        )

    def entries(self) -> list[KVEntry]:
        """Blocks in the order in which they would go. For a thread that may wait."""
        return [
            KVEntry(
                fingerprint=row.fingerprint,
                key=row.key,
                parent=row.parent,
                start=row.start,
                num_tokens=row.num_tokens,
                ids=row.ids,
                num_bytes=row.num_bytes,
                last_used=row.used,
            )
            for row in in_order_of_going(self.rows())
        ]

    # -- writing -----------------------------------------------------------------------------------

    def write(
        self,
        fingerprint: str,
        raw: bytes,
        start: int,
        data: Bytes,
        shape: tuple[int, ...],
        dtype: str,
    ) -> bool:
        """See KVFolder.write."""
        content = memoryview(data).cast("B")
        num_tokens = len(raw) // ID_BYTES - start
        if (
            len(raw) % ID_BYTES
            or start % self.block_tokens
            or not 0 < num_tokens <= self.block_tokens
            or len(shape) != 5
            or shape[TOKENS_AXIS] != num_tokens
            or len(content) != math.prod(shape) * DTYPES.get(dtype, ("", 0))[1]
        ):
            raise ValueError(
                f"no block: {len(raw)} bytes of ids from {start}, {len(content)} bytes of KV as "
                f"{dtype} {shape}"
            )
        with self.work() as index:
            if index is None:
                return False
            path = list(self.pieces(raw))
            _, parent, ids = path[-1]
            there = index.covering(fingerprint, parent, ids)
            if there is not None:
                index.touch(fingerprint, there.key, self._clock())
                return True
            size = packed_size(fingerprint, raw, start, shape, dtype)
            spared = {(fingerprint, before) for _, before, _ in path}
            if self._paused() or not self._room(index, size, spared):
                return False
            key, now = self.key_of(parent, ids), self._clock()
            row = Row(fingerprint, parent, ids, key, start, size, index.tick(), now, 0)
            self.put(index, row, pack(fingerprint, raw, start, content, shape, dtype))
            self.trouble = self._failed_at = None
            try:
                self.written.add(size, now)
            except OSError as error:
                self._tell("written", f"{self.folder / 'written'}: {self._reason(error)}")
            return True
        return False

    def _room(self, index: Index, size: int, spared: set[tuple[str, str]]) -> bool:
        """Make room for a file, but not at the cost of the path it continues.

        The budget is a ceiling for all that lies in the folder. Files without a row count until the
        sweep has seen them; that they are there takes one look at all files, once.
        """
        if self.stray_bytes is None:
            self.stray_bytes = count_strays(self, index)
        if self._beside(index) + self.stray_bytes + size > self._budget:
            return False
        if (
            self.hourly is not None
            and self.written.within_the_hour(self._clock()) + size > self.hourly
        ):
            return False
        held = index.num_bytes()
        short = self._reserve + size - self._free(self.folder)
        if short > held:
            self._fail("the disk is nearly full")
            return False
        for _ in self.shrink(index, short, spared):
            pass
        if not self._keep_to_budget(index, self.stray_bytes + size, spared):
            return False
        if short > 0 and self._free(self.folder) < self._reserve + size:
            self._fail("the disk is nearly full")
            return False
        return True

    def _keep_to_budget(
        self, index: Index, more: int = 0, spared: Collection[tuple[str, str]] = ()
    ) -> bool:
        """Drop least recently used leaves until there is room for so many bytes more."""
        while (over := self._beside(index) + index.num_bytes() + more - self._budget) > 0:
            if not list(self.shrink(index, over, spared)):  # which makes the log longer
                return False
        return True

    def _beside(self, index: Index) -> int:
        """Bytes of the index, whose log is emptied when it is no longer small."""
        log = self.files.size(index.path.with_name(f"{index.path.name}-wal"))
        if log > min(LOG_BYTES, self._budget // 8):
            index.forget_removed()
        return self.files.index_size(index.path)

    # -- making room -------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Bytes of all files and the index. What is over goes at once when it is set lower."""
        return self._budget

    @budget.setter
    def budget(self, num_bytes: int) -> None:
        self._budget = num_bytes
        self._shrink_to_budget()

    def _shrink_to_budget(self) -> None:
        with self.work() as index:
            if index is not None:
                self._keep_to_budget(index)

    def make_room(self) -> None:
        """KV goes before conversations: shrink until the reserve is free, or nothing is left."""
        with self.work() as index:
            while index is not None and index.num_bytes():
                short = self._reserve - self._free(self.folder)
                if short <= 0:
                    break
                for _ in self.shrink(index, short):
                    pass

    def delete(self, fingerprint: str, key: str) -> None:
        """It and all that follow it, the last ones first. A file that can't be removed has no row
        any more, and is never adopted: ``sweep`` and ``tidy`` try again.
        """
        with self.work() as index:
            if index is None:
                return
            first = index.get(fingerprint, key)
            if first is None:
                return
            doomed = {first.key: first}
            follow = [first]
            for row in follow:  # grows as it goes
                for child in index.children(fingerprint, row.key):
                    if child.key not in doomed:
                        doomed[child.key] = child
                        follow.append(child)
            failure: OSError | None = None
            for row in reversed(follow):
                try:
                    self.drop(index, row)
                except OSError as error:
                    failure = error
                    self.doomed.add(self.place(fingerprint, row.key))
                    self.left_behind(fingerprint, row.key, error)
                    index.remove(fingerprint, row.key)
            for folder in {self.place(row.fingerprint, row.key).parent for row in follow}:
                self.files.sync_folder(folder)
            index.forget_removed()
            if failure is not None:
                raise failure

    def clear(self, fingerprint: str | None = None) -> tuple[int, int]:
        """All blocks, or one fingerprint's, files without a row too: (tokens, bytes) freed."""
        self.try_again()
        with self.work() as index:
            if index is None:
                return 0, 0
            totals = index.totals()
            self.stray_bytes = None
            for name, shard in list(shards(self.folder)):
                if fingerprint in (None, name):
                    self.files.remove(self.folder / name / shard)
                    with suppress(OSError):  # others of its folders follow
                        (self.folder / name).rmdir()
            for folder in {self.folder, *map(self.folder.joinpath, totals)}:
                if folder.is_dir():
                    self.files.sync_folder(folder)
            index.clear(fingerprint)
            index.forget_removed()
            gone = [of for name, of in totals.items() if fingerprint in (None, name)]
            return sum(tokens for _, tokens, _ in gone), sum(size for _, _, size in gone)
        return 0, 0

    # -- going through everything ------------------------------------------------------------------

    def tidy(self, limit: int = 8) -> int:
        """Idle work, at most ``limit`` steps of it; how many are known to be left.

        Adopts or sweeps files without a row, drops rows without a file, tells the disk what was
        used, keeps the budget. The index's log is emptied when it says 0.
        """
        self._shrink_to_budget()
        with self.work() as index:
            if index is None or self._paused():
                return 0
            index.flush()
            room = self._budget - self._beside(index)
            for _ in range(limit):
                if self._sweep.step(index, room) == 0:
                    index.forget_removed()
                    return 0
            return self._sweep.left
        return 0

    def sweep(self, goes: Callable[[str, bytes], bool]) -> bool:
        """Before words are deleted for good: files without a row may hold them, and no row says so.

        Those that ``goes`` says of, given fingerprint and path, are deleted, and what is no block;
        others are left to be adopted. True: all were looked at, and what had to go is gone.
        """
        self.try_again()
        done = False
        with self.work() as index:
            if index is None:
                return False
            self.stray_bytes = None
            self.files.remove(self.folder / "tmp")  # where nothing is being written now
            self.files.make_folder(self.folder / "tmp")
            todo = sorted(shards(self.folder, strict=True))
            done = True
        for fingerprint, shard in todo if done else ():  # others may write in between
            is_seen = False
            with self.work() as index:
                if index is not None:
                    found = strays(self, fingerprint, shard, index)
                    is_seen = remove_strays(self, found, goes)
            done = done and is_seen
        with self.work() as index:
            return index is not None and index.forget_removed() and done
        return False

    def verify(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> Verified:
        """Read every file. What is bad is deleted; files without a row are adopted or swept, and
        rows without a file dropped: a kill leaves both.
        """
        self.try_again()
        blocks, size, bad = read_all(self, progress)
        with self.work():
            self._sweep = sweep = Sweep(self)
        while self.tidy() and self._sweep is sweep:
            pass
        return Verified(blocks, size, bad, sweep.adopted, sweep.swept)

    def check(self, *, files: bool = True) -> None:
        """Recount by brute force, for tests. Raises AssertionError."""
        with self._writing:
            assert self._index is not None
            check(self, self._index, files=files)
