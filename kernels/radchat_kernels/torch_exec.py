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

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from radchat_kernels.plan import Item, Plan

# Measured on 2 cores (Xeon with AMX), 9 heads on 3 KV heads × 64; docs/adr/0005-attention-plan.md.
MIN_RUN_TOKENS = 512  # shorter runs on average: one gather costs less than a call for each run
PADDED_MAX_TOKENS = 256  # lone rows up to here: copying costs less than a call for each row
FOLD_MAX_ROWS = 64  # up to here a KV head's query heads go into the query axis (1.5 × at 41 rows)

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001


@dataclass(slots=True)
class _Call:
    """One flash call: rows ``[row, row + count)`` × tokens from slot ``slot`` of pool or gather."""

    row: int
    count: int
    gathered: bool
    slot: int
    num_tokens: int
    causal: bool
    mask: Tensor | None  # [1, 1, count, num_tokens], 0 or -inf
    pieces: list[tuple[int, int, bool, int]]  # (from row, rows, is the row's only part, to row)


@dataclass(slots=True)
class _Padded:
    """Lone rows over few tokens: one call, [B, KV heads, group, tokens]."""

    rows: Tensor  # [B]
    slots: Tensor  # [B * num_tokens]; padding repeats a row's last slot, which is written
    num_tokens: int
    mask: Tensor | None  # [B, 1, 1, num_tokens], 0 or -inf
    only: tuple[Tensor, Tensor] | None = None  # (index into rows, row of the output)
    parts: tuple[Tensor, Tensor] | None = None  # (index into rows, slot among the parts)


@dataclass(slots=True)
class _Merge:
    """Rows with ``num_parts`` partial results each, at ``[begin, begin + parts * rows)``."""

    num_parts: int
    begin: int
    rows: Tensor  # [R]


@dataclass(slots=True)
class _Prepared:
    calls: list[_Call]
    padded: _Padded | None
    gather: Tensor | None  # page ids copied side by side
    merges: list[_Merge]
    num_parts: int
    covers_all: bool  # no row without tokens
    is_single: bool  # one call for all rows, in order: its output is the answer


