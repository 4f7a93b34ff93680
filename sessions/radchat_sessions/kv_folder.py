"""The blocks of one fingerprint, asked about by paths: what an engine is given as its BlockStore.

A path is ``raw``: its ids from position 0, little-endian uint32. Questions are answered by the
index alone, touch nothing, and don't wait where it is busy: that is a miss. What is read is
compared with the path that was asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radchat_sessions.kv_blocks import ID_BYTES, Block, Bytes, common_ids
from radchat_sessions.kv_index import Index
from radchat_sessions.kv_schema import Row

if TYPE_CHECKING:
    from radchat_sessions.kv_store import KVStore


PATIENCE_S = 60.0


class KVFolder:
    """Of one fingerprint. Any thread may call; nothing here raises for a disk that fails."""

    def __init__(self, store: KVStore, fingerprint: str) -> None:
        self._store = store
        self.fingerprint = fingerprint

    # -- questions ---------------------------------------------------------------------------------

    def lookup(self, raw: bytes, start: int) -> list[Block]:
        """The blocks in a row that hold the path from token ``start`` on, up to the first gap.

        The first may begin before ``start``. [] = nothing.
        """
        size = self._store.block_tokens

        def question(index: Index) -> list[Block]:
            found: list[Block] = []
            for at, parent, ids in self._store.pieces(raw):
                if at + size <= start:
                    continue
                block = self._best(index, raw, at, parent, ids)
                if block is None or block.end <= start:
                    break
                found.append(block)
                if block.common < size:
                    break
            return found

        return self._store.ask(question, [])

    def spans(self, raw: bytes) -> list[tuple[int, int]]:
        """All ranges of tokens of the path that are on disk, in order; what lies between is not."""
        spans: list[tuple[int, int]] = []
        for block in self.best(raw):
            begin = block.start
            if spans and spans[-1][1] == begin:
                begin = spans.pop()[0]
            spans.append((begin, block.end))
        return spans

    def best(self, raw: bytes) -> list[Block]:
        """At each place of the path the block that has most of it, in order; holes left out."""

        def question(index: Index) -> list[Block]:
            places = self._store.pieces(raw)
            met = (self._best(index, raw, at, parent, ids) for at, parent, ids in places)
            return [block for block in met if block is not None]

        return self._store.ask(question, [])

    def blocks(self, raw: bytes) -> list[Block]:
        """All blocks that share ids with the path, also several at one place, holes or not.

        What is to be deleted is asked for so: this question alone waits for who writes.
        """

        def question(index: Index) -> list[Block]:
            found: list[Block] = []
            for at, parent, ids in self._store.pieces(raw):
                rows = index.siblings(self.fingerprint, parent, ids[:ID_BYTES])
                met = [_block(row, raw, at, common_ids(row.ids, ids)) for row in rows]
                found += sorted(met, key=lambda block: -block.common)
            return found

        return self._store.ask(question, [], patience=PATIENCE_S)

    def has(self, raw: bytes, start: int) -> bool:
        """All of the path from ``start`` on is on disk, so that writing it is useless."""
        found = self.lookup(raw, start)
        return bool(found) and found[-1].end * ID_BYTES >= len(raw)

    # -- blocks ------------------------------------------------------------------------------------

    def read(self, block: Block) -> memoryview | None:
        """Its KV, [layers, 2, num_tokens, kv_heads, head_dim], verified. Counts as a use.

        None: it was damaged, and is deleted now, or gone, or can't be read at this moment.
        """
        return self._store.read(self.fingerprint, block)

    def write(
        self, raw: bytes, start: int, data: Bytes, *, shape: tuple[int, ...], dtype: str
    ) -> bool:
        """Keep the KV of a path's tokens from ``start`` to its end, at most a block of them.

        True: it is on disk now, or was. False: not now (hourly budget, no room, ``trouble``). A
        shorter block that it begins with goes. Raises ValueError for what can't be meant: a start
        inside a block, data of another size than ``shape`` says, ``dtype`` not bf16, fp16, fp32 or
        fp64.
        """
        return self._store.write(self.fingerprint, bytes(raw), start, data, shape, dtype)

    def delete(self, block: Block) -> None:
        """It and all that follow it: their paths hold its ids too."""
        self._store.delete(self.fingerprint, block.key)

    # -- inside ------------------------------------------------------------------------------------

    def _best(self, index: Index, raw: bytes, at: int, parent: str, ids: bytes) -> Block | None:
        """The block at ``at`` that shares most with the path; of equals the smaller."""
        best: Block | None = None
        for row in index.neighbours(self.fingerprint, parent, ids):
            if row is None or not (common := common_ids(row.ids, ids)):
                continue
            if best is None or (common, -row.num_tokens) > (best.common, -best.num_tokens):
                best = _block(row, raw, at, common)
        return best


def _block(row: Row, raw: bytes, at: int, common: int) -> Block:
    return Block(row.key, at, row.num_tokens, common, row.num_bytes, row.used, raw, row.ids)
