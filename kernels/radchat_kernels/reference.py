"""Attention over pages as plainly as it can be said, in float64: the specification.

It reads the segments, not the items, so it also judges the planner. One row at a time:

    s_t = scale * q · k_t          over the tokens t the row sees
    o   = Σ exp(s_t - lse) v_t     lse = log Σ exp(s_t)

A cap on the scores (softcap c) makes them c * tanh(s_t / c) first. A head's sink b is one more
score whose value is zero: o = Σ exp(s_t - lse) v_t with lse = log(exp(b) + Σ exp(s_t)).

A row of no segment sees nothing: o = 0, lse = -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radchat_kernels.plan import Plan


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Read q [T, HQ, D] and the pool k, v [NP, P, HKV, D]; give o [T, HQ, D] and lse [T, HQ].

    softcap: a positive number; sinks: [HQ].
    """
    num_heads, num_kv_heads = q.shape[1], k.shape[2]
    group = num_heads // num_kv_heads  # query head h reads KV head h // group
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64)
    for segment in plan.segments:
        for i in range(segment.row_count):
            row, position = segment.row_begin + i, segment.start + i
            first = 0 if plan.window is None else max(0, position + 1 - plan.window)
            tokens = range(first, position + 1)
            pages = torch.tensor([segment.table[t // plan.page_size] for t in tokens])
            slots = torch.tensor([t % plan.page_size for t in tokens])
            keys = k[pages, slots].double().repeat_interleave(group, dim=1)  # [tokens, HQ, D]
            values = v[pages, slots].double().repeat_interleave(group, dim=1)
            scores = scale * torch.einsum("hd,thd->ht", q[row].double(), keys)
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            lse[row] = scores.logsumexp(dim=-1)
            if sinks is not None:
                lse[row] = torch.logaddexp(lse[row], sinks.double())
            weights = (scores - lse[row, :, None]).exp()
            out[row] = torch.einsum("ht,thd->hd", weights, values)
    return out, lse


def store(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k_new, v_new [T, HKV, D] into the pool k, v [NP, P, HKV, D] at ``slots`` [T]."""
    page_size = k.shape[1]
    for i, slot in enumerate(slots.tolist()):
        k[slot // page_size, slot % page_size] = k_new[i]
        v[slot // page_size, slot % page_size] = v_new[i]
