"""Read a GGUF file as a Hugging Face folder: config, tensor names, row order, 4-bit blocks.

Supported: ``llama`` (which most Mistral files say too), ``mistral``, ``qwen2``, ``qwen3``. Two
things differ from Hugging Face's layout. The rows of Q and K are stored pair-interleaved for
``llama`` and ``mistral``, and are put back here. Llama 3's RoPE scaling is a tensor of factors; the
four numbers it came from are recovered and checked.

Packed layout (``packed.safetensors``, every linear whose source is Q4_0 or Q4_1), W of [out, in]:
  ``<weight>.nibbles`` uint8 [out, in / 2]: byte j holds column 2j in its low half, 2j+1 in the high
  ``<weight>.scales``, ``<weight>.zeros`` float16 [out, in / 32]
  W[o, i] = scales[o, i // 32] * q[o, i] + zeros[o, i // 32],  q in 0..15: exactly the file's values
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant

from radchat import architectures
from radchat.engine.convert_write import Item
from radchat.errors import ModelBroken

GROUP = 32  # columns that share a scale, in Q4_0 and Q4_1
_HEADS_INTERLEAVED = ("llama", "mistral")
_CLASSES = architectures.GGUF
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What the converter needs of a GGUF file; tensors stay on disk until their turn."""

    config: dict[str, Any]
    meta: dict[str, Any]  # all metadata, arrays as lists
    items: list[Item]
    packed: list[Item]
    dtype_source: str


def read_gguf(path: Path) -> GgufModel:
    """Raises ModelBroken for a file that can't be read, or holds what radchat can't run."""
    try:
        reader = gguf.GGUFReader(path)
        meta = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ModelBroken(
            f"{path} is not a whole GGUF file ({error or type(error).__name__})"
        ) from error
    arch = str(meta.get("general.architecture"))
    _refuse(path, arch, meta, tensors)
    config = _config(arch, meta, tensors)
    dtype_source = _main_type(tensors)
    store = torch.float32 if dtype_source == "F32" else torch.bfloat16
    items: list[Item] = []
    packed: list[Item] = []
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        name = _hf_name(path, tensor.name)
        heads = _interleaved_heads(arch, tensor.name, config)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        items.append(Item(name, shape, store, _loader(tensor, heads)))
        is_linear = len(shape) == 2 and tensor.name != "token_embd.weight"
        if is_linear and tensor.tensor_type in (Quant.Q4_0, Quant.Q4_1):
            packed += _packed_items(name, tensor, shape, heads)
    return GgufModel(config, meta, items, packed, dtype_source)


def _refuse(path: Path, arch: str, meta: dict[str, Any], tensors: dict[str, Any]) -> None:
    if arch not in _CLASSES:
        raise ModelBroken(
            f"{path}: architecture {arch!r} is not one radchat reads from GGUF "
            f"({', '.join(_CLASSES)}); a Hugging Face folder of the model may work"
        )
    if meta.get(f"{arch}.expert_count"):
        raise ModelBroken(f"{path}: mixture-of-experts models are not supported")
    if int(meta.get("split.count", 1)) > 1:
        raise ModelBroken(
            f"{path} is one part of {meta['split.count']}: join them with llama.cpp's "
            "gguf-split --merge, then pull the joined file"
        )
    for kind in {tensor.tensor_type for tensor in tensors.values()}:
        if not _can_dequantize(kind):
            raise ModelBroken(f"{path}: tensors stored as {kind.name} are not supported")


def _can_dequantize(kind: Any) -> bool:
    if kind in (Quant.F32, Quant.F16):
        return True
    try:
        block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        gguf.quants.dequantize(block, kind)
    except (NotImplementedError, KeyError):
        return False
    return True


