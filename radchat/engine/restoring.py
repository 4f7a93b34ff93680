"""KV from disk into the pages of running requests, where that is cheaper than computing it.

Asked where a request's match ends and again before each of its chunks, so a hole costs only
itself: the chunk ends where the disk goes on. Nothing is decided for longer than that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median_low
from typing import Protocol

from radchat.engine.ahead import Ahead
from radchat.engine.block_store import BLOCK_TOKENS, BlockStore, BlockView
from radchat.engine.choice import Choice
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.raw_ids import ID_BYTES
from radchat.engine.reader import Arrival, Reader, Restore
from radchat.engine.request import Priority
from radchat.engine.unless_full import unless_full

_GUESS = 500e6  # bytes a second, until it has been measured: a slow SSD
_TOKEN_S, _RATIO = 1e-3, 4  # computing a token, until it has been measured: so long, or so many
# times as long as reading it, for models whose KV is large are slow in proportion
_BLOCK_S = 1e-3  # of each block besides its bytes: the index, opening, handing over, copying
_LEAST = 1 << 20  # bytes of a read that tells the speed
_KEPT = 5  # reads; the one in the middle counts, so that one that hung is soon forgotten
_FORGET_S = 600.0
_COPIED = 32 << 20  # bytes into the pool in one step, or one block: rows of others wait for it
_SHORT_S = 0.05  # for the next block: so long the background runs no chunk for it
_WAIT_S = 2e-3  # how long a step without other work waits; then the inbox is looked at


class Speed:
    """How fast blocks are read here. A disk that was too slow to be used is tried again later."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[float] = deque(maxlen=_KEPT)  # seconds a byte
        self._seen_at = 0.0
        self.bytes_per_s: float | None = None  # as measured; None before

    def seconds(self, num_bytes: int, num_blocks: int = 1) -> float:
        if self._seen and self._clock() - self._seen_at > _FORGET_S:
            self._seen.clear()
            self.bytes_per_s = None
        return num_blocks * _BLOCK_S + num_bytes / (self.bytes_per_s or _GUESS)

    def saw(self, num_bytes: int, seconds: float) -> None:
        if num_bytes >= _LEAST and seconds > 0:
            self._seen.append(seconds / num_bytes)
            self._seen_at = self._clock()
            self.bytes_per_s = 1 / median_low(self._seen)


class CopyPages(Protocol):
    def __call__(self, leases: Sequence[Lease], /) -> None: ...


