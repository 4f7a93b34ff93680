"""Searches over the real stack, by a model that knows a tree of thoughts (tests/thinking.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from radchat.errors import Unreachable
from radchat.programs.search.asks import DaemonAsks
from radchat.programs.search.listener import Silent
from radchat.programs.search.settings import Search
from radchat.programs.search.think import Outcome, think
from radchat.programs.search.tree import Thought
from tests import thinking
from tests.e2e.homes import Shell
from tests.e2e.hooked import Hooked
from tests.programs.fake_asks import Path as Place
from tests.programs.fake_asks import Table
from tests.programs.search_reference import Reference
from tests.waiting import wait_until


class Seen(Silent):
    """What a person was shown."""

    def __init__(self) -> None:
        self.thoughts: dict[str, Thought] = {}  # by message
        self.scores: dict[str, float] = {}
        self.levels: list[list[Place]] = []
        self.notes: list[str] = []
        self.freed = 0
        self.opened: dict[str, Any] = {}

    def wave(self, thoughts: Sequence[Thought], what: Literal["grow", "judge"]) -> None:
        if what == "grow":
            self.levels.append([place(thought) for thought in thoughts])

    def grown(self, thoughts: Sequence[Thought]) -> None:
        self.thoughts |= {str(thought.message): thought for thought in thoughts}

    def judged(self, thoughts: Sequence[Thought]) -> None:
        self.scores |= {
            str(each.message): each.score for each in thoughts if each.score is not None
        }

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


def searched(model: Hooked, search: Search, problem: str, seen: Seen, **asked: Any) -> Outcome:
    """In a new session, unless something else is asked."""
    where = {"where": model.where, "exact": True, "new_session": True, **asked}
    asks = DaemonAsks.open(
        model.client(), where, on_notice=seen.notes.append, on_wait=lambda _text: None
    )
    seen.opened = dict(asks.opened)
    try:
        return think(problem, search, thinking.task, asks, listener=seen)
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
        seen = Seen()
        outcome = searched(model, search, f"problem {number}", seen)
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
        kv_is_of_what_lives(model, search, seen)
    model.home.assert_balanced()


def kv_is_of_what_lives(model: Hooked, search: Search, seen: Seen) -> None:
    """What `tree --show-cache` shows of the thoughts: their scores, and where their KV is. Of one
    that is pruned no more is on the device than it has in common with one that is not; of one that
    was only proposed and voted on, nothing has been computed yet.
    """
    is_computed = search.generate == "sample" or search.evaluate != "vote"
    told = model.client().call(
        "tree", where=model.where, session=seen.opened["session"], show_cache=True
    )
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


DEATHS = ("decode step 25", "in one 4")  # each of another daemon's search
MORE = (
    "decode step 5", "begin 2", "in one 2", "decode step 9", "finish 2", "begun 3",
    "decode step 2", "finished 3", "in one 1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "depth", "deaths"),
    [
        ("bfs", 3, DEATHS),
        pytest.param("bfs", 8, (*DEATHS, *MORE), marks=[pytest.mark.slow]),
        pytest.param("dfs", 5, (*DEATHS, *MORE), marks=[pytest.mark.slow]),
        pytest.param("beam", 8, (*DEATHS, *MORE), marks=[pytest.mark.slow]),
    ],
)
def test_a_search_whose_daemons_are_killed_is_the_one_that_was_let_be(
    model: Hooked, method: Any, depth: int, deaths: Sequence[str]
) -> None:
    """Each dies there while it goes on with what the one before it left."""
    how = Search(method, branch=4, depth=depth, n_eval=2, seed=5)
    search = replace(how, temperature=1.0, thought_tokens=24)
    whole = Seen()
    wanted = searched(model, search, "a problem", whole)
    model.home.stop()
    place: dict[str, Any] = {}
    for death in deaths:
        seen = Seen()
        model.dies_at(death)
        with pytest.raises(Unreachable):
            searched(model, search, "a problem", seen, **place)
        wait_until(lambda: not model.home.is_up)
        if not seen.thoughts and not place:
            continue  # nothing of it is stored, nor was anything shown
        place = {"new_session": False, "session": seen.opened["session"], "resume": True}
        found = kept(model, **place)
        assert found.keys() >= seen.thoughts.keys()
        assert {each: found[each]["score"] for each in seen.scores} == pytest.approx(
            seen.scores, rel=1e-3
        )
        answers = [each for each in found.values() if each["role"] == "assistant"]
        assert {each["finish_reason"] for each in answers} <= {"stop", "length"}
    last = Seen()
    outcome = searched(model, search, "a problem", last, **place)
    assert shown(outcome) == shown(wanted)
    assert told(model, last) == told(model, whole)
    model.home.assert_balanced()


def kept(model: Hooked, **place: Any) -> dict[str, dict[str, Any]]:
    """What the next daemon finds of a search."""
    asked = {"where": model.where, "exact": True, **place}
    with model.client().stream("search.open", **asked) as events:
        init = next(event.data for event in events if event.name == "init")
    return {each["id"]: each for each in init["found"]["messages"]}


def shown(outcome: Outcome) -> tuple[Any, ...]:
    """All that is told of a search, but for the names of its messages."""
    rows = [
        (each.name, each.text, each.score, each.values, each.status, each.tokens, each.side_tokens)
        for each in outcome.root.walk()
    ]
    visited = [each.name for each in outcome.visited]
    return rows, visited, outcome.best.name, outcome.reason, outcome.spent, outcome.answer_text


def told(model: Hooked, seen: Seen) -> list[tuple[Any, ...]]:
    """All messages of a search's session, none of them twice."""
    where, session = model.where, seen.opened["session"]
    rows = model.client().call("tree", where=where, session=session)["messages"]
    paths: dict[str | None, tuple[Any, ...]] = {None: ()}
    for row in rows:
        paths[row["id"]] = (*paths[row["parent"]], row["text"])
    found = [(paths[row["id"]], row["thought"], row["score"], row["tokens"]) for row in rows]
    return sorted(found, key=str)


