"""4-bit weights times few rows: the nibbles are read once, as they lie, and never unpacked.

16 bytes are a row's group: one load of one thread, beside one scale and one zero (``Packed4``;
g = i // 32). Byte j holds columns 2j and 2j + 1, so low halves meet x's even columns, high halves
the odd ones, and nothing is interleaved. Sums are float32. A call reads in · out / 2 bytes of
nibbles and in · out / 8 of scales and zeros, and does 2 · rows · in · out operations.

- ``gemv4_kernel``, up to 4 rows: BLOCK_N outputs a program, whose threads split the columns;
  Σ w x = Σ_g (scale · Σ q x + zero · Σ x), so the weights are not even rounded. Of more rows the
  products alone are more instructions than the other form has.
- ``gemm4_kernel``, up to 64 rows: two ``tl.dot`` a block, of weights rounded to x's dtype.
- more rows: ``unpack4_kernel`` and torch's product, a piece of the weight at a time.
"""

# Kernels have no types that Python's checkers know, and constants in capitals.
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from radchat_kernels import torch_int4
from radchat_kernels._triton import INTERPRETED, Launcher, jit, launch, tl
from radchat_kernels.executor import Packed4
from radchat_kernels.torch_int4 import GROUP

GEMV_ROWS, GEMM_ROWS = 4, 64  # at most so many


@jit
def _halves(q):
    """Bytes → low and high halves, float32."""
    return (q & 15).to(tl.float32), (q >> 4).to(tl.float32)


