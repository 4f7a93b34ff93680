"""A search that was killed goes on, and ends as if it had not been; a budget is never exceeded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from radchat.errors import InvalidInput, UsageError
from radchat.programs.search.journal import Stored
from radchat.programs.search.settings import Search
from radchat.programs.search.think import Outcome, think
from tests.programs.fake_asks import PROBLEM, FakeAsks, Killed, Session, Table
from tests.programs.test_search_methods import run, searches, tables

budgets = st.one_of(st.none(), st.integers(1, 3000))


def ran(table: Table, search: Search, session: Session, **how: Any) -> tuple[Outcome, FakeAsks]:
    asks = FakeAsks(session, table, **how)
    return think(PROBLEM, search, table.task(), asks), asks


def shown(outcome: Outcome) -> tuple[object, ...]:
    names = [thought.name for thought in outcome.visited]
    return outcome.json(), outcome.spent, outcome.best.name, outcome.reason, names


def tried(table: Table, search: Search) -> tuple[Outcome, FakeAsks]:
    """The whole run, where the budget is enough for one."""
    try:
        return run(table, search)
    except UsageError:
        assume(False)
        raise


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tables, searches, budgets, st.integers(0, 3))
def test_killed_anywhere_it_ends_the_same(
    table: Table, search: Search, budget: int | None, order: int
) -> None:
    search = replace(search, budget=budget, depth=min(search.depth, 3), beam=min(search.beam, 2))
    outcome, whole = tried(table, search)
    ends = len(whole.stored) + len(whole.marked)
    for lives in range(ends):
        session = Session()
        with pytest.raises(Killed):
            ran(table, search, session, lives=lives, order=order)
        before = dict(session.messages)
        again, asks = ran(table, search, session, order=order + 1)
        assert shown(again) == shown(outcome)
        assert session.messages == whole.session.messages
        assert session.labels == whole.session.labels
        fresh = [each for each in session.messages.values() if each["id"] not in before]
        assert sum(each["role"] == "user" for each in fresh) == len(asks.stored)
        assert again.usage.get("output_tokens", 0) == sum(each["tokens"] for each in fresh)
        pruned = [t for t in again.root.walk() if t.status in ("pruned", "dead")]
        gone = {message for t in pruned for message in (t.message, *t.doubles)}
        assert set(asks.released) == gone  # also what was pruned before, if it was not released
    last, asks = ran(table, search, whole.session)
    assert shown(last) == shown(outcome)
    assert asks.asked == []
    assert asks.marked == []
    assert asks.num_releases <= 1


def most_of(table: Table, search: Search) -> int:
    """Of one ask for thoughts and what judging them may take, counted here anew."""
    task, k = table.task(), search.branch
    grow = k * search.thought_tokens
    if search.generate == "propose":
        grow = task.proposals_tokens(k, search.thought_tokens)
    if search.evaluate == "value":
        return grow + k * search.n_eval * (max(map(len, task.values)) + 1)
    if search.evaluate == "vote" and k > 1:
        return grow + search.n_eval * (len(str(k)) + 1)
    return grow


@settings(max_examples=150, deadline=None, derandomize=True)
@given(tables, searches, st.integers(1, 4000))
def test_a_budget_is_never_exceeded_and_never_left_unused(
    table: Table, search: Search, budget: int
) -> None:
    search = replace(search, budget=budget)
    reserve, cost = min(256, budget // 4), most_of(table, search)
    session = Session()
    try:
        outcome = think(PROBLEM, search, table.task(), FakeAsks(session, table))
    except UsageError as error:
        assert budget - reserve < cost
        assert not session.messages
        enough = int(error.message.split()[-4].replace(",", ""))
        assert enough - min(256, enough // 4) >= cost > enough - 1 - min(256, (enough - 1) // 4)
        assert run(table, replace(search, budget=enough))[0].best.depth > 0 or table.dead
        return
    assert outcome.spent == session.num_tokens <= budget - reserve
    assert outcome.answer_tokens == budget - outcome.spent
    free = run(table, replace(search, budget=None))[0]
    if outcome.reason == "budget":
        assert outcome.spent + cost > budget - reserve
        visited = [thought.name for thought in free.visited]
        assert visited[: len(outcome.visited)] == [t.name for t in outcome.visited]
        assert len(outcome.visited) < len(visited)
    elif search.stop_score is None:  # else a smaller wave may end it before a better one comes
        assert (outcome.best.name, outcome.reason) == (free.best.name, free.reason)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables, searches, st.integers(200, 3000), st.data())
def test_more_of_everything_goes_on_in_the_same_tree(
    table: Table, search: Search, budget: int, data: st.DataObject
) -> None:
    search = replace(search, budget=budget, depth=min(search.depth, 3), beam=min(search.beam, 3))
    _, first = tried(table, search)
    session = first.session
    for _ in range(2):
        before = dict(session.messages)
        more = {
            "depth": data.draw(st.integers(search.depth, 4)),
            "beam": data.draw(st.integers(search.beam, 4)),
            "budget": (search.budget or 0) + data.draw(st.integers(0, 2000)),
            "stop_score": data.draw(st.sampled_from([search.stop_score, None, 5.0])),
        }
        stored = Stored.of(FakeAsks(session, table).opened)
        assert stored.search == search  # as it was given last
        search = stored.search.resumed(more)
        lives = data.draw(st.one_of(st.none(), st.integers(0, 10)))
        try:
            outcome, asks = ran(table, search, session, lives=lives)
        except Killed:
            if not session.messages.keys() - before.keys():
                return  # it has not been told yet
            continue
        assert search.budget is not None
        assert session.num_tokens <= search.budget
        assert outcome.spent == session.num_tokens
        assert session.messages.items() >= before.items()
        free, _ = ran(table, replace(search, budget=None), Session())
        if outcome.reason != "budget":
            assert outcome.best.name == free.best.name
            assert outcome.reason == free.reason
        if not asks.asked:
            return  # nothing was said that tells of these settings


def test_what_would_be_another_tree_is_refused_by_its_flag() -> None:
    search = Search(budget=100)
    assert search.resumed({"budget": 200, "depth": 4, "beam": 2, "stop_score": 1.0}) == replace(
        search, budget=200, depth=4, stop_score=1.0
    )
    assert search.resumed({"budget": None}).budget is None
    for name, value in {"method": "dfs", "branch": 5, "n_eval": 1, "seed": 7}.items():
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} can't change"):
            search.resumed({name: value})
    for name in ("budget", "depth", "beam"):
        with pytest.raises(UsageError, match=f"--{name} can only grow"):
            search.resumed({name: 1})
    with pytest.raises(UsageError, match="--budget can only grow"):
        Search().resumed({"budget": 10})


def test_settings_that_cannot_be_name_their_flag() -> None:
    for name, value in {"method": "astar", "branch": 0, "thought_tokens": 0, "depth": 65}.items():
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is"):
            Search(**{name: value})  # type: ignore[arg-type]
    for name in ("branch", "n_eval"):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is at most 128"):
            Search(**{name: 129})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--stop-score is a number"):
        Search(stop_score=float("nan"))


def test_a_final_answer_counts_and_is_not_asked_for_again() -> None:
    table = Table(3)
    search = Search(budget=1500, depth=2, seed=1)
    session = Session()
    outcome, _ = ran(table, search, session)
    user = session.add(outcome.best.message, "user", outcome.answer_text)
    session.add(user, "assistant", "half of", tokens=70, finish_reason="abort")
    again, _ = ran(table, search, session)
    assert again.answered is None
    assert again.spent == outcome.spent + 70
    assert again.answer_tokens == 1500 - again.spent
    session.add(user, "assistant", "whole", tokens=60)
    talk = session.add(outcome.best.message, "user", "and now something else")
    session.add(talk, "assistant", "yes", tokens=500)  # not the search's
    last, asks = ran(table, search, session)
    assert last.answered is not None
    assert last.answered.text == "whole"
    assert last.spent == outcome.spent + 130
    assert not asks.asked
    more, asks = ran(table, replace(search, budget=2500, depth=3), session)
    assert more.spent == session.num_tokens - 500


def test_a_task_that_says_the_depth_keeps_it() -> None:
    table, session, search = Table(3), Session(), Search(depth=2)
    task = replace(table.task(), step="STEP of {depth}")
    think(PROBLEM, search, task, FakeAsks(session, table))
    with pytest.raises(UsageError, match=r"--depth can't change .* \(table\)"):
        think(PROBLEM, replace(search, depth=3), task, FakeAsks(session, table))
    think(PROBLEM, replace(search, beam=3), task, FakeAsks(session, table))


def test_what_was_deleted_is_asked_again() -> None:
    table, search, session = Table(3), Search(depth=2, seed=1), Session()
    outcome, _ = ran(table, search, session)
    ratings = [each for each in session.messages.values() if each["text"] in table.task().values]
    del session.messages[ratings[4]["id"]]
    again, asks = ran(table, search, session)
    assert [ask.text for ask in asks.stored] == ["VALUE"]
    assert asks.stored[0].at == session.messages[ratings[4]["parent"]]["parent"]
    assert again.json() == outcome.json()


def test_a_search_whose_beginning_is_not_told_says_so() -> None:
    opened = {"number": 2, "found": {"at": None, "messages": [{"extra": {"search": {}}}]}}
    with pytest.raises(InvalidInput, match="s2 can't be resumed"):
        Stored.of(opened)
