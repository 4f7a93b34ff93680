"""The beginning of a GGUF file: what it is, at the cost of a read or two.

Keys about the model stand before those of the tokenizer, whose lists are long; reading stops there.
One that llama-quantize moves behind them, the file type, is looked for by its bytes, and only where
the file's name does not tell it. The file may be anybody's: every length is checked against what
was read, and no more than ``MAX_BYTES`` and ``MAX_SEARCH`` are looked at. Layout: magic ``GGUF``,
version u32, number of tensors u64, of keys u64; then each key (length u64, bytes), its type u32 and
its value. Little-endian.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 128 * 1024
MAX_SEARCH = 16 * 1024 * 1024  # where the keys behind a tokenizer's lists may stand
_CHUNK = 1024 * 1024
_MAX_KEY = 65_535  # bytes, as the format has it
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

# general.file_type: what most of the tensors are (llama.cpp's numbers)
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


_WORD = re.compile(r"(?:IQ|TQ|Q)\d[A-Z0-9_]*|BF16|F16|F32|MXFP4_MOE")
_FILE_TYPE_KEY = struct.pack("<Q", 17) + b"general.file_type" + struct.pack("<I", 4)


class NotGguf(ValueError):
    """The file can't be what its name says; the message says why, in a few words."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``meta``: the keys before the tokenizer's, lists left out. ``bytes``: of the whole file."""

    meta: dict[str, Any]
    bytes: int

    @property
    def architecture(self) -> str:
        return str(self.meta.get("general.architecture", ""))

    def get(self, key: str) -> Any:
        """A key of the architecture's own."""
        return self.meta.get(f"{self.architecture}.{key}")

    @property
    def quantisation(self) -> str:
        return FILE_TYPES.get(self.meta.get("general.file_type", -1), "")

    @property
    def context_length(self) -> int | None:
        value = self.get("context_length")
        return value if isinstance(value, int) else None

    @property
    def size_label(self) -> str:
        return str(self.meta.get("general.size_label", ""))


def read_header(path: Path) -> GgufHeader:
    """Raises NotGguf, OSError. Never waits: what is no regular file is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotGguf("no regular file")
        data = os.pread(descriptor, MAX_BYTES, 0)
        meta = _meta(data, len(data) == about.st_size)
        told = meta.get("general.file_type")
        if told is None:
            told = _named_type(path.name)
        if told is None:
            told = _late_type(descriptor)
        if told is not None:
            meta["general.file_type"] = told
    finally:
        os.close(descriptor)
    return GgufHeader(meta, about.st_size)


def _named_type(name: str) -> int | None:
    """From a name like ``model-Q4_K_M.gguf``."""
    words = _WORD.findall(name.upper())
    return next((number for number, text in FILE_TYPES.items() if text in words), None)


def _late_type(descriptor: int) -> int | None:
    """Behind the tokenizer's lists: found by its length, name and type, a chunk at a time."""
    carried = b""
    for at in range(0, MAX_SEARCH, _CHUNK):
        chunk = os.pread(descriptor, _CHUNK, at)
        data = carried + chunk
        found = data.find(_FILE_TYPE_KEY)
        if 0 <= found <= len(data) - len(_FILE_TYPE_KEY) - 4:
            return int(struct.unpack_from("<I", data, found + len(_FILE_TYPE_KEY))[0])
        if len(chunk) < _CHUNK:
            return None
        carried = data[-len(_FILE_TYPE_KEY) - 4 :]
    return None


def _meta(data: bytes, is_all: bool) -> dict[str, Any]:
    if data[:4] != b"GGUF":
        raise NotGguf("not a GGUF file")
    if len(data) < 24:
        raise NotGguf("cut short")
    version, _, num_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise NotGguf(f"GGUF version {version} or another byte order")
    meta: dict[str, Any] = {}
    at = 24
    try:
        for _ in range(num_keys):
            length, at = _number("<Q", data, at)
            if length > _MAX_KEY:
                raise NotGguf("its header makes no sense")
            key, at = _text(data, at, length)
            if key.startswith("tokenizer."):
                break
            kind, at = _number("<I", data, at)
            value, at = _value(kind, data, at)
            if value is not None:
                meta[key] = value
    except _End:
        if is_all:
            raise NotGguf("cut short") from None
    if "general.architecture" not in meta:
        raise NotGguf("it names no architecture")
    return meta


class _End(Exception):
    """What was read ends here."""


def _number(form: str, data: bytes, at: int) -> tuple[Any, int]:
    end = at + struct.calcsize(form)
    if end > len(data):
        raise _End
    return struct.unpack_from(form, data, at)[0], end


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    if at + length > len(data):
        raise _End
    return data[at : at + length].decode("utf-8", "replace"), at + length


def _value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind in _SCALARS:
        return _number(_SCALARS[kind], data, at)
    if kind == _STRING:
        length, at = _number("<Q", data, at)
        return _text(data, at, length)
    if kind == _ARRAY:
        return None, _behind_list(data, at)
    raise NotGguf("its header makes no sense")


def _behind_list(data: bytes, at: int) -> int:
    kind, at = _number("<I", data, at)
    count, at = _number("<Q", data, at)
    if kind in _SCALARS:
        at += count * struct.calcsize(_SCALARS[kind])
        if at > len(data):
            raise _End
        return int(at)
    if kind != _STRING:
        raise NotGguf("its header makes no sense")
    for _ in range(count):
        length, at = _number("<Q", data, at)
        at += length
        if at > len(data):
            raise _End
    return int(at)
