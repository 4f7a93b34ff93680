"""Tiny random models for the general path, and their logits by transformers' eager attention.

transformers is imported when a model is first made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from radchat.engine.general import GeneralModel, open_module
from radchat_kernels.executor import Executor

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4, "moe_intermediate_size": 32}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 24,
        "query_pre_attn_scalar": 20,  # the scale is not head_dim's
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 20_000.0, "factor": 2.0},
        },
        **MIXED,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "sliding_window": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "truncate": False,
        },
        **MIXED,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, **EXPERTS},
    "phi3": {
        "model_type": "phi3",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 24,
        "attn_logit_softcapping": 2.0,
        **MIXED,
    },
    "olmo2": {"model_type": "olmo2"},
    "granite": {
        "model_type": "granite",
        "attention_multiplier": 0.1,
        "residual_multiplier": 0.7,
        "logits_scaling": 0.5,
        "embedding_multiplier": 2.0,
    },
    "cohere2": {"model_type": "cohere2", "sliding_window": 24, "logit_scale": 1.0, **MIXED},
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 24},
}


def general_config(kind: str, **overrides: Any) -> dict[str, Any]:
    """A config.json of ``kind``: 2 layers, 4 heads on 2 KV heads of 16, 256 ids."""
    return SIZES | KINDS[kind] | overrides


@cache
def theirs(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' class, attending its own way."""
    model = _made(kind, dtype)
    model.load_state_dict(general_weights(kind))
    return model.eval()


def _made(kind: str, dtype: torch.dtype = torch.float32, vocab_size: int = 256) -> Any:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = general_config(kind, vocab_size=vocab_size)
    auto: Any = transformers.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(1)  # some classes draw a bias: one with which no row is near two experts
        return auto.from_config(
            CONFIG_MAPPING[config["model_type"]].from_dict(config),
            attn_implementation="eager",
            experts_implementation="eager",
            dtype=dtype,
        )


@cache
def general_weights(kind: str, vocab_size: int = 256) -> dict[str, Tensor]:
    """Random float32 tensors under transformers' names, none of them at a neutral value."""
    model = _made(kind, vocab_size=vocab_size)
    state = model.state_dict()
    generator = torch.Generator().manual_seed(0)

    def drawn(name: str, tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("sinks"):
            return noise
        if tensor.ndim == 1:  # norms stay about where they are, biases too
            return tensor + 0.2 * noise
        return noise * (0.5 if "embed" in name else 1.5 * tensor.shape[-1] ** -0.5)

    weights = {name: drawn(name, tensor) for name, tensor in state.items()}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


@cache
def general_model(kind: str, dtype: torch.dtype = torch.float32) -> GeneralModel:
    return opened(kind, dtype)


def opened(
    kind: str, dtype: torch.dtype, device: str = "cpu", executor: Executor | None = None
) -> GeneralModel:
    config = general_config(kind)
    module = open_module(config, general_weights(kind), dtype)
    return GeneralModel(config, module, dtype, device, executor)


def their_logits(kind: str, ids: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """[tokens, vocab] of a whole text in one go."""
    with torch.no_grad():
        logits: Tensor = theirs(kind, dtype)(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits
