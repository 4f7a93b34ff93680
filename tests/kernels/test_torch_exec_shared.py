"""The torch executor on plans that share, split and grow: the answers of the plan per sequence."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat_kernels import attend, plan, reference
from radchat_kernels.plan import Limits, Plan, Segment
from radchat_kernels.torch_prepare import PADDED_MAX_TOKENS
from tests.kernels.trees import PAGE, limits, steps, wanted

EVERYTHING = Limits(shared=True, fold_below=3, chunk=(32, 64), block_tokens=16, growing=True)


def pool_of(segments: list[Segment], window: int | None, page: int) -> tuple[torch.Tensor, ...]:
    """Queries, K and V; slots that no row sees are NaN."""
    generator = torch.Generator().manual_seed(len(segments))
    num_pages = 1 + max(max(s.table) for s in segments)
    tables = {s.row_begin + i: s.table for s in segments for i in range(s.row_count)}
    kv = torch.full((2, num_pages, page, 2, 8), torch.nan, dtype=torch.float64)
    slots = {(tables[row][t // page], t % page) for row, t in wanted(segments, window)}
    for at, slot in sorted(slots):
        kv[:, at, slot] = torch.randn(2, 2, 8, generator=generator, dtype=torch.float64)
    q = torch.randn(len(tables) + 1, 4, 8, generator=generator, dtype=torch.float64)
    return q, kv[0], kv[1]


@settings(deadline=None, max_examples=150)
@given(
    steps(),
    st.none() | st.integers(1, 40),
    limits(),
    st.sampled_from([None, 1.5]),
    st.booleans(),
)
def test_however_the_work_is_cut_the_answer_is_the_reference_s(
    segments: list[Segment],
    window: int | None,
    wants: Limits,
    softcap: float | None,
    with_sinks: bool,
) -> None:
    q, k, v = pool_of(segments, window, PAGE)
    sinks = torch.linspace(-3, 2, 4) if with_sinks else None
    alone = plan(segments, PAGE, window)
    want, _ = reference.attend(q, k, v, alone, 0.35, softcap=softcap, sinks=sinks)
    for made in (alone, plan(segments, PAGE, window, wants)):
        got = attend(q, k, v, made, 0.35, softcap=softcap, sinks=sinks)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def long_step() -> list[Segment]:
    """Two trees whose rows don't lie side by side, runs of neighbouring pages, an extend."""
    long = [*range(2, 40)], [*range(60, 98)]
    tables = [[*long[n % 2], 100 + 3 * n, 101 + 3 * n] for n in range(6)]
    step = [Segment(n, 1, 16 * 39 + 3 + n, table) for n, table in enumerate(tables)]
    return [*step, Segment(6, 9, 16 * 38, [*long[1], 120]), Segment(15, 1, 7, [130])]


def both(made: Plan, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = pool_of(long_step(), window, 16)
    return attend(q, k, v, made, 0.3), reference.attend(q, k, v, made, 0.3)[0]


def test_long_runs_of_scattered_rows() -> None:
    assert PADDED_MAX_TOKENS < 16 * 38
    for window in (None, 1, 17, 400):
        for wants in (Limits(shared=True), EVERYTHING):
            got, want = both(plan(long_step(), 16, window, wants), window)
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_shared_run_is_one_call_for_all_its_rows() -> None:
    made = plan(long_step(), 16, limits=Limits(shared=True))
    assert sorted(len(i.rows) for i in made.items if i.tok_begin == 0) == [1, 3, 12]
