"""KV of kept paths onto the disk: copied between two steps, written by a thread beside them.

A copy of a block takes a fraction of a millisecond, and the thread that makes it is the one that
evicts: so nothing is locked while the disk is slow, and eviction never waits for it
(docs/adr/0019-saving-by-copying.md). What is copied and not yet written is bounded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from radchat.engine.block_store import BLOCK_TOKENS, LOOK_S, BlockStore
from radchat.engine.kv_pool import DTYPE_NAMES, KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.raw_ids import ID_BYTES, common_len
from radchat.engine.request import Ids
from radchat.engine.unless_full import unless_full

log = logging.getLogger(__name__)

Found: TypeAlias = Literal["copied", "full", "none"]

ROOM = 64 << 20  # bytes of copies; a single block may be larger
RETRY_S = 60.0  # after the store has said: not now
MOST_PATHS, MOST_BYTES = 1024, 64 << 20  # kept at once, with their ids: then the oldest are not
_SOON_S = 0.01  # and LOOK_S at most: between two looks at what is being written
NICE = 10  # of the writer: nobody waits for it


class Rest(NamedTuple):
    """Of the writer after each block, while steps run: a step's threads wait for each other, so
    what is taken from one core is taken from all.
    """

    times: float = 25  # as long as the block took
    longest_s: float = 1.0
    runs_s: float = 0.2  # so long after a step they count as running


@dataclass(slots=True, eq=False)
class Kept:
    raw: bytes
    at: int = 0  # the start of the first block that may not be on disk
    spans: Sequence[tuple[int, int]] | None = None  # on disk, when that was asked

    def is_on_disk(self, start: int, end: int, store: BlockStore) -> bool:
        """Whether a block holds these tokens. The store is asked once: it hashes the whole path.
        Where it has lost or won a block since, that is forgotten until the next turn, or written
        in vain.
        """
        if self.spans is None:
            self.spans = store.spans(self.raw)
        return any(begin <= start and end <= stop for begin, stop in self.spans)


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A block on its way to the disk: the path's ids to its end, and its values."""

    raw: bytes
    start: int
    data: bytearray


class Saving:
    """All but ``_run`` is the engine thread's. ``clock``: seconds, of the engine."""

    def __init__(
        self,
        store: BlockStore,
        pool: KVPool,
        cache: PrefixCache,
        clock: Callable[[], float],
        room: int = ROOM,
    ) -> None:
        self._store = store
        self._pool = pool
        self._cache = cache
        self._clock = clock
        self._room = room
        self._dtype = DTYPE_NAMES[pool.dtype]
        self._kept: dict[str, Kept] = {}  # until all of it that is cached is on disk; oldest first
        self._unsaved: dict[str, Kept] = {}  # those that may have something to be written
        self._retry_at = -float("inf")
        self._changed = threading.Condition()
        # under its lock
        self._copies: deque[Copy] = deque()  # in order; the first may be being written …
        self._first_since = 0.0  # … and is so far since then
        self._is_writing = False
        self._refused: list[tuple[bytes, int]] = []  # path to the block's end, its start
        self.staged_bytes = 0
        self.saved_tokens = 0
        self.saved_bytes = 0
        self._thread: threading.Thread | None = None
        self._closing = False
        self._rest = Rest()
        self._stepped_at = -float("inf")  # by the clock that the thread rests by

    def stepped(self) -> None:
        """The engine has run a step."""
        self._stepped_at = time.monotonic()

    @property
    def kept_paths(self) -> int:
        return len(self._kept)

    def keep(self, name: str, ids: Ids) -> None:
        self._forget(name)
        self._kept[name] = self._unsaved[name] = Kept(ids.tobytes())
        num_bytes = sum(len(kept.raw) for kept in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > MOST_PATHS or num_bytes > MOST_BYTES):
            oldest = next(iter(self._kept))
            num_bytes -= len(self._kept[oldest].raw)
            self._forget(oldest)
            log.warning(
                "too much KV waits for the disk: %s is not kept until its next turn", oldest
            )

    def unkeep(self, name_prefix: str) -> None:
        for name in [name for name in self._kept if name.startswith(name_prefix)]:
            self._forget(name)
        with self._changed:  # what is being written is: who must know it gone, drains
            for copy in list(self._copies)[self._is_writing :]:
                if not any(kept.raw.startswith(copy.raw) for kept in self._kept.values()):
                    self._copies.remove(copy)
                    self.staged_bytes -= len(copy.data)
            self._changed.notify_all()

    def save(self, *, now: bool = False, only: str | None = None) -> float | None:
        """Copy one block. Returns in how many seconds to ask again; None: all of it is on disk.

        More than LOOK_S: the store has refused some, and is asked again then.
        """
        self._take_back()
        at = self._clock()
        if now:
            self._retry_at = at
        if self._unsaved and at < self._retry_at:
            return self._retry_at - at
        if self._copy_next(only) == "copied":
            return 0.0
        if self._unsaved and at < self._retry_at:
            return self._retry_at - at
        with self._changed:
            if self._refused:
                return 0.0
            if self._copies:  # as long again as it has taken: a disk that hangs is left alone
                return min(max(at - self._first_since, _SOON_S), LOOK_S)
        if not self._unsaved:
            self._kept.clear()
        return None

    def drain(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._copies, timeout_s)

    def stop(self) -> threading.Thread | None:
        """Have the thread end; it may take as long as the disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved or self._refused)

    def evicting(self, raw: bytes, table: list[int], end: int) -> None:
        """The tokens of a path behind ``end`` go: copy those to be kept, or forget them."""
        self._take_back()
        if self._clock() < self._retry_at:
            return
        for _, kept in self._longest_first():
            common = common_len(kept.raw, raw, 0, len(raw))
            for start in range(end - end % BLOCK_TOKENS, common, BLOCK_TOKENS):
                self._copy(kept, start, min(start + BLOCK_TOKENS, common), table)

    # -- copying ------------------------------------------------------------------------------

    def _copy_next(self, only: str | None) -> Found:
        for name, kept in self._longest_first():
            if only not in (None, name):
                continue
            table, num_cached = self._cache.pages_of(kept.raw)
            while kept.at < num_cached:
                end = min(kept.at + BLOCK_TOKENS, num_cached)
                found = self._copy(kept, kept.at, end, table)
                if found != "full":
                    kept.at += BLOCK_TOKENS
                if found != "none":
                    return found
            del self._unsaved[name]
        return "none"

    def _longest_first(self) -> list[tuple[str, Kept]]:
        """Where a path goes on from another, its blocks are the other's too, and fuller."""
        return sorted(self._unsaved.items(), key=lambda item: len(item[1].raw), reverse=True)

    def _forget(self, name: str) -> None:
        self._kept.pop(name, None)
        self._unsaved.pop(name, None)

    def _copy(self, kept: Kept, start: int, end: int, table: list[int]) -> Found:
        """A block of a path, unless it is on its way already or on disk."""
        raw = kept.raw[: end * ID_BYTES]
        num_bytes = (end - start) * self._pool.bytes_per_token
        with self._changed:
            if any(copy.start == start and copy.raw.startswith(raw) for copy in self._copies):
                return "none"
            has_room = not self._copies or self.staged_bytes + num_bytes <= self._room
        if not has_room:
            return "full"
        if kept.is_on_disk(start, end, self._store):
            return "none"
        data = unless_full("a block to save", lambda: self._pool.read(table, start, end))
        if data is None:
            self._retry_at = self._clock() + RETRY_S
            return "full"
        copy = Copy(raw, start, data)
        with self._changed:
            if not self._copies:
                self._first_since = self._clock()
            self._copies.append(copy)
            self.staged_bytes += num_bytes
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
            self._thread.start()
        return "copied"

    def _take_back(self) -> None:
        """What was refused is to be saved again, but not at once."""
        if not self._refused:
            return
        with self._changed:
            refused, self._refused = self._refused, []
        self._retry_at = self._clock() + RETRY_S
        for raw, start in refused:
            for name, kept in self._kept.items():
                if kept.raw.startswith(raw):
                    kept.at, kept.spans = min(kept.at, start), None
                    self._unsaved[name] = kept

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._copies)
                if self._closing:
                    return
                copy, self._is_writing = self._copies[0], True
            began = time.monotonic()
            is_written = self._write(copy)
            took = time.monotonic() - began
            with self._changed:
                self._is_writing = False
                self._copies.popleft()
                self._first_since = self._clock()
                self.staged_bytes -= len(copy.data)
                if is_written:
                    self.saved_tokens += len(copy.raw) // ID_BYTES - copy.start
                    self.saved_bytes += len(copy.data)
                else:
                    self._refused.append((copy.raw, copy.start))
                self._changed.notify_all()
            self._let_steps_run(took)

    def _let_steps_run(self, took_s: float) -> None:
        until = time.monotonic() + min(self._rest.times * took_s, self._rest.longest_s)
        with self._changed:
            while not self._closing:
                left = min(until, self._stepped_at + self._rest.runs_s) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)

    def _write(self, copy: Copy) -> bool:
        shape = self._pool.block_shape(len(copy.raw) // ID_BYTES - copy.start)
        try:
            return self._store.write(
                copy.raw, copy.start, copy.data, shape=shape, dtype=self._dtype
            )
        except Exception:  # a store's fault ends no answer
            log.exception("a block can't be written")
            return False
