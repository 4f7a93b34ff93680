"""What the byte store for KV is told and tells: plain data, and how a block gets its key.

A block is up to BLOCK_TOKENS ids of a path, beginning at a multiple of BLOCK_TOKENS, with their KV.
Its key is a hash of the key of the block before it and of its own ids, so it stands for the whole
path up to its end. A key finds a block; whether it is the right one, the ids say (``Block.path``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import xxhash

BLOCK_TOKENS = 256
ID_BYTES = 4  # ids are little-endian uint32
ROOT = "0" * 32  # the parent of a block at position 0; as long as a key, so that fields can't mix

KeyOf: TypeAlias = Callable[[str, bytes], str]  # (parent, ids) -> key
Bytes: TypeAlias = bytes | bytearray | memoryview


class KVUnavailable(Exception):
    """KV can't be kept in this folder: one sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Block:
    """A block that lies on disk, as met by a path somebody asked about."""

    key: str  # 32 hex digits
    start: int  # position of its first token, a multiple of BLOCK_TOKENS
    num_tokens: int  # 1 to BLOCK_TOKENS; only full blocks have children
    common: int  # how many of its ids are those of the path, from its start
    num_bytes: int  # of the file
    last_used: float  # wall time
    path: bytes = field(repr=False)  # that path, and
    ids: bytes = field(repr=False)  # the block's own ids: what is read is compared with both

    @property
    def end(self) -> int:
        """The path's tokens [start, end) are in it."""
        return self.start + self.common


@dataclass(frozen=True, slots=True)
class KVEntry:
    fingerprint: str
    key: str
    parent: str  # ROOT at position 0
    start: int
    num_tokens: int
    ids: bytes  # its own
    num_bytes: int
    last_used: float  # wall time


@dataclass(frozen=True, slots=True)
class KVStats:
    blocks: int
    tokens: int
    bytes: int
    budget: int
    free_bytes: int  # of the disk
    written_bytes: int  # within the last hour
    hourly: int | None
    by_fingerprint: dict[str, tuple[int, int, int]]  # blocks, tokens, bytes


class Verified(NamedTuple):
    blocks: int  # whole ones
    bytes: int
    bad: list[tuple[str, str]]  # (key, why); they are gone
    adopted: int  # files that had no row and have one now
    swept: int  # files that had no row and are gone


def key_of(parent: str, ids: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(parent.encode() + ids)


def common_ids(a: bytes, b: bytes) -> int:
    """How many ids two runs share from the start."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // ID_BYTES
    differing = int.from_bytes(a[:size], "little") ^ int.from_bytes(b[:size], "little")
    lowest_bit = (differing & -differing).bit_length() - 1
    return lowest_bit // 8 // ID_BYTES


def pieces(raw: bytes, size: int, key_of: KeyOf) -> Iterator[tuple[int, str, bytes]]:
    """(position, key of the block before, ids) for every block's worth of a path."""
    parent = ROOT
    for at in range(0, len(raw), size * ID_BYTES):
        ids = raw[at : at + size * ID_BYTES]
        yield at // ID_BYTES, parent, ids
        parent = key_of(parent, ids)
