"""What benchmarks/programs.py takes away of the engine, counted: the simulation's engine, small."""

from __future__ import annotations

import pytest

from benchmarks.program_runs import NO_CACHE, PARTS, WHOLE, Run, Side, run
from benchmarks.scheduling import MEASURED
from benchmarks.simulator import Simulation
from benchmarks.workloads import WORKLOADS

SCALE = 10
NO_TREE, NO_HINT, NO_PARALLEL = PARTS


def ran(name: str, side: Side, count: int = 1) -> Run:
    engine = Simulation(50_000, MEASURED, side.options).engine
    return run(engine, WORKLOADS[name](0, count=count, scale=SCALE), side)


@pytest.mark.parametrize(
    ("name", "once", "own", "outputs"),
    [
        ("few-shot", 100, 20 * 4, 20 * 2),  # a header; each question's tokens; 2 of 4 / 10 out
        ("self-consistency", 100, 16 - 1, 16 * 4),  # every sample runs the last token by itself
        ("tree of thought", 60, (3 - 1) + 15 + 75, 93 * 4),
        ("multi-turn", 15, 9 * (15 + 1), 10 * 2),  # an answer's last token has no KV yet
    ],
)
def test_what_is_shared_is_computed_once_and_without_a_cache_each_time(
    name: str, once: int, own: int, outputs: int
) -> None:
    whole, none = ran(name, WHOLE), ran(name, NO_CACHE)
    assert whole.computed == once + own
    assert none.computed == none.input == whole.input
    assert whole.output == none.output == outputs
    assert whole.steps <= none.steps


def test_a_table_of_whole_sequences_finds_what_goes_on_but_not_a_common_header() -> None:
    for name in ("self-consistency", "tree of thought", "multi-turn"):
        assert ran(name, NO_TREE).computed == ran(name, WHOLE).computed
    assert ran("few-shot", NO_TREE).computed == ran("few-shot", NO_TREE).input


def test_who_does_not_wait_for_what_is_being_computed_computes_it_too() -> None:
    assert ran("few-shot", NO_HINT).computed == 20 * (100 + 4)


def test_one_branch_after_the_other_computes_no_more_in_many_more_steps() -> None:
    alone, whole = ran("tree of thought", NO_PARALLEL), ran("tree of thought", WHOLE)
    assert alone.computed == whole.computed
    assert alone.steps == 93 * 4
    assert whole.steps <= 20
