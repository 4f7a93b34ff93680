"""Read a Hugging Face folder for the general path: transformers opens it, and is held to its word.

transformers' classes name and fuse weights in their own way, so it reads them; what is written is
the state of the opened model, which later starts map without a copy (general.py). The model is in
memory whole for it, and is checked against transformers' own attention before anything is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from radchat.architectures import quantised, text_config
from radchat.engine.convert_hf import Found, main_dtype, read_json, read_tensors
from radchat.engine.convert_write import DTYPE_NAMES, Item
from radchat.engine.forward import KVShape
from radchat.engine.general import GeneralModel, module_class, open_module, version
from radchat.engine.general_check import check_against_transformers
from radchat.engine.rope import longest_text
from radchat.errors import ModelBroken

_SPARE = 512 << 20  # bytes of memory a conversion takes besides the weights


@dataclass(frozen=True, slots=True)
class GeneralSource:
    """``config`` is as it will be written; ``limit``: why a text may not be as long as it says."""

    config: dict[str, Any]
    items: list[Item]
    dtype_source: str
    architecture: str
    vocab_size: int
    context_length: int
    kv_shape: KVShape
    limit: str | None
    transformers: str  # the version whose names the weights have


def read_general(folder: Path) -> GeneralSource:
    """Raises ModelBroken for a folder that lacks something, or holds what radchat can't run."""
    config = read_json(folder / "config.json")
    module_class(config)  # refuses before any weights are looked at
    method = quantised(config)
    found = read_tensors(folder)
    dtype_source = method.upper() if method else main_dtype(folder, found)
    dtype = torch.float32 if dtype_source == "F32" else torch.bfloat16
    _require_memory(folder, found, dtype)
    unpacking: Any = None
    if method:
        from transformers.utils.quantization_config import Mxfp4Config

        unpacking = Mxfp4Config(dequantize=True)
    weights = {name: load() for name, (_, _, load) in found.items()}  # mapped
    module = open_module(config, weights, dtype, unpacking)
    config.pop("quantization_config", None)
    model = GeneralModel(config, module, dtype)
    check_against_transformers(model)
    shape = model.config
    longest = int(module.config.get_text_config().max_position_embeddings)
    return GeneralSource(
        config,
        _items(module.state_dict()),
        dtype_source,
        shape.architecture,
        shape.vocab_size,
        shape.max_position_embeddings,
        KVShape.of(shape),
        longest_text(text_config(config), longest)[1],
        version(),
    )


def _require_memory(folder: Path, found: Found, dtype: torch.dtype) -> None:
    need = _SPARE
    for stored, shape, _ in found.values():
        count = torch.Size(shape).numel()
        need += count * dtype.itemsize * (2 if stored == "U8" else 1)  # two 4-bit values a byte
    free = psutil.virtual_memory().available
    if need > free:
        raise ModelBroken(
            f"converting {folder.name} takes {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} "
            "GB are free: close something, or convert it on a larger machine",
            need_bytes=need,
            free_bytes=free,
        )


def _items(state: dict[str, Tensor]) -> list[Item]:
    """All tensors, each once: of tied ones the first."""
    items: list[Item] = []
    seen: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for name, tensor in state.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelBroken(f"tensor {name!r} is of {tensor.dtype}, which is not supported")
        place = (tensor.data_ptr(), tuple(tensor.shape))
        seen[place] += 1
        if seen[place] == 1 or tensor.numel() == 0:
            items.append(Item(name, tuple(tensor.shape), tensor.dtype, _given(tensor)))
    return items


def _given(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor
