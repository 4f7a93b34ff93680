"""Map the weights of a converted model folder (docs/adr/0006-models-on-disk.md).

Files are memory-mapped: a weight is read from disk when it is first used, and pages the system
already holds cost nothing. Nothing here imports transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from radchat.engine.about import read_about, repair
from radchat.errors import ModelBroken


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


def packed_size(folder: Path) -> tuple[int, int]:
    """Bytes of the 4-bit linears and how many weights they hold, of the file's header alone."""
    about = read_about(folder)
    if "packed.safetensors" not in about["files"]:
        return 0, 0
    path = folder / "packed.safetensors"
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        spans = {name: tensor["data_offsets"] for name, tensor in header.items()}
        sizes = {name: int(end) - int(begin) for name, (begin, end) in spans.items()}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _broken(path, error, about) from error
    nibbles = sum(size for name, size in sizes.items() if name.endswith(".nibbles"))
    return sum(sizes.values()), 2 * nibbles


def _map(folder: Path, stem: str, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    path = folder / f"{stem}.safetensors"
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _broken(path, error, about) from error


def _broken(path: Path, error: Exception, about: Mapping[str, Any]) -> ModelBroken:
    return ModelBroken(f"{path} is broken ({error}); {repair(about)}", file=str(path))


def is_stored_as(values: torch.dtype, about: dict[str, Any]) -> bool:
    """The weights' file holds fp32 or bf16: which, its size says."""
    size, parameters = int(about["files"]["model.safetensors"]), int(about["parameters"])
    return (values == torch.float32) == (size >= 4 * parameters)
