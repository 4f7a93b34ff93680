"""What a config.json asks the decoder to be, read once and checked; or the reason it can't be.

The decoder covers the Llama shape: Llama 2/3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3. A file that
leaves a field out means transformers' default for its family, so those are written here. Anything
that would need other arithmetic is refused by name: a wrong answer is never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radchat.architectures import DECODER, check_class, check_config, kind_of
from radchat.engine.rope import Rope, longest_text
from radchat.errors import ModelBroken
from radchat_kernels.executor import Activation

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """What transformers takes when config.json is silent, and what is fixed by the family."""

    max_position: int
    kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / heads
    window: int | None = None  # Mistral's own default
    qkv_bias: bool | None = None  # None: config's attention_bias, which then covers o_proj too
    qk_norm: bool = False
    has_mlp_bias: bool = False
    windows_by_layer: bool = False  # use_sliding_window, max_window_layers, layer_types


_FAMILIES = {
    "llama": _Family(2048, has_mlp_bias=True),
    "mistral": _Family(131072, kv_heads=8, window=4096, qkv_bias=False),
    "qwen2": _Family(32768, kv_heads=32, qkv_bias=True, windows_by_layer=True),
    "qwen3": _Family(32768, kv_heads=32, head_dim=128, qk_norm=True, windows_by_layer=True),
}

assert _FAMILIES.keys() == DECODER.keys()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The decoder's shape. Sizes are elements; ``windows`` holds one entry a layer."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: Activation
    rope: Rope
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]  # a row at p sees (p - window, p]; None: all of [0, p]

    @staticmethod
    def covers(config: Mapping[str, Any]) -> bool:
        """Whether ``config`` is of a family that the decoder is for."""
        return kind_of(config) in DECODER

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Read a Hugging Face config.json. Raises ModelBroken naming what is refused."""
        model_type, family = _family(config)
        num_heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        num_kv_heads = _size(config, "num_key_value_heads", family.kv_heads or num_heads, num_heads)
        head_dim = _size(
            config, "head_dim", family.head_dim or hidden // num_heads, hidden // num_heads
        )
        if num_heads % num_kv_heads:
            raise ModelBroken(f"{num_heads} heads can't share {num_kv_heads} KV heads evenly")
        if head_dim % 2:
            raise ModelBroken(f"head_dim {head_dim} is odd: RoPE turns pairs of dimensions")
        act = str(config.get("hidden_act", "silu"))
        if act not in _ACTIVATIONS:
            raise ModelBroken(f"hidden_act {act!r} is not known; known: {', '.join(_ACTIVATIONS)}")
        num_layers = _size(config, "num_hidden_layers")
        max_position = _size(config, "max_position_embeddings", family.max_position)
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            architecture=model_type,
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            activation=_ACTIVATIONS[act],
            rope=Rope.from_hf(config, head_dim, max_position),
            max_position_embeddings=longest_text(config, max_position)[0],
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            o_bias=attention_bias if family.qkv_bias is None else False,
            mlp_bias=family.has_mlp_bias and bool(config.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            windows=_windows(config, family, num_layers),
        )


def _family(config: Mapping[str, Any]) -> tuple[str, _Family]:
    model_type = kind_of(config)
    family = _FAMILIES.get(model_type)
    check_config(config)
    if family is None:
        if config.get("num_experts") or config.get("num_local_experts"):
            raise ModelBroken(f"{model_type!r} is a mixture of experts, which is not supported")
        raise ModelBroken(
            f"architecture {model_type!r} is not known; known: {', '.join(_FAMILIES)}"
        )
    check_class(config)
    return model_type, family


def _windows(config: Mapping[str, Any], family: _Family, num_layers: int) -> tuple[int | None, ...]:
    if not family.windows_by_layer:
        window = config.get("sliding_window", family.window) if family.window else None
        return (_window(window),) * num_layers
    types = config.get("layer_types")
    used = bool(config.get("use_sliding_window", False))
    window = _window(config.get("sliding_window", 4096)) if used else None
    if types is None:
        first = int(config.get("max_window_layers", 28))
        return tuple(window if i >= first else None for i in range(num_layers))
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown or len(types) != num_layers:
        raise ModelBroken(f"layer_types: want {num_layers} of full_attention or sliding_attention")
    if "sliding_attention" in types and window is None:
        raise ModelBroken("layer_types asks for sliding_attention, but no sliding_window is set")
    return tuple(window if t == "sliding_attention" else None for t in types)


def _window(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise ModelBroken(f"sliding_window: want a positive number of tokens (got {value!r})")
    return value


def _size(
    config: Mapping[str, Any], key: str, missing: int | None = None, null: int | None = None
) -> int:
    """A positive whole number; ``missing`` when the key is absent, ``null`` when it is null."""
    value = config.get(key, missing)
    if value is None:
        value = missing if null is None else null
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelBroken(f"config.json: {key} should be a positive whole number (got {value!r})")
    return value
