"""What a message is made of: its parts, its token ids, and the digest over both.

Token ids are ``array('I')`` in memory and little-endian uint32 on disk. Parts are JSON objects with
a ``type``: ``text``, ``reasoning``, ``tool_call``, ``tool_result`` or whatever the caller adds; the
store reads only ``text``.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from radchat_sessions.words import indexed

Ids: TypeAlias = "array[int]"  # typecode 'I'
Json: TypeAlias = Any  # what json.loads gives
Part: TypeAlias = Mapping[str, Json]

ID_BYTES: Final = 4

# -- text and parts --------------------------------------------------------------------------------


def clean(value: Json) -> Json:
    """``value`` with whole surrogate pairs joined and lone ones U+FFFD, in every string of it.

    SQLite, UTF-8 files and tokenizers all raise on a lone surrogate; so it never gets in.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def reasoning_part(text: str) -> Part:
    return {"type": "reasoning", "text": text}


def text_of(parts: Iterable[Part], kind: str = "text") -> str:
    """The texts of the parts of one type, joined without a separator."""
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == kind)


def searchable(parts: Iterable[Part]) -> str:
    """Every text of the parts, as the index has it."""
    return indexed("\n".join(str(part["text"]) for part in parts if "text" in part))


def dumps(value: Json) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII. Equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# -- ids -------------------------------------------------------------------------------------------


def pack_ids(ids: Iterable[int]) -> bytes:
    """Little-endian uint32, the form on disk."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> Ids:
    """The reverse; ``data`` must be whole ids."""
    ids = array("I")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def digest(parent: str | None, role: str, parts: Sequence[Part], ids: bytes | None) -> str:
    """``b2:`` and 32 hex digits over the parent's digest, role, parts and packed ids.

    One line of canonical JSON ``[parent, role, parts, has ids]``, a newline (JSON has none), the
    ids. The prefix leaves room for another hash one day.
    """
    line = dumps([parent, role, list(parts), ids is not None])
    return "b2:" + blake2b(line.encode() + b"\n" + (ids or b""), digest_size=16).hexdigest()