def test_a_search_whose_command_is_killed_goes_on_as_if_it_had_not_been(model: Hooked) -> None:
    """By `radchat think`: its document is that of a search that was let be."""
    model.client()
    shell = Shell(model.home, "1")
    asked = ("think", "a problem", "--task", str(thinking.__file__), "--exact", "--seed", "5", "-k",
             "4", "--n-eval", "2", "--method", "dfs", "--stop-score", "7", "--json")  # fmt: skip
    wanted = shell(*asked).json
    words = " ".join(each["text"] for each in wanted["best_path"])
    assert wanted["answer"] == f"the answer after {words}"
    for step, told in ((3, 66), (25, 0), (60, 0)):  # of the first thought, a later one, the answer
        name = f"killed-{step}"
        started: list[Any] = []

        def begin(name: str = name, started: list[Any] = started) -> None:
            started.append(shell.start(*asked, "--new-session", name))

        with model.waits_at(f"decode step {step}", begin):
            started[0].kill()
            started[0].wait()
        again = shell("think", "--resume", "--session", name, "--json", code=told).json
        if told:
            assert again["error"]["message"] == f"no session {name}"  # nothing of it was shown
            continue
        part = again["spent"] - wanted["spent"]
        assert (part > 0) == (step == 60)  # half an answer is kept, and was paid for
        assert told_by(again) == told_by(wanted) | {"spent": again["spent"]}
    model.home.assert_balanced()


def told_by(document: dict[str, Any]) -> dict[str, Any]:
    """But for the names of messages, and what this run of it computed."""
    of_run = ("session", "message", "usage", "cache")

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(each) for key, each in value.items() if key not in of_run}
        return [without(each) for each in value] if isinstance(value, list) else value

    return dict(without(document))


def in_common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
