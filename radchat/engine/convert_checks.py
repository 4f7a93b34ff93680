"""A source holds what its config.json says: tensors of the right shapes, ids that exist."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from radchat.engine.convert_write import Item
from radchat.engine.model_config import DecoderConfig
from radchat.errors import ModelBroken


def check_tensors(shape: DecoderConfig, items: list[Item]) -> None:
    """Every tensor the decoder needs is there with the right shape; else ModelBroken."""
    found = {item.name: item.shape for item in items}
    for name, want in expected_tensors(shape).items():
        if name not in found:
            raise ModelBroken(f"the model lacks the tensor {name}")
        if found[name] != want:
            raise ModelBroken(f"tensor {name} has shape {found[name]}, config.json says {want}")


def expected_tensors(shape: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes, in Hugging Face's words, of all the decoder reads."""
    hidden, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    rows = shape.num_heads * shape.head_dim
    kv_rows = shape.num_kv_heads * shape.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not shape.tie_word_embeddings:
        expected["lm_head.weight"] = (vocab, hidden)
    linears = {  # name: (out, in, has a bias)
        "self_attn.q_proj": (rows, hidden, shape.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, shape.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, shape.qkv_bias),
        "self_attn.o_proj": (hidden, rows, shape.o_bias),
        "mlp.gate_proj": (inner, hidden, shape.mlp_bias),
        "mlp.up_proj": (inner, hidden, shape.mlp_bias),
        "mlp.down_proj": (hidden, inner, shape.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if shape.qk_norm:
        norms |= {"self_attn.q_norm": shape.head_dim, "self_attn.k_norm": shape.head_dim}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        expected |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (out, columns, has_bias) in linears.items():
            expected[f"{prefix}{name}.weight"] = (out, columns)
            if has_bias:
                expected[f"{prefix}{name}.bias"] = (out,)
    return expected


def check_special_ids(config: dict[str, Any], files: dict[str, bytes]) -> None:
    """BOS and end-of-turn ids lie inside the vocabulary: one beyond it would fail at first use."""
    vocab = int(config["vocab_size"])
    for where, table in (
        ("config.json", config),
        ("generation_config.json", json_object(files, "generation_config.json")),
    ):
        for key in ("bos_token_id", "eos_token_id"):
            value = table.get(key)
            for one in value if isinstance(value, list) else [value]:
                if one is not None and not 0 <= int(one) < vocab:
                    raise ModelBroken(
                        f"{where}: {key} {one} is outside the vocabulary of {vocab} tokens"
                    )


def json_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Raises ModelBroken for what is no JSON object."""
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise ModelBroken(f"{name} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{name} is not a JSON object")
    return value
