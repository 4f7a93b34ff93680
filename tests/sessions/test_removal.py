"""rm and prune: the only two that delete, and what they must not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from radchat_sessions import schema
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from radchat_sessions.store import Store
from tests.sessions.talk import Talk, given


def on_disk(home: Path, word: str) -> list[str]:
    needles = [word.encode(), word.upper().encode()]
    return [
        p.name for p in home.rglob("*") if p.is_file() and any(n in p.read_bytes() for n in needles)
    ]


def test_prune_deletes_what_no_name_reaches(talk: Talk) -> None:
    first = talk.turn("one", "1")
    kept = talk.retry("2", expected=first.id)
    assert talk.store.prune(talk.id, dry_run=True).messages == (first.id,)
    assert len(talk.store.messages(talk.id)) == 3
    assert talk.store.prune(talk.id).messages == (first.id,)
    assert [m.id for m in talk.store.messages(talk.id)] == [kept.parent, kept.id]
    assert talk.store.prune(talk.id).messages == ()
    assert talk.store.verify() == []


def test_labels_head_branches_and_running_answers_keep_messages(talk: Talk) -> None:
    ends = []
    for n in range(4):
        begun = talk.begin(f"q{n}", parent=None, branch=None)
        ends.append(talk.finish(begun.answer_ids[0], f"a{n}"))
    talk.store.add_label(talk.id, ends[0].id, "keep")
    talk.store.create_branch(talk.id, "side", ends[1].id)
    talk.store.move_head(talk.id, message=ends[2].id)
    running = talk.begin("still", parent=ends[3].id, branch=None)
    assert talk.store.prune(talk.id).messages == ()
    talk.store.abandon(running.answer_ids[0])
    assert len(talk.store.prune(talk.id).messages) == 3
    assert talk.store.verify() == []


def test_a_score_keeps_nothing_and_goes_with_its_message(talk: Talk) -> None:
    store = talk.store
    first = talk.turn("one", "1")
    thoughts = [
        talk.finish(answer, "x")
        for answer in talk.begin(
            "think", answers=[NewAnswer(None), NewAnswer(None)], keep_head=True
        ).answer_ids
    ]
    for number, thought in enumerate(thoughts, 1):
        store.add_label(talk.id, thought.id, f"s1.{number}=7", "score")
    last = talk.turn("two", "2")
    asked = given(thoughts[0].parent)
    told = store.prune(talk.id, dry_run=True)
    assert set(told.messages) == {asked, *(t.id for t in thoughts)}
    assert (told.labels, told.thoughts) == (0, 2)
    store.add_label(talk.id, thoughts[1].id, "good")
    assert store.prune(talk.id, dry_run=True).messages == (thoughts[0].id,)
    assert store.prune(talk.id).messages == (thoughts[0].id,)
    assert [label.value for label in store.labels(talk.id)] == ["good", "s1.2=7"]
    store.remove_label(talk.id, thoughts[1].id)
    assert set(store.prune(talk.id).messages) == {asked, thoughts[1].id}
    assert store.labels(talk.id) == []
    assert {first.id, last.id} < {m.id for m in store.messages(talk.id)}
    assert store.verify() == []


def test_unlabeled_prunes_the_side_branches_on_which_no_label_stands(talk: Talk) -> None:
    store = talk.store
    first = talk.turn("one", "1")
    ends = {}
    for name in ("plain", "marked", "inside", "scored"):
        begun = talk.begin(name, parent=first.id, branch=name, keep_head=True)
        ends[name] = talk.finish(begun.answer_ids[0], "x")
    more = talk.begin("more", parent=ends["inside"].id, branch="inside", keep_head=True)
    last = talk.finish(more.answer_ids[0], "y")
    store.add_label(talk.id, ends["marked"].id, "keep")
    store.add_label(talk.id, given(ends["inside"].parent), "also")
    store.add_label(talk.id, ends["scored"].id, "0.7", "score")
    store.create_branch(talk.id, "early", first.id)  # on HEAD's path: it costs nothing
    main = talk.turn("two", "2")
    assert store.prune(talk.id, dry_run=True).messages == ()
    told = store.prune(talk.id, unlabeled=True, dry_run=True)
    assert told.branches == ("plain", "scored")
    assert len(store.branches(talk.id)) == 6
    pruned = store.prune(talk.id, unlabeled=True)
    assert (pruned.messages, pruned.branches) == (told.messages, told.branches)
    assert {b.name for b in store.branches(talk.id)} == {"main", "early", "marked", "inside"}
    kept = {m.id for m in store.messages(talk.id)}
    assert {main.id, last.id, ends["marked"].id} <= kept
    assert not {ends["plain"].id, ends["scored"].id} & kept
    assert store.verify() == []


def test_marked_messages_go_with_all_that_follows_them_and_nothing_else(talk: Talk) -> None:
    store = talk.store
    first = talk.turn("one", "1")
    ends = []
    for name in ("a", "b"):
        begun = talk.begin(name, parent=first.id, branch=name, keep_head=True)
        ends.append(talk.finish(begun.answer_ids[0], "x"))
    again = talk.finish(
        talk.begin("on", parent=ends[0].id, branch="a", keep_head=True).answer_ids[0], "y"
    )
    loser = talk.finish(talk.begin("no name", parent=first.id, branch=None).answer_ids[0], "z")
    store.add_label(talk.id, again.id, "keep")
    main = talk.turn("two", "2")
    marked = [given(ends[0].parent), again.id]
    told = store.prune(talk.id, marked=marked, dry_run=True)
    assert set(told.messages) == {*marked, ends[0].id, given(again.parent)}
    assert (told.branches, told.labels) == (("a",), 1)
    assert store.message(again.id)
    assert store.prune(talk.id, marked=marked).messages == told.messages
    assert {b.name for b in store.branches(talk.id)} == {"main", "b"}
    assert store.labels(talk.id) == []
    assert {m.id for m in store.messages(talk.id)} >= {main.id, ends[1].id, loser.id}
    with pytest.raises(NotFound):
        store.prune(talk.id, marked=marked)
    assert store.verify() == []


def test_what_head_an_open_chat_or_an_answer_stands_on_is_not_deleted(talk: Talk) -> None:
    store = talk.store
    first = talk.turn("one", "1")
    side = talk.finish(
        talk.begin("s", parent=first.id, branch="s", keep_head=True).answer_ids[0], "x"
    )
    asked = given(side.parent)
    with pytest.raises(Refused, match="HEAD is at or after"):
        store.prune(talk.id, marked=[first.id])
    with pytest.raises(Refused, match="this chat is at or after"):
        store.prune(talk.id, marked=[asked], head=side.id, dry_run=True)
    running = talk.begin("still", parent=side.id, branch=None, keep_head=True)
    with pytest.raises(Refused, match="an answer runs at or after"):
        store.prune(talk.id, marked=[asked])
    store.abandon(running.answer_ids[0])
    assert len(store.prune(talk.id, marked=[asked]).messages) == 3


def test_what_another_session_shows_of_the_marked_stays(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    side = talk.finish(
        talk.begin("s", parent=first.id, branch="s", keep_head=True).answer_ids[0], "x"
    )
    fork = store.create_session(clock="c", fork_of=(talk.id, given(side.parent)))
    pruned = store.prune(talk.id, marked=[given(side.parent)])
    assert (pruned.messages, pruned.shared, pruned.branches) == ((side.id,), 1, ("s",))
    assert given(side.parent) in store.message_ids(fork.id)
    assert given(side.parent) not in store.message_ids(talk.id)
    assert store.verify() == []


def test_pruning_an_undone_turn_ends_redo(talk: Talk) -> None:
    talk.turn("one", "1")
    talk.turn("two", "2")
    talk.store.undo(talk.id)
    talk.store.prune(talk.id)
    with pytest.raises(NotFound, match="nothing to redo"):
        talk.store.redo(talk.id)


def test_prompts_go_with_their_last_answer(talk: Talk) -> None:
    first = talk.turn("one", "1")
    talk.store.undo(talk.id)
    removed = talk.store.prune(talk.id)
    assert removed.prompts == 1
    with pytest.raises(NotFound):
        talk.store.prompt(given(first.prompt))


def test_a_prompt_keeps_its_ids_when_its_base_is_deleted(talk: Talk) -> None:
    first = talk.turn("one", "1")
    other = talk.finish(talk.begin("aside", parent=None, branch=None).answer_ids[0], "x")
    begun = talk.store.begin(
        talk.id,
        parent=first.id,
        new=[NewMessage.of("user", "two")],
        prompt=NewPrompt(
            tail=talk.prompt(None, ["two"]).tail,
            tokenizer="t",
            settings="s",
            base_message=other.id,
            kept=5,
        ),
        answers=[NewAnswer("main")],
    )
    answer = talk.finish(begun.answer_ids[0], "2")
    ids = talk.store.ids(answer.id)
    assert len(talk.store.prune(talk.id).messages) == 2
    assert talk.store.ids(answer.id) == ids
    assert talk.store.verify() == []


def test_removing_a_session_removes_its_words_from_the_disk(
    talk: Talk, home: Path, store: Store
) -> None:
    other = Talk(store)
    other.turn("ordinary words", "stay")
    for n in range(30):
        talk.turn(f"the xylophonist number {n} " + "padding " * 50, "plays the Xylophonist well")
    begun = talk.begin("xylophonist again")
    store.append_ids(begun.answer_ids[0], [1], "xylophonist")
    talk.finish(begun.answer_ids[0], "xylophonist")
    assert on_disk(home, "xylophonist")
    store.remove(talk.id)
    assert on_disk(home, "xylophonist") == []
    assert store.search("xylophonist") == []
    assert on_disk(home, "ordinary")
    assert store.verify() == []


def test_removing_a_session_removes_backups_that_hold_its_words(
    talk: Talk, home: Path, store: Store
) -> None:
    talk.turn("xylophonist", "x")
    copy = schema.backup_path(home / "radchat.db", 1)
    copy.write_bytes(b"xylophonist")
    store.remove(talk.id)
    assert on_disk(home, "xylophonist") == []


def test_pruned_words_leave_the_disk_too(talk: Talk, home: Path, store: Store) -> None:
    talk.turn("one", "1")
    talk.turn("xylophonist", "x")
    store.undo(talk.id)
    store.prune(talk.id)
    assert on_disk(home, "xylophonist") == []


def test_a_kill_in_the_middle_of_a_removal_leaves_no_word_to_the_next_start(
    talk: Talk, home: Path, store: Store, tmp_path: Path
) -> None:
    """Between the commit and what cuts the log: the files as they are on the disk then."""
    talk.turn("xylophonist", "x")
    Talk(store).turn("ordinary", "stay")
    schema.backup_path(home / "radchat.db", 1).write_bytes(b"xylophonist")
    after = tmp_path / "after"

    def killed() -> None:
        shutil.copytree(home, after)

    store._db.forget_removed = killed  # type: ignore[method-assign]
    store.remove(talk.id)
    assert on_disk(after, "xylophonist") == ["radchat.db-wal"]
    again = Store.open(after / "radchat.db", running_dir=after / "running")
    assert on_disk(after, "xylophonist") == []
    assert on_disk(after, "ordinary")
    assert again.verify() == []
    again.close()
    assert on_disk(after, "xylophonist") == []


def test_shared_messages_survive_the_session_that_wrote_them(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    talk.turn("mine", "2")
    fork = Talk(store, store.create_session(clock="c", fork_of=(talk.id, first.id)))
    theirs = fork.turn("theirs", "3")
    told = store.remove(talk.id, dry_run=True)
    removed = store.remove(talk.id)
    assert removed.messages == told.messages
    assert (len(removed.messages), removed.shared) == (2, 2)
    assert fork.words(theirs.id) == ["one", "1", "theirs", "3"]
    assert store.ids(theirs.id) == fork.expected_ids(theirs.id)
    assert store.session(fork.id).parent is None
    assert {m.origin for m in store.messages(fork.id)} == {fork.id}
    assert store.verify() == []
    assert len(store.remove(fork.id).messages) == 4
    assert store.verify() == []


def test_a_session_can_prune_its_own_and_leave_what_others_show(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    fork = Talk(store, store.create_session(clock="c", fork_of=(talk.id, first.id)))
    store.undo(talk.id)
    pruned = store.prune(talk.id)
    assert (pruned.messages, pruned.shared) == ((), 2)
    assert store.messages(talk.id) == []
    assert fork.words(fork.head) == ["one", "1"]
    assert store.verify() == []


def test_what_another_session_has_without_a_name_is_not_pruned_from_here(
    talk: Talk, store: Store
) -> None:
    first = talk.turn("one", "1")
    fork = Talk(store, store.create_session(clock="c", fork_of=(talk.id, first.id)))
    loser = fork.finish(fork.begin("aside", branch=None).answer_ids[0], "x")
    store.prune(talk.id)
    store.remove(talk.id)
    assert store.message(loser.id).text == "x"
    assert store.prune(fork.id).messages == (loser.parent, loser.id)


def test_a_session_with_a_running_answer_is_not_removed(talk: Talk) -> None:
    begun = talk.begin("q")
    with pytest.raises(Refused, match="running"):
        talk.store.remove(talk.id)
    talk.store.abandon(begun.answer_ids[0])
    talk.store.remove(talk.id)
    with pytest.raises(NotFound):
        talk.store.session(talk.id)
    with pytest.raises(NotFound):
        talk.store.remove(talk.id)


def test_the_text_index_never_gets_too_deep(talk: Talk, store: Store) -> None:
    """SQLite takes one for damaged that was optimised a thousand times."""
    store.deepest_index = 120
    for number in range(150):
        going = Talk(store)
        going.turn(f"one {number}", "two")
        talk.turn(f"kept {number}", "and this")
        store.remove(going.id)
        (row,) = store._db.all("SELECT length(block) AS n FROM message_text_data WHERE id = 10")
        assert row["n"] < 200
    assert store.verify() == []
    assert len(store.search("kept", limit=500)) == 150
    assert store.search("one") == []
