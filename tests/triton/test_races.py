"""No program writes where another of its launch writes or reads.

The interpreter runs them one after another, so a result shows nothing of it; addresses do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from radchat_kernels import cache, fused, int4, sample
from radchat_kernels._triton import Launcher, launch
from radchat_kernels.attn import attend
from radchat_kernels.executor import HeadNorm, Heads
from tests.triton.steps import SMALL, Step
from tests.triton.test_int4 import random_weight
from tests.triton.test_rows import normal

ALL = {
    *("attend_kernel", "merge_kernel", "rope_store_kernel", "store_kernel", "copy_pages_kernel"),
    *("add_rmsnorm_kernel", "act_mul_kernel", "best_in_blocks_kernel", "best_of_blocks_kernel"),
    *("gemv4_kernel", "gemm4_kernel", "unpack4_kernel"),
}
HEADS = Heads(4, 2, 16)


class Raced(Exception):
    """Two programs of a launch, or two places of one store, meet in an element."""


class Accesses:
    """Addresses of elements, each with the program that read or wrote it."""

    def __init__(self) -> None:
        self._addresses = [np.zeros(0, np.uint64)]
        self._programs = [np.zeros(0, np.int64)]
        self.repeats = 0  # elements that one access has more than once

    def add(self, program: int, addresses: Any) -> None:
        self.repeats += len(addresses) - len(np.unique(addresses))
        self._addresses.append(addresses)
        self._programs.append(np.full(len(addresses), program))

    def pairs(self) -> Any:
        """Each element with each program once, [n, 2]."""
        both = np.concatenate(self._addresses).astype(np.int64), np.concatenate(self._programs)
        return np.unique(np.stack(both, 1), axis=0)


class Watched:
    """A launcher that raises ``Raced`` after the kernel ran. ``names`` of those that it ran."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        **options: int,
    ) -> None:
        self.names.add(kernel.__name__)
        with recorded() as (reads, writes):
            launch(kernel, grid, args, consts, **options)
        if writes.repeats:
            raise Raced(f"{kernel.__name__}: {writes.repeats} elements are twice in one store")
        written = writes.pairs()
        places, writers = np.unique(written[:, 0], return_counts=True)
        if (writers > 1).any():
            raise Raced(f"{kernel.__name__}: {(writers > 1).sum()} elements are written twice")
        read = reads.pairs()
        read = read[np.isin(read[:, 0], places)]
        writer = written[np.searchsorted(written[:, 0], read[:, 0]), 1]
        if (others := (writer != read[:, 1]).sum()) > 0:
            raise Raced(f"{kernel.__name__}: {others} elements are written and read by others")


@contextmanager
def recorded() -> Iterator[tuple[Accesses, Accesses]]:
    """What the interpreter reads and writes meanwhile."""
    reads, writes = Accesses(), Accesses()
    builder = interpreter_builder
    read, write = builder.create_masked_load, builder.create_masked_store

    def program() -> int:
        x, y, z = (int(each) for each in builder.grid_idx)
        return x << 40 | y << 20 | z

    def load(pointers: Any, mask: Any, *rest: Any) -> Any:
        reads.add(program(), _live(pointers, mask))
        return read(pointers, mask, *rest)

    def store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        writes.add(program(), _live(pointers, mask))
        return write(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = load, store
    try:
        yield reads, writes
    finally:
        del builder.create_masked_load, builder.create_masked_store  # the class's are there again


def _live(pointers: Any, mask: Any) -> Any:
    return pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)].ravel()


def rope_and_store(slots: list[int], launch: Launcher) -> None:
    rows, norm = len(slots), HeadNorm(normal(6, 16), 1e-5)
    angle, pool, at = normal(rows, 1, 16), torch.zeros(2, 4, 4, 2, 16), torch.tensor(slots)
    qkv = normal(rows, 8 * 16)
    q = cache.rope_store(
        qkv, (angle, angle), pool[0], pool[1], at, HEADS, norm, block=32, launch=launch
    )
    cache.store(q[:, :2], q[:, 2:], pool[0], pool[1], at, block=32, launch=launch)


def test_no_program_meets_another() -> None:
    watched = Watched()
    rope_and_store([1, 5, 9, 2, 0], watched)
    cache.copy_pages(normal(2, 2, 6, 4, 3, 14), [(1, 4), (1, 0), (5, 3)], block=64, launch=watched)
    x, residual = normal(5, 70), normal(5, 70)
    fused.add_rmsnorm(x, residual, normal(70), 1e-5, block_rows=2, launch=watched)
    fused.act_mul(normal(5, 2060), "silu", block_rows=2, launch=watched)
    ones = torch.ones(5, dtype=torch.float64)
    keys = torch.arange(15).view(5, 3)
    sample.draw(normal(5, 300), ones, ones, ones * -50, keys, block=64, tile=64, launch=watched)
    for rows in (1, 3, 5, 40, 65):
        int4.linear4(normal(rows, 128), random_weight(70, 128), launch=watched)
    leaves = [("ab", 0, 1), ("ab", 3, 1), ("ac", 5, 9), ("ac", 1, 1), ("a", 2, 5), ("", 6, 1)]
    step = Step(leaves, {"a": 5, "b": 2, "c": 3}, kv_heads=2)
    k, v = step.pool
    options: Any = {"tiles": SMALL, "launch": watched}
    attend(step.q, k, v, step.plan(), step.positions, step.scale, **options)
    assert watched.names == ALL


def test_programs_that_meet_are_seen() -> None:
    with pytest.raises(Raced, match="written twice"):
        rope_and_store([1, 5, 5], Watched())
    pool = normal(1, 2, 5, 1, 1, 64)
    for pairs, said in (
        ([(1, 4), (2, 4)], "128 elements are written twice"),
        ([(1, 2), (2, 3)], "128 elements are written and read by others"),
    ):
        args = [pool, torch.tensor(pairs), 5]
        with pytest.raises(Raced, match=said):
            Watched()(cache.copy_pages_kernel, (2, 2, 1), args, {"SIZE": 64, "BLOCK": 64})
    new, slots = torch.zeros(2, 1, 4), torch.zeros(2, dtype=torch.int64)
    k, v = torch.zeros(2, 1, 1, 1, 4)
    with pytest.raises(Raced, match="twice in one store"):  # of one program, all there are
        cache.store(new, new, k, v, slots, launch=Watched())
