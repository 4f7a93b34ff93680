"""Plans in which rows share what they read, by counting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat_kernels.grouping import ITEM_COSTS
from radchat_kernels.plan import Limits, Plan, Segment, plan
from tests.kernels.trees import PAGE, limits, seen, steps, wanted

SHARED = Limits(shared=True)
WINDOWS = st.none() | st.integers(1, 40)


@settings(deadline=None, max_examples=400)
@given(steps(), WINDOWS, limits())
def test_each_row_sees_each_of_its_tokens_once(
    segments: list[Segment], window: int | None, wants: Limits
) -> None:
    made = plan(segments, PAGE, window, wants)
    assert sorted(seen(made)) == sorted(wanted(segments, window))
    # and in its own pages, whichever table the item names
    tables = {s.row_begin + i: s.table for s in segments for i in range(s.row_count)}
    for item in made.items:
        pages = slice(item.tok_begin // PAGE, -(-item.tok_end // PAGE))
        assert all(list(tables[r][pages]) == list(item.table[pages]) for r in item.rows)


@settings(deadline=None, max_examples=300)
@given(steps(), WINDOWS, limits())
def test_what_items_promise(segments: list[Segment], window: int | None, wants: Limits) -> None:
    made = plan(segments, PAGE, window, wants)
    for item in made.items:
        rows = list(item.rows)
        assert rows == sorted(set(rows)) != []
        assert isinstance(item.rows, range) == (rows[-1] - rows[0] == len(rows) - 1)
        assert item.tok_begin < item.tok_end
        if item.causal:
            assert len(rows) == item.tok_end - item.tok_begin
            assert [made.positions[r] for r in rows] == list(range(item.tok_begin, item.tok_end))
        if item.grows:
            assert wants.growing
            assert len(rows) == 1
            assert item.tok_end > made.positions[rows[0]] + 1
        elif window is not None:
            assert all(item.tok_end - 1 > made.positions[r] - window for r in rows)
        if window is not None and not item.causal:
            assert any(item.tok_begin > made.positions[r] - window for r in rows)
    if wants.chunk is not None:
        lengths = [item.tok_end - item.tok_begin for item in made.items]
        assert lengths == sorted(lengths, reverse=True)


def tokens_read(made: Plan) -> int:
    """Of K and V, by each row tile of each item; growing ones as far as their row is."""
    wants, read = made.limits, 0
    for item in made.items:
        end = min(item.tok_end, made.positions[item.rows[0]] + 1) if item.grows else item.tok_end
        tiles = -(-len(item.rows) // (wants.wide // wants.group))
        read += max(0, end - item.tok_begin) * (1 if item.causal else tiles)
    return read


@settings(deadline=None, max_examples=200)
@given(steps(), limits(shared=True, fold_below=0, chunk=None))
def test_sharing_never_reads_more(segments: list[Segment], wants: Limits) -> None:
    """With a window a tile can: what one of its rows sees and another doesn't is read for both."""
    alone = plan(segments, PAGE, limits=replace(wants, shared=False))
    assert tokens_read(plan(segments, PAGE, limits=wants)) <= tokens_read(alone)


@settings(deadline=None, max_examples=200)
@given(steps(), st.integers(1, 64), st.integers(1, 4))
def test_folding_never_costs_more_than_it_saves(
    segments: list[Segment], fold_below: int, group: int
) -> None:
    def cost(made: Plan) -> int:
        read = sum(item.tok_end - item.tok_begin for item in made.items)
        partials = sum(len(item.rows) for item in made.items)
        return read + 2 * group * partials + ITEM_COSTS * len(made.items)

    folded = Limits(shared=True, fold_below=fold_below, group=group)
    assert cost(plan(segments, PAGE, limits=folded)) <= cost(plan(segments, PAGE, limits=SHARED))


def items(segments: list[Segment], wants: Limits) -> set[tuple[tuple[int, ...], int, int]]:
    made = plan(segments, PAGE, limits=wants)
    return {(tuple(item.rows), item.tok_begin, item.tok_end) for item in made.items}


def lone(*tables: list[int]) -> list[Segment]:
    """Rows at the end of each table."""
    return [Segment(row, 1, len(t) * PAGE - 1, t) for row, t in enumerate(tables)]


def test_a_run_is_read_once_at_every_depth_and_chains_are_one() -> None:
    trunk, limb = [9, 8, 7], [5, 6]
    step = lone([*trunk, *limb, 1], [*trunk, *limb, 2], [*trunk, 3, 4])
    assert items(step, SHARED) == {
        ((0, 1, 2), 0, 12),
        ((0, 1), 12, 20),
        ((0,), 20, 24),
        ((1,), 20, 24),
        ((2,), 12, 20),
    }


def test_several_roots_are_each_their_own_tree() -> None:
    step = lone([9, 1], [5, 2], [9, 3], [5, 4])
    assert items(step, SHARED) == {
        ((0, 2), 0, 4),
        ((1, 3), 0, 4),
        *(((row,), 4, 8) for row in range(4)),
    }


