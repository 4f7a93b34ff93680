"""A BlockStore in memory that can be told to wait, to refuse, to lose; it counts its work."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from radchat.engine.block_store import BLOCK_TOKENS
from radchat.engine.raw_ids import ID_BYTES, common_len


@dataclass(frozen=True)
class Block:
    raw: bytes  # the path's ids to its end
    start: int
    end: int  # as the path that was asked about has it
    data: bytes
    num_bytes: int

    @property
    def key(self) -> str:
        return f"{hash(self.raw)}"

    @property
    def num_tokens(self) -> int:
        return len(self.raw) // ID_BYTES - self.start


class BlocksInMemory:
    """``gate``: reads wait while it is closed. Data comes back read-only, as from a mapped file."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, bytes], bytes] = {}  # (start, path to the block's end)
        self.lost: set[tuple[int, bytes]] = set()  # listed, and found bad when read
        self.refuses = False
        self.gate = threading.Event()
        self.gate.set()
        self.reads_left = -1  # at 0 the gate closes …
        self.waits = threading.Event()  # … and a read stands before it
        self.write_gate = threading.Event()
        self.write_gate.set()
        self.reads: list[tuple[int, int]] = []
        self.writes: list[tuple[int, int]] = []
        self.asked = 0  # for spans
        self.fails = False  # raises, as no store should
        self.huge = False  # says of its blocks that they are too large to be read

    def lookup(self, raw: bytes, start: int) -> list[Block]:
        found: list[Block] = []
        at = start
        while at * ID_BYTES < len(raw):
            best = self._best(raw, at - at % BLOCK_TOKENS)
            if best is None or best.end <= at:
                break
            found.append(best)
            at = best.end
            if at % BLOCK_TOKENS:
                break
        return found

    def spans(self, raw: bytes) -> list[tuple[int, int]]:
        self.asked += 1
        spans: list[tuple[int, int]] = []
        for start in range(0, len(raw) // ID_BYTES, BLOCK_TOKENS):
            if best := self._best(raw, start):
                begin = spans.pop()[0] if spans and spans[-1][1] == start else start
                spans.append((begin, best.end))
        return spans

    def read(self, block: Block) -> memoryview | None:
        if not self.reads_left:
            self.gate.clear()
            self.waits.set()
        self.reads_left -= 1
        self.gate.wait(10)
        if self.fails:
            raise OSError("the disk is on fire")
        place = (block.start, block.raw)
        self.reads.append((block.start, block.num_tokens))
        if place in self.lost:
            self.lost.discard(place)
            self.held.pop(place, None)
        data = self.held.get(place)
        return None if data is None else memoryview(data)

    def write(
        self, raw: bytes, start: int, data: bytearray, *, shape: tuple[int, ...], dtype: str
    ) -> bool:
        self.write_gate.wait(10)
        if self.fails:
            raise OSError("the disk is on fire")
        if self.refuses:
            return False
        assert shape[2] == len(raw) // ID_BYTES - start <= BLOCK_TOKENS
        for at, path in list(self.held):
            if at == start and raw.startswith(path):
                del self.held[at, path]
        self.held[start, raw] = bytes(data)
        self.writes.append((start, shape[2]))
        return True

    def _size(self, data: bytes) -> int:
        return 10**15 if self.huge else len(data)

    def _best(self, raw: bytes, start: int) -> Block | None:
        head = raw[: start * ID_BYTES]
        found = [
            Block(path, start, min(start + BLOCK_TOKENS, common), data, self._size(data))
            for (at, path), data in list(self.held.items())
            if at == start and path.startswith(head)
            if (common := common_len(path, raw, 0, len(raw))) > start
        ]
        return max(found, key=lambda block: block.end, default=None)
