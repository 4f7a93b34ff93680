"""The torch twins of the row kernels against float64, their order of rounding, what they touch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from radchat_kernels import torch_rows
from radchat_kernels.executor import Activation, HeadNorm, Heads

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 8e-3}


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def error(got: Tensor, want: Tensor) -> float:
    """Relative L2."""
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("dim", [2, 16, 80])
def test_rope_store_is_a_turn_of_each_pair(dtype: torch.dtype, is_normed: bool, dim: int) -> None:
    heads, rows, half = Heads(6, 2, dim), 5, dim // 2
    qkv = normal(rows, 10 * dim, dtype=dtype)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    turns = normal(rows, half, seed=1).to(exact)
    angles = (
        torch.cat([turns.cos(), turns.cos()], -1)[:, None],
        torch.cat([-turns.sin(), turns.sin()], -1)[:, None],
    )
    norm = HeadNorm(normal(8, dim, dtype=dtype, seed=2), 1e-5) if is_normed else None
    k, v = (torch.full((4, 4, 2, dim), torch.nan, dtype=dtype) for _ in "kv")
    slots = torch.tensor([13, 0, 7, 2, 8])
    q = torch_rows.rope_store(qkv, angles, k, v, slots, heads, norm)

    want = qkv.double().view(rows, 10, dim)
    qk = want[:, :8]
    if norm is not None:
        qk = qk / (qk.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    # a pair (i, i + D / 2) is a complex number
    turned = torch.complex(qk[..., :half], qk[..., half:]) * torch.polar(
        torch.ones_like(turns.double()), turns.double()
    ).unsqueeze(1)
    qk = torch.cat([turned.real, turned.imag], -1)
    assert q.shape == (rows, 6, dim)
    assert error(q, qk[:, :6]) < TOLERANCE[dtype]
    assert error(k.view(16, 2, dim)[slots], qk[:, 6:]) < TOLERANCE[dtype]
    assert torch.equal(v.view(16, 2, dim)[slots].double(), want[:, 8:])
    others = [slot for slot in range(16) if slot not in slots]
    assert k.view(16, 2, dim)[others].isnan().all()
    assert v.view(16, 2, dim)[others].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rmsnorm(dtype: torch.dtype) -> None:
    x, residual, weight = (normal(3, 70, dtype=dtype, seed=i) for i in range(3))
    weight, before = weight[0], residual.clone()
    y = torch_rows.add_rmsnorm(x, residual, weight, 1e-5)
    assert torch.equal(residual, before + x)  # in place, rounded to its dtype
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    total = residual.to(exact)  # the norm sees the rounded sum, and is rounded before the weight
    normed = (total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt()).to(dtype)
    assert error(y, (normed * weight).double()) < TOLERANCE[dtype] / 10
    assert torch.equal(torch_rows.add_rmsnorm(None, residual, weight, 1e-5), y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_act_mul(dtype: torch.dtype) -> None:
    gate_up = normal(4, 66, dtype=dtype).mul_(3)
    gate, up = gate_up.double().chunk(2, dim=-1)
    tanh = (math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)).tanh()
    want: dict[Activation, Tensor] = {
        "silu": gate / (1 + (-gate).exp()) * up,
        "gelu": gate / 2 * (1 + (gate / math.sqrt(2)).erf()) * up,
        "gelu_tanh": gate / 2 * (1 + tanh) * up,
    }
    before = gate_up.clone()
    for activation, exact in want.items():
        y = torch_rows.act_mul(gate_up, activation)
        assert y.is_contiguous()
        assert error(y, exact) < TOLERANCE[dtype]
    assert torch.equal(gate_up, before)


def test_no_rows() -> None:
    assert torch_rows.act_mul(torch.empty(0, 8), "silu").shape == (0, 4)
    assert (
        torch_rows.add_rmsnorm(torch.empty(0, 8), torch.empty(0, 8), torch.ones(8), 1).numel() == 0
    )
    k = torch.full((1, 2, 1, 4), torch.nan)
    angles = (torch.empty(0, 1, 4), torch.empty(0, 1, 4))
    none = torch.empty(0, dtype=torch.int64)
    q = torch_rows.rope_store(torch.empty(0, 16), angles, k, k.clone(), none, Heads(2, 1, 4))
    assert q.shape == (0, 2, 4)
    assert k.isnan().all()
