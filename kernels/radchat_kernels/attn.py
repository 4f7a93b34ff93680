"""Run a plan with the Triton kernels: its work list goes to the device once, and serves all layers.

Two launches a layer at most: the items, and the merge where some row has two parts or a sink.
Where nothing is cached torch's own flash attention does it: queries and keys are the same tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from radchat_kernels._triton import INTERPRETED, Launcher, launch, power_of_two
from radchat_kernels.attn_kernels import attend_kernel, merge_kernel
from radchat_kernels.pack import WorkList, pack
from radchat_kernels.plan import Plan
from radchat_kernels.tiles import Tile, Tiles
from radchat_kernels.upload import upload

MIN_ROWS = 64  # of a segment that torch's own attention gets: below, a launch costs more
LEAST_ITEMS = 16  # of a grid: powers of two from here on, so that steps share their launches
INT32_SPAN = 2**31 - 2**20  # elements that 32-bit offsets reach, masked lanes included


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    positions: Tensor,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiles: Tiles,
    launch: Launcher = launch,
) -> Tensor:
    """Give o [T, HQ, D] of q [T, HQ, D] over the pool k, v [NP, P, HKV, D]: ``Executor.attend``.

    Last strides 1, others any. Any plan will do; items are cut to the tiles here.
    """
    (num_rows, num_heads, dim), (_, page_size, num_kv_heads, _) = q.shape, k.shape
    group = num_heads // num_kv_heads
    assert q.stride(2) == k.stride(3) == v.stride(3) == 1
    assert q.dtype == k.dtype == v.dtype
    assert positions.dtype == torch.int64
    assert positions.shape == (num_rows,)
    assert positions.is_contiguous()
    assert page_size == plan.page_size
    if sinks is not None:
        assert sinks.shape == (num_heads,)
        assert sinks.is_contiguous()
    if softcap is None and sinks is None and q.dtype != torch.float32 and _is_fresh(plan, num_rows):
        return _attend_fresh(q, k, v, plan, scale)
    work = _sent(plan, q, tiles, group, direct=sinks is None)
    o = (torch.empty if work.covers_all else torch.zeros)(q.shape, dtype=q.dtype, device=q.device)
    if work.num_items == 0:
        return o
    consts = {
        "D": dim,
        "D_PAD": power_of_two(max(dim, 16)),
        "I64": max(map(_span, (q, k, v, o, work.mid_o))) > INT32_SPAN,
    }
    launch(
        attend_kernel,
        (work.num_items * num_kv_heads,),
        [
            *(q, k, v, o, work.mid_o, work.mid_lse),
            *(work.items, work.rows, work.pages, positions, work.n_items),
            *(float(scale), float(softcap or 0.0)),
            *q.stride()[:2],
            *o.stride()[:2],
            *k.stride()[:3],
            *v.stride()[:3],
            *work.mid_o.stride()[:2],
            work.mid_lse.stride(0),
        ],
        {
            **consts,
            "HKV": num_kv_heads,
            "G": group,
            "PAGE": page_size,
            "BLOCK_M": work.narrow.block_m if work.narrow else 0,
            "BLOCK_N": work.narrow.block_n if work.narrow else 0,
            "WIDE_M": work.wide.block_m if work.wide else 0,
            "WIDE_N": work.wide.block_n if work.wide else 0,
            "CAUSAL": work.causal,
            "WINDOW": work.window,
            "HAS_SOFTCAP": softcap is not None,
            "UPCAST": INTERPRETED and q.dtype == torch.bfloat16,
        },
        num_warps=work.largest.num_warps,
        num_stages=work.largest.num_stages,
    )
    if work.has_parts:
        heads = min(tiles.merge_heads, power_of_two(num_heads))
        launch(
            merge_kernel,
            (num_rows, -(-num_heads // heads)),
            [
                *(work.mid_o, work.mid_lse, o, work.part_indptr, work.part_slots),
                o if sinks is None else sinks,
                *work.mid_o.stride()[:2],
                work.mid_lse.stride(0),
                *o.stride()[:2],
            ],
            {
                **consts,
                "HQ": num_heads,
                "BLOCK_S": tiles.merge_parts,
                "BLOCK_H": heads,
                "HAS_SINKS": sinks is not None,
            },
            num_warps=4,
            num_stages=1,
        )
    return o


@dataclass(slots=True)
class _Sent:
    """A work list on the device, with room for its parts, and the tiles it was cut for."""

    items: Tensor
    rows: Tensor
    pages: Tensor
    part_indptr: Tensor
    part_slots: Tensor
    n_items: Tensor
    mid_o: Tensor  # [slots, HQ, D] float32
    mid_lse: Tensor  # [slots, HQ] float32
    num_items: int  # the grid's: a bucket, 0 where there is nothing to do
    has_parts: bool
    covers_all: bool
    causal: bool
    window: int  # 0: every row sees all tokens of its items
    narrow: Tile | None  # None: no item needs it
    wide: Tile | None

    @property
    def largest(self) -> Tile:
        """Whose warps and stages a launch has."""
        tile = self.wide or self.narrow
        assert tile is not None
        return tile


def _sent(plan: Plan, q: Tensor, tiles: Tiles, group: int, *, direct: bool) -> _Sent:
    key = "triton", tuple(q.shape), q.dtype, group, direct, tiles
    found = plan.scratch.get(key)
    if found is None:
        found = plan.scratch[key] = _send(plan, q, tiles, group, direct=direct)
    assert isinstance(found, _Sent)
    return found


def _send(plan: Plan, q: Tensor, tiles: Tiles, group: int, *, direct: bool) -> _Sent:
    tiles = tiles.holding(group)
    wide = tiles.extend if any(item.causal for item in plan.items) else tiles.wide
    window = plan.window if any(item.windowed for item in plan.items) else None
    if window is not None:  # blocks are all masked, which takes registers
        wide = replace(wide, block_n=min(wide.block_n, 32))
    limits = replace(plan.limits, narrow=tiles.narrow.block_m, wide=wide.block_m, group=group)
    work: WorkList = pack(replace(plan, limits=limits), len(q), direct=direct)
    data = upload(work.data, q.device)
    views = {name: data.narrow(0, *place) for name, place in work.offsets.items()}
    mid_o = torch.empty(work.num_slots, *q.shape[1:], dtype=torch.float32, device=q.device)
    return _Sent(
        **views,
        mid_o=mid_o,
        mid_lse=torch.empty(mid_o.shape[:2], dtype=torch.float32, device=q.device),
        num_items=power_of_two(max(work.num_items, LEAST_ITEMS)) if work.num_items else 0,
        has_parts=work.num_slots > 0,
        covers_all=work.covers_all,
        causal=work.causal,
        window=window or 0,
        narrow=tiles.narrow if work.has_narrow else None,
        wide=wide if work.has_wide else None,
    )


def _is_fresh(plan: Plan, num_rows: int) -> bool:
    """Whether the rows are whole sequences, long ones, each row of one."""
    if plan.window is not None or num_rows == 0:
        return False
    row = 0
    for segment in plan.segments:
        if segment.row_count == 0:
            continue
        if segment.start > 0 or segment.row_count < MIN_ROWS or segment.row_begin != row:
            return False
        row += segment.row_count
    return row == num_rows


def _attend_fresh(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float) -> Tensor:
    tables = [s.table[: -(-s.row_count // plan.page_size)] for s in plan.segments]
    pages = plan.scratch.get("triton fresh")
    if pages is None:
        pages = upload(array("i", chain.from_iterable(tables)), q.device)
        plan.scratch["triton fresh"] = pages
    assert isinstance(pages, Tensor)
    outs: list[Tensor] = []
    done = 0
    for segment, table in zip(plan.segments, tables, strict=True):
        if segment.row_count == 0:
            continue
        mine = pages.narrow(0, done, len(table))
        done += len(table)
        queries = q.narrow(0, segment.row_begin, segment.row_count)
        keys, values = (
            pool.index_select(0, mine).flatten(0, 1).narrow(0, 0, segment.row_count)
            for pool in (k, v)
        )
        o = functional.scaled_dot_product_attention(
            _heads_first(queries),
            _heads_first(keys),
            _heads_first(values),
            is_causal=True,
            scale=scale,
            enable_gqa=True,
        )
        outs.append(o.squeeze(0).transpose(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).unsqueeze(0)


def _span(t: Tensor) -> int:
    """Elements from the first to the last of ``t``."""
    return 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
