"""Tiny models with random weights under Hugging Face's names, made in milliseconds.

No transformers here: the tests that compare with it load these weights into its classes. Scales
are chosen so that logits spread by a few units and greedy choices vary with the text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from radchat.engine.model_config import DecoderConfig

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def tiny_config(kind: str = "llama", **overrides: Any) -> dict[str, Any]:
    """A config.json of family ``kind``: 2 layers, 4 heads on 2 KV heads of 16, 256 ids."""
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": [CLASSES[kind]],
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    if kind == "mistral":
        config["sliding_window"] = None
    return config | overrides


def tiny_weights(config: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors for ``config``; a tied head is left out, as in real files."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    hidden, inner = config.hidden_size, config.intermediate_size
    q_dim, kv_dim = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = {
        "model.embed_tokens.weight": normal(config.vocab_size, hidden, std=0.5),
        "model.norm.weight": 1 + normal(hidden, std=0.1),
    }
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = normal(config.vocab_size, hidden, std=2 * hidden**-0.5)
    linears = {
        "self_attn.q_proj": (q_dim, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_dim, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_dim, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_dim, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}."
        for name, (out_dim, in_dim, has_bias) in linears.items():
            weights[f"{at}{name}.weight"] = normal(out_dim, in_dim, std=1.5 * in_dim**-0.5)
            if has_bias:
                weights[f"{at}{name}.bias"] = normal(out_dim, std=0.2)
        for name, dim in norms.items():
            weights[f"{at}{name}.weight"] = 1 + normal(dim, std=0.1)
    return weights


def tiny_model(
    kind: str = "llama", seed: int = 0, **overrides: Any
) -> tuple[DecoderConfig, dict[str, Tensor], dict[str, Any]]:
    """(what Decoder takes, its weights, the config.json) for a model of family ``kind``."""
    hf_config = tiny_config(kind, **overrides)
    config = DecoderConfig.from_hf(hf_config)
    return config, tiny_weights(config, seed), hf_config
