"""One attention over one run of KV with torch, giving the output along with its log-sum-exp.

CPU flash attention does most of it. What it can't do, a cap on the scores, is said plainly here,
and so is all of it on other devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_SCORES = 1 << 22  # held at once, elements; more rows go in several turns

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float | None = None,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Give o [B, HQ, R, D] and lse [B, HQ, R] of q [B, HQ, R, D] over k, v [B, HKV, N, D].

    R, N ≥ 1. causal: R = N and row i sees the tokens up to i. mask: [B or 1, 1, R or 1, N], 0
    or -inf, of q's dtype. softcap c: scores s become c · tanh(s / c) before the mask.
    """
    if softcap is None and q.device.type == "cpu":
        o, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return o, lse
    return plain(q, k, v, scale, softcap, causal=causal, mask=mask)


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float | None = None,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``attention`` with products of matrices, some rows at a time."""
    most = max(1, MOST_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    outs, lses = [], []
    for begin in range(0, q.shape[2], most):
        count = min(most, q.shape[2] - begin)
        seen = begin + count if causal else k.shape[2]
        hidden = mask
        if mask is not None and mask.shape[2] > 1:
            hidden = mask.narrow(2, begin, count)
        if causal:
            every = torch.ones(count, seen, dtype=torch.bool, device=q.device)
            hidden = every.tril(begin).logical_not()
        rows = q.narrow(2, begin, count)
        o, lse = _of_rows(rows, k.narrow(2, 0, seen), v.narrow(2, 0, seen), scale, softcap, hidden)
        outs.append(o)
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def _of_rows(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """hidden: True where a row must not look, or 0 and -inf to add."""
    batch, num_heads, num_rows, dim = q.shape
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries = q.to(exact).reshape(batch, k.shape[1], -1, dim)  # a KV head's query heads together
    scores = queries @ k.to(exact).transpose(2, 3)
    if softcap is None:
        scores = scores.mul_(scale)
    else:
        scores = scores.mul_(scale / softcap).tanh_().mul_(softcap)
    scores = scores.view(batch, num_heads, num_rows, -1)
    if hidden is not None and hidden.dtype == torch.bool:
        scores = scores.masked_fill_(hidden, -torch.inf)
    elif hidden is not None:
        scores = scores.add_(hidden)
    lse = scores.logsumexp(dim=-1)
    weights = scores.sub_(lse.unsqueeze(-1)).exp_().view(batch, k.shape[1], -1, k.shape[2])
    o = (weights @ v.to(exact)).view(batch, num_heads, num_rows, dim)
    return o.to(q.dtype), lse