@jit  # one row is code of its own: without the loop over rows, in half the registers
def gemv4_kernel(
    x_ptr, nibbles_ptr, scales_ptr, zeros_ptr, bias_ptr, out_ptr,
    num_rows, num_out, num_groups, stride_x,
    ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, VEC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Outputs [num_rows, BLOCK_N] of a program: blocks of [BLOCK_N, BLOCK_G groups, 16 bytes]."""
    r = tl.arange(0, ROWS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tl.arange(0, 16)
    n_ok = n < num_out
    # x in pieces of 16 bytes, piece first: a thread then holds whole groups, as it does of nibbles
    piece = tl.arange(0, 32 // VEC)[:, None, None] * VEC + tl.arange(0, VEC)[None, None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_G, ROWS], tl.float32)
    for begin in range(0, num_groups, BLOCK_G):
        g = begin + tl.arange(0, BLOCK_G)
        ok = n_ok[:, None] & (g < num_groups)[None, :]
        at = n[:, None] * num_groups + g[None, :]
        bytes_at = at[:, :, None] * 16 + j[None, None, :]
        q = tl.load(nibbles_ptr + bytes_at, mask=ok[:, :, None], other=0)
        at = tl.max_contiguous(at, [1, 1])  # scales one by one: they lie beside their nibbles then
        scale = tl.load(scales_ptr + at, mask=ok, other=0.0).to(tl.float32)
        zero = tl.load(zeros_ptr + at, mask=ok, other=0.0).to(tl.float32)
        low, high = _halves(q)
        for row in range(num_rows):  # not unrolled: the values of one row at a time are enough
            x = tl.load(
                x_ptr + row * stride_x + g[None, :, None] * 32 + piece,
                mask=(g < num_groups)[None, :, None],
                other=0.0,
            ).to(tl.float32)
            even, odd = tl.split(tl.reshape(tl.permute(x, [1, 0, 2]), [BLOCK_G, 16, 2]))
            part = tl.sum(low * even[None] + high * odd[None], 2) * scale
            part += tl.sum(even + odd, 1)[None, :] * zero
            acc += tl.where(r[None, None, :] == row, part[:, :, None], 0.0)
    out = tl.sum(acc, 1)
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=n_ok, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out_ptr + r[None, :] * num_out + n[:, None],
        out.to(out_ptr.dtype.element_ty),
        mask=(r < num_rows)[None, :] & n_ok[:, None],
    )


@jit(do_not_specialize=("num_rows",))
def gemm4_kernel(
    x_ptr, nibbles_ptr, scales_ptr, zeros_ptr, bias_ptr, out_ptr,
    num_rows, num_out, num_groups, stride_x,
    HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Outputs [BLOCK_M, BLOCK_N] of a program: even columns × low halves, odd × high."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # first: both read the nibbles at once
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tl.arange(0, 16)
    i = tl.arange(0, BLOCK_G * 32)
    m_ok, n_ok = m < num_rows, n < num_out
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, num_groups, BLOCK_G):
        g = begin + tl.arange(0, BLOCK_G)
        ok = n_ok[:, None] & (g < num_groups)[None, :]
        at = n[:, None] * num_groups + g[None, :]
        bytes_at = at[:, :, None] * 16 + j[None, None, :]
        q = tl.load(nibbles_ptr + bytes_at, mask=ok[:, :, None], other=0)
        scale = tl.load(scales_ptr + at, mask=ok, other=0.0).to(tl.float32)[:, :, None]
        zero = tl.load(zeros_ptr + at, mask=ok, other=0.0).to(tl.float32)[:, :, None]
        x = tl.load(
            x_ptr + m[:, None] * stride_x + begin * 32 + i[None, :],
            mask=m_ok[:, None] & (begin * 32 + i < num_groups * 32)[None, :],
            other=0.0,
        )
        if UPCAST:
            x = x.to(tl.float32)
        even, odd = tl.split(tl.reshape(x, [BLOCK_M, BLOCK_G * 16, 2]))
        low, high = _halves(q)
        low = tl.reshape((low * scale + zero).to(x.dtype), [BLOCK_N, BLOCK_G * 16])
        high = tl.reshape((high * scale + zero).to(x.dtype), [BLOCK_N, BLOCK_G * 16])
        acc = tl.dot(even, tl.trans(low), acc, input_precision="ieee")
        acc = tl.dot(odd, tl.trans(high), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n_ok, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out_ptr + m[:, None] * num_out + n[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=m_ok[:, None] & n_ok[None, :],
    )


@jit
def unpack4_kernel(
    nibbles_ptr, scales_ptr, zeros_ptr, out_ptr, num_out, num_groups,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Weights [BLOCK_N, BLOCK_G groups] of a program, rounded to out's dtype."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    ok = (n < num_out)[:, None] & (g < num_groups)[None, :]
    at = n[:, None] * num_groups + g[None, :]
    bytes_at = at[:, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    low, high = _halves(tl.load(nibbles_ptr + bytes_at, mask=ok[:, :, None], other=0))
    scale = tl.load(scales_ptr + at, mask=ok, other=0.0).to(tl.float32)[:, :, None]
    zero = tl.load(zeros_ptr + at, mask=ok, other=0.0).to(tl.float32)[:, :, None]
    pairs = tl.join(low * scale + zero, high * scale + zero).to(out_ptr.dtype.element_ty)
    values = tl.reshape(pairs, [BLOCK_N, BLOCK_G, 32])
    columns = at[:, :, None].to(tl.int64) * 32 + tl.arange(0, 32)[None, None, :]
    tl.store(out_ptr + columns, values, mask=ok[:, :, None])


def linear4(
    x: Tensor, weight: Packed4, bias: Tensor | None = None, *, launch: Launcher = launch
) -> Tensor:
    """Give x [..., in] times the weight, plus bias [out]: [..., out] in x's dtype."""
    num_out, half = weight.nibbles.shape
    assert x.shape[-1] == 2 * half
    assert half % (GROUP // 2) == 0
    _check(weight)
    if bias is not None:
        assert bias.shape == (num_out,)
        assert bias.is_contiguous()
    rows = x.reshape(-1, 2 * half)
    if len(rows) > GEMM_ROWS:
        return torch_int4.linear4(x, weight, bias, unpack=partial(unpack4, launch=launch))
    out = torch.empty(*x.shape[:-1], num_out, dtype=x.dtype, device=x.device)
    if len(rows) == 0:
        return out
    assert rows.stride(1) == 1
    assert len(rows) * rows.stride(0) < 2**31, "offsets are 32 bits"
    sizes = (len(rows), num_out, 2 * half // GROUP, rows.stride(0))
    nothing = rows if bias is None else bias  # the kernel wants some pointer
    args = (rows, weight.nibbles, weight.scales, weight.zeros, nothing, out, *sizes)
    form = _gemv if len(rows) <= GEMV_ROWS else _gemm
    form(args, bias is not None, launch)
    return out


def _gemv(args: Sequence[Any], has_bias: bool, launch: Launcher) -> None:
    rows, num_out, num_groups = args[0], args[7], args[8]
    # a thread has one group: as many warps as leave none idle, up to four
    warps = next(n for n in (4, 2, 1) if num_groups % (32 * n) == 0 or n == 1)
    is_one = len(rows) == 1
    # of more rows sums and weights have to stay in registers while rows of x come and go
    tile = {"BLOCK_N": 4 if is_one else 2, "BLOCK_G": 32 * warps}
    consts = {
        "ROWS": 1 if is_one else GEMV_ROWS,
        "HAS_BIAS": has_bias,
        "VEC": 16 // rows.element_size(),
    }
    grid = (-(-num_out // tile["BLOCK_N"]),)
    launch(gemv4_kernel, grid, args, consts | tile, num_warps=warps)


def _gemm(args: Sequence[Any], has_bias: bool, launch: Launcher) -> None:
    rows, num_out = args[0], args[7]
    if len(rows) <= 16:
        tile = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_G": 4}
    else:
        tile = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_G": 2}
    consts = {
        "HAS_BIAS": has_bias,
        "UPCAST": INTERPRETED and rows.dtype == torch.bfloat16,
    }
    grid = (-(-len(rows) // tile["BLOCK_M"]), -(-num_out // tile["BLOCK_N"]))
    launch(gemm4_kernel, grid, args, consts | tile, num_warps=4, num_stages=3)


def unpack4(weight: Packed4, dtype: torch.dtype, *, launch: Launcher = launch) -> Tensor:
    """The weight [out, in] in ``dtype``: as ``torch_int4.unpack``."""
    num_out, half = weight.nibbles.shape
    num_groups = 2 * half // GROUP
    _check(weight)
    out = torch.empty(num_out, 2 * half, dtype=dtype, device=weight.nibbles.device)
    tile = {"BLOCK_N": 4, "BLOCK_G": 32}
    grid = (-(-num_out // tile["BLOCK_N"]), -(-num_groups // tile["BLOCK_G"]))
    args = [weight.nibbles, weight.scales, weight.zeros, out, num_out, num_groups]
    launch(unpack4_kernel, grid, args, tile)
    return out


def _check(weight: Packed4) -> None:
    num_out, half = weight.nibbles.shape
    assert weight.nibbles.dtype == torch.uint8
    assert weight.nibbles.numel() < 2**31, "offsets are 32 bits"
    assert weight.scales.shape == weight.zeros.shape == (num_out, 2 * half // GROUP)
    assert all(part.is_contiguous() for part in (weight.nibbles, weight.scales, weight.zeros))