@pytest.mark.parametrize("at", range(1, 9))
def test_tables_that_agree_again_behind_a_difference_share_only_before_it(at: int) -> None:
    table = list(range(300, 309))
    other = [*table[:at], 9, *table[at + 1 :]]
    step = lone(table, other)
    assert items(step, SHARED) == {((0, 1), 0, 4 * at), ((0,), 4 * at, 36), ((1,), 4 * at, 36)}


def test_a_run_ends_where_one_of_its_rows_does_and_the_others_go_on_together() -> None:
    table = [9, 8, 7]
    step = [Segment(0, 1, 5, table), Segment(1, 1, 9, table), Segment(2, 1, 9, table)]
    assert items(step, SHARED) == {((0, 1, 2), 0, 6), ((1, 2), 6, 10)}


def test_extends_share_their_prefix_with_rows_that_decode() -> None:
    step = [Segment(0, 3, 8, [9, 8, 1]), Segment(3, 1, 9, [9, 8, 2]), Segment(4, 2, 6, [9, 8])]
    assert items(step, SHARED) == {
        ((0, 1, 2, 3, 4, 5), 0, 6),
        ((0, 1, 2, 3), 6, 8),
        ((3,), 8, 10),
        ((0, 1, 2), 8, 11),
        ((4, 5), 6, 8),
    }


def test_a_short_run_is_read_with_each_row_s_own() -> None:
    step = lone([9, 1, 1, 1], [9, 2, 2, 2])
    assert items(step, Limits(shared=True, fold_below=4)) == items(step, SHARED)
    assert items(step, Limits(shared=True, fold_below=5)) == {((0,), 0, 16), ((1,), 0, 16)}


@pytest.mark.parametrize(("pages", "is_shared"), [(3, False), (4, True)])
def test_a_cpu_shares_long_runs_only_however_many_read_them(pages: int, is_shared: bool) -> None:
    """12 tokens against 16; forty rows would pay for either."""
    step = lone(*([*range(9, 9 + pages), 100 + n] for n in range(40)))
    wants = Limits(shared=True, share_from=16)
    assert ((tuple(range(40)), 0, 4 * pages) in items(step, wants)) is is_shared
    assert len(items(step, wants)) == 40 + is_shared


def test_many_branches_keep_a_run_that_two_would_fold() -> None:
    few, many = (lone(*([9, 10, 11, 1 + n, 1] for n in range(count))) for count in (2, 40))
    wants = Limits(shared=True, fold_below=32)
    assert ((0, 1), 0, 12) not in items(few, wants)
    assert (tuple(range(40)), 0, 12) in items(many, wants)


def test_a_short_run_between_two_levels_goes_to_the_lower_one_s_rows_together() -> None:
    trunk = list(range(10, 30))
    limb = [*trunk, 1, *range(40, 60)]
    step = lone([*limb, 2], [*limb, 3], [*trunk, 1, 4], [*trunk, 5])
    wants = Limits(shared=True, fold_below=8)
    assert ((0, 1), 80, 164) in items(step, wants)
    assert ((2,), 80, 88) in items(step, wants)


def test_chunks_nobody_sees_are_not_there_and_rows_that_see_none_are_not_in_them() -> None:
    table = list(range(300, 400))
    step = [Segment(0, 1, 390, table), Segment(1, 1, 210, table)]
    wants = Limits(shared=True, chunk=(16, 16), block_tokens=16)
    made = plan(step, PAGE, 100, wants)
    assert min(item.tok_begin for item in made.items) == 111
    assert all(item.tok_end <= 211 or list(item.rows) == [0] for item in made.items)
    assert not any(0 in item.rows for item in made.items if item.tok_end <= 291)


def test_rows_that_end_in_a_folded_run_read_no_more_of_it_than_they_see() -> None:
    step = [Segment(0, 2, 4, [8, 1]), Segment(2, 1, 3, [8, 2])]
    made = plan(step, PAGE, 2, Limits(shared=True, fold_below=3, group=2, growing=True))
    assert {(tuple(i.rows), i.tok_begin, i.tok_end) for i in made.items if not i.causal} == {
        ((0,), 3, 4),
        ((2,), 2, 8),
    }


def test_chunks_are_as_long_as_the_design_says() -> None:
    """docs/adr/0021: 8 KV heads of 4 query heads, 8,448 tokens, 264 programs at once."""
    wants = Limits(
        shared=True,
        fold_below=32,
        chunk=(128, 2048),
        narrow=16,
        wide=64,
        group=4,
        num_kv_heads=8,
        programs=264,
    )
    longest = {}
    for branches in (1, 32, 64):
        shared = range(1000, 1512)
        step = [
            Segment(row, 1, 8447, [*shared, *range(2000 + 16 * row, 2016 + 16 * row)])
            for row in range(branches)
        ]
        made = plan(step, 16, limits=wants)
        longest[branches] = made.items[0].tok_end - made.items[0].tok_begin
    assert longest == {1: 256, 32: 512, 64: 1024}
