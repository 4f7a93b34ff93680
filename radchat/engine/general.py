"""Any causal language model of transformers over our pool: the general path.

For the architectures the decoder doesn't know. transformers computes all but attention; attention
is ours (``general_attention.py``), so tree, pool, scheduler and exact reuse are the same. Costs
more a step than the decoder (docs/adr/0015) and imports transformers.

Weights come under transformers' own names of this version's classes, as ``convert_general.py``
writes them. Code that comes with a model is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from radchat.architectures import (
    check_class,
    check_config,
    headless,
    kind_of,
    names_in,
    text_config,
    without_code,
)
from radchat.engine.device import Device
from radchat.engine.general_attention import (
    NAME,
    Layer,
    Observation,
    Step,
    during,
    register,
)
from radchat.engine.kv_pool import KVPool
from radchat.engine.linear import Linear, can_pack
from radchat.engine.rope import longest_text
from radchat.errors import ModelBroken
from radchat_kernels.executor import Executor, choose
from radchat_kernels.plan import Plan

_OBSERVED = 3  # tokens of the pass that a model is observed in


@dataclass(frozen=True, slots=True)
class GeneralConfig:
    """What the pool and the engine need to know. ``windows`` holds one entry a layer."""

    architecture: str
    vocab_size: int
    num_layers: int  # that attend, each with KV of its own
    num_heads: int  # query heads of a layer, at most
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    windows: tuple[int | None, ...]


class GeneralModel:
    """A model of transformers, run a step at a time. Same interface as ``Decoder``."""

    def __init__(
        self,
        config: Mapping[str, Any],
        module: Any,
        dtype: torch.dtype,
        device: str = "cpu",
        executor: Executor | None = None,
    ) -> None:
        """``module`` as ``open_module`` gives it; it is moved to ``device``.

        Raises ModelBroken with what can't be run.
        """
        self.dtype = dtype
        self.tokens_computed = 0
        self.device = device
        self.executor = executor or choose("cpu")
        self.module = module.to(device)
        inner = module.config.get_text_config()
        longest = getattr(inner, "max_position_embeddings", None)
        if not isinstance(longest, int) or longest < 1:
            raise ModelBroken(f"{inner.model_type!r} doesn't say how long a text may be")
        layers = _observe(module, longest, device)
        _check_layers(inner, layers)
        self.config = GeneralConfig(
            architecture=str(config["model_type"]),
            vocab_size=int(inner.vocab_size),
            num_layers=len(layers),
            num_heads=max(layer.num_heads for layer in layers),
            num_kv_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            max_position_embeddings=longest_text(text_config(config), longest)[0],
            windows=tuple(layer.window for layer in layers),
        )

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        """Run ids [T] at positions [T], write their KV to slots [T]; all int64.

        Gives float32 logits [R, vocab] of the rows logit_rows [R]. All on the model's device.
        """
        logits = torch.empty(len(logit_rows), self.config.vocab_size, device=self.device)
        if len(ids) == 0:
            return logits
        step = Step(positions, slots, plan, pool, self.config.windows, self.executor)
        with torch.inference_mode():
            found = during(step, lambda: _run(self.module, ids, positions, logit_rows))
            logits.copy_(found)
        if step.calls != self.config.num_layers:
            raise ModelBroken(
                f"{step.calls} of {self.config.num_layers} layers attended in this step"
            )
        self.tokens_computed += len(ids)
        return logits


def open_general(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: str = "cpu",
    executor: Executor | None = None,
    *,
    is_checked: bool = False,
) -> GeneralModel:
    """A model to run. Raises ModelBroken.

    ``is_checked``: these weights agreed with this version of transformers before
    (``general_check.py``); that the layers attend is looked at each time.
    """
    from radchat.engine.general_check import check_against_transformers

    module = open_module(config, weights, dtype).to(device)
    _pack(module)
    model = GeneralModel(config, module, dtype, device, executor)
    if not is_checked:
        check_against_transformers(model)
    return model


def _pack(module: Any) -> None:
    """Linear layers in the form this CPU multiplies fastest."""
    for part in module.modules():
        if type(part) is torch.nn.Linear and can_pack(part.weight):
            bias = None if part.bias is None else part.bias.detach()
            fast: Any = Linear(part.weight.detach(), bias)
            part.forward = fast  # type: ignore[method-assign]


def open_module(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    quantised: Any = None,
) -> Any:
    """The class of transformers for ``config`` around ``weights``, which are not copied.

    Those of another dtype are, and those that it fuses, or unpacks as ``quantised`` (its
    quantization config) says. Raises ModelBroken.
    """
    made, cls = module_class(config)
    try:
        module, info = cls.from_pretrained(
            None,
            config=made,
            state_dict=dict(weights),
            dtype=dtype,
            quantization_config=quantised,
            attn_implementation=NAME,
            experts_implementation="eager",
            output_loading_info=True,
        )
    except Exception as error:  # its many parts raise what they like
        if Device.is_full(error):
            raise
        raise ModelBroken(f"transformers can't open this model: {error}") from error
    _check_loaded(info)
    return module.eval()


def _check_loaded(info: Mapping[str, Any]) -> None:
    """What transformers says of a load: every weight was there, had its shape and was used."""
    for key, what in (
        ("missing_keys", "the weights hold no"),
        ("mismatched_keys", "another shape than config.json asks:"),
        ("unexpected_keys", "the weights hold, with no use for it,"),
    ):
        names = sorted(map(str, info.get(key) or ()))
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelBroken(f"{what} {names[0]}{more}")
    if info.get("error_msgs"):
        raise ModelBroken(f"the weights can't be read: {info['error_msgs'][0]}")


def module_class(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The config object and class of transformers for a config.json. Raises ModelBroken."""
    check_config(config)
    check_class(config)
    quiet()
    register()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = kind_of(config)
    if kind not in CONFIG_MAPPING:
        what = f"architecture {kind!r} is not known to this version of transformers"
        if config.get("auto_map"):
            what += "; its own code comes with the files, and radchat never runs such code"
        raise ModelBroken(what)
    try:
        made = CONFIG_MAPPING[kind].from_dict(without_code(config))
    except Exception as error:  # its checks raise what they like
        raise ModelBroken(f"config.json can't be read by transformers: {error}") from error
    cls = _causal_class(made)
    names = names_in(config, "architectures")
    if cls is None or (names and names != [cls.__name__]):
        raise headless(config)
    if getattr(cls, "_is_stateful", False):
        raise ModelBroken(
            f"{kind!r} keeps recurrent state, which can't be cut at a token and so not reused"
        )
    if not getattr(cls, "_supports_attention_backend", False):
        raise ModelBroken(
            f"{kind!r} does its own attention: its class in transformers takes no other function"
        )
    return made, cls


