"""The page allocator: owners counted, free pages kept as maximal runs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.engine.pages import PageAllocator


def with_free(num_pages: int, *runs: range) -> PageAllocator:
    """An allocator in which only these runs are free."""
    pages = PageAllocator(num_pages)
    pages.take(pages.free)
    for run in runs:
        pages.release(run)
    return pages


def test_page_zero_is_never_handed_out() -> None:
    pages = PageAllocator(8)
    assert pages.free == 7
    assert sorted(pages.take(7)) == [1, 2, 3, 4, 5, 6, 7]


def test_more_than_is_free_cannot_be_taken() -> None:
    with pytest.raises(AssertionError, match="5 pages wanted, 3 free"):
        PageAllocator(4).take(5)


def test_the_pages_behind_a_page_come_first() -> None:
    pages = with_free(64, range(2, 5), range(20, 23), range(40, 60))
    assert pages.take(2, after=19) == [20, 21]


def test_what_does_not_fit_behind_it_comes_from_one_other_run() -> None:
    pages = with_free(64, range(2, 6), range(20, 22), range(40, 60))
    assert pages.take(6, after=19) == [20, 21, 2, 3, 4, 5]


def test_one_run_is_preferred_to_many() -> None:
    pages = with_free(64, range(2, 4), range(6, 8), range(30, 40), range(50, 52))
    assert pages.take(7) == list(range(30, 37))


def test_a_short_run_that_fits_is_preferred_to_cutting_a_long_one() -> None:
    pages = with_free(64, range(2, 5), range(30, 60))
    assert pages.take(3) == [2, 3, 4]


def test_few_runs_are_taken_where_none_is_long_enough() -> None:
    pages = with_free(64, range(2, 3), range(10, 14), range(20, 24), range(30, 31))
    assert set(pages.take(8)) == {*range(10, 14), *range(20, 24)}


def test_neighbours_are_joined_when_released() -> None:
    pages = PageAllocator(16)
    taken = pages.take(15)
    for page in (3, 5, 4, 2, 15, 1):
        assert pages.release([page]) == 1
    assert pages.free_runs() == [(1, 6), (15, 16)]
    pages.check(Counter(p for p in taken if p not in {1, 2, 3, 4, 5, 15}))


def test_a_page_is_free_when_its_last_owner_lets_go() -> None:
    pages = PageAllocator(4)
    (page,) = pages.take(1)
    pages.add_owner(page)
    pages.add_owner(page)
    assert [pages.release([page]) for _ in range(3)] == [0, 0, 1]
    assert pages.free == 3


def test_only_the_unshared_pages_of_a_list_become_free() -> None:
    pages = PageAllocator(10)
    taken = pages.take(6)
    pages.add_owner(taken[2])
    assert pages.release(taken) == 5
    pages.check({taken[2]: 1})


def test_check_sees_a_page_that_nobody_owns() -> None:
    pages = PageAllocator(4)
    pages.take(1)
    with pytest.raises(AssertionError, match="free pages"):
        pages.check({})


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    num_pages=st.integers(2, 40),
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40), st.integers(0, 12))),
)
def test_any_sequence_of_takes_and_releases_agrees_with_a_recount(
    num_pages: int, steps: list[tuple[int, int, int]]
) -> None:
    pages = PageAllocator(num_pages)
    owners: Counter[int] = Counter()
    for take, after, release in steps:
        taken = pages.take(min(take, pages.free), after)
        assert len(set(taken)) == len(taken)
        assert not owners.keys() & set(taken)
        owners.update(taken)
        for page in taken[::3]:
            pages.add_owner(page)
            owners[page] += 1
        given_back = sorted(owners)[:release][::-1]
        num_free = pages.free + sum(owners[page] == 1 for page in given_back)
        pages.release(given_back)
        owners = +(owners - Counter(given_back))
        assert pages.free == num_free
        pages.check(owners)
