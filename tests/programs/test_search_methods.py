"""The methods, equal to a small reference of each on random tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.programs.search.listener import Silent
from radchat.programs.search.settings import Search
from radchat.programs.search.think import Outcome, think
from radchat.programs.search.tree import Thought
from tests.programs.fake_asks import PROBLEM, FakeAsks, Path, Session, Table
from tests.programs.search_reference import Reference


class Waves(Silent):
    """What was grown from, at once."""

    def __init__(self) -> None:
        self.levels: list[list[Path]] = []

    def wave(self, thoughts: Sequence[Thought], what: Literal["grow", "judge"]) -> None:
        if what == "grow":
            self.levels.append([path_of(thought) for thought in thoughts])


def path_of(thought: Thought) -> Path:
    return tuple(int(part) for part in thought.place.split(".") if part)


def a_table(seed: int) -> Table:
    draw = random.Random(seed)
    dead, solved = draw.choice([0.0, 0.1, 0.4]), draw.choice([0.0, 0.0, 0.03, 0.2])
    return Table(seed, num_words=draw.choice([2, 4, 100]), dead=dead, solved=solved)


def a_search(seed: int) -> Search:
    draw = random.Random(seed)
    return Search(
        method=draw.choice(["bfs", "dfs", "beam"]),
        generate=draw.choice(["sample", "propose"]),
        evaluate=draw.choice(["value", "vote", "logprob"]),
        select=draw.choice(["greedy", "sample"]),
        branch=draw.randint(1, 4),
        depth=draw.choice([1, 2, 3, 3, 4]),
        beam=draw.randint(1, 4),
        n_eval=draw.randint(1, 4),
        stop_score=draw.choice([None, None, 0.6, 4.0, 6.0]),
        seed=draw.randint(0, 5),
        thought_tokens=20,
    )


# from a number each: examples of hypothesis's own are small, and of a tree that is its root
tables = st.integers(0, 2**32).map(a_table)
searches = st.integers(0, 2**32).map(a_search)


def run(table: Table, search: Search, **how: Any) -> tuple[Outcome, FakeAsks]:
    asks = FakeAsks(Session(), table)
    return think(PROBLEM, search, table.task(), asks, **how), asks


@settings(max_examples=300, deadline=None, derandomize=True)
@given(tables, searches)
def test_a_search_is_the_reference(table: Table, search: Search) -> None:
    waves = Waves()
    outcome, asks = run(table, search, listener=waves)
    wanted = Reference(table, search).run()
    thoughts = {path_of(each): each for each in outcome.root.walk() if each.parent is not None}

    assert [path_of(thought) for thought in outcome.visited] == wanted.visited
    assert waves.levels == wanted.levels
    assert {path: thought.text for path, thought in thoughts.items()} == wanted.words
    judged = {path: each.score for path, each in thoughts.items() if each.score is not None}
    assert judged == pytest.approx(wanted.scores)
    by_status = {
        status: {path for path, each in thoughts.items() if each.status == status}
        for status in ("pruned", "dead", "live")
    }
    assert by_status["pruned"] == wanted.pruned
    assert by_status["dead"] == wanted.dead
    best = {wanted.best[: i + 1] for i in range(len(wanted.best))}
    assert by_status["live"] == set(wanted.alive) - best
    assert path_of(outcome.best) == wanted.best
    assert outcome.reason == wanted.reason

    gone = [each for each in thoughts.values() if each.status in ("pruned", "dead")]
    messages = [str(each.message) for each in gone] + [m for each in gone for m in each.doubles]
    assert sorted(asks.released) == sorted(messages)
    assert asks.session.labels.keys() >= {each.message for each in thoughts.values()}
    for thought in thoughts.values():
        assert asks.session.labels[str(thought.message)] == thought.mark
    assert outcome.spent == asks.session.num_tokens
    assert outcome.spent == sum(each.tokens + each.side_tokens for each in outcome.root.walk())
    assert outcome.usage == {"output_tokens": outcome.spent}
