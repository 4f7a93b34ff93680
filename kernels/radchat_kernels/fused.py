"""A row's work between two matrix products: add and RMSNorm (K5), gated activation (K6).

Both are bound by bytes: K5 reads x, the residual and the weight, writes the residual and the
result; K6 reads 2 I numbers a row and writes I. Arithmetic is float32, rounded to the model's
dtype wherever transformers rounds.
"""

# Kernels have no types that Python's checkers know, and constants in capitals.
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
from torch import Tensor

from radchat_kernels._triton import INTERPRETED, Launcher, jit, launch, power_of_two, tl
from radchat_kernels.executor import Activation

_BLOCK_ROWS = 16 if INTERPRETED else 1  # there a program costs milliseconds, whatever it does
_BLOCK = 1024  # columns of K6; 4 warps of 16-byte loads
MAX_HIDDEN = 16384  # K5 holds a row at once


@jit(do_not_specialize=("num_rows",))
def add_rmsnorm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr,
    num_rows, eps, stride_x, stride_residual,
    H: tl.constexpr, HAS_X: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """BLOCK_ROWS rows, each whole: its sum of squares is in one program."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    i = tl.arange(0, BLOCK_H)[None, :]
    ok = (row < num_rows) & (i < H)
    residual = tl.load(residual_ptr + row * stride_residual + i, mask=ok, other=0.0)
    dtype = residual.dtype
    total = residual.to(tl.float32)
    if HAS_X:
        total += tl.load(x_ptr + row * stride_x + i, mask=ok, other=0.0).to(tl.float32)
        residual = total.to(dtype)
        tl.store(residual_ptr + row * stride_residual + i, residual, mask=ok)
        total = residual.to(tl.float32)
    inv = tl.rsqrt(tl.sum(total * total, 1) / H + eps)[:, None]
    weight = tl.load(weight_ptr + i, mask=i < H, other=0.0).to(tl.float32)
    out = (total * inv).to(dtype).to(tl.float32) * weight
    tl.store(out_ptr + row * H + i, out.to(dtype), mask=ok)


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(tl.minimum(x * -1.4426950408889634, 126.0)))  # never infinite


@jit(do_not_specialize=("num_rows",))
def act_mul_kernel(
    gate_up_ptr, out_ptr, num_rows, stride,
    SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of BLOCK_ROWS rows; SIZE columns of gate, then as many of up."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    i = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    ok = (row < num_rows) & (i < SIZE)
    gate = tl.load(gate_up_ptr + row * stride + i, mask=ok, other=0.0)
    up = tl.load(gate_up_ptr + row * stride + SIZE + i, mask=ok, other=0.0)
    x = gate.to(tl.float32)
    if ACTIVATION == "silu":
        y = x * _sigmoid(x)
    elif ACTIVATION == "gelu_tanh":  # x (1 + tanh z) / 2, with tanh z = 2 sigmoid(2 z) - 1
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    out = y.to(gate.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + row * SIZE + i, out.to(gate.dtype), mask=ok)


def add_rmsnorm(
    x: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    block_rows: int = _BLOCK_ROWS,
    launch: Launcher = launch,
) -> Tensor:
    """``Executor.add_rmsnorm``; a program takes ``block_rows`` rows, H ≤ 16384."""
    num_rows, hidden = residual.shape
    assert hidden <= MAX_HIDDEN
    assert residual.stride(1) == 1
    assert weight.shape == (hidden,)
    assert weight.is_contiguous()
    if x is not None:
        assert x.shape == residual.shape
        assert x.stride(1) == 1
        assert x.dtype == residual.dtype
    out = torch.empty(num_rows, hidden, dtype=residual.dtype, device=residual.device)
    if num_rows == 0:
        return out
    block = power_of_two(hidden)
    added = residual if x is None else x  # not read where there is none
    launch(
        add_rmsnorm_kernel,
        (-(-num_rows // block_rows),),
        [added, residual, weight, out, num_rows, eps, added.stride(0), residual.stride(0)],
        {"H": hidden, "HAS_X": x is not None, "BLOCK_ROWS": block_rows, "BLOCK_H": block},
        num_warps=min(max(block // 512, 1), 16),  # 16 numbers of a row a thread, two loads
    )
    return out


def act_mul(
    gate_up: Tensor,
    activation: Activation,
    *,
    block_rows: int = _BLOCK_ROWS,
    launch: Launcher = launch,
) -> Tensor:
    """``Executor.act_mul``; a program takes ``block_rows`` rows."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.shape[1] == 2 * size
    assert gate_up.stride(1) == 1
    out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows == 0:
        return out
    launch(
        act_mul_kernel,
        (-(-num_rows // block_rows), -(-size // _BLOCK)),
        [gate_up, out, num_rows, gate_up.stride(0)],
        {"SIZE": size, "ACTIVATION": activation, "BLOCK_ROWS": block_rows, "BLOCK": _BLOCK},
    )
    return out
