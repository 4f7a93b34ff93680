"""Read a Hugging Face folder: config.json, safetensors (sharded too) or PyTorch .bin weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from radchat.architectures import quantised
from radchat.engine.convert_write import DTYPE_NAMES, Item
from radchat.engine.model_config import DecoderConfig
from radchat.errors import ModelBroken

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")
_LEFT_OUT = (".rotary_emb.inv_freq", ".self_attn.masked_bias", ".self_attn.bias")


# dtype as safetensors names it, shape, how to get it
Found = dict[str, tuple[str, tuple[int, ...], Callable[[], torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class HfModel:
    config: dict[str, Any]
    items: list[Item]
    dtype_source: str


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelBroken(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} is not a JSON object")
    return value


def read_hf(folder: Path) -> HfModel:
    """Raises ModelBroken for a folder that lacks something, or holds what radchat can't run."""
    config = read_json(folder / "config.json")
    DecoderConfig.from_hf(config)  # refuses an unknown architecture before any weights are read
    quantised(config)
    found = read_tensors(folder)
    drop_head = bool(config.get("tie_word_embeddings", False))
    names = [
        name
        for name in found
        if not name.endswith(_LEFT_OUT) and not (drop_head and name == "lm_head.weight")
    ]
    dtype_source = main_dtype(folder, {name: found[name] for name in names})
    store = torch.float32 if dtype_source == "F32" else torch.bfloat16
    items = [Item(name, found[name][1], store, found[name][2]) for name in names]
    return HfModel(config, items, dtype_source)


def read_tensors(folder: Path) -> Found:
    """Every tensor of the folder's weight files; none is read yet."""
    found: Found = {}
    for path in _weight_files(folder):
        read = _read_safetensors if path.suffix == ".safetensors" else _read_bin
        found.update(read(path))
    return found


def _weight_files(folder: Path) -> list[Path]:
    for index, single in zip(_INDEXES, _SINGLES, strict=True):
        if (folder / index).exists():
            names = sorted(set(read_json(folder / index).get("weight_map", {}).values()))
            if any("/" in name or name.startswith(".") for name in names):
                raise ModelBroken(f"{folder / index} names a file outside its folder")
        elif (folder / single).exists():
            names = [single]
        else:
            continue
        for name in names:
            if not (folder / name).exists():
                raise ModelBroken(f"{folder / name} is missing: fetch the model again")
        return [folder / name for name in names]
    raise ModelBroken(f"{folder} holds no weights ({', '.join(_SINGLES)} or their shards)")


def _read_safetensors(
    path: Path,
) -> Found:
    try:
        file: Any = safe_open(path, framework="pt")  # memory-mapped; tensors are read when asked
    except (SafetensorError, OSError) as error:
        raise ModelBroken(f"{path} is not a whole safetensors file ({error})") from error

    def loader(name: str) -> Callable[[], torch.Tensor]:
        return lambda: file.get_tensor(name)

    found: Found = {}
    for name in file.keys():  # noqa: SIM118 - not a dict
        view = file.get_slice(name)
        found[name] = (str(view.get_dtype()), tuple(view.get_shape()), loader(name))
    return found


def _read_bin(path: Path) -> Found:
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler met
        raise ModelBroken(f"{path} is not a readable PyTorch file ({error})") from error

    def loader(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: tensor

    return {
        name: (
            DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)),
            tuple(tensor.shape),
            loader(tensor),
        )
        for name, tensor in state.items()
    }


def main_dtype(folder: Path, found: Found) -> str:
    """The dtype most elements have. Anything but a float is refused: it needs a scheme we lack."""
    elements: Counter[str] = Counter()
    for name, (dtype, shape, _) in found.items():
        if dtype not in ("F32", "BF16", "F16"):
            raise ModelBroken(f"{folder}: tensor {name!r} is stored as {dtype}, not supported")
        elements[dtype] += torch.Size(shape).numel()
    if not elements:
        raise ModelBroken(f"{folder}: the weight files hold no tensors")
    return elements.most_common(1)[0][0]
