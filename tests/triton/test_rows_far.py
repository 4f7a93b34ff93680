"""K3 to K7 beyond 2^31 elements, with real addresses: memory that is promised and hardly touched.

Before each first element as much again, where an offset leads that is cut to 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from radchat_kernels import cache, fused, sample
from radchat_kernels.executor import Heads
from tests.triton.banded import edited
from tests.triton.far import ROOM, ROW, ROWS, far_memory
from tests.triton.test_rows import normal, same_bits

HEADS = Heads(2, 1, 16)
Result = tuple[Tensor, ...]


def far(near: Tensor, at: int = 0) -> Tensor:
    """``near`` with its rows, or pages of one slot, ``ROW`` apart; ``at``: not two in one place."""
    assert len(near) <= ROWS
    strides = [ROW, *near.stride()[1:]]
    if near.ndim == 4:
        strides[1] = ROW
    return far_memory().as_strided(near.shape, strides, ROOM + 2**16 * at).copy_(near)


def near(tensor: Tensor, _at: int = 0) -> Tensor:
    return tensor.clone()


Move = Callable[..., Tensor]


def rope_store(kernels: Any, move: Move) -> Result:
    qkv = move(normal(3, 64))
    k, v = (move(torch.zeros(3, 1, 1, 16), at) for at in (1, 2))
    angles, slots = (normal(3, 1, 16), normal(3, 1, 16)), torch.tensor([2, 0, 1])
    return kernels.rope_store(qkv, angles, k, v, slots, HEADS), k, v


def store(kernels: Any, move: Move) -> Result:
    k_new, v_new = (move(normal(3, 1, 16, seed=at), at) for at in (0, 1))
    k, v = (move(torch.zeros(3, 1, 1, 16), at) for at in (2, 3))
    kernels.store(k_new, v_new, k, v, torch.tensor([2, 0, 1]))
    return k, v


def copy_pages(kernels: Any, move: Move) -> Result:
    """Of three layers whose second has its V beyond; a pool is side by side, so a large one."""
    pages, size = (2**20, 2**9) if move is far else (8, 2**9)
    count = 6 * pages * size
    memory = far_memory().view(torch.float16) if move is far else torch.zeros(count).half()
    pool = memory[ROOM if move is far else 0 :][:count].view(3, 2, pages, 1, 1, size)
    values = normal(3, 2, size, dtype=torch.float16)
    source, target = pages - 2, pages - 1
    pool[:, :, source, 0, 0] = values
    pool[:, :, target] = 0
    kernels.copy_pages(pool, [(source, target)])
    return (pool[:, :, target].clone(),)


def add_rmsnorm(kernels: Any, move: Move) -> Result:
    x, residual = move(normal(3, 16)), move(normal(3, 16, seed=1), 1)
    return kernels.add_rmsnorm(x, residual, normal(16), 1e-5), residual


def act_mul(kernels: Any, move: Move) -> Result:
    return (kernels.act_mul(move(normal(3, 32)), "silu"),)


def draw(kernels: Any, move: Move) -> Result:
    """Logits of which one is kept."""
    logits = torch.zeros(3, 40)
    logits[[0, 1, 2], [7, 30, 19]] = 5
    ones = torch.ones(3, dtype=torch.float64)
    keys = torch.arange(9).view(3, 3)
    return (kernels.draw(move(logits), 5 * ones, ones, -ones, keys),)


CASES: list[tuple[ModuleType, Callable[[Any, Move], Result], str]] = [
    (cache, rope_store, "(m // (HQ + 2 * HKV)).to(tl.int64)"),
    (cache, store, "(m // HKV).to(tl.int64)"),
    (cache, copy_pages, "tl.program_id(1).to(tl.int64)"),
    (fused, add_rmsnorm, "tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]"),
    (fused, act_mul, "tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]"),
    (sample, draw, "tl.arange(0, BLOCK_ROWS)).to(tl.int64)"),
]


def is_right(kernels: Any, run: Callable[[Any, Move], Result]) -> bool:
    pairs = zip(run(kernels, far), run(kernels, near), strict=True)
    return all(same_bits(there, here) for there, here in pairs)


@pytest.mark.parametrize(("kernels", "run"), [case[:2] for case in CASES])
def test_offsets_beyond_32_bits(kernels: ModuleType, run: Callable[[Any, Move], Result]) -> None:
    assert is_right(kernels, run)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("kernels", "run", "wide"), CASES)
def test_an_offset_that_is_cut_is_found(
    kernels: ModuleType, run: Callable[[Any, Move], Result], wide: str, tmp_path: Path
) -> None:
    cut = edited(kernels, wide, wide.replace("tl.int64", "tl.int32"), tmp_path)
    assert not is_right(cut, run)
