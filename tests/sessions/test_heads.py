"""Branches, HEAD, undo and redo; and what happens when two write at once."""

from __future__ import annotations

import pytest

from radchat_sessions.content import text_part
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import Head, NewMessage
from radchat_sessions.store import Store
from tests.sessions.talk import Talk, given


def test_the_second_of_two_turns_on_one_message_gets_a_branch_of_its_own(talk: Talk) -> None:
    start = talk.turn("hello", "hi")
    first = talk.begin("mine", parent=start.id)
    second = talk.begin("yours", parent=start.id, keep_head=True)
    placed = talk.placed(second)
    assert (placed.branch, placed.wanted, placed.made, placed.moved_on) == (
        "main-2",
        "main",
        True,
        True,
    )
    assert placed.found == first.messages[0]
    talk.finish(second.answer_ids[0], "2")
    talk.finish(first.answer_ids[0], "1")
    ends = {b.name: talk.words(b.message) for b in talk.store.branches(talk.id)}
    assert ends == {
        "main": ["hello", "hi", "mine", "1"],
        "main-2": ["hello", "hi", "yours", "2"],
    }


def test_an_undo_while_the_answer_runs_keeps_the_answer_on_a_branch_of_its_own(talk: Talk) -> None:
    start = talk.turn("hello", "hi")
    begun = talk.begin("go on")
    talk.store.undo(talk.id)
    answer = talk.finish(begun.answer_ids[0], "late")
    assert talk.head == start.id
    assert talk.store.branch(talk.id, "main-2").message == answer.id


def test_a_branch_renamed_while_its_answer_runs_still_gets_it(talk: Talk) -> None:
    begun = talk.begin("hello")
    talk.store.rename_branch(talk.id, "main", "trunk")
    answer = talk.finish(begun.answer_ids[0], "hi")
    assert talk.store.branch(talk.id, "trunk").message == answer.id
    assert talk.store.head(talk.id).branch == "trunk"


def test_a_turn_from_a_bare_message_gets_a_branch_named_after_the_last_one(talk: Talk) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    head = talk.store.move_head(talk.id, message=first.id)
    assert (head.branch, head.last_branch) == (None, "main")
    begun = talk.begin("other", branch=head.last_branch)
    assert talk.placed(begun).branch == "main-2"
    assert talk.store.head(talk.id).branch == "main-2"


