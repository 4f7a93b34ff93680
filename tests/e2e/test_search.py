"""Searches over the real stack, by a model that knows a tree of thoughts (tests/thinking.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from radchat.programs.search.asks import DaemonAsks
from radchat.programs.search.listener import Silent
from radchat.programs.search.settings import Search
from radchat.programs.search.think import Outcome, think
from radchat.programs.search.tree import Thought
from tests import thinking
from tests.e2e.hooked import Hooked
from tests.programs.fake_asks import Path as Place
from tests.programs.fake_asks import Table
from tests.programs.search_reference import Reference


class Seen(Silent):
    """What a person was shown."""

    def __init__(self) -> None:
        self.thoughts: dict[str, Thought] = {}  # by message
        self.levels: list[list[Place]] = []
        self.notes: list[str] = []
        self.freed = 0

    def wave(self, thoughts: Sequence[Thought], what: Literal["grow", "judge"]) -> None:
        if what == "grow":
            self.levels.append([place(thought) for thought in thoughts])

    def grown(self, thoughts: Sequence[Thought]) -> None:
        self.thoughts |= {str(thought.message): thought for thought in thoughts}

    def pruned(self, thoughts: Sequence[Thought], freed_tokens: int) -> None:
        self.freed += freed_tokens


class Known(Table):
    """The table that the script is, for what was drawn from it."""

    def __init__(self, root: Thought) -> None:
        super().__init__(0)
        self.said = {place(each): each.text for each in root.walk()}

    def texts(self, path: Place) -> tuple[str, ...]:
        return tuple(self.said[path[: end + 1]] for end in range(len(path)))

    def word(self, path: Place) -> str:
        """One that says the same as another before it is not in the tree: it may be any."""
        return self.said.get(path) or self.said[*path[:-1], 1]

    def values(self, path: Place, n: int) -> list[str]:
        return [thinking.rating(self.texts(path))] * n

    def votes(self, parent: Place, n: int, candidates: int) -> list[int]:
        del candidates
        children = [each for each in self.said if each[:-1] == parent and each]
        words = [self.said[each] for each in children]
        return [1 + thinking.vote(self.texts(parent), words)] * n

    def logprob(self, path: Place, word: str) -> float:
        return thinking.logprob(self.texts(path), word) / (len(word) + self.ends)

    ends = True  # an answer's end is one of its tokens


def place(thought: Thought) -> Place:
    return tuple(int(part) for part in thought.name.split(".")[1:])


@pytest.fixture
def model(hooked: Hooked) -> Hooked:
    hooked.answers_by("tests.thinking:says")
    return hooked


def searched(
    model: Hooked, search: Search, problem: str, **asked: Any
) -> tuple[Outcome, Seen, dict[str, Any]]:
    """In a new session, unless something else is asked."""
    seen = Seen()
    where = {"where": model.where, "exact": True, "new_session": True, **asked}
    asks = DaemonAsks.open(
        model.client(), where, on_notice=seen.notes.append, on_wait=lambda _text: None
    )
    try:
        return think(problem, search, thinking.task, asks, listener=seen), seen, dict(asks.opened)
    finally:
        asks.close()


SEARCHES = [
    Search("bfs", "sample", "value", branch=4, n_eval=2),
    Search("bfs", "propose", "vote", beam=3),
    Search("bfs", "sample", "logprob", "sample", branch=4),
    Search("beam", "propose", "value", "sample", depth=4),
    Search("beam", "sample", "vote", depth=4, n_eval=1),
    Search("beam", "propose", "logprob"),
    Search("dfs", "sample", "value", stop_score=7.5, n_eval=1),
    Search("dfs", "propose", "vote", depth=2, n_eval=1),
    Search("dfs", "propose", "logprob", depth=2),
]


def test_each_method_visits_keeps_and_prunes_what_the_models_scores_demand(
    model: Hooked,
) -> None:
    for number, how in enumerate(SEARCHES):
        search = replace(how, temperature=1.0, thought_tokens=24, seed=number)
        outcome, seen, opened = searched(model, search, f"problem {number}")
        known = Known(outcome.root)
        known.ends = search.generate == "sample"
        wanted = Reference(known, search).run()
        thoughts = {place(each): each for each in outcome.root.walk() if each.parent}
        assert [place(each) for each in outcome.visited] == wanted.visited
        assert seen.levels == wanted.levels
        scores = {path: each.score for path, each in thoughts.items() if each.score is not None}
        assert scores == pytest.approx(wanted.scores, rel=1e-4)
        pruned = {path for path, each in thoughts.items() if each.status == "pruned"}
        assert (place(outcome.best), outcome.reason, pruned) == (
            wanted.best,
            wanted.reason,
            wanted.pruned,
        )
        kv_is_of_what_lives(model, search, seen, opened["session"])
    model.home.assert_balanced()


def kv_is_of_what_lives(model: Hooked, search: Search, seen: Seen, session: str) -> None:
    """What `tree --show-cache` shows of the thoughts: their scores, and where their KV is. Of one
    that is pruned no more is on the device than it has in common with one that is not; of one that
    was only proposed and voted on, nothing has been computed yet.
    """
    is_computed = search.generate == "sample" or search.evaluate != "vote"
    told = model.client().call("tree", where=model.where, session=session, show_cache=True)
    rows = {row["id"]: row for row in told["messages"]}
    for message, thought in seen.thoughts.items():
        row, on_device = rows[message], rows[message]["cached"]["device"]
        assert row["thought"] == thought.name
        assert row["score"] == pytest.approx(thought.score, rel=1e-3)
        assert thought.parent is not None
        if thought.status in ("pruned", "dead"):
            others = [each for each in thought.parent.children if each.status in ("live", "best")]
            shared = (in_common(thought.text, each.text) for each in others)
            assert on_device <= max(shared, default=0), thought
        elif is_computed or thought.children:  # of a leaf, the last id has been run if it is judged
            assert row["tokens"] - (not thought.children) <= on_device <= row["tokens"], thought


def in_common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
