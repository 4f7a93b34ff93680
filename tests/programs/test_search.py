"""What becomes of thoughts: judged, failed, doubled, told; and the daemon's side of an ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from hypothesis import given, settings

from radchat.errors import ContextOverflow, NotFound, RadchatError, Unreachable
from radchat.programs.search.asks import MOST_AT_ONCE, Answer, Ask, DaemonAsks, Failed, Output
from radchat.programs.search.listener import Silent
from radchat.programs.search.settings import Search
from radchat.programs.search.think import think
from radchat.programs.search.tree import Thought
from radchat.protocol import Event
from tests.programs.fake_asks import PROBLEM, FakeAsks, Session, Table
from tests.programs.test_search_methods import run, searches, tables


class Told(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.calls: list[str] = []
        self.num_spent: list[int] = []
        self.deltas: list[tuple[str, int, str]] = []

    def began(self, root: Thought, search: Search, opened: Mapping[str, Any]) -> None:
        assert root.name == f"s{opened['number']}"
        self.calls.append("began")

    def wave(self, thoughts: Sequence[Thought], what: str) -> None:
        self.calls.append(f"{what} {' '.join(thought.name for thought in thoughts)}")

    def grown(self, thoughts: Sequence[Thought]) -> None:
        assert all(each in (each.parent.children if each.parent else ()) for each in thoughts)
        self.calls.append(f"grown {' '.join(thought.name for thought in thoughts)}")

    def judged(self, thoughts: Sequence[Thought]) -> None:
        self.calls.append(f"judged {' '.join(thought.mark for thought in thoughts)}")

    def pruned(self, thoughts: Sequence[Thought], freed_tokens: int) -> None:
        self.calls.append(f"pruned {' '.join(each.name for each in thoughts)} {freed_tokens}")

    def delta(self, thought: Thought, choice: int, text: str) -> None:
        self.deltas.append((thought.name, choice, text))

    def spent(self, tokens: int, usage: Mapping[str, int], cache: Mapping[str, int]) -> None:
        assert usage["output_tokens"] == tokens
        assert cache["computed"] > 0
        self.num_spent.append(tokens)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Lines(Table):
    """Thoughts are written down; a rating is the last letter of its thought."""

    words: Mapping[tuple[int, ...], str]

    def word(self, path: tuple[int, ...]) -> str:
        return self.words[path]

    def values(self, path: tuple[int, ...], n: int) -> list[str]:
        letters = {"a": "awful", "f": "fair", "g": "good"}
        return [letters[self.words[path][-1]]] * n


def of_words(*words: str) -> Lines:
    """The first thoughts, and after each the same."""
    table = Lines(1)
    some = {(i,): word for i, word in enumerate(words, start=1)}
    more = {(*path, i): f"{word}{one}" for path, one in some.items() for (i,), word in some.items()}
    object.__setattr__(table, "words", some | more)
    return table


def test_a_search_is_told_as_it_goes() -> None:
    told = Told()
    outcome, asks = run(of_words("a", "g", "f"), Search(depth=2, beam=1, n_eval=2), listener=told)
    assert told.calls == [
        "began",
        "grow s1",
        "grown s1.1 s1.2 s1.3",
        "judge s1.1 s1.2 s1.3",
        "judged s1.1=-1.5 s1.2=4 s1.3=2",
        "pruned s1.1 s1.3 2",
        "grow s1.2",
        "grown s1.2.1 s1.2.2 s1.2.3",
        "judge s1.2.1 s1.2.2 s1.2.3",
        "judged s1.2.1=4 s1.2.2=4 s1.2.3=4",
        "pruned s1.2.2 s1.2.3 2",
    ]
    assert told.num_spent == sorted(told.num_spent)
    assert told.num_spent[-1] == outcome.spent == asks.session.num_tokens
    assert ("s1", 1, "g") in told.deltas
    assert ("s1.2", 0, "good") in told.deltas
    assert not told.notes
    assert outcome.answer_text == "ANSWER"
    assert [thought.text for thought in outcome.best.path()] == ["g", "ag"]


def test_what_a_search_asks_says_what_is_needed_to_go_on() -> None:
    search = Search(depth=2, beam=1, seed=3)
    _, asks = run(of_words("a", "g", "f"), search)
    first, value, *_ = asks.stored
    settings = {"run": 1, "problem": PROBLEM, "task": "table", "settings": search.json()}
    assert first.extra == {"search": {"number": 1, **settings}}
    assert value.extra == {"search": {"number": 1}}
    assert first.text == f"{PROBLEM}\n\nSTEP"
    assert first.names == ["s1.1", "s1.2", "s1.3"]
    assert value.options.keys() == {"temperature", "seed"}
    seeds = [ask.options["seed"] for ask in asks.stored]
    assert len(set(seeds)) == len(seeds)
    assert [ask.options["seed"] for ask in run(of_words("a", "g", "f"), search)[1].stored] == seeds
    _, others = run(of_words("a", "g", "f"), replace(search, seed=4))
    assert not {ask.options["seed"] for ask in others.stored} & set(seeds)


@pytest.mark.parametrize("generate", ["sample", "propose"])
def test_what_says_the_same_is_kept_once_and_told(generate: Any) -> None:
    told = Told()
    search = Search(generate=generate, depth=1)
    outcome, asks = run(of_words("a g", "f", "A  G"), search, listener=told)
    assert [child.text for child in outcome.root.children] == ["a g", "f"]
    assert told.notes == ["1 of these thoughts said the same as others: counted once"]
    if generate == "propose":
        assert asks.stored[1].says == ["a g", "f"]
        assert asks.stored[1].text == f"{PROBLEM}\n\nSTEP"
    assert outcome.spent == asks.session.num_tokens
    assert outcome.spent == sum(each.tokens + each.side_tokens for each in outcome.root.walk())


def test_a_vote_is_one_ask_for_siblings() -> None:
    table = Table(5, num_words=100)
    outcome, asks = run(table, Search(evaluate="vote", depth=2, beam=2, n_eval=4))
    votes = [ask for ask in asks.stored if "VOTE" in ask.text]
    assert [ask.at for ask in votes if ask.at is None] == [None]
    assert len(votes) == 3
    for parent in (outcome.root, *outcome.root.children):
        scores = [child.score for child in parent.children]
        assert not scores or sum(score or 0 for score in scores) == pytest.approx(1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables, searches)
def test_what_fails_is_dead_and_the_search_goes_on(table: Table, search: Search) -> None:
    told = Told()
    table = replace(table, failing=0.3)
    if table.fails("PROPOSE" if search.generate == "propose" else "STEP", ()):
        with pytest.raises(RadchatError, match="failed"):
            run(table, search, listener=told)
        assert len(told.notes) == 1
        return
    try:
        outcome, _ = run(table, search, listener=told)
    except RadchatError:  # nothing is alive
        assert any("is given up" in note for note in told.notes)
        return
    failed = [each for each in outcome.root.walk() if each.why and "failed" in each.why]
    assert [each.status for each in failed] == ["dead"] * len(failed)
    assert len([note for note in told.notes if "is given up" in note]) >= len(failed)
    assert outcome.best.depth == 0 or outcome.best.status in ("best", "solved")


def test_where_all_fails_the_error_is_raised() -> None:
    for evaluate in ("value", "vote"):
        table = Table(1, failing=1.0)
        with pytest.raises(RadchatError, match=r"STEP after \(\) failed"):
            run(table, Search(evaluate=evaluate))

    class NoRatings(Table):
        def fails(self, kind: str, path: tuple[int, ...]) -> bool:
            return kind == "VALUE"

    with pytest.raises(RadchatError, match="VALUE after"):
        run(NoRatings(1), Search())


def test_where_all_is_dead_the_answer_follows_the_problem() -> None:
    outcome, _ = run(Table(1, dead=1.0), Search())
    assert outcome.reason == "dead ends"
    assert outcome.best is outcome.root
    assert outcome.answer_text == PROBLEM
    assert all(child.score == 0 and child.why for child in outcome.root.children)


def test_the_tree_as_json() -> None:
    outcome, asks = run(of_words("a", "g", "f"), Search(depth=1, n_eval=2, beam=1))
    body = outcome.json()
    best = outcome.root.children[1]
    assert body["best_path"] == [
        {"name": "s1.2", "text": "g", "score": 4.0, "message": best.message}
    ]
    tree = body["tree"]
    assert (tree["name"], tree["text"], tree["status"]) == ("s1", PROBLEM, "live")
    child = tree["children"][0]
    sizes = {ask.at: ask for ask in asks.stored}
    assert child == {
        "name": "s1.1",
        "text": "a",
        "score": -1.5,
        "values": [-1.5, -1.5],
        "status": "pruned",
        "message": outcome.root.children[0].message,
        "tokens": outcome.root.children[0].tokens,
        "side_tokens": outcome.root.children[0].side_tokens,
        "why": None,
        "children": [],
    }
    assert child["message"] in sizes
    assert (body["reason"], body["solved"], body["spent"]) == ("depth", False, outcome.spent)


def test_ctrl_c_leaves_what_was_told() -> None:
    class Impatient(Told):
        def judged(self, thoughts: Sequence[Thought]) -> None:
            super().judged(thoughts)
            raise KeyboardInterrupt

    table, session = of_words("a", "g", "f"), Session()
    with pytest.raises(KeyboardInterrupt):
        think(
            PROBLEM, Search(depth=2), table.task(), FakeAsks(session, table), listener=Impatient()
        )
    asks = FakeAsks(session, table)
    think(PROBLEM, Search(depth=2), table.task(), asks)
    assert all(ask.at is not None for ask in asks.stored)
    whole = Session()
    think(PROBLEM, Search(depth=2), table.task(), FakeAsks(whole, table))
    assert session == whole


# -- over the wire --------------------------------------------------------------------------------


class FakeStream:
    def __init__(self, events: Sequence[Event]) -> None:
        self._events, self.is_closed = events, False

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True


class FakeClient:
    """Answers each ask by its number within its call."""

    def __init__(self, *, ends: bool = True) -> None:
        self.asked: list[dict[str, Any]] = []
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.streams: list[FakeStream] = []
        self._ends = ends

    def stream(self, method: str, **args: Any) -> FakeStream:
        if method == "search.open":
            told = [Event("progress", {"text": "loading"}), Event("notice", {"text": "small"})]
            events = [*told, Event("init", {"search": "x", "number": 1})]
        else:
            self.asked += args["asks"]
            events = list(self._answers(args["asks"]))
        self.streams.append(FakeStream(events))
        return self.streams[-1]

    def _answers(self, asks: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        for number in reversed(range(len(asks))):
            text = asks[number]["text"]
            if text == "too long":
                error = ContextOverflow("too long", limit=3).to_json()
                yield Event("failed", {"ask": number, "error": error})
                continue
            yield Event("delta", {"ask": number, "choice": 0, "text": text, "forced": False})
            output = {"message": f"m{text}", "text": text, "tokens": 2, "logprob": -1.0}
            body = {"ask": number, "user": "u", "outputs": [output]}
            yield Event("answer", {**body, "usage": {"output_tokens": 2}, "cache": {}})
        if self._ends:
            yield Event("done", {})

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        self.called.append((method, args))
        return {"freed_tokens": 7, "scores": [0.0]}


def opened(client: FakeClient) -> tuple[DaemonAsks, list[str], list[str]]:
    notices: list[str] = []
    waits: list[str] = []
    as_client: Any = client
    asks = DaemonAsks.open(as_client, {}, on_notice=notices.append, on_wait=waits.append)
    return asks, notices, waits


def test_asks_are_answered_in_their_order() -> None:
    client = FakeClient()
    asks, notices, waits = opened(client)
    assert (notices, waits) == (["small"], ["loading", ""])
    deltas: list[tuple[int, int, str]] = []
    found = asks.ask(
        [Ask("a", "1"), Ask("b", "too long"), Ask("c", "3")], lambda *d: deltas.append(d)
    )
    assert found[0] == Answer([Output("m1", "1", 2, -1.0)], {"output_tokens": 2}, {})
    assert isinstance(found[1], Failed)
    assert isinstance(found[1].error, ContextOverflow)
    assert deltas == [(2, 0, "3"), (0, 0, "1")]
    assert client.asked[0] == {"at": "a", "text": "1", "n": 1, "extra": {}, "options": {}}
    assert client.streams[-1].is_closed
    assert asks.release(["m1"]) == 7
    asks.mark({"m1": "s1.1=2"})
    asks.score("a", "t", ["x"])
    assert [name for name, _ in client.called] == ["search.release", "search.mark", "search.score"]
    assert all(args["search"] == "x" for _, args in client.called)
    asks.close()
    assert client.streams[0].is_closed


def test_no_more_is_asked_at_once_than_the_daemon_takes() -> None:
    client = FakeClient()
    asks, _, _ = opened(client)
    most = MOST_AT_ONCE // 64
    many = [Ask("a", str(number), n=64) for number in range(2 * most + 1)]
    deltas: list[int] = []
    found = asks.ask(many, lambda number, _choice, _text: deltas.append(number))
    assert len(client.streams) == 1 + 3
    assert [each["text"] for each in client.asked] == [ask.text for ask in many]
    assert sorted(deltas) == list(range(len(many)))
    assert [a.outputs[0].text for a in found if isinstance(a, Answer)] == [a.text for a in many]


def test_a_daemon_that_goes_is_told_with_the_way_on() -> None:
    asks, _, _ = opened(FakeClient(ends=False))
    with pytest.raises(Unreachable, match=r"stopped; .* is kept: radchat think --resume$"):
        asks.ask([Ask("a", "1")], lambda *_: None)

    class Another(FakeClient):
        def call(self, method: str, **args: Any) -> dict[str, Any]:
            raise NotFound(f"no search {args['search']} is open")

    asks, _, _ = opened(Another())
    with pytest.raises(NotFound, match=r"no search x is open; .*: radchat think --resume$"):
        asks.mark({"m1": "s1.1=2"})
