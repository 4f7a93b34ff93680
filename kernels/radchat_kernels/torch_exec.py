"""Run a plan with torch's CPU flash attention, which gives the log-sum-exp along with the output.

Three ways to hand a run of pages to the op, chosen once per plan and kept in ``plan.scratch``:

- view: consecutive page ids are one strided view of the pool; nothing is copied;
- gather: the pages of all items with short scattered runs are copied, once a layer, side by side;
- padded: lone rows (decode) over few tokens go through one call together, padded and masked.

The op's traps, all kept away from here: no queries or no KV is SIGFPE (the planner makes no empty
item); its causal flag counts from the top left, so it is used only where queries and keys are the
same tokens; a mask must have the queries' dtype.

Same rows through another path (another batch, another cut of the prefix) differ by rounding only;
partial results are merged in float32, or float64 for float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radchat_kernels.plan import Plan
from radchat_kernels.torch_ops import attention
from radchat_kernels.torch_prepare import Call, Padded, Piece, Prepared, prepared

# Measured on 2 cores (Xeon with AMX), 9 heads on 3 KV heads × 64; docs/adr/0005-attention-plan.md.
FOLD_MAX_ROWS = 64  # up to here a KV head's query heads go into the query axis (1.5 × at 41 rows)

Scoring = tuple[float, float | None]  # scale and softcap


def store(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k_new, v_new [T, HKV, D] into the pool k, v [NP, P, HKV, D] at ``slots`` [T] int64."""
    _by_slot(k).index_copy_(0, slots, k_new)
    _by_slot(v).index_copy_(0, slots, v_new)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of q [T, HQ, D] over the pool k, v [NP, P, HKV, D]; gives o [T, HQ, D].

    All of one dtype (float64, float32, bfloat16), last dimension contiguous, T ≥ plan.num_rows.
    softcap and sinks [HQ]: as ``reference.attend`` says.
    """
    made = prepared(plan, len(q), q.dtype, q.device)
    if sinks is None:
        return _attend(q, k, v, made, (scale, softcap), None)
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=_exact(q.dtype))
    o = _attend(q, k, v, made, (scale, softcap), lse)
    return o.mul_((lse - sinks.to(lse.dtype)).sigmoid_().unsqueeze(-1).to(o.dtype))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, made: Prepared, scoring: Scoring, lse_out: Tensor | None
) -> Tensor:
    """Fill ``lse_out`` [T, HQ], which comes as -inf, where it is asked for."""
    num_heads, dim = q.shape[1:]
    k_slots, v_slots = _by_slot(k), _by_slot(v)
    pool = (k_slots.transpose(0, 1).unsqueeze(0), v_slots.transpose(0, 1).unsqueeze(0))
    copied = pool
    if made.gather is not None:
        copied = (_gather(k, made.gather), _gather(v, made.gather))

    if made.is_single:
        if made.padded is not None:
            o, lse = _run_padded(q, k_slots, v_slots, made.padded, scoring)
        else:
            call = made.calls[0]
            o, lse = _run(q, copied if call.gathered else pool, call, scoring)
        if lse_out is not None:
            lse_out.copy_(lse)
        return o

    out = torch.empty_like(q) if made.covers_all else torch.zeros_like(q)
    parts = q.new_empty((made.num_parts, num_heads, dim), dtype=_exact(q.dtype))
    lses = q.new_empty((made.num_parts, num_heads), dtype=_exact(q.dtype))
    places = (out, lse_out), (parts, lses)
    for call in made.calls:
        _place(call.pieces, _run(q, copied if call.gathered else pool, call, scoring), *places)
    if made.padded is not None:
        found = _run_padded(q, k_slots, v_slots, made.padded, scoring)
        _place(made.padded.pieces, found, *places)
    for merging in made.merges:
        end = merging.begin + merging.num_parts * merging.num_rows
        shape = (merging.num_parts, merging.num_rows, num_heads)
        lse = lses[merging.begin : end].view(shape)
        out[merging.rows] = merge(parts[merging.begin : end].view(*shape, dim), lse).to(q.dtype)
        if lse_out is not None:
            lse_out[merging.rows] = lse.logsumexp(dim=0)
    return out


def _place(
    pieces: list[Piece],
    found: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor | None],
    parts: tuple[Tensor, Tensor],
) -> None:
    for begin, count, is_only, to in pieces:
        for source, target in zip(found, out if is_only else parts, strict=True):
            if target is not None:
                target[to : to + count] = source[begin : begin + count]


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What partial results are merged in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(o: Tensor, lse: Tensor) -> Tensor:
    """Merge partial results o [N, R, H, D] with their lse [N, R, H] into [R, H, D].

    A part of no tokens has o = 0 and lse = -inf; a row of such parts only gives 0, not NaN.
    """
    if len(o) == 2:
        weight = (lse[1] - lse[0]).sigmoid_().nan_to_num_()  # NaN: both are of no tokens
        return o[0].lerp(o[1], weight.unsqueeze(-1))
    nothing = lse.amax(dim=0) == -torch.inf
    weights = lse.softmax(dim=0).masked_fill(nothing, 0.0)
    return (o * weights.unsqueeze(-1)).sum(dim=0)


def _by_slot(pool: Tensor) -> Tensor:
    """The pool [NP, P, HKV, D] as [slots, HKV, D]; a view, or an error, never a copy."""
    return pool.view(-1, *pool.shape[2:])


def _gather(pool: Tensor, pages: Tensor) -> Tensor:
    return pool.index_select(0, pages).flatten(0, 1).transpose(0, 1).unsqueeze(0)


def _run(
    q: Tensor, kv: tuple[Tensor, Tensor], call: Call, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """One call: o [count, HQ, D] and lse [count, HQ]."""
    k = kv[0].narrow(2, call.slot, call.num_tokens)  # [1, HKV, tokens, D]
    v = kv[1].narrow(2, call.slot, call.num_tokens)
    num_heads, dim = q.shape[1:]
    num_kv_heads = k.shape[1]
    count = call.count
    rows = q.narrow(0, call.row, count) if call.index is None else q.index_select(0, call.index)
    if call.causal or call.mask is not None or count > FOLD_MAX_ROWS:
        queries = rows.transpose(0, 1).unsqueeze(0)  # [1, HQ, count, D]; the op shares KV heads
        o, lse = attention(queries, k, v, *scoring, causal=call.causal, mask=call.mask)
        return o[0].transpose(0, 1), lse[0].transpose(0, 1)
    group = num_heads // num_kv_heads
    if count == 1:
        o, lse = attention(rows.view(1, num_kv_heads, group, dim), k, v, *scoring)
        return o.reshape(1, num_heads, dim), lse.reshape(1, num_heads)
    folded = rows.view(count, num_kv_heads, group, dim).transpose(0, 1)
    queries = folded.reshape(1, num_kv_heads, count * group, dim)
    o, lse = attention(queries, k, v, *scoring)
    o = o.view(num_kv_heads, count, group, dim).transpose(0, 1).reshape(count, num_heads, dim)
    lse = lse.reshape(num_kv_heads, count, group).transpose(0, 1).reshape(count, num_heads)
    return o, lse


def _run_padded(
    q: Tensor, k_slots: Tensor, v_slots: Tensor, padded: Padded, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """All lone rows at once: o [B, HQ, D] and lse [B, HQ]."""
    batch, (num_kv_heads, dim) = padded.num_items, k_slots.shape[1:]
    shape = (batch, padded.num_tokens, num_kv_heads, dim)
    k = k_slots.index_select(0, padded.slots).view(shape).transpose(1, 2)
    v = v_slots.index_select(0, padded.slots).view(shape).transpose(1, 2)
    rows = q if padded.rows is None else q.index_select(0, padded.rows)
    queries = rows.view(batch, num_kv_heads, -1, dim)
    o, lse = attention(queries, k, v, *scoring, mask=padded.mask)
    return o.reshape(batch, -1, dim), lse.reshape(batch, -1)
