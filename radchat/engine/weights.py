"""Map a converted model folder (docs/adr/0006-models-on-disk.md), and name its content.

Files are memory-mapped: a weight is read from disk when it is first used, and pages the system
already holds cost nothing. Nothing here imports transformers.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from radchat.errors import ModelBroken

FORMAT = 1  # of the folder, as convert.py writes it
# keys of config.json that say who wrote it, not what the model is
_UNIMPORTANT = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")


def read_about(folder: Path) -> dict[str, Any]:
    """radchat.json, after its files have been found with the sizes it gives. Raises ModelBroken."""
    path = folder / "radchat.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        files, version = dict(about["files"]), int(about["format"])
    except FileNotFoundError as error:
        raise ModelBroken(
            f"{folder} is not a converted model: radchat.json is missing; {repair(None)}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelBroken(f"{path} can't be read ({error}); {repair(None)}") from error
    if version != FORMAT:
        raise ModelBroken(f"{folder} has format {version}, not {FORMAT}; {repair(about)}")
    for name, size in files.items():
        check_file(folder / name, int(size), about)
    return dict(about)


def check_file(path: Path, size: int, about: Mapping[str, Any]) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ModelBroken(f"{path} is missing; {repair(about)}", file=str(path)) from error
    if found != size:
        raise ModelBroken(
            f"{path} has {found:,} bytes instead of {size:,}; {repair(about)}", file=str(path)
        )


def load_weights(folder: Path, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """All tensors under their Hugging Face names. As stored (None): mapped; else copied.

    Raises ModelBroken naming the file and the command that repairs it.
    """
    about = read_about(folder)
    tensors = _map(folder, "model", about)
    if dtype is None:
        return tensors
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def load_packed(folder: Path) -> dict[str, torch.Tensor]:
    """The 4-bit linears (layout: convert_gguf.py), mapped; empty where the source had none."""
    about = read_about(folder)
    if "packed.safetensors" not in about["files"]:
        return {}
    return _map(folder, "packed", about)


def fingerprint(folder: Path, dtype: torch.dtype, kv_layout: str) -> str:
    """32 hex digits over all that makes KV of one model comparable: content only, no names.

    Weights, config.json (RoPE is in it), tokenizer, dtype, KV layout, format. ``kv_layout`` is the
    pool's own description of itself.
    """
    about = read_about(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    for part in (
        f"radchat {FORMAT}",
        str(about["weights_sha256"]),
        json.dumps({k: v for k, v in config.items() if k not in _UNIMPORTANT}, sort_keys=True),
        hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest(),
        str(dtype),
        kv_layout,
    ):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def _map(folder: Path, stem: str, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    path = folder / f"{stem}.safetensors"
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelBroken(f"{path} is broken ({error}); {repair(about)}", file=str(path)) from error


def repair(about: Mapping[str, Any] | None) -> str:
    """What to type to have a folder made anew."""
    what = "MODEL" if about is None else shlex.quote(str(about.get("source", "MODEL")))
    return f"to repair it: radchat models pull {what}"
