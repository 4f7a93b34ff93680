"""What the general path refuses, by the name of the feature; and what its check at opening sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine.general import GeneralModel, module_class, open_general, open_module
from radchat.engine.general_attention import window_of
from radchat.engine.general_check import check_against_transformers
from radchat.engine.rope import longest_text
from radchat.errors import ModelBroken
from tests.engine.general_toys import general_config, general_weights

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [8.0] * 4,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"model_type": "mamba", "state_size": 16},
            "'mamba' keeps recurrent state.*cut at a token",
        ),
        ({"model_type": "jamba", "mamba_d_state": 16}, "'jamba' keeps recurrent state"),
        ({"model_type": "rwkv"}, "'rwkv' keeps recurrent state"),
        ({"model_type": "recurrent_gemma", "lru_width": 64}, "keeps recurrent state"),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            "'qwen3_next' keeps recurrent state.*layers of linear_attention",
        ),
        ({"model_type": "lfm2", "layer_types": ["conv"]}, "recurrent state.*layers of conv"),
        (
            {"model_type": "qwen3_5", "text_config": {"layer_types": ["linear_attention"]}},
            "recurrent state.*layers of linear_attention",
        ),
        ({"model_type": "llama4_text", "layer_types": ["chunked_attention"]}, "chunked_attention"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "compresses its KV .MLA"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 2}, "share another layer's KV"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "'t5' is an encoder-decoder"),
        ({"model_type": "phi3", "rope_scaling": DYNAMIC}, "dynamic.*earlier tokens"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": DYNAMIC}},
            "dynamic.*earlier tokens",
        ),
        ({"model_type": "bloom"}, "'bloom' does its own attention"),
        ({"model_type": "made_up"}, "'made_up' is not known to this version of transformers"),
        (
            {"model_type": "made_up", "auto_map": {"AutoModelForCausalLM": "evil.Model"}},
            "radchat never runs such code",
        ),
        ({"model_type": "vit"}, "'vit' is not a text model with a head"),
        (
            {"model_type": "phi3", "architectures": ["Phi3ForSequenceClassification"]},
            "Phi3ForSequenceClassification of .phi3. is not a text model",
        ),
        ({"model_type": "phi3", "hidden_size": "wide"}, "config.json can't be read"),
        ({}, "architecture '' is not known"),
    ],
)
def test_what_cannot_be_run_right_is_refused_from_its_config_by_name(
    config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelBroken, match=reason):
        module_class(config)


def opened(dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    return open_module(general_config("phi3", **overrides), general_weights("phi3"), dtype)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        # BERT as a decoder whose rows see later tokens
        ({"model_type": "bert"}, "who sees whom"),
        # a mask of each layer's own
        ({"model_type": "doge"}, "changes the mask"),
        (
            {"model_type": "mimo_v2_flash", "v_head_dim": 8, "num_local_experts": 2},
            "keys of 2 × 16 and values of 2 × 8",
        ),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 0}, "pages hold one shape"),
    ],
)
def test_what_a_class_does_is_found_when_it_is_opened(config: dict[str, Any], reason: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    full = general_config("phi3") | config
    del full["rope_parameters"]
    made = CONFIG_MAPPING[full["model_type"]].from_dict(full)
    auto: Any = AutoModelForCausalLM
    weights = auto.from_config(made).state_dict()
    with pytest.raises(ModelBroken, match=reason):
        open_general(full, weights, torch.float32)


def test_a_layer_that_does_not_attend_is_seen() -> None:
    module = opened()
    module.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ModelBroken, match=r"only 1 of the 2 layers .* use the registered"):
        GeneralModel(general_config("phi3"), module, torch.float32)


def test_a_layer_that_skips_attention_in_a_later_step_is_seen() -> None:
    model = GeneralModel(general_config("phi3"), opened(), torch.float32)
    layer = model.module.model.layers[1].self_attn
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ModelBroken, match="1 of 2 layers attended"):
        check_against_transformers(model)


def _mixing(inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A layer that also looks at the token before, as convolutions and token shifts do."""
    return lambda x: inner(x) + 0.5 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_class_that_mixes_tokens_outside_of_attention_is_refused(dtype: torch.dtype) -> None:
    model = GeneralModel(general_config("phi3"), opened(dtype=dtype), dtype)
    check_against_transformers(model)
    mlp = model.module.model.layers[0].mlp
    mlp.forward = _mixing(mlp.forward)
    with pytest.raises(ModelBroken, match="does more with tokens than attend to them"):
        check_against_transformers(model)


@pytest.mark.parametrize(
    ("key", "names"),
    [("model.norm.weight", "the weights hold no model.norm.weight"), (None, "lm_heads.weight")],
)
def test_missing_and_unknown_weights_are_refused_by_name(key: str | None, names: str) -> None:
    weights = dict(general_weights("phi3"))
    if key is None:
        weights["lm_heads.weight"] = torch.zeros(2, 2)
    else:
        del weights[key]
    with pytest.raises(ModelBroken, match=names):
        open_module(general_config("phi3"), weights, torch.float32)


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ModelBroken, match=r"shape|size"):
        opened(hidden_size=32)


# -- masks ----------------------------------------------------------------------------------------


def causal(_b: Any, _h: Any, q: Any, k: Any) -> Any:
    return k <= q


@pytest.mark.parametrize("length", [1, 5, 64])
@pytest.mark.parametrize("window", [1, 2, 7, 63, 64, 100])
def test_a_window_is_read_off_a_masks_rule(window: int, length: int) -> None:
    def rule(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (k > q - window)

    assert window_of(rule, length) == (window if window < length else None)
    assert window_of(causal, length) is None


@pytest.mark.parametrize(
    "rule",
    [
        lambda _b, _h, q, k: k == k,  # all see all
        lambda _b, _h, q, k: (k <= q) & (k // 8 == q // 8),  # chunks
        lambda _b, _h, q, k: (k <= q) & (k != 3),  # one token is hidden
        lambda _b, _h, q, k: (k <= q + 1) & (k > q - 5),  # one token ahead
        lambda _b, _h, q, k: torch.zeros(4)[k] == 0,  # made for the texts of this batch
    ],
)
def test_a_rule_that_is_no_window_is_refused(rule: Any) -> None:
    with pytest.raises(ModelBroken, match=r"who sees whom|more than positions"):
        window_of(rule, 64)


# -- length ---------------------------------------------------------------------------------------


def test_a_longrope_model_is_run_up_to_its_limit_and_says_why() -> None:
    config = general_config("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64)
    model = open_general(config, general_weights("phi3"), torch.float32)
    assert model.config.max_position_embeddings == 64
    tokens, why = longest_text(config, 512)
    assert tokens == 64
    assert why is not None
    assert "64 of 512 tokens" in why
    assert "longrope" in why
    assert longest_text(config, 64) == (64, None)


class Failing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products of matrices raise."""

    def __init__(self, error: Exception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "linear" in func.name() or "mm" in func.name():
            raise self.error
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
    ],
    ids=["full", "no cuBLAS", "lost"],
)
def test_a_device_that_is_full_or_lost_is_not_the_models_fault(error: Exception) -> None:
    with Failing(error), pytest.raises(type(error)) as caught:
        GeneralModel(general_config("phi3"), opened(), torch.float32)
    assert caught.value is error


def test_what_the_model_itself_can_not_do_is() -> None:
    error = RuntimeError("shapes don't match")
    with Failing(error), pytest.raises(ModelBroken, match="'phi3' can't be run: shapes"):
        GeneralModel(general_config("phi3"), opened(), torch.float32)