def _causal_class(config: Any) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)


def version() -> str:
    """That of transformers."""
    from transformers import __version__

    return str(__version__)


def quiet() -> None:
    """Transformers writes to stderr what it thinks of a load; what matters is checked here."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _run(module: Any, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Logits [R, vocab] of ``rows`` of one forward pass over the flat step."""
    out = module(
        input_ids=ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=rows,
    )
    logits: Tensor = out.logits[0]
    return logits


def _observe(module: Any, longest: int, device: str) -> list[Layer]:
    """The layers that attend, in order, from one short pass."""
    seen = Observation(longest)
    few = torch.arange(min(_OBSERVED, longest), device=device)
    try:
        with torch.inference_mode():
            during(seen, lambda: _run(module, few, few, few[-1:]))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        if Device.is_full(error) or Device.is_lost(error):
            raise  # that is not the model's
        raise ModelBroken(f"{module.config.model_type!r} can't be run: {error}") from error
    return seen.layers


def _check_layers(config: Any, layers: list[Layer]) -> None:
    kind, num_layers = config.model_type, int(config.num_hidden_layers)
    if len(layers) < num_layers:
        raise ModelBroken(
            f"only {len(layers)} of the {num_layers} layers of {kind!r} use the registered "
            "attention function; what the others keep can't be cut at a token"
        )
    shapes = {(layer.num_kv_heads, layer.head_dim) for layer in layers}
    if len(shapes) > 1:
        told = " and ".join(f"{heads} × {dim}" for heads, dim in sorted(shapes))
        raise ModelBroken(f"{kind!r} has KV heads of {told}: pages hold one shape for all layers")
