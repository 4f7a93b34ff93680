"""What the engine asks of a store of KV on disk, all of one fingerprint.

A block is the KV of up to ``BLOCK_TOKENS`` tokens of a path, position-aligned; only full blocks are
continued by others. Its values lie as ``[layers, 2, tokens, kv_heads, head_dim]``. Paths are ids as
little-endian uint32. ``radchat_sessions`` has the store; nothing here knows of files. Every method
may be called from any thread, and none raises for what is wrong with a disk: that is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

BLOCK_TOKENS = 256
LOOK_S = 1.0  # a disk that is slow is looked at so often at least


class BlockView(Protocol):
    """One block, as a path meets it."""

    @property
    def key(self) -> str: ...

    @property
    def start(self) -> int:
        """Position of its first token, a multiple of BLOCK_TOKENS."""
        ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def end(self) -> int:
        """The path's tokens [start, end) are in it; it may go on with other ids than the path."""
        ...

    @property
    def num_bytes(self) -> int: ...


class BlockStore(Protocol):
    def lookup(self, raw: bytes, start: int) -> Sequence[BlockView]:
        """Blocks in a row that hold the path from ``start`` on, to the first gap; the first may
        begin before. Touches nothing.
        """
        ...

    def spans(self, raw: bytes) -> Sequence[tuple[int, int]]:
        """All ranges of the path's tokens that are on disk, in order. Touches nothing."""
        ...

    def read(self, block: Any) -> memoryview | None:
        """The verified bytes of a block, a use of it; None: it was bad or is gone."""
        ...

    def write(
        self, raw: bytes, start: int, data: bytearray, *, shape: tuple[int, ...], dtype: str
    ) -> bool:
        """``raw``: the path up to the block's end. True: it is on disk. False: not now."""
        ...
