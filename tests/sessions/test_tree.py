"""A conversation is a tree of messages; a fork is a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from radchat_sessions.content import text_part
from radchat_sessions.messages import NewAnswer, NewMessage
from radchat_sessions.names import auto_name
from radchat_sessions.store import Store
from tests.sessions.talk import Clock, Talk, given


def test_a_turn_adds_a_question_and_an_answer_and_moves_the_branch(talk: Talk) -> None:
    answer = talk.turn("hello", "hi")
    assert talk.words(talk.head) == ["hello", "hi"]
    assert talk.store.branch(talk.id, "main").message == answer.id


def test_forking_writes_no_new_messages(talk: Talk) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    before = talk.store.message_ids(talk.id)
    talk.store.create_branch(talk.id, "side", first.id)
    assert talk.store.message_ids(talk.id) == before


def test_two_branches_share_their_path(talk: Talk) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    talk.store.create_branch(talk.id, "side", first.id)
    talk.store.move_head(talk.id, branch="side")
    side = talk.turn("other", "3", branch="side")
    assert talk.words(side.id) == ["one", "1", "other", "3"]
    assert talk.words(talk.store.branch(talk.id, "main").message) == ["one", "1", "two", "2"]
    assert len(talk.store.messages(talk.id)) == 6


def test_the_same_words_under_another_parent_have_another_digest(talk: Talk) -> None:
    talk.turn("again", "yes")
    talk.turn("again", "yes")
    digests = [m.digest for m in talk.store.messages(talk.id)]
    assert len(set(digests)) == 4


def test_a_retry_is_a_sibling_on_the_same_prompt(talk: Talk) -> None:
    first = talk.turn("pick a number", "3")
    second = talk.retry("4", expected=first.id)
    assert (second.parent, second.prompt) == (first.parent, first.prompt)
    assert talk.head == second.id
    assert [m.text for m in talk.store.children(first.parent, talk.id)] == ["3", "4"]


def test_a_retry_that_gives_nothing_leaves_the_branch_on_the_old_answer(talk: Talk) -> None:
    first = talk.turn("pick a number", "3")
    begun = talk.store.begin(
        talk.id,
        parent=first.parent,
        prompt=given(first.prompt),
        answers=[NewAnswer("main")],
        expected=first.id,
    )
    talk.store.abandon(begun.answer_ids[0])
    assert talk.head == first.id
    assert talk.store.verify() == []


def test_a_vote_has_siblings_without_names_and_the_branch_stays_on_the_question(talk: Talk) -> None:
    begun = talk.begin("6 x 7?", answers=[NewAnswer("main", choice=0), NewAnswer(None, choice=1)])
    talk.finish(begun.answer_ids[1], "41")
    assert talk.head == begun.messages[0]
    talk.finish(begun.answer_ids[0], "42")
    assert talk.words(talk.head) == ["6 x 7?", "42"]
    assert [m.text for m in talk.store.messages(talk.id)] == ["6 x 7?", "41", "42"]


def test_a_what_if_makes_its_branches_and_leaves_head(talk: Talk) -> None:
    start = talk.turn("plan", "ok")
    for name in ("cheap", "dear"):
        begun = talk.begin(name, parent=start.id, branch=name, keep_head=True)
        assert talk.placed(begun).made
        assert not talk.placed(begun).moved_on
        talk.finish(begun.answer_ids[0], "done")
    assert talk.store.head(talk.id).branch == "main"
    assert talk.head == start.id
    assert [b.name for b in talk.store.branches(talk.id)] == ["cheap", "dear", "main"]


def test_messages_without_an_engine_can_be_appended(talk: Talk) -> None:
    added = talk.store.append(
        talk.id,
        parent=None,
        new=[NewMessage.of("user", "q"), NewMessage.of("assistant", "imported")],
        branch="main",
    )
    assert talk.words(talk.head) == ["q", "imported"]
    assert talk.store.ids(added.messages[1]) is None


def test_everything_told_about_an_answer_comes_back(talk: Talk) -> None:
    begun = talk.store.begin(
        talk.id,
        parent=None,
        new=[NewMessage.of("user", "q")],
        prompt=talk.prompt(None, ["q"]),
        answers=[NewAnswer("main", seed=2**64 - 1, choice=3)],
        model="smol",
        dtype="bf16",
        sampling={"temperature": 0.5},
    )
    told = talk.store.finish(
        begun.answer_ids[0],
        ids=talk.prompt(None, ["a"]).tail,
        parts=[{"type": "reasoning", "text": "hm"}, text_part("a")],
        finish_reason="length",
        usage={"input_tokens": 3},
        timing={"total_s": 0.25},
        holds="hm",
        extra={"continues": None},
    ).message
    assert told == talk.store.message(told.id)
    assert (told.text, told.reasoning, told.holds) == ("a", "hm", "hm")
    assert (told.seed, told.choice, told.model, told.dtype) == (2**64 - 1, 3, "smol", "bf16")
    assert told.sampling == {"temperature": 0.5}
    assert (told.usage, told.timing) == ({"input_tokens": 3}, {"total_s": 0.25})
    assert (told.finish_reason, told.stopped, told.extra) == ("length", False, {"continues": None})
    assert talk.store.session(talk.id).model == "smol"


def test_finishing_twice_changes_nothing(talk: Talk) -> None:
    begun = talk.begin("q")
    first = talk.finish(begun.answer_ids[0], "a")
    assert talk.finish(begun.answer_ids[0], "other words") == first
    assert talk.words(talk.head) == ["q", "a"]


def test_a_broken_surrogate_becomes_the_replacement_character_and_the_session_lives(
    talk: Talk,
) -> None:
    talk.turn("pair \ud83d\ude00, half \ud83d.", "fine")
    assert talk.words(talk.head)[0] == "pair \U0001f600, half \ufffd."
    assert talk.store.verify() == []


def test_a_nul_in_the_text_is_kept_and_hides_nothing_from_search(talk: Talk) -> None:
    talk.turn("before\0after", "ok")
    assert talk.words(talk.head)[0] == "before\0after"
    assert len(talk.store.search("after")) == 1
    assert talk.store.verify() == []


def test_search_finds_words_and_takes_no_operators(talk: Talk, store: Store) -> None:
    talk.turn("the quick brown fox", "jumps")
    Talk(store).turn("a quick note", "ok")
    assert len(store.search("quick")) == 2
    (hit,) = store.search("quick fox")
    assert (hit.snippet, hit.marks) == ("the quick brown fox", ((4, 9), (16, 19)))
    assert (hit.session, hit.branch, hit.role) == (talk.id, "main", "user")
    assert len(store.search("quick", talk.id)) == 1
    assert store.search('NOT "quick* OR (') == []
    assert store.search("  ") == []


def test_a_forked_session_shares_its_past_and_knows_its_parent(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    fork = store.create_session(clock="2026-01-02", name="fork", fork_of=(talk.id, first.id))
    child = Talk(store, fork)
    child.turn("other", "3")
    assert (fork.parent, fork.fork_message) == (talk.id, first.id)
    assert child.words(child.head) == ["one", "1", "other", "3"]
    assert talk.words(talk.head) == ["one", "1", "two", "2"]
    assert [s.messages for s in store.sessions()] == [4, 4]
    shown = {m.text for m in store.messages(talk.id)}
    assert "other" not in shown


def test_made_up_names_are_unique_and_give_way_to_the_first_words(store: Store) -> None:
    names = {store.create_session(clock="c").name for _ in range(40)}
    assert len(names) == 40
    one, two = (store.create_session(clock="c") for _ in range(2))
    assert store.suggest_name(one.id, auto_name("What's the plan?")).name == "whats-the-plan"
    assert store.suggest_name(two.id, auto_name("what's THE plan")).name == "whats-the-plan-2"
    kept = store.create_session(clock="c", name="mine")
    assert store.suggest_name(kept.id, "other").name == "mine"
    assert store.suggest_name(one.id, "").name == "whats-the-plan"


def test_auto_names_are_short_and_never_a_number(store: Store) -> None:
    assert (
        auto_name("Summarise this very long report about everything") == "summarise-this-very-long"
    )
    assert auto_name("x" * 99) == "x" * 24
    assert auto_name("2024") == ""
    assert auto_name("!?") == ""
    assert auto_name("Größe, 3 Äpfel") == "größe-3-äpfel"


def test_the_current_session_is_the_terminals_then_the_folders_then_the_last(store: Store) -> None:
    a, b, c, ask = (store.create_session(clock="c", name=name) for name in ("a", "b", "c", "ask"))
    store.use(a.id, terminal="tty1", folder="/x")
    store.use(b.id, terminal="tty2", folder="/y")
    store.use(c.id, terminal="tty3", folder="/x")
    store.use(ask.id, terminal="tty1", folder="/y", only_terminal=True)

    def current(terminal: str | None, folder: str | None) -> str | None:
        found = store.current_session(terminal, folder)
        return None if found is None else found.name

    assert current("tty1", "/y") == "ask"
    assert current("tty2", "/x") == "b"
    assert current("tty9", "/x") == "c"
    assert current("tty9", "/y") == "b"
    assert current(None, None) == "c"
    store.remove(ask.id)
    assert current("tty1", "/x") == "a"


def test_a_clock_set_back_changes_neither_what_is_current_nor_the_order_of_anything(
    store: Store, clock: Clock
) -> None:
    before = Talk(store)
    before.turn("at noon", "yes")
    store.use(before.id, terminal="tty1", folder="/x")
    clock.now -= 8 * 3600
    after = Talk(store)
    for text in ("at four in the morning", "at five"):
        after.turn(text, "yes")
    store.use(after.id, terminal="tty1", folder="/x")
    for terminal, folder in (("tty1", "/y"), ("tty2", "/x"), (None, None)):
        found = store.current_session(terminal, folder)
        assert found is not None
        assert found.id == after.id
    before.turn("and at noon again", "yes")
    assert [m.text for m in store.messages(before.id) if m.role == "user"] == [
        "at noon",
        "and at noon again",
    ]
    stood = after.head
    assert store.undo(after.id).message != stood
    assert store.redo(after.id).message == stood
    assert store.verify() == []


def test_an_empty_store_has_no_current_session(store: Store) -> None:
    assert store.current_session("tty", "/") is None
    assert store.sessions() == []


def test_settings_are_kept(store: Store) -> None:
    session = store.create_session(clock="c", settings={"system": "be kind"})
    assert store.session(session.id).settings == {"system": "be kind"}


def test_a_store_in_memory_touches_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open(":memory:")
    talk = Talk(store)
    begun = talk.begin("secret")
    store.append_ids(begun.answer_ids[0], [1, 2], "x")
    talk.finish(begun.answer_ids[0], "x")
    assert list(tmp_path.iterdir()) == []
    store.close()
