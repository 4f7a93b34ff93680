"""K1 and K2 against the float64 reference, row by row, with traps beside every buffer."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from radchat_kernels.attn_kernels import merge_kernel
from radchat_kernels.planner import Planner
from tests.triton.guarded import Launches
from tests.triton.steps import Step

# a run that all rows share, a second level, extends and lone rows, one with a root of its own
MIXED = [("ab", 0, 1), ("ab", 3, 1), ("ac", 5, 9), ("ac", 1, 1), ("a", 2, 5), ("", 6, 1)]
RUNS = {"a": 5, "b": 2, "c": 3}


@pytest.fixture
def launches() -> Launches:
    return Launches()


def test_lone_rows_of_all_lengths(launches: Launches) -> None:
    """Around the page of 4 and the block of 16; those from 33 on in parts."""
    lengths = (1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 47, 70)
    Step([("", n - 1, 1) for n in lengths]).check(launches)


def test_extends_of_all_lengths(launches: Launches) -> None:
    """(cached tokens, rows): in a narrow tile, a wide one, several; with a prefix and without."""
    pairs = [(0, 1), (0, 2), (0, 17), (3, 4), (4, 9), (16, 33), (33, 3), (5, 16)]
    Step([("", cached, rows) for cached, rows in pairs]).check(launches)


@pytest.mark.parametrize(
    ("group", "dim", "dtype", "kv_heads", "page_size"),
    [
        (1, 64, torch.float32, 3, 16),
        (2, 80, torch.float16, 1, 8),
        (3, 96, torch.bfloat16, 2, 16),
        (4, 128, torch.float32, 1, 16),
        (4, 128, torch.bfloat16, 1, 4),
        (5, 256, torch.float16, 1, 16),
        (7, 80, torch.bfloat16, 1, 1),
        (8, 16, torch.float16, 2, 4),
        (16, 64, torch.bfloat16, 1, 4),
        (1, 256, torch.bfloat16, 1, 16),
        (2, 60, torch.float32, 1, 3),
        (6, 96, torch.float16, 1, 16),
        (32, 16, torch.float32, 1, 4),
    ],
    ids=str,
)
def test_groups_head_dims_and_dtypes(
    group: int, dim: int, dtype: torch.dtype, kv_heads: int, page_size: int, launches: Launches
) -> None:
    leaves = [("a", 0, 1), ("a", 3, 1), ("a", 1, 5), ("", 2, 1)]
    step = Step(
        leaves,
        {"a": -(-20 // page_size)},
        group=group,
        dim=dim,
        dtype=dtype,
        kv_heads=kv_heads,
        page_size=page_size,
    )
    step.check(launches)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_trees_of_any_depth(depth: int, launches: Launches) -> None:
    """Two branches at every level, of one page or two."""
    names = "abcdef"[:depth]
    leaves = [(names[: at + 1], at, 1) for at in range(depth) for _ in range(2)]
    step = Step(leaves, {name: 2 - at % 2 for at, name in enumerate(names)})
    step.check(launches)
    step.check(launches, step.plan(step.limits(fold_below=8)))


def test_a_chain_of_runs_is_one(launches: Launches) -> None:
    step = Step([("abc", 1, 1), ("abc", 2, 3)], {"a": 1, "b": 3, "c": 2})
    whole = Step([("a", 1, 1), ("a", 2, 3)], {"a": 6})
    step.check(launches)
    assert len(step.plan().items) == len(whole.plan().items)


def test_several_roots(launches: Launches) -> None:
    leaves = [("a", 0, 1), ("b", 1, 1), ("a", 2, 1), ("b", 0, 4), ("", 3, 1), ("b", 5, 1)]
    Step(leaves, {"a": 5, "b": 9}).check(launches)


def test_one_branch_is_the_same_shared_or_not(launches: Launches) -> None:
    step = Step([("a", 3, 1)], {"a": 11})
    alone = step.check(launches, step.plan(step.limits(shared=False)))
    assert torch.equal(step.check(launches), alone)


@pytest.mark.parametrize("window", [None, 9])
def test_shared_and_unshared_plans_agree(window: int | None, launches: Launches) -> None:
    step = Step(MIXED, RUNS)
    step.check(launches, step.plan(window=window))
    step.check(launches, step.plan(step.limits(shared=False), window))


def sinks_of(num_heads: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """From what no row notices to what takes most of its weight."""
    return torch.linspace(-6, 4, num_heads).to(dtype)


def test_a_cap_on_scores(launches: Launches) -> None:
    step = Step(MIXED, RUNS)
    step.q *= 8  # scores well beyond the cap
    step.check(launches, softcap=2.0)


@pytest.mark.parametrize("window", [1, 5, 17])
def test_a_window(window: int, launches: Launches) -> None:
    step = Step([*MIXED, ("", 0, 20), ("", 40, 1)], RUNS)
    step.check(launches, step.plan(window=window))


def test_a_window_longer_than_all_is_none(launches: Launches) -> None:
    step = Step([("a", 3, 1), ("a", 1, 3)], RUNS)
    step.check(launches, step.plan(window=100))
    assert launches.calls[0].consts["WINDOW"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks(dtype: torch.dtype, launches: Launches) -> None:
    """On rows with several parts, one, and none."""
    step = Step([*MIXED, ("", 2, 0)], RUNS, dtype=dtype)
    step.q = step.normal(len(step.q) + 2, *step.q.shape[1:])
    step.check(launches, sinks=sinks_of(2, dtype))


def test_a_window_a_cap_and_sinks_together(launches: Launches) -> None:
    step = Step(MIXED, RUNS, group=3, kv_heads=2)
    step.check(launches, step.plan(window=9), softcap=2.0, sinks=sinks_of(6))


@pytest.mark.parametrize("window", [None, 6])
def test_a_plan_serves_the_steps_after_it(window: int | None, launches: Launches) -> None:
    """Rows grow into pages that held nothing; in the end a window has left whole parts behind."""
    step = Step([("a", 1, 1), ("a", 0, 1), ("", 34, 1)], RUNS, spare=7)
    planner = Planner(step.limits(growing=True), step.page_size)
    for tokens in (0, 1, 2, 23):
        step.grow(tokens)
        step.check(launches, planner.plan(step.segments).windowed(window))
    assert planner.plans_made == 1


def test_rows_without_tokens_are_zero(launches: Launches) -> None:
    """Of no segment, beside rows with one part and with two; and a step of none at all."""
    step = Step([("", 3, 1), ("", 50, 1), ("", 9, 0)])
    step.q = step.normal(5, *step.q.shape[1:])
    assert (step.check(launches)[2:] == 0).all()
    before = len(launches.calls)
    step = Step([("", 20, 0)])
    step.q = step.normal(2, *step.q.shape[1:])
    assert (step.check(launches) == 0).all()
    assert len(launches.calls) == before


def test_tensors_may_be_slices_of_wider_ones(launches: Launches) -> None:
    """Queries of a fused product; a pool with a head's slots side by side."""
    step = Step(MIXED, RUNS, kv_heads=2)
    wide = torch.full((len(step.q), 9, step.q.shape[2]), torch.nan)
    wide[:, 2:6] = step.q
    step.q = wide[:, 2:6]
    step.pool = step.pool.transpose(2, 3).contiguous().transpose(2, 3)
    step.check(launches)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_merge_never_reads_a_part_without_tokens(with_sinks: bool, launches: Launches) -> None:
    """Rows of 0, 1, 2, 3 and 5 parts; where lse is -inf the part is NaN."""
    counts, empty = [0, 1, 2, 3, 5], [0, 2, 4, 8]  # slots; the second row's and third's two among
    num_slots, heads, dim = sum(counts), 5, 24
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(num_slots, generator=generator)
    parts = torch.randn(num_slots, heads, dim, generator=generator)
    lse = torch.randn(num_slots, heads, generator=generator) * 3
    lse[order[empty]] = -torch.inf
    lse[order[1]] = -torch.inf
    parts[lse == -torch.inf] = torch.nan
    indptr = torch.tensor([0, *counts]).cumsum(0).int()
    o = torch.zeros(len(counts), heads, dim)
    sinks = sinks_of(heads)
    launches(
        merge_kernel,
        (len(counts), 2),
        [parts, lse, o, indptr, order.int(), sinks, *(heads * dim, dim, heads, heads * dim, dim)],
        {
            "HQ": heads,
            "D": dim,
            "D_PAD": 32,
            "BLOCK_S": 2,
            "BLOCK_H": 4,
            "HAS_SINKS": with_sinks,
            "I64": False,
        },
    )
    for row, (begin, end) in enumerate(pairwise(indptr.tolist())):
        mine = order[begin:end]
        weights = torch.exp2(lse[mine].double())
        total = weights.sum(0) + (sinks.double().exp() if with_sinks else 0.0)
        value = (weights[..., None] * parts[mine].double().nan_to_num()).sum(0)
        want = torch.where(total > 0, 1 / total, 0.0)[:, None] * value
        torch.testing.assert_close(o[row].double(), want, rtol=1e-5, atol=1e-6)
    assert (o[1] == 0).all()  # all of its parts are empty
