"""What the general path refuses before any weight is read, each with the reason.

Reads the config.json alone, so that a model is refused in a second and by the feature's name. What
a config can't say (layers that don't attend, other masks) is found when the model is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from radchat.errors import ModelBroken

_STATE_KEYS = ("state_size", "ssm_cfg", "mamba_d_state", "ssm_state_size", "lru_width")
_STATE_TYPES = ("linear", "mamba", "conv", "recurrent", "ssm", "rwkv", "xlstm", "gated_delta")
_CAN_BE_CUT = frozenset({"full_attention", "sliding_attention", "attention", "global", "local"})
_STATE = "keeps recurrent state, which can't be cut at a token and so not reused"
# keys that would choose code or kernels; which those are is decided here, never by a file
_CODE_KEYS = (
    "auto_map",
    "_attn_implementation",
    "attn_implementation",
    "_experts_implementation",
    "experts_implementation",
    "kernel_config",
    "fusion_config",
    "transformers_weights",
    "_name_or_path",
)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the text model: all of it, but for multimodal ones."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without what chooses code or kernels, at any depth."""
    return {
        key: without_code(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _CODE_KEYS
    }


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ModelBroken naming what the general path can't hold."""
    model_type = str(config.get("model_type", ""))
    name = repr(model_type)
    for part in (config, text_config(config)):
        _check_shape(name, part)
        for rope in _ropes(part):
            kind = str(rope.get("rope_type") or rope.get("type") or "default")
            if kind in ("dynamic", "ntk"):
                raise ModelBroken(
                    "RoPE 'dynamic' (NTK) changes the keys of earlier tokens when the text grows, "
                    "so their KV can't be reused; set another rope_scaling in config.json"
                )


def _check_shape(name: str, config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise ModelBroken(f"{name} is an encoder-decoder, not a model that goes on with a text")
    types = {str(kind) for kind in config.get("layer_types") or ()}
    types |= {str(kind) for kind in config.get("layers_block_type") or ()}
    if any(config.get(key) for key in _STATE_KEYS):
        raise ModelBroken(f"{name} {_STATE}")
    for kind in sorted(types - _CAN_BE_CUT):
        if any(word in kind for word in _STATE_TYPES):
            raise ModelBroken(f"{name} {_STATE} (layers of {kind})")
        raise ModelBroken(f"{name} has layers of {kind!r}, which attention over pages can't do")
    if config.get("kv_lora_rank"):
        raise ModelBroken(
            f"{name} compresses its KV (MLA, kv_lora_rank {config['kv_lora_rank']}): pages hold "
            "keys and values of one shape"
        )
    if config.get("num_kv_shared_layers"):
        raise ModelBroken(f"{name} has layers that share another layer's KV")


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every RoPE the config gives: one, or one for each type of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        given = config.get(key)
        if isinstance(given, Mapping):
            yield given
            yield from (each for each in given.values() if isinstance(each, Mapping))
