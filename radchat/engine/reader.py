"""Blocks on their way from disk: one thread reads and verifies them ahead of the engine's.

No torch here. The reader is not of low priority: someone waits for what it reads.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from radchat.engine.block_store import BlockStore, BlockView

log = logging.getLogger(__name__)

Data: TypeAlias = bytearray | memoryview
HANGS_S, SLOW = 0.5, 5  # one read takes so long, and so many times as long as it should: given up
AGAIN_S = 10.0  # after that nothing is asked of that disk for so long, and not before it comes back
AHEAD = 32 << 20  # bytes read and not yet copied, of all requests together


class Arrival(NamedTuple):
    block: BlockView
    data: Data | None  # writable; None: it was bad, or is gone
    seconds: float


@dataclass(slots=True, eq=False)
class Restore:
    """What one running request has from disk, and what is on its way.

    ``rank`` orders those that wait for the reader; the least is read for first.
    """

    rank: tuple[int, int] = (0, 0)
    asked_at: int = -1  # tokens computed when the disk was asked last
    stop_at: int | None = None  # a chunk ends here: the disk goes on, or a block may do so
    predicted: int = 0  # tokens that were to be restored, when it was asked first
    left: int = 0  # blocks asked for that have not arrived
    waits_since: float = 0.0  # for the next of them
    bad: set[str] = field(default_factory=set)  # keys of blocks that could not be read
    # under the reader's lock
    wanted: deque[BlockView] = field(default_factory=deque)
    arrived: deque[Arrival] = field(default_factory=deque)


class Reader:
    """All but ``_run`` is the engine's. ``expected``: seconds, of a read of so many bytes."""

    def __init__(
        self, store: BlockStore, clock: Callable[[], float], expected: Callable[[int], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._expected = expected
        self._changed = threading.Condition()
        self._restores: list[Restore] = []  # that have blocks asked for
        self._thread: threading.Thread | None = None
        self._reading: tuple[float, int] | None = None  # since when, bytes
        self._gave_up_at = -float("inf")
        self._closing = False

    @property
    def hangs(self) -> bool:
        """A read takes much too long, or did a moment ago: what it was for is computed."""
        now, reading = self._clock(), self._reading
        if reading is not None:
            since, num_bytes = reading
            if now - since > max(HANGS_S, SLOW * self._expected(num_bytes)):
                self._gave_up_at = now
        return now - self._gave_up_at < AGAIN_S

    def begin(self, restore: Restore, blocks: Sequence[BlockView]) -> None:
        """Read blocks for a request, in order."""
        restore.left = len(blocks)
        restore.waits_since = self._clock()
        with self._changed:
            restore.wanted.extend(blocks)
            self._restores.append(restore)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-reader", daemon=True)
            self._thread.start()

    def take(self, restore: Restore) -> Arrival | None:
        """The next block of a request, if it has arrived. None is read behind a bad one."""
        with self._changed:
            if not restore.arrived:
                return None
            arrival = restore.arrived.popleft()
            restore.left -= 1
            restore.waits_since = self._clock()
            if not restore.left:
                self._drop(restore)
            self._changed.notify_all()
            return arrival

    def cancel(self, restore: Restore) -> None:
        with self._changed:
            self._drop(restore)

    def wait(self, timeout_s: float) -> None:
        """Until a block has arrived that nobody has taken; not at all where none is awaited."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._restores or any(r.arrived for r in self._restores), timeout_s
            )

    def stop(self) -> threading.Thread | None:
        """Have the thread end; it may take as long as the disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    def _drop(self, restore: Restore) -> None:
        restore.left = 0
        restore.wanted = deque()
        restore.arrived = deque()  # another: what is being read goes nowhere
        if restore in self._restores:
            self._restores.remove(restore)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next() is not None)
                restore = self._next()
                if self._closing or restore is None:
                    return
                block, arrived = restore.wanted.popleft(), restore.arrived
            begin = self._clock()
            self._reading = begin, block.num_bytes
            data = self._read(block)
            arrival = Arrival(block, data, self._clock() - begin)
            self._reading = None
            with self._changed:
                if restore.arrived is not arrived:
                    continue  # it was cancelled meanwhile
                arrived.append(arrival)
                if data is None:
                    restore.wanted.clear()  # those behind a hole are of no use yet
                self._changed.notify_all()

    def _next(self) -> Restore | None:
        """Whom to read for: the first, and ahead while there is room."""
        wanting = [each for each in self._restores if each.wanted]
        first = min(wanting, key=lambda each: each.rank, default=None)
        ahead = sum(len(got.data or b"") for each in self._restores for got in each.arrived)
        return first if ahead < AHEAD or (first and not first.arrived) else None

    def _read(self, block: BlockView) -> Data | None:
        try:
            data = self._store.read(block)
        except Exception:  # a store's fault ends no answer
            log.exception("block %s can't be read", block.key)
            return None
        return bytearray(data) if data is not None and data.readonly else data