def _config(arch: str, meta: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """config.json in Hugging Face's words."""

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{arch}.{key}", default)
        if value is None:
            raise ModelBroken(f"the GGUF file lacks {arch}.{key}")
        return value

    def tensor(name: str) -> Any:
        if name not in tensors:
            raise ModelBroken(f"the GGUF file lacks the tensor {name}")
        return tensors[name]

    heads = int(get("attention.head_count"))
    hidden = int(get("embedding_length"))
    config: dict[str, Any] = {
        "architectures": [_CLASSES[arch]],
        "model_type": arch,
        "vocab_size": int(tensor("token_embd.weight").shape[1]),
        "hidden_size": hidden,
        "intermediate_size": int(get("feed_forward_length")),
        "num_hidden_layers": int(get("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(get("attention.head_count_kv", heads)),
        "head_dim": int(get("attention.key_length", hidden // heads)),
        "hidden_act": "silu",
        "max_position_embeddings": int(get("context_length")),
        "rms_norm_eps": _short_float(get("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope(arch, meta, tensors),
        "dtype": "bfloat16",
    }
    if arch == "mistral":
        config["sliding_window"] = meta.get("mistral.attention.sliding_window")
    elif arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    return config


def _short_float(value: float) -> float:
    """The shortest decimal that gives the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope(arch: str, meta: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    theta = _short_float(meta.get(f"{arch}.rope.freq_base", 10000.0))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    kind = str(meta.get(f"{arch}.rope.scaling.type", "none"))
    original = meta.get(f"{arch}.rope.scaling.original_context_length")
    if _ROPE_FACTORS in tensors:
        head_dim = int(meta[f"{arch}.embedding_length"]) // int(
            meta[f"{arch}.attention.head_count"]
        )
        head_dim = int(meta.get(f"{arch}.rope.dimension_count", head_dim))
        factors = np.asarray(tensors[_ROPE_FACTORS].data, dtype=np.float64).reshape(-1)
        return rope | _llama3_rope(factors, theta, head_dim)
    if kind in ("linear", "yarn"):
        rope["rope_type"] = kind
        rope["factor"] = _short_float(meta[f"{arch}.rope.scaling.factor"])
        if kind == "yarn" and original is not None:
            rope["original_max_position_embeddings"] = int(original)
    elif kind != "none":
        raise ModelBroken(f"RoPE scaling {kind!r} of a GGUF file is not supported")
    return rope


def _llama3_rope(factors: np.ndarray[Any, Any], theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's four numbers, found from the per-frequency factors they make (or refused)."""
    low, high, original, factor = 1.0, 4.0, 8192, float(factors.max())
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = original * frequencies / (2 * math.pi)  # over the original context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    made = 1.0 / ((1 - smooth) / factor + smooth)
    if made.shape != factors.shape or not np.allclose(made, factors, rtol=1e-3):
        raise ModelBroken("the GGUF file's RoPE factors are not Llama 3's: not supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _main_type(tensors: dict[str, Any]) -> str:
    """The type most of the matrices' elements have."""
    elements: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if name.endswith(".weight") and len(tensor.shape) == 2:
            elements[tensor.tensor_type.name] += int(tensor.n_elements)
    if not elements:
        raise ModelBroken("the GGUF file holds no matrices")
    return elements.most_common(1)[0][0]


def _hf_name(path: Path, name: str) -> str:
    match = _NAME.fullmatch(name)
    block, part, kind = match.groups() if match else (None, "", "")
    table = _TOP if block is None else _BLOCK
    if part not in table:
        raise ModelBroken(f"{path}: tensor {name!r} belongs to no model radchat knows")
    prefix = "" if block is None else f"model.layers.{int(block)}."
    return f"{prefix}{table[part]}.{kind}"


def _interleaved_heads(arch: str, name: str, config: dict[str, Any]) -> int:
    """How many heads' rows are pair-interleaved in this tensor; 0 = rows are in order."""
    if arch not in _HEADS_INTERLEAVED:
        return 0
    part = name.removesuffix(".weight").removesuffix(".bias")
    if part.endswith(".attn_q"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if part.endswith(".attn_k") else 0


def in_order(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo the interleaving: row 2i+j of a head goes back to row j * head_dim/2 + i."""
    if not heads:
        return rows
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _loader(tensor: Any, heads: int) -> Any:
    def load() -> torch.Tensor:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = in_order(values.astype(np.float32, copy=False).reshape(shape), heads)
        return torch.from_numpy(np.array(values, dtype=np.float32, copy=True, order="C"))

    return load


def _packed_items(name: str, tensor: Any, shape: tuple[int, ...], heads: int) -> list[Item]:
    rows, columns = shape

    def parts() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        scales, zeros, quants = unpack_blocks(tensor.data, tensor.tensor_type, columns)
        return in_order(scales, heads), in_order(zeros, heads), in_order(quants, heads)

    def nibbles() -> torch.Tensor:
        quants = parts()[2]
        return torch.from_numpy(np.ascontiguousarray(quants[:, ::2] | quants[:, 1::2] << 4))

    groups = (rows, columns // GROUP)
    return [
        Item(f"{name}.nibbles", (rows, columns // 2), torch.uint8, nibbles),
        Item(f"{name}.scales", groups, torch.float16, lambda: _tensor(parts()[0])),
        Item(f"{name}.zeros", groups, torch.float16, lambda: _tensor(parts()[1])),
    ]


def _tensor(values: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def unpack_blocks(
    data: np.ndarray[Any, Any], kind: Any, columns: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Q4_0 or Q4_1 rows of bytes -> scales, zeros (float16 [out, in/32]), quants (uint8 [out, in]).

    A block is a float16 scale, for Q4_1 a float16 minimum, then 16 bytes: the low halves are
    columns 0..15, the high halves 16..31. Q4_0's value is scale * (q - 8), so its zero is -8 scale.
    """
    head = 2 if kind == Quant.Q4_0 else 4
    blocks = np.asarray(data).reshape(-1, columns // GROUP, head + GROUP // 2)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if kind == Quant.Q4_0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            zeros = scales * np.float16(-8)
    else:
        zeros = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    if not (np.isfinite(scales).all() and np.isfinite(zeros).all()):
        raise ModelBroken("a 4-bit block has a scale that is not a number")
    halves = blocks[..., head:]
    quants = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(len(blocks), columns)
    return scales, zeros, quants
