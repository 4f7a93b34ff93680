"""K3 to K6 in the interpreter: against their torch twins in float64, on awkward shapes.

Everything lies between bands of NaN; what a kernel must fill is NaN before.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from radchat_kernels import cache, fused, torch_exec, torch_rows
from radchat_kernels.executor import Activation, HeadNorm, Heads
from radchat_kernels.triton_executor import TritonExecutor
from tests.triton.banded import Banded

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# the interpreter cuts float32 down to bfloat16 instead of rounding it
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def wide(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[rows, columns] of a wider tensor, NaN beside them."""
    whole = torch.full((rows, columns + 24), torch.nan, dtype=dtype)
    whole[:, 8 : columns + 8] = normal(rows, columns, dtype=dtype, seed=seed)
    return whole[:, 8 : columns + 8]


def error(got: Tensor, want: Tensor) -> float:
    """Relative L2."""
    return float((got.double() - want).norm() / want.norm())


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# heads, rows, numbers a program takes (of a head: 16 is one or none, 8192 all there are)
ROPE_CASES = [
    (Heads(4, 2, 16), 5, 8192),
    (Heads(4, 2, 16), 5, 16),
    (Heads(3, 3, 80), 2, 256),
    (Heads(7, 1, 96), 3, 8192),
    (Heads(2, 1, 64), 1, 64),
    (Heads(2, 1, 2), 9, 8192),
    (Heads(1, 1, 128), 1, 8192),
]


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(("heads", "num_rows", "block"), ROPE_CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_store(
    dtype: torch.dtype, heads: Heads, num_rows: int, block: int, is_normed: bool
) -> None:
    check_rope_store(cache, dtype, heads, num_rows, block, is_normed)


def check_rope_store(
    kernels: Any, dtype: torch.dtype, heads: Heads, num_rows: int, block: int, is_normed: bool
) -> None:
    dim, num_kv_heads = heads.head_dim, heads.num_kv_heads
    num_turned = heads.num_heads + num_kv_heads
    qkv = wide(num_rows, (num_turned + num_kv_heads) * dim, dtype)
    angles = normal(num_rows, 1, dim, seed=1), normal(num_rows, 1, dim, seed=2)
    norm = HeadNorm(normal(num_turned, dim, dtype=dtype, seed=3), 1e-2) if is_normed else None
    pool = torch.full((2, 4, 4, num_kv_heads, dim), torch.nan, dtype=dtype)
    slots = torch.tensor([13, 0, 7, 2, 8, 15, 1, 4, 9])[:num_rows]  # page 0 is like any other
    banded = Banded("q_ptr")
    q = kernels.rope_store(
        qkv, angles, pool[0], pool[1], slots, heads, norm, block=block, launch=banded
    )

    want = torch.full(pool.shape, torch.nan, dtype=torch.float64)
    want_q = torch_rows.rope_store(
        qkv.double(),
        (angles[0].double(), angles[1].double()),
        want[0],
        want[1],
        slots,
        heads,
        None if norm is None else HeadNorm(norm.weight.double(), norm.eps),
    )
    assert q.shape == want_q.shape
    assert error(q, want_q) < TOLERANCE[dtype]
    got_k, want_k = pool[0].flatten(0, 1), want[0].flatten(0, 1)
    assert error(got_k[slots], want_k[slots]) < TOLERANCE[dtype]
    assert torch.equal(pool[1].double().nan_to_num(9e9), want[1].nan_to_num(9e9))  # bit for bit
    assert torch.equal(got_k.isnan(), want_k.isnan())
    assert len(banded.grids) == 1


@pytest.mark.parametrize("block", [8192, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store(dtype: torch.dtype, block: int) -> None:
    check_store(cache, dtype, block)


def check_store(kernels: Any, dtype: torch.dtype, block: int) -> None:
    qkv = wide(6, 4 * 24, dtype).as_strided((3, 8, 24), (240, 26, 1), 8)  # of something larger
    k_new, v_new = qkv[:, 2:5], normal(3, 3, 24, dtype=dtype, seed=1)
    pool = torch.full((2, 3, 2, 3, 24), torch.nan, dtype=dtype)
    slots = torch.tensor([5, 0, 2])
    want = pool.clone()
    torch_exec.store(k_new, v_new, want[0], want[1], slots)
    kernels.store(k_new, v_new, pool[0], pool[1], slots, block=block, launch=Banded())
    assert same_bits(pool, want)
    kernels.store(k_new[:0], v_new[:0], pool[0], pool[1], slots[:0], launch=Banded())
    assert same_bits(pool, want)


@pytest.mark.parametrize("block", [8192, 64])  # one program a page, or three
@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_pages(dtype: torch.dtype, block: int) -> None:
    check_copy_pages(cache, dtype, block)


def check_copy_pages(kernels: Any, dtype: torch.dtype, block: int) -> None:
    pool = normal(2, 2, 6, 4, 3, 14, dtype=dtype)
    pool[:, :, 1, 2:] = torch.nan  # the rest of a page that is not full
    want, banded = pool.clone(), Banded()
    pairs = [(1, 4), (1, 0), (5, 3)]
    for source, target in pairs:
        want[:, :, target] = want[:, :, source]
    kernels.copy_pages(pool, pairs, block=block, launch=banded)
    assert same_bits(pool, want)
    kernels.copy_pages(pool, [], launch=banded)
    assert same_bits(pool, want)
    assert len(banded.grids) == 1  # of all layers and pairs; none for no pairs


@pytest.mark.parametrize(("hidden", "num_rows", "block_rows"), [(70, 5, 4), (64, 3, 1), (1, 1, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rmsnorm(dtype: torch.dtype, hidden: int, num_rows: int, block_rows: int) -> None:
    check_add_rmsnorm(fused, dtype, hidden, num_rows, block_rows)


def check_add_rmsnorm(
    kernels: Any, dtype: torch.dtype, hidden: int, num_rows: int, block_rows: int
) -> None:
    x, residual = wide(num_rows, hidden, dtype), wide(num_rows, hidden, dtype, seed=1)
    weight, before = normal(hidden, dtype=dtype, seed=2), residual.clone()
    banded = Banded("out_ptr")
    y = kernels.add_rmsnorm(x, residual, weight, 1e-2, block_rows=block_rows, launch=banded)
    assert error(residual, before.double() + x) < TOLERANCE[dtype]
    # the norm is of the sum as it was rounded
    want = torch_rows.add_rmsnorm(None, residual.double(), weight.double(), 1e-2)
    assert error(y, want) < TOLERANCE[dtype]
    added = residual.clone()
    alone = kernels.add_rmsnorm(
        None, residual, weight, 1e-2, block_rows=block_rows, launch=Banded("out_ptr")
    )
    assert same_bits(alone, y)
    assert same_bits(residual, added)
    assert len(banded.grids) == 1


def test_what_is_rounded_when() -> None:
    """Norms before the weight, activations before up. Judged in float16, which is rounded right."""
    check_rounding_of_norms(fused)
    check_rounding_of_heads(cache)
    check_rounding_of_activations(fused)


def check_rounding_of_norms(kernels: Any) -> None:
    x, residual, weight = (normal(40, 70, dtype=torch.float16, seed=i) for i in range(3))
    want_residual, weight = residual.clone(), weight[0]
    want = torch_rows.add_rmsnorm(x, want_residual, weight, 1e-5)
    got = kernels.add_rmsnorm(x, residual, weight, 1e-5)
    assert same_bits(residual, want_residual)
    assert float((got == want).float().mean()) > 0.99


def check_rounding_of_heads(kernels: Any) -> None:
    norm, heads = HeadNorm(normal(3, 64, dtype=torch.float16, seed=3), 1e-5), Heads(2, 1, 64)
    qkv, slots = normal(8, 4 * 64, dtype=torch.float16), torch.arange(8)
    angles = torch.ones(8, 1, 64), torch.zeros(8, 1, 64)  # no turn
    k, v = torch.zeros(2, 8, 1, 64, dtype=torch.float16), torch.zeros(2, 8, 1, 64).half()
    want = torch_rows.rope_store(qkv, angles, k, v, slots, heads, norm)
    got = kernels.rope_store(qkv, angles, k, v, slots, heads, norm)
    assert float((got == want).float().mean()) > 0.99


def check_rounding_of_activations(kernels: Any) -> None:
    gate_up = normal(40, 140, dtype=torch.float16)
    want, got = torch_rows.act_mul(gate_up, "gelu"), kernels.act_mul(gate_up, "gelu")
    assert float((got == want).float().mean()) > 0.99


@pytest.mark.parametrize(("size", "num_rows", "block_rows"), [(33, 5, 4), (1030, 2, 1), (1, 1, 8)])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_act_mul(
    dtype: torch.dtype, activation: Activation, size: int, num_rows: int, block_rows: int
) -> None:
    check_act_mul(fused, dtype, activation, size, num_rows, block_rows)


def check_act_mul(
    kernels: Any,
    dtype: torch.dtype,
    activation: Activation,
    size: int,
    num_rows: int,
    block_rows: int,
) -> None:
    gate_up = wide(num_rows, 2 * size, dtype)
    gate_up[:, : size // 2] *= 40  # where exponentials end
    want = torch_rows.act_mul(gate_up.double(), activation)
    banded, before = Banded("out_ptr"), gate_up.clone()
    got = kernels.act_mul(gate_up, activation, block_rows=block_rows, launch=banded)
    assert got.shape == want.shape
    assert error(got, want) < TOLERANCE[dtype]
    assert same_bits(gate_up, before)
    assert len(banded.grids) == 1


def test_no_rows() -> None:
    banded, none = Banded(), torch.empty(0, dtype=torch.int64)
    assert fused.act_mul(torch.empty(0, 8), "silu", launch=banded).shape == (0, 4)
    residual, weight = torch.empty(0, 8), torch.ones(8)
    assert fused.add_rmsnorm(residual, residual, weight, 1, launch=banded).shape == (0, 8)
    k, angles = torch.full((1, 2, 1, 4), torch.nan), (torch.empty(0, 1, 4), torch.empty(0, 1, 4))
    heads, qkv = Heads(2, 1, 4), torch.empty(0, 16)
    q = cache.rope_store(qkv, angles, k, k.clone(), none, heads, launch=banded)
    assert q.shape == (0, 2, 4)
    assert k.isnan().all()
    assert banded.grids == []


def test_the_executor_hands_on_what_it_is_given() -> None:
    """Each operation is one launch, and does what the plain one does."""
    banded = Banded()
    executor = TritonExecutor("cpu", launch=banded)
    x, residual, weight = normal(3, 70), normal(3, 70, seed=1), normal(70, seed=2)
    want = torch_rows.add_rmsnorm(x, residual.clone(), weight, 1e-2)
    assert torch.allclose(executor.add_rmsnorm(x, residual, weight, 1e-2), want, atol=1e-5)
    assert torch.allclose(executor.act_mul(x, "gelu"), torch_rows.act_mul(x, "gelu"), atol=1e-5)

    heads, norm = Heads(2, 1, 16), HeadNorm(normal(3, 16), 1e-2)
    qkv, angles = normal(3, 64), (normal(3, 1, 16, seed=1), normal(3, 1, 16, seed=2))
    pool, slots = torch.zeros(2, 2, 3, 2, 1, 16), torch.tensor([5, 0, 2])
    want_pool = pool.clone()
    q = executor.rope_store(qkv, angles, pool[0, 0], pool[0, 1], slots, heads, norm)
    kv = want_pool[0, 0], want_pool[0, 1]
    want = torch_rows.rope_store(qkv, angles, *kv, slots, heads, norm)
    assert torch.allclose(q, want, atol=1e-5)
    assert torch.allclose(pool, want_pool, atol=1e-5)
    executor.copy_pages(pool, [(0, 1)])
    assert torch.equal(pool[:, :, 1], pool[:, :, 0])
    new = qkv.view(3, 4, 16)[:, :1]
    executor.store(new, new + 1, pool[1, 0], pool[1, 1], slots)
    assert torch.equal(pool[1, 1].view(6, 1, 16)[slots], new + 1)
    assert len(banded.grids) == 5