class Restoring:
    """``tokens_per_s``: at which prompts are computed here; None before that is known.

    ``chunk_tokens``: of a step, at most. ``copy_pages`` performs the copies that an admission asked
    for, which must come before the first token behind them is written.
    """

    def __init__(
        self,
        store: BlockStore,
        pool: KVPool,
        cache: PrefixCache,
        copy_pages: CopyPages,
        tokens_per_s: Callable[[], float | None],
        chunk_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._pool = pool
        self._cache = cache
        self._copy_pages = copy_pages
        self._tokens_per_s = tokens_per_s
        self._chunk_tokens = chunk_tokens
        self._clock = clock
        self.speed = Speed(clock)
        self._reader = Reader(store, clock, self.speed.seconds)
        self.ahead = Ahead()

    def advance(self, running: Mapping[Priority, Sequence[Choice]]) -> list[tuple[Choice, int]]:
        """Copy what has arrived, so much a step, and ask for more where it is time.

        Returns, block by block, whose KV now reaches how far.
        """
        restored: list[tuple[Choice, int]] = []
        room, hangs = _COPIED, self._reader.hangs
        order = [(priority, choice) for priority in Priority for choice in running[priority]]
        for priority, choice in order:
            if not choice.is_restoring:
                continue
            assert choice.restore is not None
            choice.restore.rank = (priority, choice.admitted)
            while room > 0 and (arrival := self._reader.take(choice.restore)):
                restored += self._copy(choice, arrival)
                room -= arrival.block.num_bytes
            if hangs:
                self._reader.cancel(choice.restore)
        for priority, choice in order:
            if not choice.is_restoring:
                self._ask(choice, (priority, choice.admitted))
        return restored

    def drop(self, choice: Choice) -> None:
        """It ends or is put back: what is on its way to it is not wanted."""
        if choice.restore is not None:
            self._reader.cancel(choice.restore)
            choice.restore = None

    def is_due(self, choices: Sequence[Choice]) -> bool:
        """Whether blocks for one of these are to come any moment, as far as the disk has shown."""
        now = self._clock()
        return any(
            choice.restore is not None
            and choice.is_restoring
            and now - choice.restore.waits_since < _SHORT_S
            for choice in choices
        )

    def wait(self) -> None:
        """For a step that has nothing else to do: until a block has arrived, or a moment."""
        self._reader.wait(_WAIT_S)

    def beyond(self, raw: bytes, at: int) -> int:
        """How many of the path's tokens beyond ``at`` would be restored, with holes between."""
        num_tokens = 0
        for start, end in self._store.spans(raw):
            at = max(at, start)
            while at < end:
                reach = self.reach(raw, at)
                num_tokens += reach - at
                at = reach if reach > at else _next_block(at)
        return num_tokens

    def reach(self, raw: bytes, at: int) -> int:
        """To which token the path would be restored from ``at`` on without a hole."""
        row = self._row(raw, at)
        return row[-1].end if row else at

    def seconds(self, tokens: int) -> float:
        """What restoring so many tokens would take."""
        num_bytes = tokens * self._pool.bytes_per_token
        return self.speed.seconds(num_bytes, -(-tokens // BLOCK_TOKENS))

    def stop(self) -> threading.Thread | None:
        return self._reader.stop()

    def _ask(self, choice: Choice, rank: tuple[int, int]) -> None:
        lease, request = choice.lease, choice.request
        assert lease is not None
        limit = len(choice.ids)
        if choice.is_scoring:
            limit = choice.scored  # from there on every row runs
        elif request.fill != "load":
            limit -= 1  # the next token is drawn from the last one's row
        at = lease.computed_len
        if at >= limit or request.namespace:
            return
        restore, is_first = choice.restore, choice.restore is None
        if restore is None:
            restore = choice.restore = Restore()
        if restore.asked_at == at:
            return
        restore.asked_at = at
        raw = choice.raw[: limit * ID_BYTES]
        if is_first:
            restore.predicted = self.beyond(raw, at)
        restore.stop_at = None
        if row := self._row(raw, at, restore.bad):
            restore.rank = rank
            self._reader.begin(restore, row)
            return
        for start in range(_next_block(at), min(limit, at + self._chunk_tokens), BLOCK_TOKENS):
            if self._row(raw, start, restore.bad):
                restore.stop_at = start
                return

    def _copy(self, choice: Choice, arrival: Arrival) -> list[tuple[Choice, int]]:
        block, data, seconds = arrival
        lease, restore = choice.lease, choice.restore
        assert lease is not None
        assert restore is not None
        restore.asked_at = -1
        at = lease.computed_len
        assert block.start <= at < block.end
        is_whole = data is not None and len(data) == block.num_tokens * self._pool.bytes_per_token
        if data is None or not is_whole or not self._write(lease, block, data):
            self._reader.cancel(restore)
            restore.bad.add(block.key)  # computed, then
            return []
        self.speed.saw(len(data), seconds)
        lease.computed_len = block.end
        self._cache.show(lease)
        if choice.request.fill == "load":
            self.ahead.add(choice.raw, at, block.end)
        return [(choice, block.end)]

    def _write(self, lease: Lease, block: BlockView, data: bytearray | memoryview) -> bool:
        """False: the device has no memory for the transfer."""

        def write() -> bool:
            self._copy_pages([lease])
            self._pool.write(lease.table, lease.computed_len, block.end, data, block.start)
            return True

        return bool(unless_full(f"{block.num_tokens} tokens from disk", write))

    def _token_s(self) -> float:
        measured = self._tokens_per_s()
        return 1 / measured if measured else guessed_token_s(self._pool.bytes_per_token)

    def _row(self, raw: bytes, at: int, bad: Collection[str] = ()) -> list[BlockView]:
        """Blocks that hold the path from ``at`` on and are sooner read than computed."""
        row: list[BlockView] = []
        if self._reader.hangs:
            return row
        token_s = self._token_s()
        for block in self._store.lookup(raw, at):
            is_cheaper = self.speed.seconds(block.num_bytes) < (block.end - at) * token_s
            if block.key in bad or not is_cheaper:
                break
            row.append(block)
            at = block.end
        return row


def guessed_token_s(bytes_per_token: int) -> float:
    return max(_TOKEN_S, _RATIO * bytes_per_token / _GUESS)


def _next_block(at: int) -> int:
    return at - at % BLOCK_TOKENS + BLOCK_TOKENS
