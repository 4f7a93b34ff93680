"""The packed work list, read word by word as the kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat_kernels.pack import ITEM_WORDS, WorkList, pack
from radchat_kernels.plan import Limits, Plan, Segment, plan
from radchat_kernels.planner import Planner
from tests.kernels import trees
from tests.kernels.trees import PAGE, limits, steps

NARROW_TILES = Limits(chunk=(4, 16), block_tokens=4, narrow=2, wide=4, group=2, programs=3)
GROWING = Limits(chunk=(4, 8), block_tokens=2, narrow=4, wide=6, group=1, programs=2, growing=True)


def part(work: WorkList, name: str) -> Sequence[int]:
    begin, length = work.offsets[name]
    assert begin % 4 == 0
    assert begin + length <= len(work.data)
    return work.data[begin : begin + length]


def tiles(work: WorkList) -> list[Sequence[int]]:
    words = part(work, "items")
    (live,) = part(work, "n_items")
    assert live == work.num_items == len(words) // ITEM_WORDS
    return [words[at : at + ITEM_WORDS] for at in range(0, len(words), ITEM_WORDS)]


def read(work: WorkList, made: Plan, positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Every (row, page, slot) that the attention kernel's programs read, rows at ``positions``."""
    rows, pages = part(work, "rows"), part(work, "pages")
    seen = []
    for row_begin, row_count, page_begin, tok_begin, tok_end, pos0, _, dyn_row in tiles(work):
        end = tok_end if dyn_row < 0 else min(tok_end, positions[dyn_row] + 1 - pos0)
        for row in rows[row_begin : row_begin + row_count]:
            for t in range(tok_begin, end):
                # work.causal compiles this mask in, for all items
                if work.causal and pos0 + t > positions[row]:
                    continue
                if made.window is not None and pos0 + t <= positions[row] - made.window:
                    continue
                seen.append((row, pages[page_begin + t // PAGE], t % PAGE))
    return seen


def wanted(segments: Sequence[Segment], window: int | None) -> list[tuple[int, int, int]]:
    tables = {s.row_begin + i: s.table for s in segments for i in range(s.row_count)}
    return [(r, tables[r][t // PAGE], t % PAGE) for r, t in trees.wanted(segments, window)]


def check_parts(work: WorkList, made: Plan, *, direct: bool) -> None:
    """Each row's parts are listed once, in slots of their own; the rest is written directly."""
    rows, indptr = part(work, "rows"), part(work, "part_indptr")
    slots = part(work, "part_slots")
    assert len(indptr) == work.num_rows + 1
    assert indptr[0] == 0
    assert indptr[-1] == len(slots) == work.num_slots
    assert sorted(slots) == list(range(work.num_slots))
    owner = {s: r for r, (a, b) in enumerate(pairwise(indptr)) for s in slots[a:b]}
    written: dict[int, int] = {}
    only: list[int] = []
    for row_begin, row_count, _, _, _, _, part_begin, _ in tiles(work):
        for i, row in enumerate(rows[row_begin : row_begin + row_count]):
            if part_begin < 0:
                only.append(row)
            else:
                assert part_begin + i not in written
                written[part_begin + i] = row
    assert written == owner
    assert len(only) == len(set(only))
    assert not set(only) & set(written.values())
    assert direct or not only
    covered = set(only) | set(written.values())
    assert work.covers_all == (covered == set(range(work.num_rows)))
    if direct:  # a row with one part waits for the merge only beside a row with more
        beside = {row for row in written.values() if indptr[row + 1] - indptr[row] == 1}
        for row_begin, row_count, *_ in tiles(work):
            tile = rows[row_begin : row_begin + row_count]
            if all(row in beside for row in tile):
                raise AssertionError(f"rows {list(tile)} could be written directly")
    assert {row for item in made.items for row in item.rows} == covered


def check_tiles(work: WorkList, limits: Limits) -> None:
    widths = [row_count * limits.group for _, row_count, *_ in tiles(work)]
    assert all(0 < width <= max(limits.narrow, limits.wide) for width in widths)
    assert work.most_rows == max(widths, default=0)
    assert work.has_narrow == any(width <= limits.narrow for width in widths)
    assert work.has_wide == any(width > limits.narrow for width in widths)


def tables(lens: Sequence[tuple[int, int]], more: int = 0) -> list[Segment]:
    """Segments on tables of their own pages, with ``more`` pages in reserve."""
    made: list[Segment] = []
    page = row = 0
    for start, count in lens:
        pages = -(-(start + count) // PAGE) + more
        made.append(Segment(row, count, start, list(range(page, page + pages))))
        page, row = page + pages, row + count
    return made


def check(
    segments: Sequence[Segment], window: int | None, limits: Limits, *, direct: bool = True
) -> WorkList:
    made = plan(segments, PAGE, window, limits)
    work = pack(made, made.num_rows + 1, direct=direct)
    assert sorted(read(work, made, made.positions)) == sorted(wanted(segments, window))
    check_parts(work, made, direct=direct)
    check_tiles(work, limits)
    return work


@settings(deadline=None, max_examples=300)
@given(steps(), st.none() | st.integers(1, 40), limits(), st.booleans())
def test_the_words_say_what_each_row_sees(
    segments: list[Segment], window: int | None, wants: Limits, direct: bool
) -> None:
    check(segments, window, wants, direct=direct)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.none() | st.integers(1, 40), limits(growing=True))
def test_a_kept_plan_s_words_are_true_at_every_later_step(
    data: st.DataObject, window: int | None, wants: Limits
) -> None:
    segments = data.draw(steps(lone=True, most=5))
    planner = Planner(wants, PAGE)
    kept = planner.plan(segments)
    made = kept.windowed(window)
    work = pack(made, made.num_rows)
    for _ in range(6):
        room = [len(s.table) * PAGE - 1 - s.start for s in segments]
        ahead = [data.draw(st.integers(0, min(left, 9))) for left in room]
        segments = [
            Segment(s.row_begin, 1, s.start + n, s.table)
            for s, n in zip(segments, ahead, strict=True)
        ]
        assert planner.plan(segments) is kept
        assert made.num_tokens > max(s.start for s in segments)
        positions = [s.start for s in sorted(segments, key=lambda s: s.row_begin)]
        assert sorted(read(work, made, positions)) == sorted(wanted(segments, window))


@pytest.mark.parametrize("window", [None, 1, 5, 9])
@pytest.mark.parametrize("start", [0, 1, 7, 13])
def test_a_growing_row_s_list_is_true_until_its_table_is_full(
    start: int, window: int | None
) -> None:
    segments = tables([(start, 1), (5, 1)], more=3)
    made = plan(segments, PAGE, window, GROWING)
    work = pack(made, 2)
    for ahead in range(len(segments[0].table) * PAGE - start):
        position = start + ahead
        later = [Segment(0, 1, position, segments[0].table), segments[1]]
        assert sorted(read(work, made, [position, 5])) == sorted(wanted(later, window))
    assert made.num_tokens >= len(segments[0].table) * PAGE


def test_a_wide_item_is_cut_into_tiles_side_by_side_that_share_their_pages() -> None:
    made = plan([Segment(0, 5, 8, range(10, 20))], PAGE, limits=NARROW_TILES)
    work = pack(made, 5)
    lists = [tuple(words) for words in tiles(work)]
    assert [words[:6] for words in lists] == [
        (0, 2, 0, 0, 8, 0),
        (2, 2, 0, 0, 8, 0),
        (4, 1, 0, 0, 8, 0),
        (0, 2, 2, 0, 2, 8),  # causal: each tile ends at its last row
        (2, 2, 2, 0, 4, 8),
        (4, 1, 2, 0, 5, 8),
    ]
    assert list(part(work, "pages")) == [10, 11, 12, 13]


def test_with_a_window_a_tile_begins_where_one_of_its_rows_sees() -> None:
    made = plan([Segment(0, 4, 20, range(10, 20))], PAGE, 9, NARROW_TILES)
    work = pack(made, 4)
    firsts = [
        (row_begin, pos0 + tok_begin)
        for row_begin, _, _, tok_begin, _, pos0, _, _ in tiles(work)
        if pos0 < 20
    ]
    assert firsts == [(0, 12), (2, 14)]


def test_a_lone_row_in_one_item_writes_its_output_itself_unless_told_not_to() -> None:
    made = plan(tables([(6, 1)]), PAGE)
    assert pack(made, 1).num_slots == 0
    assert pack(made, 1, direct=False).num_slots == 1


def test_nothing_to_do_is_a_list_of_no_items() -> None:
    work = pack(plan([Segment(0, 0, 3, [1])], PAGE), 0)
    assert (work.num_items, work.num_slots, work.most_rows) == (0, 0, 0)
    assert work.covers_all
    assert list(part(work, "part_indptr")) == [0]


def test_a_tile_too_small_for_a_group_is_refused() -> None:
    with pytest.raises(AssertionError, match="query heads"):
        pack(plan(tables([(6, 1)]), PAGE, limits=Limits(narrow=2, group=3)), 1)
