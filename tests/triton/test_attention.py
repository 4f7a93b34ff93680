"""K1 and K2 against the float64 reference, row by row, with traps beside every buffer."""

from __future__ import annotations

import pytest

from tests.triton.guarded import Launches
from tests.triton.steps import Step


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
