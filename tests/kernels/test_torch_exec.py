"""The torch executor against the float64 reference, on shapes chosen to be awkward.

Every pool is NaN but where a segment's own tokens were stored, so a read of any other slot shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat_kernels import Plan, Segment, attend, plan, reference, store, torch_ops
from radchat_kernels.torch_exec import merge
from radchat_kernels.torch_prepare import MIN_RUN_TOKENS, PADDED_MAX_TOKENS

TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 3e-2}


class Step:
    """A pool and the segments of one step, filled through ``store``.

    lens: (start, new tokens) of each sequence; order: how page ids are dealt out.
    """

    def __init__(
        self,
        lens: Sequence[tuple[int, int]],
        *,
        page_size: int = 16,
        kv_heads: int = 2,
        group: int = 2,
        dim: int = 16,
        dtype: torch.dtype = torch.float32,
        order: str = "shuffled",
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        counts = [-(-(start + new) // page_size) for start, new in lens]
        num_pages = sum(counts) + 2
        ids = list(range(1, num_pages))
        if order == "shuffled":
            random.Random(seed).shuffle(ids)
        self.k = torch.full((num_pages, page_size, kv_heads, dim), torch.nan, dtype=dtype)
        self.v = self.k.clone()
        self.segments, row = [], 0
        for (start, new), count in zip(lens, counts, strict=True):
            table, ids = ids[:count], ids[count:]
            tokens = range(start + new)
            slots = [table[t // page_size] * page_size + t % page_size for t in tokens]
            n = len(slots)
            store(
                normal(n, kv_heads, dim),
                normal(n, kv_heads, dim),
                self.k,
                self.v,
                torch.tensor(slots, dtype=torch.int64),
            )
            self.segments.append(Segment(row, new, start, table))
            row += new
        self.q = normal(row, kv_heads * group, dim)
        self.page_size, self.scale, self.dtype = page_size, dim**-0.5, dtype

    def plan(self, window: int | None = None) -> Plan:
        return plan(self.segments, self.page_size, window)

    def check(
        self,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        made = self.plan(window)
        args = (self.q, self.k, self.v, made, self.scale)
        got = attend(*args, softcap=softcap, sinks=sinks)
        want, _ = reference.attend(*args, softcap=softcap, sinks=sinks)
        assert got.dtype == self.dtype
        assert got.shape == self.q.shape
        torch.testing.assert_close(
            got.double(), want, rtol=TOLERANCE[self.dtype], atol=TOLERANCE[self.dtype]
        )


DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: str(d)[6:])
MIXED = [(0, 5), (33, 1), (16, 17), (0, 1), (1, 2), (15, 1), (17, 3)]


@DTYPES
@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("new", [1, 2, 16, 31])
def test_one_sequence_at_page_ends(start: int, new: int, dtype: torch.dtype) -> None:
    Step([(start, new)], dtype=dtype).check()


@DTYPES
@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
@pytest.mark.parametrize("order", ["shuffled", "consecutive"])
def test_a_mixed_batch_on_pages_of_any_size(page_size: int, order: str, dtype: torch.dtype) -> None:
    Step(MIXED, page_size=page_size, order=order, dtype=dtype).check()


@DTYPES
@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_query_heads_share_kv_heads(kv_heads: int, group: int, dtype: torch.dtype) -> None:
    Step(MIXED, kv_heads=kv_heads, group=group, dtype=dtype).check()


@DTYPES
@pytest.mark.parametrize("dim", [16, 60, 64, 80, 96, 128, 256])
def test_head_dims(dim: int, dtype: torch.dtype) -> None:
    Step(MIXED, dim=dim, dtype=dtype).check()


@DTYPES
@pytest.mark.parametrize("order", ["shuffled", "consecutive"])
@pytest.mark.parametrize("lens", [[(100, 1), (3, 1)], [(5, 1)] * 4, [(40, 1), (0, 1), (255, 1)]])
def test_lone_rows_go_together_whatever_their_lengths(
    lens: list[tuple[int, int]], order: str, dtype: torch.dtype
) -> None:
    Step(lens, order=order, dtype=dtype).check()


@DTYPES
def test_a_batch_of_long_and_short_lone_rows_and_extends(dtype: torch.dtype) -> None:
    long = PADDED_MAX_TOKENS + 30
    Step([(long, 1), (3, 1), (70, 90), (long, 1), (9, 1)], dtype=dtype).check()


@DTYPES
@pytest.mark.parametrize("new", [1, 3, 90])
@pytest.mark.parametrize("num_runs", [1, 2, 3, 40])
def test_few_long_runs_as_views_and_many_short_ones_gathered(
    num_runs: int, new: int, dtype: torch.dtype
) -> None:
    step = Step([(2 * MIN_RUN_TOKENS + 37, new)], order="consecutive", dtype=dtype)
    segment = step.segments[0]
    # move pages apart in the pool so that the table has num_runs runs
    length = -(-len(segment.table) // num_runs)
    spread = [page + index // length for index, page in enumerate(segment.table)]
    k = torch.full((max(spread) + 1, *step.k.shape[1:]), torch.nan, dtype=dtype)
    v = k.clone()
    k[spread], v[spread] = step.k[segment.table], step.v[segment.table]
    step.k, step.v = k, v
    step.segments = [Segment(0, new, segment.start, spread)]
    step.check()


@DTYPES
@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 50])
@pytest.mark.parametrize("order", ["shuffled", "consecutive"])
def test_a_sliding_window(window: int | None, order: str, dtype: torch.dtype) -> None:
    Step([*MIXED, (70, 40)], order=order, dtype=dtype).check(window)


def sinks_of(num_heads: int) -> torch.Tensor:
    """From what no row notices to what takes most of its weight."""
    return torch.linspace(-6, 4, num_heads)


@DTYPES
@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("window", [None, 5, 17])
@pytest.mark.parametrize("order", ["shuffled", "consecutive"])
def test_capped_scores(softcap: float, window: int | None, order: str, dtype: torch.dtype) -> None:
    Step([*MIXED, (70, 40)], order=order, dtype=dtype).check(window, softcap)


@DTYPES
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 5, 17])
@pytest.mark.parametrize("lens", [[*MIXED, (70, 40)], [(40, 1), (0, 1), (90, 1)], [(0, 1)]])
def test_sinks(
    lens: list[tuple[int, int]], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    Step(lens, dtype=dtype).check(window, softcap, sinks_of(4))


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("window", [None, 9])
def test_capped_scores_in_several_turns_are_the_same(
    most: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_ops, "MOST_SCORES", most * 4 * 70)
    Step([(0, 90), (13, 70), (70, 3)], dtype=torch.float64).check(window, 1.5)


@pytest.mark.parametrize("seen", ["all", "causal", "masked"])
def test_attention_without_the_cpus_own_op_is_the_same(seen: str) -> None:
    generator = torch.Generator().manual_seed(6)
    q, k, v = (
        torch.randn(2, heads, 7, 8, dtype=torch.float64, generator=generator) for heads in (4, 2, 2)
    )
    mask = torch.where(torch.rand(2, 1, 7, 7, generator=generator) < 0.7, 0.0, -torch.inf).double()
    mask[..., 0] = 0.0
    how: dict[str, Any] = {"causal": seen == "causal", "mask": mask if seen == "masked" else None}
    for got, want in zip(
        torch_ops.plain(q, k, v, 0.3, **how), torch_ops.attention(q, k, v, 0.3, **how), strict=True
    ):
        torch.testing.assert_close(got, want)


LENS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40)), min_size=1, max_size=5)


@settings(deadline=None, max_examples=100)
@given(
    lens=LENS.filter(lambda lens: any(start + new for start, new in lens)),
    page_size=st.sampled_from([1, 3, 16]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    dim=st.sampled_from([8, 16, 24, 40]),
    window=st.none() | st.integers(1, 60),
    softcap=st.none() | st.floats(0.2, 50),
    with_sinks=st.booleans(),
    order=st.sampled_from(["shuffled", "consecutive"]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_any_step_on_any_pages_with_any_scoring(
    lens: list[tuple[int, int]],
    page_size: int,
    kv_heads: int,
    group: int,
    dim: int,
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
    order: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    step = Step(
        lens,
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        dim=dim,
        order=order,
        dtype=dtype,
        seed=seed,
    )
    step.check(window, softcap, sinks_of(kv_heads * group) if with_sinks else None)


def test_rows_of_no_segment_are_zero() -> None:
    step = Step([(3, 2), (5, 1)])
    q = torch.cat([step.q, step.q])
    made = step.plan()
    got = attend(q, step.k, step.v, made, step.scale)
    want, lse = reference.attend(q, step.k, step.v, made, step.scale)
    assert (got[3:] == 0).all()
    assert (lse[3:] == -torch.inf).all()
    capped = attend(q, step.k, step.v, made, step.scale, softcap=1.0, sinks=sinks_of(4))
    assert (capped[3:] == 0).all()
    torch.testing.assert_close(got.double(), want, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_step_without_tokens_gives_zeros(rows: int) -> None:
    step = Step([(20, 0)])
    q = torch.randn(rows, 4, 16)
    assert torch.equal(attend(q, step.k, step.v, step.plan(), 0.25), torch.zeros_like(q))


def test_a_plan_is_prepared_once_and_serves_every_layer() -> None:
    step = Step(MIXED)
    made = step.plan()
    first = attend(step.q, step.k, step.v, made, step.scale)
    prepared = dict(made.scratch)
    other_k, other_v = step.k * 2, step.v + 1
    got = attend(step.q, other_k, other_v, made, step.scale)
    assert made.scratch == prepared
    want, _ = reference.attend(step.q, other_k, other_v, made, step.scale)
    torch.testing.assert_close(got.double(), want, rtol=3e-6, atol=3e-6)
    assert not torch.equal(first, got)


def test_queries_may_be_a_slice_of_a_wider_buffer() -> None:
    step = Step(MIXED)
    wide = torch.full((len(step.q), 9, 16), torch.nan)
    wide[:, :4] = step.q
    plain = attend(step.q, step.k, step.v, step.plan(), step.scale)
    assert torch.equal(attend(wide[:, :4], step.k, step.v, step.plan(), step.scale), plain)


@DTYPES
def test_how_a_prefix_is_cut_moves_results_by_rounding_only(dtype: torch.dtype) -> None:
    whole = Step([(0, 120)], dtype=dtype)
    at_once = attend(whole.q, whole.k, whole.v, whole.plan(), whole.scale)
    table = whole.segments[0].table
    for cuts in ([0, 1, 2, 120], [0, 16, 17, 33, 120], [*range(121)]):
        pieces = []
        for begin, end in pairwise(cuts):
            made = plan([Segment(0, end - begin, begin, table)], 16)
            pieces.append(attend(whole.q[begin:end], whole.k, whole.v, made, whole.scale))
        bound = TOLERANCE[dtype]
        torch.testing.assert_close(torch.cat(pieces), at_once, rtol=bound, atol=bound)


def test_store_writes_its_slots_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(1)
    k, v = torch.full((4, 3, 2, 8), torch.nan), torch.full((4, 3, 2, 8), torch.nan)
    new = torch.randn(2, 4, 2, 8, generator=generator)
    slots = torch.tensor([11, 3, 4, 0])
    want_k, want_v = k.clone(), v.clone()
    store(new[0], new[1], k, v, slots)
    reference.store(new[0], new[1], want_k, want_v, slots)
    torch.testing.assert_close(k, want_k, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v, want_v, rtol=0, atol=0, equal_nan=True)
    assert int(k.isnan().all(dim=-1).all(dim=-1).sum()) == 12 - len(slots)


def test_merging_parts_without_tokens_gives_zero_and_never_nan() -> None:
    generator = torch.Generator().manual_seed(2)
    o = torch.randn(3, 2, 1, 4, generator=generator)
    lse = torch.tensor([[[1.0], [-torch.inf]], [[-torch.inf]] * 2, [[2.0], [-torch.inf]]])
    o[lse == -torch.inf] = 0
    merged = merge(o, lse)
    w = torch.tensor([1.0, 2.0]).softmax(0)
    torch.testing.assert_close(merged[0], w[0] * o[0, 0] + w[1] * o[2, 0])
    assert (merged[1] == 0).all()
