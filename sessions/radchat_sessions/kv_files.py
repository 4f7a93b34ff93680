"""Block files: what is in one, and how it comes to lie under its name whole or not at all.

A file is in safetensors format with two tensors: ``kv`` [layers, 2, n, kv_heads, head_dim] and
``path``, all ids from position 0 to the end of the block. So a file says by itself where it
belongs, whatever became of the index, and no hash has to be believed. Its metadata: format,
fingerprint, start, layout, and ``check``, the xxh3_128 of the header (with a check of zeros), the
KV and the ids. The header is written here and not by the library, whose calls for plain bytes
differ from release to release; a test has the library read it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

from radchat_sessions.kv_blocks import ID_BYTES, Bytes

FORMAT = "radchat-kv-1"
SUFFIX = ".safetensors"
LAYOUT = "layers,2,tokens,kv_heads,head_dim"
TOKENS_AXIS = 2
DTYPES = {"bf16": ("BF16", 2), "fp16": ("F16", 2), "fp32": ("F32", 4), "fp64": ("F64", 8)}
_NAMES = {code: name for name, (code, _) in DTYPES.items()}
_ALIGN = 64  # where the KV begins in the file
_LONGEST_HEADER = 1 << 16
_NO_CHECK = "0" * 32
INDEX_GROWTH = 256 << 10  # bytes: pages of a row and of its neighbours, twice


class Damaged(Exception):
    """A file that is not a whole block; says why."""


class Content(NamedTuple):
    fingerprint: str
    start: int
    path: bytes  # ids from position 0 to the end of the block
    shape: tuple[int, ...]
    dtype: str
    data: memoryview

    @property
    def ids(self) -> bytes:
        return self.path[self.start * ID_BYTES :]


class Files:
    """The calls that touch the disk. Tests pass one whose disk is full, or read-only."""

    def make_folder(self, path: Path) -> bool:
        """Mode 0700, and those above it. True: it was not there."""
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            return False
        except FileNotFoundError:
            self.make_folder(path.parent)
            path.mkdir(mode=0o700)
        return True

    def create(self, path: Path) -> int:
        """A descriptor of a new file of mode 0600."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write_some(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path, least: int, most: int) -> bytearray:
        """All of a plain file of so many bytes; raises OSError, Damaged for anything else."""
        # without NONBLOCK a pipe of that name would be waited for
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise Damaged("it is no file")
            if not least <= info.st_size <= most:
                raise Damaged("it is too short" if info.st_size < least else "it is too long")
            raw = bytearray(info.st_size)
            with memoryview(raw) as rest:
                done = 0
                while done < len(raw):
                    got = file.readinto(rest[done:])
                    if not got:
                        raise Damaged("it is too short")
                    done += got
        return raw

    def size(self, path: Path) -> int:
        """Bytes of a plain file; 0 for anything else, and for nothing."""
        try:
            info = path.lstat()
        except FileNotFoundError:
            return 0
        return info.st_size if stat.S_ISREG(info.st_mode) else 0

    def index_size(self, path: Path) -> int:
        """Of the index with its log, and what one more block may add to that."""
        names = ("", "-wal", "-shm")
        return INDEX_GROWTH + sum(self.size(path.with_name(path.name + name)) for name in names)

    def remove(self, path: Path) -> None:
        """Also a folder in a file's place. What is not there is removed already."""
        try:
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            if not path.is_dir() or path.is_symlink():
                raise
            shutil.rmtree(path)


def write_file(files: Files, path: Path, parts: Iterable[Bytes], *, sync: bool = True) -> None:
    """A new file, all of it on the disk, or none. Raises OSError."""
    descriptor = files.create(path)
    try:
        try:
            for part in parts:
                rest = memoryview(part).cast("B")
                while rest:
                    rest = rest[files.write_some(descriptor, rest) :]
            if sync:
                files.sync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        files.remove(path)
        raise


def pack(
    fingerprint: str, path: bytes, start: int, data: memoryview, shape: tuple[int, ...], dtype: str
) -> tuple[bytes, memoryview, bytes]:
    """The parts of a file, in order."""
    blank = _header(fingerprint, path, start, shape, dtype, _NO_CHECK)
    check = _check(blank, data, path)
    return _header(fingerprint, path, start, shape, dtype, check), data, path


def packed_size(
    fingerprint: str, path: bytes, start: int, shape: tuple[int, ...], dtype: str
) -> int:
    """Bytes of such a file, before anything is summed up."""
    header = _header(fingerprint, path, start, shape, dtype, _NO_CHECK)
    return len(header) + math.prod(shape) * DTYPES[dtype][1] + len(path)


def unpack(raw: bytearray) -> Content:
    """The block in a file's bytes; its data is a view of them. Raises Damaged."""
    length = int.from_bytes(raw[:8], "little")
    if length > min(_LONGEST_HEADER, len(raw) - 8):
        raise Damaged("it is too short, or its header is broken")
    written = bytes(raw[: 8 + length])
    try:
        head = json.loads(written[8:])
        about, kv, ids = head["__metadata__"], head["kv"], head["path"]
        if about["format"] != FORMAT:
            raise Damaged(f"it is of another format ({about['format']!r:.40})")
        shape, dtype = tuple(kv["shape"]), _NAMES[kv["dtype"]]
        fingerprint, start, check = about["fingerprint"], int(about["start"]), about["check"]
        data_end = 8 + length + math.prod(shape) * DTYPES[dtype][1]
        path = bytes(raw[data_end:])
        if len(path) != ID_BYTES * ids["shape"][0]:
            raise Damaged("it is too short, or its header is broken")
        again = _header(fingerprint, path, start, shape, dtype, check)
        blank = _header(fingerprint, path, start, shape, dtype, _NO_CHECK)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Damaged("its header is broken") from error
    data = memoryview(raw)[8 + length : data_end]
    if again != written:
        raise Damaged("its header is broken")
    if _check(blank, data, path) != check:
        raise Damaged("its checksum is wrong")
    if len(shape) != 5 or len(path) != ID_BYTES * (start + shape[TOKENS_AXIS]):
        raise Damaged("its shape does not fit its ids")
    return Content(fingerprint, start, path, shape, dtype, data)


def _header(
    fingerprint: str, path: bytes, start: int, shape: tuple[int, ...], dtype: str, check: str
) -> bytes:
    """The length and the header, padded with spaces as the format allows."""
    code, size = DTYPES[dtype]
    num_bytes = math.prod(shape) * size
    table = {
        "__metadata__": {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "start": str(start),
            "layout": LAYOUT,
            "check": check,
        },
        "kv": {"dtype": code, "shape": shape, "data_offsets": [0, num_bytes]},
        "path": {
            "dtype": "U32",
            "shape": [len(path) // ID_BYTES],
            "data_offsets": [num_bytes, num_bytes + len(path)],
        },
    }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _check(blank: bytes, data: memoryview, path: bytes) -> str:
    digest = xxhash.xxh3_128(blank)
    digest.update(data)
    digest.update(path)
    return digest.hexdigest()
