"""When the last plan is still true, and when it is not."""

from __future__ import annotations

import pytest

from radchat_kernels.plan import Limits, Plan, Segment, plan
from radchat_kernels.planner import Planner

PAGE = 4
GROWING = Limits(shared=True, growing=True)
TRUNK = [9, 8, 7]


def rows(
    *starts: int, tables: tuple[list[int], ...] = ([*TRUNK, 1, 2], [*TRUNK, 3, 4])
) -> list[Segment]:
    return [Segment(r, 1, s, list(t)) for r, (s, t) in enumerate(zip(starts, tables, strict=False))]


def made_from(*starts: int) -> tuple[Planner, Plan]:
    planner = Planner(GROWING, PAGE)
    return planner, planner.plan(rows(*starts))


def test_a_plan_serves_until_a_row_leaves_its_pages() -> None:
    planner, first = made_from(12, 13)
    for step in range(7):
        assert planner.plan(rows(12 + step, 13 + step)) is first
    assert planner.plans_made == 1
    longer = rows(19, 20, tables=([*TRUNK, 1, 2], [*TRUNK, 3, 4, 5]))
    assert planner.plan(longer) is not first
    assert planner.plan(longer).items == plan(longer, PAGE, limits=GROWING).items
    assert planner.plans_made == 2


def test_pages_in_reserve_that_come_later_change_nothing() -> None:
    planner, first = made_from(12, 13)
    assert planner.plan(rows(14, 15, tables=([*TRUNK, 1, 2, 6], [*TRUNK, 3, 4, 5]))) is first


@pytest.mark.parametrize(
    "later",
    [
        rows(12, 13, tables=([*TRUNK, 1, 2], [9, 6, 7, 3, 4])),  # a page in the middle re-pointed
        rows(12, 13, tables=([*TRUNK, 1, 6], [*TRUNK, 3, 4])),  # one in reserve
        rows(12, 13, tables=([*TRUNK, 1, 2], [*TRUNK, 3])),  # one given back
        rows(11, 13),  # a row that stepped back
        rows(12),  # a row that left
        rows(12, 13, 12, tables=([*TRUNK, 1, 2], [*TRUNK, 3, 4], [5, 6, 7, 8])),  # one that came
        [Segment(1, 1, 12, [*TRUNK, 1, 2]), Segment(0, 1, 13, [*TRUNK, 3, 4])],  # in other rows
        [Segment(0, 2, 12, [*TRUNK, 1, 2]), Segment(2, 1, 13, [*TRUNK, 3, 4])],  # an extend
    ],
)
def test_anything_else_makes_another(later: list[Segment]) -> None:
    planner, first = made_from(12, 13)
    second = planner.plan(later)
    assert second is not first
    assert second.items == plan(later, PAGE, limits=GROWING).items


def test_a_table_changed_in_place_is_noticed_and_does_not_change_the_plan_made() -> None:
    planner = Planner(GROWING, PAGE)
    step = rows(12, 13)
    first = planner.plan(step)
    before = [list(item.table) for item in first.items]
    table = step[1].table
    assert isinstance(table, list)
    table[1] = 6
    second = planner.plan(step)
    assert second is not first
    assert [list(item.table) for item in first.items] == before
    assert second.items == plan(step, PAGE, limits=GROWING).items


def test_extends_and_plans_that_do_not_grow_are_made_every_time() -> None:
    planner, step = Planner(GROWING, PAGE), [Segment(0, 3, 4, TRUNK)]
    assert planner.plan(step) is not planner.plan(step)
    planner = Planner(Limits(), PAGE)
    assert planner.plan(rows(12)) is not planner.plan(rows(12))
    assert planner.plans_made == 2
