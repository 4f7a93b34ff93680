"""A byte store for the tests: tiny blocks, a clock and a disk that do as they are told."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from radchat_sessions.kv_blocks import KeyOf, key_of
from radchat_sessions.kv_files import Files, packed_size
from radchat_sessions.kv_store import KVFolder, KVStore

B = 4  # tokens a block
F = "f" * 8
LAYERS, HEADS, DIM = 2, 1, 2
TOKEN_BYTES = 4 * LAYERS * 2 * HEADS * DIM  # fp32
GIB = 1 << 30


def quick_folder() -> Path:
    """In memory where there is such a place; the caller removes it."""
    return Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def raw_of(ids: Iterable[int]) -> bytes:
    return array("I", ids).tobytes()


def kv_of(ids: Iterable[int], start: int, salt: int = 0) -> bytes:
    """KV that is another for every other path."""
    path = list(ids)
    rng = random.Random(repr((path, start, salt)))
    return rng.randbytes((len(path) - start) * TOKEN_BYTES)


def shape_of(num_tokens: int) -> tuple[int, ...]:
    return (LAYERS, 2, num_tokens, HEADS, DIM)


def size_of(path: Sequence[int], fingerprint: str = F) -> int:
    """Bytes of the file with the end of the path."""
    start = (len(path) - 1) // B * B
    return packed_size(fingerprint, raw_of(path), start, shape_of(len(path) - start), "fp32")


def files_of(store: KVStore) -> list[Path]:
    return [path for path in store.folder.glob("*/??/*") if path.is_file()]


def write(folder: KVFolder, ids: list[int], start: int | None = None, salt: int = 0) -> bool:
    """The block that holds the end of the path."""
    if start is None:
        start = (len(ids) - 1) // B * B
    return folder.write(
        raw_of(ids), start, kv_of(ids, start, salt), shape=shape_of(len(ids) - start), dtype="fp32"
    )


def write_path(folder: KVFolder, ids: list[int]) -> list[bool]:
    """All its blocks, as an engine would."""
    ends = [*range(B, len(ids), B), len(ids)]
    return [write(folder, ids[:end]) for end in ends]


def read_path(folder: KVFolder, ids: list[int]) -> list[bytes | None]:
    found = [folder.read(block) for block in folder.lookup(raw_of(ids), 0)]
    return [None if data is None else bytes(data) for data in found]


def evict(store: KVStore, num_bytes: int) -> tuple[int, int]:
    """At least so many bytes, as a write does that needs them: (tokens, bytes) freed."""
    gone = []
    with store.work() as index:
        if index is not None:
            gone = list(store.shrink(index, num_bytes))
    return sum(row.num_tokens for row in gone), sum(row.num_bytes for row in gone)


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Disk(Files):
    """``full``: takes so many bytes more. ``fails``: these calls say so. Notes the calls made."""

    def __init__(self) -> None:
        self.full: int | None = None
        self.index_bytes: int | None = 0  # what the index counts for; None: what it has
        self.fails: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, Path], object] = lambda _call, _path: None

    def _call(self, name: str, path: Path) -> None:
        self.before(name, path)
        self.calls.append((name, path.name))
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]))

    def make_folder(self, path: Path) -> bool:
        self._call("make_folder", path)
        return super().make_folder(path)

    def create(self, path: Path) -> int:
        self._call("create", path)
        return super().create(path)

    def write_some(self, descriptor: int, data: memoryview) -> int:
        self._call("write", Path("data"))
        if self.full is not None:
            data = data[: self.full]
            self.full -= len(data)
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write_some(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._call("sync", Path("data"))

    def rename(self, old: Path, new: Path) -> None:
        self._call("rename", new)
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder", path)

    def read(self, path: Path, least: int, most: int) -> bytearray:
        self._call("read", path)
        return super().read(path, least, most)

    def index_size(self, path: Path) -> int:
        return super().index_size(path) if self.index_bytes is None else self.index_bytes

    def remove(self, path: Path) -> None:
        self._call("remove", path)
        super().remove(path)
        self.before("removed", path)


class Opener:
    """Opens the same folder again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.disk = Disk()
        self.disk_bytes = 10 * GIB  # of which blocks take some
        self.stores: list[KVStore] = []

    def __call__(
        self, *, budget: int = GIB, hourly: int | None = None, key_of: KeyOf = key_of
    ) -> KVStore:
        for store in self.stores:
            store.close()
        store = KVStore.open(
            self.folder,
            budget=budget,
            hourly=hourly,
            clock=self.clock,
            free=self.free,
            files=self.disk,
            key_of=key_of,
            block_tokens=B,
        )
        self.stores.append(store)
        return store

    def free(self, folder: Path) -> int:
        return self.disk_bytes - sum(path.stat().st_size for path in folder.glob("*/??/*"))

    def close(self) -> None:
        for store in self.stores:
            store.close()
