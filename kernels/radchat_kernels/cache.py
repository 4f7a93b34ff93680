"""KV into the pool: rotated and stored (K3), stored as it is, copied page by page (K4).

Reads and writes each byte once; no arithmetic worth counting. A *head row* is one head of one
row: D numbers that lie side by side, wherever they are.
"""

# Kernels have no types that Python's checkers know, and constants in capitals.
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from array import array
from itertools import chain
from math import prod

import torch
from torch import Tensor

from radchat_kernels._triton import INTERPRETED, Launcher, jit, launch, power_of_two, tl
from radchat_kernels.executor import HeadNorm, Heads
from radchat_kernels.upload import upload

# Numbers a program takes: a warp's worth of 16-byte loads; all there are for the interpreter,
# where a program costs milliseconds.
_BLOCK = 4096 if INTERPRETED else 256
_COPY_BLOCK = 65536 if INTERPRETED else 4096


@jit
def _norm(x, inv, weight, ok):
    """Rounded to the model's dtype before the weight and after it, as transformers does."""
    weight = tl.load(weight, mask=ok, other=0.0)
    x = (x * inv).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    return x.to(weight.dtype).to(tl.float32)


@jit(do_not_specialize=("num_rows",))
def rope_store_kernel(
    qkv_ptr, cos_ptr, sin_ptr, weight_ptr, slots_ptr, q_ptr, k_ptr, v_ptr,
    num_rows, eps, stride_row, stride_slot,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, HALF_PAD: tl.constexpr,
    IS_NORMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK head rows of T × (HQ + 2 HKV), as the two halves that a turn mixes."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, head = (m // (HQ + 2 * HKV)).to(tl.int64), m % (HQ + 2 * HKV)
    i = tl.arange(0, HALF_PAD)
    live, inside = (row < num_rows)[:, None], (i < D // 2)[None, :]
    is_turned = live & inside & (head < HQ + HKV)[:, None]
    is_q = is_turned & (head < HQ)[:, None]
    is_k = is_turned & (head >= HQ)[:, None]
    is_v = live & inside & (head >= HQ + HKV)[:, None]

    first = qkv_ptr + row[:, None] * stride_row + head[:, None] * D + i[None, :]
    a = tl.load(first, mask=live & inside, other=0.0)
    b = tl.load(first + D // 2, mask=live & inside, other=0.0)
    x, y = a.to(tl.float32), b.to(tl.float32)
    if IS_NORMED:
        inv = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / D + eps)[:, None]
        weight = weight_ptr + head[:, None] * D + i[None, :]
        x = _norm(x, inv, weight, is_turned)
        y = _norm(y, inv, weight + D // 2, is_turned)
    angle = row[:, None] * D + i[None, :]
    cos_x = tl.load(cos_ptr + angle, mask=is_turned, other=0.0)
    cos_y = tl.load(cos_ptr + angle + D // 2, mask=is_turned, other=0.0)
    sin_x = tl.load(sin_ptr + angle, mask=is_turned, other=0.0)
    sin_y = tl.load(sin_ptr + angle + D // 2, mask=is_turned, other=0.0)
    turned_x = (x * cos_x + y * sin_x).to(a.dtype)
    turned_y = (y * cos_y + x * sin_y).to(a.dtype)

    q = q_ptr + (row * HQ + head)[:, None] * D + i[None, :]
    tl.store(q, turned_x, mask=is_q)
    tl.store(q + D // 2, turned_y, mask=is_q)
    slot = tl.load(slots_ptr + row, mask=row < num_rows, other=0) * stride_slot
    k = k_ptr + (slot + (head - HQ) * D)[:, None] + i[None, :]
    tl.store(k, turned_x, mask=is_k)
    tl.store(k + D // 2, turned_y, mask=is_k)
    v = v_ptr + (slot + (head - HQ - HKV) * D)[:, None] + i[None, :]
    tl.store(v, a, mask=is_v)
    tl.store(v + D // 2, b, mask=is_v)


@jit(do_not_specialize=("num_rows",))
def store_kernel(
    new_k_ptr, new_v_ptr, slots_ptr, k_ptr, v_ptr,
    num_rows, stride_k_row, stride_k_head, stride_v_row, stride_v_head, stride_slot,
    HKV: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK head rows of T × HKV, of K and of V."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, head = (m // HKV).to(tl.int64), m % HKV
    i = tl.arange(0, D_PAD)
    ok = (row < num_rows)[:, None] & (i < D)[None, :]
    k = tl.load(
        new_k_ptr + (row * stride_k_row + head * stride_k_head)[:, None] + i[None, :], mask=ok
    )
    v = tl.load(
        new_v_ptr + (row * stride_v_row + head * stride_v_head)[:, None] + i[None, :], mask=ok
    )
    slot = tl.load(slots_ptr + row, mask=row < num_rows, other=0)
    to = (slot * stride_slot + head * D)[:, None] + i[None, :]
    tl.store(k_ptr + to, k, mask=ok)
    tl.store(v_ptr + to, v, mask=ok)


@jit
def copy_pages_kernel(
    pool_ptr, pairs_ptr, num_pages, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """BLOCK numbers of one page of one layer's K or V; SIZE numbers a page."""
    pair = pairs_ptr + tl.program_id(0) * 2
    pages = pool_ptr + tl.program_id(1).to(tl.int64) * num_pages * SIZE
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(pages + tl.load(pair) * SIZE + i, mask=i < SIZE)
    tl.store(pages + tl.load(pair + 1) * SIZE + i, values, mask=i < SIZE)


def rope_store(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    heads: Heads,
    norm: HeadNorm | None = None,
    *,
    block: int = _BLOCK,
    launch: Launcher = launch,
) -> Tensor:
    """``Executor.rope_store``; a program takes about ``block`` numbers."""
    num_heads, num_kv_heads, dim = heads.num_heads, heads.num_kv_heads, heads.head_dim
    num_all, num_rows = num_heads + 2 * num_kv_heads, len(qkv)
    cos, sin = angles
    _check_slots(slots, num_rows)
    assert qkv.shape == (num_rows, num_all * dim)
    assert qkv.stride(1) == 1
    assert qkv.dtype == k.dtype
    assert cos.shape == sin.shape == (num_rows, 1, dim)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    q = torch.empty(num_rows, num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    if num_rows == 0:
        return q
    half = power_of_two(dim // 2)
    consts = {
        "HQ": num_heads,
        "HKV": num_kv_heads,
        "D": dim,
        "HALF_PAD": half,
        "IS_NORMED": norm is not None,
        "BLOCK": max(1, block // half),
    }
    weight, eps = (qkv, 0.0) if norm is None else (norm.weight, norm.eps)
    if norm is not None:
        assert weight.shape == (num_heads + num_kv_heads, dim)
        assert weight.is_contiguous()
        assert weight.dtype == qkv.dtype
    launch(
        rope_store_kernel,
        (-(-num_rows * num_all // consts["BLOCK"]),),
        [qkv, cos, sin, weight, slots, q, k, v, num_rows, eps, qkv.stride(0), _slot_stride(k, v)],
        consts,
        num_warps=1,
    )
    return q


def store(
    k_new: Tensor,
    v_new: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    *,
    block: int = _BLOCK,
    launch: Launcher = launch,
) -> None:
    """``Executor.store``; a program takes about ``block`` numbers of each."""
    num_rows, num_kv_heads, dim = k_new.shape
    assert k_new.shape == v_new.shape
    assert k.shape[2:] == k_new.shape[1:]
    assert k_new.stride(2) == v_new.stride(2) == 1
    assert k_new.dtype == v_new.dtype == k.dtype
    _check_slots(slots, num_rows)
    if num_rows == 0:
        return
    pad = power_of_two(dim)
    consts = {"HKV": num_kv_heads, "D": dim, "D_PAD": pad, "BLOCK": max(1, block // pad)}
    strides = [*k_new.stride()[:2], *v_new.stride()[:2], _slot_stride(k, v)]
    launch(
        store_kernel,
        (-(-num_rows * num_kv_heads // consts["BLOCK"]),),
        [k_new, v_new, slots, k, v, num_rows, *strides],
        consts,
        num_warps=1,
    )


def copy_pages(
    pool: Tensor,
    pairs: list[tuple[int, int]],
    *,
    block: int = _COPY_BLOCK,
    launch: Launcher = launch,
) -> None:
    """``Executor.copy_pages``: one launch for all layers; a program copies up to ``block``."""
    if not pairs:
        return
    assert pool.is_contiguous()
    targets = {target for _, target in pairs}
    assert len(targets) == len(pairs), "two programs would write the same page"
    assert targets.isdisjoint(source for source, _ in pairs)
    size = prod(pool.shape[3:])
    block = min(block, power_of_two(size))
    launch(
        copy_pages_kernel,
        (len(pairs), pool.shape[0] * pool.shape[1], -(-size // block)),
        [pool, upload(array("q", chain.from_iterable(pairs)), pool.device), pool.shape[2]],
        {"SIZE": size, "BLOCK": block},
    )


def _check_slots(slots: Tensor, num_rows: int) -> None:
    assert slots.shape == (num_rows,)
    assert slots.dtype == torch.int64
    assert slots.is_contiguous()


def _slot_stride(k: Tensor, v: Tensor) -> int:
    """Of one layer's pool [NP, P, HKV, D], where slot page · P + i lies; the same for K and V."""
    assert k.stride() == v.stride()
    assert k.stride(0) == k.shape[1] * k.stride(1)
    assert k.stride(2) == k.shape[3]
    assert k.stride(3) == 1
    return k.stride(1)
