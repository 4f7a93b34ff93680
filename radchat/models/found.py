"""A model that another program has on this machine, and why it can't be run if it can't."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from radchat import architectures
from radchat.models.gguf_header import GgufHeader, NotGguf, read_header

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_EMBEDDERS = (
    "bert",
    "nomic-bert",
    "nomic-bert-moe",
    "jina-bert-v2",
    "gemma-embedding",
    "t5encoder",
)


@dataclass(frozen=True, slots=True)
class Found:
    """``ref``: as ``-m`` takes it. ``state`` changes when the content does.

    ``path``: the GGUF file or the Hugging Face folder. ``defaults``: generation settings that come
    with it (``system`` among them), in radchat's words; ``notes``: what of it does not come along.
    """

    ref: str
    path: Path
    kind: Literal["gguf", "folder"] = "gguf"
    bytes: int = 0
    architecture: str = ""
    quantisation: str = ""
    context_length: int | None = None
    size_label: str = ""
    state: str = ""
    problem: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def store(self) -> str:
        return self.ref.partition(":")[0]

    @property
    def converted_bytes(self) -> int:
        """What it will take once converted, about: 16 bits a weight, or as it is."""
        is_packed = self.kind == "gguf" or self.quantisation == architectures.UNPACKED.upper()
        if not is_packed or self.quantisation in ("", "F32", "F16", "BF16"):
            return self.bytes
        digit = re.search(r"\d", self.quantisation)
        bits = int(digit.group()) + 0.7 if digit else 16.0  # scales and a few finer tensors
        return int(self.bytes * 16 / bits)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.ref,
            "from": self.store,
            "file": str(self.path),
            "bytes": self.bytes,
            "architecture": self.architecture or None,
            "quantisation": self.quantisation or None,
            "context_length": self.context_length,
            "parameters": self.size_label or None,
            "problem": self.problem,
        }


def look_at(ref: str, path: Path, **more: Any) -> Found:
    """A GGUF file, from its header alone. Whatever is wrong with it is its ``problem``."""
    try:
        header = read_header(path)
    except (OSError, NotGguf) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Found(ref, path, **{"problem": (reason or "can't be read").lower(), **more})
    problem = part_problem(path.name) or _problem(path.name, header)
    facts: dict[str, Any] = {
        "bytes": header.bytes,
        "architecture": header.architecture,
        "quantisation": header.quantisation,
        "context_length": header.context_length,
        "size_label": header.size_label,
        "problem": problem,
    }
    return Found(ref, path, **{**facts, **{k: v for k, v in more.items() if v is not None}})


def part_problem(name: str) -> str | None:
    match = _PART.search(name)
    if match is None:
        return None
    return f"part {int(match[1])} of {int(match[2])}: join them with gguf-split --merge"


def _problem(name: str, header: GgufHeader) -> str | None:
    arch, kind = header.architecture, header.meta.get("general.type")
    if arch == "clip" or kind == "mmproj" or name.lower().startswith("mmproj"):
        return "a projector for images, no model of its own"
    if kind in ("adapter", "imatrix", "vocab"):
        return f"{kind}, no model of its own"
    if arch in _EMBEDDERS or header.get("pooling_type") is not None:
        return "an embedding model: it says nothing"
    if arch not in architectures.GGUF:
        return f"architecture {arch} is not one radchat reads from GGUF"
    if header.get("expert_count"):
        return "a mixture of experts"
    return None


def digest(*parts: object) -> str:
    """A content id of these."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def stat_state(path: Path) -> str:
    """Of a file without an id of its own: name, size and time."""
    try:
        about = path.stat()
    except OSError:
        return ""
    return digest(path.name, about.st_size, about.st_mtime_ns)


def megabytes(num_bytes: int) -> str:
    """523 MB, 1.2 GB: as the stores' own lists have it"""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"
