"""Branches just made go by number, until the conversation goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from radchat_sessions.messages import Head
from radchat_sessions.names import Names
from radchat_sessions.refs import resolve
from radchat_sessions.store import Store
from tests.sessions.talk import Talk


def fan(talk: Talk, *names: str) -> dict[str, str]:
    """A what-if at HEAD: its answers by branch."""
    here = talk.head
    answers, made = {}, []
    with talk.store.as_one():
        for name in names:
            begun = talk.begin(f"what if {name}", parent=here, branch=name, keep_head=True)
            made.append((talk.placed(begun).branch, begun.messages[0]))
            answers[name] = begun.answer_ids[0]
        talk.store.number_branches(talk.id, made, here)
    for name, answer in answers.items():
        talk.finish(answer, f"then {name}")
    return answers


def picked(talk: Talk, ref: str, at: Head | None = None) -> str | None:
    return resolve(talk.store, ref, talk.id, at=at, pick=True).branch


def test_a_number_is_a_branch_just_made_until_one_goes_on(talk: Talk) -> None:
    talk.turn("one", "1")
    talk.turn("two", "2")
    answers = fan(talk, "up", "down")
    assert [picked(talk, ref) for ref in ("1", "2", "002")] == ["up", "down", "down"]
    assert resolve(talk.store, "2", talk.id, pick=True).message == answers["down"]
    assert resolve(talk.store, "2", talk.id).kind == "turn"  # where nobody picks
    assert picked(talk, "#2") is None  # always a turn
    talk.store.move_head(talk.id, branch="up")
    assert picked(talk, "2") == "down"  # from one of them to another
    talk.turn("and on", "3", branch="up")
    assert (picked(talk, "2"), resolve(talk.store, "2", talk.id, pick=True).kind) == (None, "turn")
    talk.store.move_head(talk.id, branch="main")
    assert picked(talk, "2") == "down"


def test_numbers_are_those_of_who_stands_there(talk: Talk) -> None:
    first = talk.turn("one", "1").id
    talk.turn("two", "2")
    fan(talk, "up", "down")
    assert talk.store.numbered_branches(talk.id) == {1: "up", 2: "down"}
    elsewhere = Head(talk.id, None, first, "main")
    assert talk.store.numbered_branches(talk.id, elsewhere) == {}
    gone = Head(talk.id, None, "f" * 32, "main")
    assert talk.store.numbered_branches(talk.id, gone) == {}


def test_only_the_last_command_has_numbers_and_they_outlive_the_process(
    talk: Talk, open_store: Callable[[], Store]
) -> None:
    talk.turn("one", "1")
    fan(talk, "up", "down", "left")
    fan(talk, "more", "less")
    talk.store.close()
    again = Talk(open_store(), talk.session)
    assert again.store.numbered_branches(talk.id) == {1: "more", 2: "less"}


def test_numbers_follow_a_new_name_and_go_with_their_branch(talk: Talk) -> None:
    talk.turn("one", "1")
    fan(talk, "up", "down", "left")
    talk.store.rename_branch(talk.id, "up", "high")
    talk.store.delete_branch(talk.id, "down")
    assert talk.store.numbered_branches(talk.id) == {1: "high", 3: "left"}
    talk.store.prune(talk.id, unlabeled=True)
    assert talk.store.numbered_branches(talk.id) == {}
    assert talk.store.verify() == []
    talk.store.remove(talk.id)
    assert talk.store.verify() == []


def test_a_pruned_place_takes_no_numbers_along_and_no_document_has_any(talk: Talk) -> None:
    answer = talk.turn("one", "1").id
    retried = talk.retry("again", answer)
    asked = str(retried.parent)
    talk.store.number_branches(talk.id, [("main", asked)], answer)
    talk.store.prune(talk.id)  # the first answer, where it was asked for
    assert talk.store.numbered_branches(talk.id) == {1: "main"}
    assert talk.store.verify() == []
    assert "picks" not in str(talk.store.export(talk.id))


def test_what_is_written_as_one_is_there_whole_or_not_at_all(talk: Talk) -> None:
    talk.turn("one", "1")
    before = talk.store.message_ids(talk.id)
    with contextlib.suppress(ZeroDivisionError), talk.store.as_one():
        talk.begin("what if", branch="up", keep_head=True)
        raise ZeroDivisionError
    assert talk.store.message_ids(talk.id) == before
    assert [branch.name for branch in talk.store.branches(talk.id)] == ["main"]
    assert talk.store.running() == []


@pytest.mark.parametrize(
    ("base", "whole", "names"),
    [
        ("main-2", False, ["main-2", "main-3", "main-4"]),
        ("cost-5", True, ["cost-5", "cost-5-2", "cost-5-3"]),
        ("x" * 64, True, ["x" * 64, "x" * 56 + "-2", "x" * 56 + "-3"]),
    ],
)
def test_a_number_that_is_somebodys_word_stays(base: str, whole: bool, names: list[str]) -> None:
    free = Names({"main"})
    assert [free.take(base, whole=whole) for _ in names] == names
