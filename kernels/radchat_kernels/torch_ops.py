"""One attention over one run of KV with torch, giving the output along with its log-sum-exp.

CPU flash attention does most of it. What it can't do, a cap on the scores, is said plainly here,
and so is all of it on other devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_SCORES = 1 << 22  # held at once, elements; more rows go in several turns
MOST_VALUES = 1 << 22  # of K, and of V, held at once in float32; more tokens go in several turns

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
    most_scores: int = MOST_SCORES,
    most_values: int = MOST_VALUES,
) -> tuple[Tensor, Tensor]:
    """``attention`` with products of matrices, some tokens and some rows at a time.

    Each token is cast once, in its turn. What turns give of a row is merged by log-sum-exp.
    """
    num_rows, num_tokens = q.shape[2], k.shape[2]
    tokens = min(max(1, most_values // (k.shape[0] * k.shape[1] * k.shape[3])), num_tokens)
    rows = max(1, most_scores // (q.shape[0] * q.shape[1] * tokens))
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    found: dict[int, tuple[Tensor, Tensor]] = {}  # of the rows from there on, up to now
    for first in range(0, num_tokens, tokens):
        count = min(tokens, num_tokens - first)
        keys = k.narrow(2, first, count).to(exact).transpose(2, 3)
        values = v.narrow(2, first, count).to(exact)
        begin = first // rows * rows if causal else 0  # rows before it see none of these
        for row in range(begin, num_rows, rows):
            some = min(rows, num_rows - row)
            seen = min(count, row + some - first) if causal else count
            hidden = None
            if mask is not None:
                hidden = mask.narrow(3, first, count)
                hidden = hidden if mask.shape[2] == 1 else hidden.narrow(2, row, some)
            if causal:
                every = torch.ones(some, seen, dtype=torch.bool, device=q.device)
                hidden = every.tril(row - first).logical_not()
            now = _of_rows(
                q.narrow(2, row, some).to(exact),
                keys.narrow(3, 0, seen),
                values.narrow(2, 0, seen),
                scale,
                softcap,
                hidden,
                may_see_none=tokens < num_tokens,
            )
            found[row] = _merged(found[row], now) if row in found else now
    o = torch.cat([o for o, _ in found.values()], dim=2).to(q.dtype)
    return o, torch.cat([lse for _, lse in found.values()], dim=2)


def _of_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    softcap: float | None,
    hidden: Tensor | None,
    *,
    may_see_none: bool,
) -> tuple[Tensor, Tensor]:
    """hidden: True where a row must not look, or 0 and -inf to add.

    may_see_none: a row that sees nothing gets o 0 and lse -inf; else there is none.
    """
    batch, num_heads, num_rows, dim = q.shape
    queries = q.reshape(batch, keys.shape[1], -1, dim)  # a KV head's query heads together
    scores = queries @ keys
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
    less = _finite(lse) if may_see_none else lse
    weights = scores.sub_(less.unsqueeze(-1)).exp_().view(batch, keys.shape[1], -1, keys.shape[3])
    return (weights @ values).view(batch, num_heads, num_rows, dim), lse


def _merged(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(a[1], b[1])
    of_a, of_b = ((part[1] - _finite(lse)).exp_().unsqueeze(-1) for part in (a, b))
    return a[0] * of_a + b[0] * of_b, lse


def _finite(lse: Tensor) -> Tensor:
    """0 in place of -inf, from which nothing can be taken away."""
    return lse.masked_fill(lse == -torch.inf, 0.0)
