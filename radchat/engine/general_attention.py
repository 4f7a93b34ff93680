"""The attention function that transformers calls for every layer, and what it learns of a model.

Registered under one name with transformers' ``AttentionInterface`` and ``AttentionMaskInterface``;
a model opened with that name calls it with the queries, keys and values of one layer. What is to
be done then lies in a context variable for the length of a forward pass: an ``Observation`` writes
down what the model asks for, a ``Step`` stores to the pool and attends by the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from radchat.engine.kv_pool import KVPool
from radchat.errors import ModelBroken
from radchat_kernels.executor import Executor
from radchat_kernels.plan import Plan

NAME = "radchat"
MaskFunction = Callable[[Any, Any, Any, Any], Any]  # batch, head, query, key: may it look?
# arguments of a call that are tensors and change nothing: positions are in q and k already
_HARMLESS_TENSORS = frozenset({"position_ids", "cache_position", "position_embeddings"})


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a layer does to its scores besides the softmax."""

    scale: float
    softcap: float | None
    sinks: Tensor | None  # [query heads]


_now: ContextVar[Step | Observation | None] = ContextVar("radchat_attending", default=None)


def during(doing: Step | Observation, run: Callable[[], Any]) -> Any:
    """What ``run()`` gives, with the layers' attention done by ``doing``."""
    token = _now.set(doing)
    try:
        return run()
    finally:
        _now.reset(token)


def register() -> None:
    """Make ``NAME`` known to transformers; may be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One layer: query [1, HQ, T, D], key and value [1, HKV, T, D]; gives [1, T, HQ, D]."""
    doing = _now.get()
    assert doing is not None, "a model on the general path runs through GeneralModel.forward"
    if isinstance(doing, Observation):
        return doing.attend(query, key, value, attention_mask, others), None
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return doing.attend(query, key, value, Scoring(scale, softcap or None, s_aux)), None


def _mask(q_length: int, mask_function: MaskFunction, **_: Any) -> Tensor | None:
    """None for a step: its plan says who sees what."""
    doing = _now.get()
    return doing.mask(mask_function, int(q_length)) if isinstance(doing, Observation) else None


@dataclass(slots=True)
class Step:
    """Stores the step's K and V at ``slots`` and attends by ``plan``; one call a layer."""

    positions: Tensor
    slots: Tensor
    plan: Plan
    pool: KVPool
    windows: Sequence[int | None]
    executor: Executor
    calls: int = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        if self.calls >= len(self.windows):
            raise ModelBroken("a layer attends more often than when the model was opened")
        pages = self.pool.layer(self.calls)
        plan = self.plan.windowed(self.windows[self.calls])
        self.calls += 1
        queries, keys, values = (_by_row(each).to(self.pool.dtype) for each in (q, k, v))
        self.executor.store(keys, values, *pages, self.slots)
        if queries.stride(-1) != 1:
            queries = queries.contiguous()
        o = self.executor.attend(
            queries,
            *pages,
            plan,
            self.positions,
            scoring.scale,
            softcap=scoring.softcap,
            sinks=scoring.sinks,
        )
        return o.to(q.dtype).unsqueeze(0)


def _by_row(x: Tensor) -> Tensor:
    """[1, heads, T, D] as [T, heads, D]."""
    return x[0].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one call of a forward pass asks for: its KV's shape and who sees what."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # a row at p sees (p - window, p]; None: all of [0, p]


@dataclass(slots=True)
class Observation:
    """Learns the layers from one forward pass, whose result means nothing.

    ``length``: positions up to which a mask's rule is looked at.
    """

    length: int
    layers: list[Layer] = field(default_factory=list)
    _windows: dict[int, tuple[Tensor, int | None]] = field(default_factory=dict)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, others: dict[str, Any]
    ) -> Tensor:
        where = f"layer {len(self.layers)}"
        if k.shape != v.shape or q.shape[-1] != k.shape[-1]:
            raise ModelBroken(
                f"{where} has keys of {k.shape[1]} × {k.shape[-1]} and values of "
                f"{v.shape[1]} × {v.shape[-1]}: pages hold both in one shape"
            )
        if q.shape[1] % k.shape[1]:
            raise ModelBroken(f"{where}: {q.shape[1]} heads can't share {k.shape[1]} KV heads")
        for name, value in others.items():
            if isinstance(value, Tensor) and name not in _HARMLESS_TENSORS:
                raise ModelBroken(f"{where} gives attention {name!r}, which radchat can't do")
        if others.get("is_causal") is False:
            raise ModelBroken(f"{where} sees later tokens")
        window = self._window(where, mask)
        self.layers.append(Layer(q.shape[1], k.shape[1], k.shape[-1], window))
        return torch.zeros_like(q).transpose(1, 2)

    def _window(self, where: str, mask: Tensor | None) -> int | None:
        if mask is None:
            raise ModelBroken(f"{where} attends without a mask: who sees what is not known")
        found = self._windows.get(id(mask))
        if found is None:
            raise ModelBroken(f"{where} changes the mask that its model made")
        return found[1]

    def mask(self, rule: MaskFunction, num_rows: int) -> Tensor | None:
        mask = torch.zeros(1, 1, num_rows, num_rows)
        self._windows[id(mask)] = (mask, window_of(rule, self.length))
        return mask


def window_of(rule: MaskFunction, length: int) -> int | None:
    """The sliding window a mask's rule comes to among ``length`` positions; None: all is seen.

    Raises ModelBroken for a rule that is no window: a row that sees later tokens, or chunks.
    """
    keys = torch.arange(length)
    zero = torch.zeros(1, dtype=torch.int64)

    def seen(row: int) -> Tensor:
        found = rule(zero, zero, torch.tensor([row]), keys)
        return torch.as_tensor(found).expand(length)

    try:
        count = int(seen(length - 1).sum())
        window = None if count == length else count
        rows = {0, 1, length // 3, length - 1}
        if window is not None:
            rows |= {window - 1, window, window + 1}
        for row in sorted(rows):
            want = keys <= row
            if window is not None:
                want = want & (keys > row - window)
            if row < length and not torch.equal(seen(row), want):
                raise ModelBroken(
                    "who sees whom is not the last so many tokens (chunks, or later tokens): "
                    "attention over pages can't do that"
                )
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ModelBroken(f"its mask depends on more than positions ({error})") from error
    return window
