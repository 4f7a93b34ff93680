"""The planner alone: what the items cover, by counting, with no tensor in sight."""

from __future__ import annotations

import pytest

from radchat_kernels.plan import Item, Segment, plan
from tests.kernels.trees import seen, wanted


@pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 16, 100])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 33])
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 40])
def test_each_row_sees_each_of_its_tokens_once(start: int, count: int, window: int | None) -> None:
    segments = [
        Segment(0, count, start, range(100)),
        Segment(count, 1, 7, range(1)),
        Segment(count + 1, 3, 2, range(1)),
    ]
    made = plan(segments, 16, window)
    assert sorted(seen(made)) == sorted(wanted(segments, window))


@pytest.mark.parametrize("window", [None, 1, 2, 5, 16])
def test_no_item_is_empty_and_no_row_of_an_item_is_blind(window: int | None) -> None:
    segments = [Segment(0, 40, 0, range(9)), Segment(40, 40, 17, range(9))]
    made = plan(segments, 16, window)
    for item in made.items:
        assert len(item.rows) > 0
        assert item.tok_begin < item.tok_end
        if item.causal:
            assert len(item.rows) == item.tok_end - item.tok_begin
        if item.windowed:
            assert window is not None
            assert item.tok_end - 1 > made.positions[item.rows[-1]] - window


def test_an_extend_is_its_prefix_and_its_own_causal_part() -> None:
    table = [5, 6, 9]
    made = plan([Segment(2, 20, 17, table)], 16)
    assert made.items == (
        Item(range(2, 22), 0, 17, table),
        Item(range(2, 22), 17, 37, table, causal=True),
    )
    assert made.num_rows == 22


def test_a_decode_row_is_one_plain_item() -> None:
    assert plan([Segment(3, 1, 17, [5, 6])], 16).items == (Item(range(3, 4), 0, 18, [5, 6]),)


def test_a_segment_without_rows_asks_for_nothing() -> None:
    made = plan([Segment(0, 0, 17, [1, 2])], 16)
    assert made.items == ()
    assert made.num_rows == 0


def test_a_table_too_short_for_its_tokens_is_caught() -> None:
    with pytest.raises(AssertionError, match="short table"):
        plan([Segment(0, 17, 0, [1])], 16)


def test_two_segments_cannot_claim_one_row() -> None:
    with pytest.raises(AssertionError, match="claim a row"):
        plan([Segment(0, 3, 0, [1]), Segment(2, 1, 0, [2])], 16)


def test_the_windowed_plan_is_made_once_and_the_same_window_is_the_plan_itself() -> None:
    made = plan([Segment(0, 20, 17, range(9))], 16)
    assert made.windowed(None) is made
    assert made.windowed(5) is made.windowed(5)
    assert made.windowed(5).items == plan(made.segments, 16, 5).items
