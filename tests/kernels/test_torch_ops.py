"""Attention by plain products: the same in one turn and in many, and what it holds at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radchat_kernels.torch_ops import MOST_SCORES, MOST_VALUES, plain


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wanted(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(hidden, -math.inf)
    o = scores.softmax(-1).nan_to_num() @ v.repeat_interleave(group, 1)
    return o, scores.logsumexp(-1)


@pytest.mark.parametrize(("most_scores", "most_values"), [(1, 1), (60, 40), (200, 50), (999, 48)])
@pytest.mark.parametrize("sight", ["all", "causal", "window", "one mask", "none"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_turns_change_nothing(
    most_scores: int, most_values: int, sight: str, softcap: float | None
) -> None:
    """Among them rows that see nothing of a turn's tokens, or of any."""
    batch, heads, kv_heads, rows, tokens, dim = 2, 4, 2, 11, 11, 4
    q = normal(batch, heads, rows, dim, seed=1)
    k, v = (normal(batch, kv_heads, tokens, dim, seed=seed) for seed in (2, 3))
    i, j = torch.arange(rows)[:, None], torch.arange(tokens)[None, :]
    hidden = {
        "all": torch.zeros(rows, tokens, dtype=torch.bool),
        "causal": j > i,
        "window": (j <= i - 3) | (j > i),
        "one mask": (j == 2) | (j > 7).expand(1, tokens),
        "none": (i == 4) | (j > 5),
    }[sight]
    mask = None
    if sight in ("window", "one mask", "none"):
        mask = torch.zeros(1, 1, *hidden.shape, dtype=q.dtype).masked_fill_(hidden, -math.inf)
    given: dict[str, Any] = {"causal": sight == "causal", "mask": mask}
    most: dict[str, Any] = {"most_scores": most_scores, "most_values": most_values}
    found = plain(q, k, v, 0.7, softcap, **given, **most)
    for got, want in zip(found, wanted(q, k, v, 0.7, softcap, hidden), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


class Held(TorchDispatchMode):
    """Values cast, and the largest tensor made, elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cast = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not func.is_view:
            self.largest = max(self.largest, made.numel())
            if func.name() == "aten::_to_copy":
                self.cast += made.numel()
        return made


@pytest.mark.parametrize("tokens", [1 << 15, 1 << 17])
def test_of_a_long_prefix_each_token_is_cast_once_and_few_are_held(tokens: int) -> None:
    q = torch.empty(1, 32, 512, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, 8, tokens, 128, dtype=torch.bfloat16, device="meta")
    with Held() as held:
        plain(q, k, k, 0.1)
    turns = k.numel() // MOST_VALUES
    assert held.cast == 2 * k.numel() + (turns + 1) * q.numel()
    assert held.largest <= max(MOST_SCORES, MOST_VALUES)
