"""Write safetensors one tensor at a time, hashed as it goes: the model is never in memory whole.

safetensors' own ``save_file`` wants every tensor at once and does not fsync.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from radchat.errors import ModelBroken

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int64: "I64",
}

OpenFile = Callable[[Path], BinaryIO]
Report = Callable[[int, int], None]  # bytes done, bytes in all
Progress = Callable[[str, int, int], None]  # of a conversion: step, bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor to be written: what it will be, and how to get it when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # as stored
    load: Callable[[], torch.Tensor]

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


def create_private(path: Path) -> BinaryIO:
    """A new file only its owner can read. Tests pass an opener whose disk is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb")


def write_tensors(
    path: Path, items: Sequence[Item], report: Report, open_file: OpenFile = create_private
) -> str:
    """Write ``items`` in order, fsync, return the file's sha256. Raises OSError, ModelBroken."""
    header, total = _header(items)
    digest = hashlib.sha256()
    done = 0
    with open_file(path) as file:
        for chunk in _chunks(header, items):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            report(done, total)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def write_bytes(path: Path, data: bytes, open_file: OpenFile = create_private) -> None:
    """A small file, fsynced."""
    with open_file(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(items: Sequence[Item]) -> tuple[bytes, int]:
    """The header with its length, padded to 8 bytes, and the size of the whole file."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for item in items:
        if item.name in table:
            raise ModelBroken(f"tensor {item.name!r} is there twice")
        table[item.name] = {
            "dtype": DTYPE_NAMES[item.dtype],
            "shape": list(item.shape),
            "data_offsets": [offset, offset + item.nbytes],
        }
        offset += item.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, len(header) + offset


def _chunks(header: bytes, items: Sequence[Item], size: int = 16 << 20) -> Iterable[memoryview]:
    yield memoryview(header)
    for item in items:
        tensor = item.load().to(item.dtype).contiguous()
        if tuple(tensor.shape) != item.shape:
            raise ModelBroken(
                f"tensor {item.name!r} has shape {tuple(tensor.shape)}, not {item.shape}"
            )
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(data), size):
            yield data[begin : begin + size]
