"""What radchat runs, as other programs' files say what they are; refused with the reason, by name.

On neither side of the socket and without torch: the converter refuses by these rules before it
reads a weight, and the terminal side says by the same ones, before anything is converted, what
can't be. What a config can't say (layers that don't attend, other masks) is found when the model is
opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from radchat.errors import ModelBroken

# what radchat's own decoder runs: config.json's model_type -> the class of transformers it is
DECODER: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
GGUF = DECODER  # a GGUF file's general.architecture has the same names for them

# what a model's generation_config.json may say of sampling, by its names and radchat's
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

UNPACKED = "mxfp4"  # the one quantised form that transformers can turn into plain weights here
_HEADS = ("ForCausalLM", "LMHeadModel")  # how transformers' classes that draw tokens end
_MORE_HEADS = frozenset(  # and those of its text models that end otherwise
    {
        "BertGenerationDecoder",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "MossTranscribeDiarizeForConditionalGeneration",
        "ReformerModelWithLMHead",
        "XLMWithLMHeadModel",
    }
)
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


def check_source(config: Mapping[str, Any]) -> None:
    """All that config.json alone can say against a Hugging Face folder. Raises ModelBroken."""
    check_config(config)
    check_class(config)
    quantised(config)


def check_class(config: Mapping[str, Any]) -> None:
    """Raise ModelBroken for what is no text model by the class it names; it may name none."""
    kind, names = kind_of(config), names_in(config, "architectures")
    if not kind:
        raise ModelBroken("architecture '' is not known: config.json says no model_type")
    if kind in DECODER:
        is_fit = not names or DECODER[kind] in names
    else:
        is_fit = all(name.endswith(_HEADS) or name in _MORE_HEADS for name in names)
    if not is_fit:
        raise headless(config)


def headless(config: Mapping[str, Any]) -> ModelBroken:
    names, kind = ", ".join(names_in(config, "architectures")), repr(kind_of(config))
    what = f"{names} of {kind}" if names else kind
    return ModelBroken(f"{what} is not a text model with a head to draw from")


def quantised(config: Mapping[str, Any]) -> str | None:
    """The form of quantised weights, if it is undone here; raises ModelBroken for others."""
    given = config.get("quantization_config")
    if given is None:
        return None
    method = str(given.get("quant_method", "unknown")) if isinstance(given, Mapping) else "unknown"
    if method == UNPACKED and kind_of(config) not in DECODER:
        return method
    other = ", or a GGUF file of it" if kind_of(config) in DECODER else ""
    raise ModelBroken(
        f"weights quantized by {method} are not supported; take the unquantized model{other}"
    )


def kind_of(config: Mapping[str, Any]) -> str:
    """``model_type``, or nothing."""
    return str(config.get("model_type") or "")


def names_in(config: Mapping[str, Any], key: str) -> list[str]:
    """What a list in config.json holds; nothing if it is no list."""
    given = config.get(key)
    return [str(name) for name in given] if isinstance(given, list | tuple) else []


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ModelBroken naming what pages of KV can't hold."""
    name = repr(kind_of(config))
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
    types = {*names_in(config, "layer_types"), *names_in(config, "layers_block_type")}
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