def store(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k_new, v_new [T, HKV, D] into the pool k, v [NP, P, HKV, D] at ``slots`` [T] int64."""
    _by_slot(k).index_copy_(0, slots, k_new)
    _by_slot(v).index_copy_(0, slots, v_new)


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    """Attention of q [T, HQ, D] over the pool k, v [NP, P, HKV, D]; gives o [T, HQ, D].

    All of one dtype (float64, float32, bfloat16), last dimension contiguous, T ≥ plan.num_rows.
    """
    num_rows, num_heads, dim = q.shape
    prepared = _prepared(plan, num_rows, q.dtype)
    k_slots, v_slots = _by_slot(k), _by_slot(v)
    pool = (k_slots.transpose(0, 1).unsqueeze(0), v_slots.transpose(0, 1).unsqueeze(0))
    copied = pool
    if prepared.gather is not None:
        copied = (_gather(k, prepared.gather), _gather(v, prepared.gather))

    if prepared.is_single:
        if prepared.padded is not None:
            return _run_padded(q, k_slots, v_slots, prepared.padded, scale)[0]
        call = prepared.calls[0]
        return _run(q, copied if call.gathered else pool, call, scale)[0]

    out = torch.empty_like(q) if prepared.covers_all else torch.zeros_like(q)
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    parts = torch.empty(prepared.num_parts, num_heads, dim, dtype=exact)
    lses = torch.empty(prepared.num_parts, num_heads, dtype=exact)
    for call in prepared.calls:
        o, lse = _run(q, copied if call.gathered else pool, call, scale)
        for begin, count, is_only, to in call.pieces:
            if is_only:
                out[to : to + count] = o[begin : begin + count]
            else:
                parts[to : to + count] = o[begin : begin + count]
                lses[to : to + count] = lse[begin : begin + count]
    if prepared.padded is not None:
        o, lse = _run_padded(q, k_slots, v_slots, prepared.padded, scale)
        if prepared.padded.only is not None:
            index, rows = prepared.padded.only
            out.index_copy_(0, rows, o.index_select(0, index))
        if prepared.padded.parts is not None:
            index, places = prepared.padded.parts
            parts.index_copy_(0, places, o.index_select(0, index).to(exact))
            lses.index_copy_(0, places, lse.index_select(0, index))
    for merging in prepared.merges:
        end = merging.begin + merging.num_parts * len(merging.rows)
        shape = (merging.num_parts, len(merging.rows), num_heads)
        merged = merge(
            parts[merging.begin : end].view(*shape, dim), lses[merging.begin : end].view(shape)
        )
        out.index_copy_(0, merging.rows, merged.to(q.dtype))
    return out


def merge(o: Tensor, lse: Tensor) -> Tensor:
    """Merge partial results o [N, R, H, D] with their lse [N, R, H] into [R, H, D].

    A part of no tokens has o = 0 and lse = -inf; a row of such parts only gives 0, not NaN.
    """
    nothing = lse.amax(dim=0) == -torch.inf
    weights = lse.softmax(dim=0).masked_fill(nothing, 0.0)
    return (o * weights.unsqueeze(-1)).sum(dim=0)


def _by_slot(pool: Tensor) -> Tensor:
    """The pool [NP, P, HKV, D] as [slots, HKV, D]; a view, or an error, never a copy."""
    return pool.view(-1, *pool.shape[2:])


def _gather(pool: Tensor, pages: Tensor) -> Tensor:
    return pool.index_select(0, pages).flatten(0, 1).transpose(0, 1).unsqueeze(0)


def _run(q: Tensor, kv: tuple[Tensor, Tensor], call: _Call, scale: float) -> tuple[Tensor, Tensor]:
    """One call: o [count, HQ, D] and lse [count, HQ]."""
    k = kv[0].narrow(2, call.slot, call.num_tokens)  # [1, HKV, tokens, D]
    v = kv[1].narrow(2, call.slot, call.num_tokens)
    num_heads, dim = q.shape[1:]
    num_kv_heads = k.shape[1]
    rows, count = q.narrow(0, call.row, call.count), call.count
    if call.causal or call.mask is not None or count > FOLD_MAX_ROWS:
        queries = rows.transpose(0, 1).unsqueeze(0)  # [1, HQ, count, D]; the op shares KV heads
        o, lse = _flash(queries, k, v, 0.0, call.causal, attn_mask=call.mask, scale=scale)
        return o[0].transpose(0, 1), lse[0].transpose(0, 1)
    group = num_heads // num_kv_heads
    if count == 1:
        o, lse = _flash(rows.view(1, num_kv_heads, group, dim), k, v, scale=scale)
        return o.reshape(1, num_heads, dim), lse.reshape(1, num_heads)
    folded = rows.view(count, num_kv_heads, group, dim).transpose(0, 1)
    o, lse = _flash(folded.reshape(1, num_kv_heads, count * group, dim), k, v, scale=scale)
    o = o.view(num_kv_heads, count, group, dim).transpose(0, 1).reshape(count, num_heads, dim)
    lse = lse.reshape(num_kv_heads, count, group).transpose(0, 1).reshape(count, num_heads)
    return o, lse


def _run_padded(
    q: Tensor, k_slots: Tensor, v_slots: Tensor, padded: _Padded, scale: float
) -> tuple[Tensor, Tensor]:
    """All lone rows at once: o [B, HQ, D] and lse [B, HQ]."""
    batch, (num_kv_heads, dim) = len(padded.rows), k_slots.shape[1:]
    shape = (batch, padded.num_tokens, num_kv_heads, dim)
    k = k_slots.index_select(0, padded.slots).view(shape).transpose(1, 2)
    v = v_slots.index_select(0, padded.slots).view(shape).transpose(1, 2)
    rows = q if batch == len(q) else q.index_select(0, padded.rows)
    queries = rows.view(batch, num_kv_heads, -1, dim)
    o, lse = _flash(queries, k, v, attn_mask=padded.mask, scale=scale)
    return o.reshape(batch, -1, dim), lse.reshape(batch, -1)


# --- once per plan ---------------------------------------------------------------------------


def _prepared(plan: Plan, num_rows: int, dtype: torch.dtype) -> _Prepared:
    assert num_rows >= plan.num_rows, "more rows planned than given"
    key = f"torch {dtype} {num_rows}"
    found = plan.scratch.get(key)
    if found is None:
        found = plan.scratch[key] = _prepare(plan, num_rows, dtype)
    assert isinstance(found, _Prepared)
    return found


def _prepare(plan: Plan, num_rows: int, dtype: torch.dtype) -> _Prepared:
    lone = [i for i in plan.items if _is_lone(i)]
    in_order = sorted(lone, key=lambda i: i.row_begin)
    if len(lone) < 2:
        lone = in_order = []
    gather: list[int] = []
    calls = [
        c for i in plan.items if not lone or not _is_lone(i) for c in _calls(i, plan, gather, dtype)
    ]
    padded = _pad(in_order, plan.page_size, dtype) if in_order else None
    merges, num_parts, covers_all = _place(calls, in_order, padded, num_rows)
    if padded is not None:
        is_single = not calls and [i.row_begin for i in in_order] == list(range(num_rows))
    else:
        is_single = len(calls) == 1 and (calls[0].row, calls[0].count) == (0, num_rows)
    return _Prepared(
        calls,
        padded,
        torch.tensor(gather) if gather else None,
        merges,
        num_parts,
        covers_all,
        is_single,
    )


def _is_lone(item: Item) -> bool:
    return item.row_count == 1 and item.tok_end - item.tok_begin <= PADDED_MAX_TOKENS


def _calls(item: Item, plan: Plan, gather: list[int], dtype: torch.dtype) -> list[_Call]:
    """A call for each run of consecutive pages, or one for all, their ids put into ``gather``."""
    size, num_tokens = plan.page_size, item.tok_end - item.tok_begin
    first = item.tok_begin // size
    pages = list(item.table[first : -(-item.tok_end // size)])
    runs = _runs(pages)
    splits = not item.causal and item.window is None  # only then may the tokens be cut
    if len(runs) == 1 or (splits and num_tokens >= MIN_RUN_TOKENS * len(runs)):
        spans = [(first + a, first + b, pages[a] * size, False) for a, b in runs]
    else:
        spans = [(first, first + len(pages), len(gather) * size, True)]
        gather += pages
    mask = _window_mask(item, dtype) if item.window is not None else None
    calls = []
    for a, b, slot, gathered in spans:
        begin, end = max(item.tok_begin, a * size), min(item.tok_end, b * size)
        calls.append(
            _Call(
                item.row_begin,
                item.row_count,
                gathered,
                slot + begin - a * size,
                end - begin,
                item.causal,
                mask,
                [],
            )
        )
    return calls


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of ``pages`` in which ids go up by one."""
    if pages[-1] - pages[0] == len(pages) - 1 and pages == list(
        range(pages[0], pages[0] + len(pages))
    ):
        return [(0, len(pages))]
    ids = torch.tensor(pages)
    cuts = [0, *((ids[1:] != ids[:-1] + 1).nonzero().flatten() + 1).tolist(), len(pages)]
    return list(pairwise(cuts))


def _window_mask(item: Item, dtype: torch.dtype) -> Tensor:
    """Row i is token tok_end + i and sees tokens above tok_end + i - window."""
    assert item.window is not None
    tokens = torch.arange(item.tok_begin, item.tok_end)
    lowest = torch.arange(item.row_count) + (item.tok_end - item.window)
    return _additive(tokens[None, :] > lowest[:, None], dtype)[None, None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)


def _pad(items: Sequence[Item], size: int, dtype: torch.dtype) -> _Padded:
    lens = torch.tensor([i.tok_end - i.tok_begin for i in items])
    num_tokens = int(lens.max())
    firsts = [i.tok_begin // size for i in items]
    tables = [list(i.table[f : -(-i.tok_end // size)]) for i, f in zip(items, firsts, strict=True)]
    width = max(map(len, tables))
    pages = torch.tensor([t + [0] * (width - len(t)) for t in tables])
    steps = torch.arange(num_tokens).expand(len(items), -1)
    offsets = torch.tensor([i.tok_begin % size for i in items])[:, None]
    at = steps.minimum(lens[:, None] - 1) + offsets
    slots = pages.gather(1, at // size) * size + at % size
    mask = None
    if int(lens.min()) < num_tokens:
        mask = _additive(steps < lens[:, None], dtype)[:, None, None, :]
    rows = torch.tensor([i.row_begin for i in items])
    return _Padded(rows, slots.flatten(), num_tokens, mask)


def _place(
    calls: list[_Call], lone: Sequence[Item], padded: _Padded | None, num_rows: int
) -> tuple[list[_Merge], int, bool]:
    """Say where each part goes: straight to the output, or among the parts of a merge.

    Rows are cut where the set of calls that cover them changes. Ranges with equally many parts are
    merged together, laid out [part, row], so that a merge reads views.
    """
    spans = [(c.row, c.row + c.count) for c in calls]
    spans += [(i.row_begin, i.row_begin + 1) for i in lone]
    edges = sorted({0, num_rows, *(e for span in spans for e in span)})
    covers: list[list[int]] = [[] for _ in edges[:-1]]
    for index, (begin, end) in enumerate(spans):
        for block in range(bisect_left(edges, begin), bisect_left(edges, end)):
            covers[block].append(index)
    only: list[tuple[int, int]] = []
    parts: list[tuple[int, int]] = []

    def place(index: int, at: int, count: int, is_only: bool, to: int) -> None:
        if index < len(calls):
            calls[index].pieces.append((at - spans[index][0], count, is_only, to))
        else:
            (only if is_only else parts).append((index - len(calls), to))

    num_parts, merges = 0, []
    for n in sorted({len(c) for c in covers}):
        blocks = [(edges[b], edges[b + 1], c) for b, c in enumerate(covers) if len(c) == n]
        rows = [row for begin, end, _ in blocks for row in range(begin, end)]
        done = 0
        for begin, end, indices in blocks:
            for part, index in enumerate(indices):
                to = begin if n == 1 else num_parts + part * len(rows) + done
                place(index, begin, end - begin, n == 1, to)
            done += end - begin
        if n > 1:
            merges.append(_Merge(n, num_parts, torch.tensor(rows)))
            num_parts += n * len(rows)
    if padded is not None:
        padded.only = _columns(only)
        padded.parts = _columns(parts)
    return merges, num_parts, all(covers)


def _columns(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    if not pairs:
        return None
    first, second = torch.tensor(pairs).T.contiguous()
    return first, second