def test_switching_to_the_message_where_a_branch_ends_goes_on_that_branch(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    talk.store.move_head(talk.id, message=first.id)
    assert talk.store.move_head(talk.id, message=second.id).branch == "main"
    talk.store.create_branch(talk.id, "twin", second.id)
    talk.store.move_head(talk.id, branch="twin")
    assert talk.store.move_head(talk.id, message=second.id).branch == "twin"
    talk.store.move_head(talk.id, message=first.id)
    assert talk.store.move_head(talk.id, message=second.id).branch is None


def test_undo_goes_back_a_turn_and_redo_comes_again(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    third = talk.turn("three", "3")
    assert talk.store.undo(talk.id).message == second.id
    assert talk.store.undo(talk.id).message == first.id
    assert talk.store.head(talk.id).branch == "main"
    assert talk.store.redo(talk.id).message == second.id
    assert talk.store.redo(talk.id).message == third.id
    with pytest.raises(NotFound, match="nothing to redo"):
        talk.store.redo(talk.id)
    assert talk.store.undo(talk.id, 3).message is None
    assert talk.store.redo(talk.id).message == third.id


def test_undo_after_redo_can_be_redone(talk: Talk) -> None:
    talk.turn("one", "1")
    second = talk.turn("two", "2")
    for _ in range(3):
        talk.store.undo(talk.id)
        assert talk.store.redo(talk.id).message == second.id


def test_undo_deletes_nothing(talk: Talk) -> None:
    talk.turn("one", "1")
    talk.store.undo(talk.id)
    assert [m.text for m in talk.store.messages(talk.id)] == ["one", "1"]


def test_undo_of_more_turns_than_there_are_says_how_many(talk: Talk) -> None:
    talk.turn("one", "1")
    with pytest.raises(NotFound, match="only 1 turn back from here, not 2"):
        talk.store.undo(talk.id, 2)
    with pytest.raises(Refused):
        talk.store.undo(talk.id, 0)


def test_a_turn_after_undo_ends_what_redo_could_take_back(talk: Talk) -> None:
    talk.turn("one", "1")
    talk.store.undo(talk.id)
    talk.turn("other", "2")
    with pytest.raises(NotFound, match="nothing to redo"):
        talk.store.redo(talk.id)


def test_redo_does_not_drag_back_a_branch_that_moved_since(talk: Talk) -> None:
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    talk.store.undo(talk.id)
    other = talk.begin("other", parent=first.id, branch="main", keep_head=True)  # another's turn
    talk.finish(other.answer_ids[0], "3")
    with pytest.raises(NotFound, match="nothing to redo"):
        talk.store.redo(talk.id)
    assert talk.words(talk.head) == ["one", "1", "other", "3"]


def test_undo_at_a_bare_message_moves_only_head(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    talk.turn("three", "3")
    talk.store.move_head(talk.id, message=second.id)
    assert talk.store.undo(talk.id).message == first.id
    assert talk.words(talk.store.branch(talk.id, "main").message)[-1] == "3"
    assert talk.store.redo(talk.id).message == second.id


def test_the_previous_branch_goes_to_and_fro(talk: Talk) -> None:
    first = talk.turn("one", "1")
    with pytest.raises(NotFound, match="no previous branch"):
        talk.store.previous(talk.id)
    talk.store.create_branch(talk.id, "price", first.id)
    talk.store.create_branch(talk.id, "costs", first.id)
    talk.store.move_head(talk.id, branch="price")
    talk.turn("two", "2", branch="price")
    assert talk.store.previous(talk.id).branch == "main"
    talk.store.move_head(talk.id, branch="main")
    assert talk.store.previous(talk.id).branch == "price"
    talk.store.move_head(talk.id, branch="costs")
    assert talk.store.previous(talk.id).branch == "main"
    talk.store.delete_branch(talk.id, "main")
    assert talk.store.previous(talk.id).branch == "price"
    talk.store.rename_branch(talk.id, "price", "cost")
    assert talk.store.previous(talk.id).branch == "cost"


def test_the_branch_head_is_on_can_not_be_deleted(talk: Talk) -> None:
    with pytest.raises(Refused, match="HEAD is on main"):
        talk.store.delete_branch(talk.id, "main")


def test_a_taken_branch_name_is_refused(talk: Talk) -> None:
    talk.store.create_branch(talk.id, "side", None)
    with pytest.raises(Refused, match="already"):
        talk.store.create_branch(talk.id, "side", None)
    with pytest.raises(Refused, match="already"):
        talk.store.rename_branch(talk.id, "side", "main")
    talk.store.rename_branch(talk.id, "side", "side")
    assert talk.store.create_branch(talk.id, None, None).name == "main-2"
    assert talk.store.create_branch(talk.id, None, None).name == "main-3"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "12",
        "a b",
        "a\tb",
        "a\x00",
        "a\x1b[1m",
        "a:b",
        "a~2",
        "-x",
        "#4",
        "HEAD",
        "head",
        "x" * 65,
        "a\u2028b",
        "a\u200bb",
        "\ud800",
    ],
)
def test_a_name_that_a_ref_could_misread_is_refused(talk: Talk, name: str) -> None:
    with pytest.raises(Refused, match="can't be the name"):
        talk.store.create_branch(talk.id, name, None)
    with pytest.raises(Refused, match="can't be the name"):
        talk.store.create_session(clock="c", name=name)


@pytest.mark.parametrize("name", ["price-10%", "größe", "v1.2", "2fast", "安全", "a/b", "cafe"])
def test_an_ordinary_name_is_taken(talk: Talk, name: str) -> None:
    assert talk.store.create_branch(talk.id, name, None).name == name


def test_a_taken_session_name_is_refused_and_a_rename_is_kept(store: Store) -> None:
    one = store.create_session(clock="c", name="one")
    store.create_session(clock="c", name="two")
    with pytest.raises(Refused, match="already"):
        store.create_session(clock="c", name="one")
    with pytest.raises(Refused, match="already"):
        store.rename(one.id, "two")
    assert store.rename(one.id, "one").name == "one"
    assert store.find_session("one").id == one.id
    assert store.rename(one.id, "three").named


def test_unknown_things_are_not_found(talk: Talk) -> None:
    with pytest.raises(NotFound):
        talk.store.session("nope")
    with pytest.raises(NotFound):
        talk.store.head("nope")
    with pytest.raises(NotFound):
        talk.store.message("nope")
    with pytest.raises(NotFound):
        talk.store.branch(talk.id, "nope")
    with pytest.raises(NotFound):
        talk.store.create_branch(talk.id, "x", "nope")
    with pytest.raises(NotFound):
        talk.store.abandon("nope")
    with pytest.raises(NotFound):
        talk.finish("nope", "words")
    with pytest.raises(NotFound):
        talk.store.prompt_ids("nope")


def test_labels_come_and_go(talk: Talk) -> None:
    answer = talk.turn("one", "1")
    talk.store.add_label(talk.id, answer.id, "good")
    talk.store.add_label(talk.id, answer.id, "good")
    talk.store.add_label(talk.id, answer.id, "0.25", "score")
    talk.store.add_label(talk.id, answer.id, "0.75", "score")
    assert [(label.kind, label.value) for label in talk.store.labels(talk.id)] == [
        ("label", "good"),
        ("score", "0.75"),
    ]
    assert talk.store.remove_label(talk.id, answer.id, "good")
    assert not talk.store.remove_label(talk.id, answer.id, "good")
    assert talk.store.remove_label(talk.id, answer.id, kind="score")
    assert talk.store.labels(talk.id) == []


def test_the_name_of_a_thought_is_of_one_message_in_a_session(talk: Talk) -> None:
    store = talk.store
    one, two = talk.turn("one", "1"), talk.turn("two", "2")
    store.add_label(talk.id, one.id, "s1.1", "score")
    store.add_label(talk.id, one.id, "s1.1=7", "score")
    store.add_label(talk.id, two.id, "s1.10=7", "score")
    for value in ("s1.1", "s1.1=7", "s1.1=0"):
        with pytest.raises(Refused, match=f"s1.1 is the thought {one.id[:4]} of this session"):
            store.add_label(talk.id, two.id, value, "score")
    assert [label.value for label in store.labels(talk.id) if label.message == two.id] == [
        "s1.10=7"
    ]
    store.add_label(talk.id, one.id, "s1.2", "score")
    store.add_label(talk.id, two.id, "s1.1", "score")
    fork = store.create_session(clock="c", fork_of=(talk.id, two.id))
    assert store.labels(fork.id) == []
    store.add_label(fork.id, one.id, "s1.1", "score")


def test_an_open_chat_undoes_and_redoes_from_its_own_head(talk: Talk) -> None:
    """The stored HEAD stays where it is; the chat's branch goes along."""
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    talk.store.create_branch(talk.id, "side", first.id)
    begun = talk.begin("three", parent=first.id, branch="side")
    third = talk.finish(begun.answer_ids[0], "3")
    talk.store.move_head(talk.id, branch="main")
    own = Head(talk.id, "side", third.id, "side")
    back = talk.store.undo(talk.id, at=own)
    assert back == Head(talk.id, "side", first.id, "side")
    assert talk.store.branch(talk.id, "side").message == first.id
    assert talk.store.head(talk.id).branch == "main"
    assert talk.store.previous(talk.id).branch == "side"
    with pytest.raises(NotFound):
        talk.store.redo(talk.id)  # of the stored HEAD nothing was undone
    assert talk.store.redo(talk.id, at=back) == own
    assert talk.store.branch(talk.id, "side").message == third.id
    with pytest.raises(NotFound):
        talk.store.redo(talk.id, at=own)


def test_an_open_chat_that_undoes_a_branch_that_moved_on_leaves_it(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    third = talk.turn("three", "3")
    own = Head(talk.id, "main", second.id, "main")  # it did not hear of three
    back = talk.store.undo(talk.id, at=own)
    assert back == Head(talk.id, None, first.id, "main")
    assert talk.store.branch(talk.id, "main").message == third.id
    assert talk.store.redo(talk.id, at=back) == Head(talk.id, None, second.id, "main")


def test_the_stands_of_a_session_come_after_what_they_stand_on(talk: Talk) -> None:
    answers = [talk.turn("one", "1"), talk.turn("two", "2"), talk.turn("three", "3")]
    stands = talk.store.stands(talk.id)
    prompts = [given(answer.prompt) for answer in answers]
    assert list(stands) == prompts
    assert [stands[p].base for p in prompts] == [None, *prompts[:2]]
    assert [stands[p].answer for p in prompts] == [None, answers[0].id, answers[1].id]
    assert [stands[p].length for p in prompts] == [talk.store.prompt(p).length for p in prompts]
    assert talk.store.stands(None) == stands
    assert talk.store.spans(None) == talk.store.spans(talk.id)


def compacted(talk: Talk) -> tuple[str, str]:
    """Where a session was before a compaction, and where it is after it."""
    before = talk.turn("hello", "hi").id
    came = {"branch": "main", "message": before}
    done = talk.store.append(
        talk.id,
        parent=None,
        new=[
            NewMessage.of("user", "sum up"),
            NewMessage("assistant", (text_part("hello, hi"),), extra={"compacted": came}),
        ],
        branch="compact",
        label=(before, "before-compact"),
    )
    return before, done.messages[-1]


def test_undo_after_a_compaction_goes_back_to_where_it_was_and_redo_returns(talk: Talk) -> None:
    before, after = compacted(talk)
    store = talk.store
    assert store.head(talk.id) == Head(talk.id, "compact", after, "compact")
    assert [(label.message, label.value) for label in store.labels(talk.id)] == [
        (before, "before-compact")
    ]
    assert store.undo(talk.id) == Head(talk.id, "main", before, "main")
    assert store.branch(talk.id, "compact").message == after
    assert store.redo(talk.id) == Head(talk.id, "compact", after, "compact")
    with pytest.raises(NotFound, match="only 1 turn back"):  # two turns are two turns of this path
        store.undo(talk.id, 2)


def test_undo_after_a_compaction_leaves_a_branch_that_has_moved_on_alone(talk: Talk) -> None:
    before, _ = compacted(talk)
    store = talk.store
    later = store.append(
        talk.id, parent=before, new=[NewMessage.of("user", "on")], branch="main", keep_head=True
    ).messages[0]
    assert store.undo(talk.id).message == before
    assert store.head(talk.id).branch is None
    assert store.branch(talk.id, "main").message == later


def test_undo_after_a_compaction_of_what_is_gone_is_an_undo_of_a_turn(talk: Talk) -> None:
    before, _ = compacted(talk)
    store = talk.store
    store.remove_label(talk.id, before, "before-compact")
    store.delete_branch(talk.id, "main")
    store.prune(talk.id)
    assert store.undo(talk.id).message is None
    assert store.head(talk.id).branch == "compact"


def test_a_label_that_cannot_be_leaves_nothing_of_what_was_to_be_added(talk: Talk) -> None:
    before = talk.turn("hello", "hi").id
    count = len(talk.store.message_ids(talk.id))
    for message, name in ((before, "7"), ("0" * 32, "fine")):
        with pytest.raises((Refused, NotFound)):
            talk.store.append(
                talk.id,
                parent=None,
                new=[NewMessage.of("user", "x")],
                branch="new",
                label=(message, name),
            )
    assert len(talk.store.message_ids(talk.id)) == count
    assert [b.name for b in talk.store.branches(talk.id)] == ["main"]
