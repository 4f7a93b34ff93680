"""Planted damage, each found; and a sound store in which nothing is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radchat_sessions.messages import Message, NewAnswer
from radchat_sessions.store import Store
from tests.sessions.talk import Talk, given

Damage = tuple[str, str, Callable[[list[Message]], str]]  # sql, kind, and whose id is told


def of(index: int) -> Callable[[list[Message]], str]:
    return lambda messages: messages[index].id


# fmt: off
FIRST, LAST = "(SELECT id FROM messages WHERE seq = 1)", "(SELECT id FROM messages WHERE seq = 4)"
OTHER_PROMPT = (
    "INSERT INTO prompts SELECT NULL, 'cafe', message, NULL, NULL, 0, x'', 0, '', '', '[]', '{}', 0"
    " FROM prompts WHERE seq = 1"
)
ORPHAN = (
    "INSERT INTO messages (id, role, parts, text, created, digest) "
    "VALUES ('cafe', 'user', '[]', '', 0, '')"
)
LABEL = "INSERT INTO labels SELECT id, 'feedfeed', 'label', 'x' FROM sessions"
EMPTY_INDEX = "INSERT INTO message_text (message_text) VALUES ('delete-all')"
SHORT = "UPDATE messages SET out = x'31000000' WHERE seq = 2"
NO_IDS = "UPDATE messages SET out = NULL, prompt = NULL WHERE seq = 4"


def own_session(messages: list[Message]) -> str:
    return given(messages[0].origin)


DAMAGES: dict[str, Damage] = {
    "a changed word": (
        "UPDATE messages SET parts = replace(parts, 'one', 'won') WHERE seq = 1", "digest", of(0)),
    "a changed id": ("UPDATE messages SET out = x'00000000' WHERE seq = 4", "digest", of(3)),
    "ids that are missing": (NO_IDS, "digest", of(3)),
    "another role": ("UPDATE messages SET role = 'system' WHERE seq = 3", "digest", of(2)),
    "another digest": ("UPDATE messages SET digest = 'b2:00' WHERE seq = 4", "digest", of(3)),
    "another parent": (
        f"UPDATE messages SET parent = {FIRST} WHERE seq = 3", "digest", of(2)),
    "parts that are no list": ("UPDATE messages SET parts = '7' WHERE seq = 1", "digest", of(0)),
    "a parent that is not there": (
        "UPDATE messages SET parent = 'feedfeed' WHERE seq = 3", "parent", of(2)),
    "a ring of parents": (
        f"UPDATE messages SET parent = {LAST} WHERE seq = 1", "parent", of(0)),
    "an answer shorter than what stands on it": (SHORT, "ids", of(2)),
    "a share outside its prompt": (
        f"UPDATE shares SET stop = 999 WHERE message = {FIRST}", "ids", of(0)),
    "a prompt that ends elsewhere": (
        f"UPDATE prompts SET message = {LAST} WHERE seq = 1", "ids", of(1)),
    "a prompt nobody has": (OTHER_PROMPT, "orphan", of(0)),
    "a message no session shows": (ORPHAN, "orphan", lambda _: "cafe"),
    "other words in the index": ("UPDATE messages SET text = 'two' WHERE seq = 1", "index", of(0)),
    "words missing from the index": (EMPTY_INDEX, "database", lambda _: ""),
    "a head on no branch": ("DELETE FROM branches WHERE name = 'main'", "head", own_session),
    "a branch that names nothing": (
        "UPDATE branches SET message = 'feedfeed' WHERE name = 'side'", "head", own_session),
    "a label that names nothing": (LABEL, "head", own_session),
}
# fmt: on


@pytest.fixture
def messages(talk: Talk) -> list[Message]:
    """Two turns, and a branch at the first; seq is 1 to 4."""
    first = talk.turn("one", "1")
    talk.turn("two", "2")
    talk.store.create_branch(talk.id, "side", first.id)
    return talk.store.messages(talk.id)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_and_told_where(
    talk: Talk, messages: list[Message], name: str
) -> None:
    sql, kind, whose = DAMAGES[name]
    store, db = talk.store, talk.store._db._connection
    assert store.verify() == []
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA ignore_check_constraints = ON")
    assert db.execute(sql).rowcount != 0
    problems = store.verify()
    assert (kind, whose(messages)) in [(p.kind, p.id) for p in problems], problems
    if kind not in ("database", "orphan"):
        assert {p.session for p in problems if p.kind == kind} == {talk.id}
        assert (kind, whose(messages)) in [(p.kind, p.id) for p in store.verify(talk.id)]


def test_one_fault_is_told_once_and_not_for_all_that_follows(
    talk: Talk, messages: list[Message]
) -> None:
    db = talk.store._db._connection
    db.execute("UPDATE messages SET parts = replace(parts, 'one', 'won') WHERE seq = 1")
    assert [(p.kind, p.id) for p in talk.store.verify()] == [("digest", messages[0].id)]


def test_damage_in_one_session_is_not_told_of_another(
    talk: Talk, messages: list[Message], store: Store
) -> None:
    other = Talk(store)
    other.turn("sound", "yes")
    store._db._connection.execute("UPDATE messages SET role = 'tool' WHERE seq = 3")
    assert store.verify(other.id) == []
    assert [p.id for p in store.verify(talk.id)] == [messages[2].id]


def test_a_page_of_zeros_is_found_and_nothing_is_raised(home: Path, talk: Talk) -> None:
    for n in range(60):
        talk.turn(f"question {n} " * 40, "answer " * 40)
    talk.store.close()
    path = home / "radchat.db"
    data = bytearray(path.read_bytes())
    middle = len(data) // 4096 // 2 * 4096
    data[middle : middle + 4096] = bytes(4096)
    path.write_bytes(data)
    store = Store.open(path, synchronous="OFF")
    assert "database" in {p.kind for p in store.verify()}
    store.close()


def test_a_sound_store_with_everything_in_it_has_no_problems(talk: Talk, store: Store) -> None:
    first = talk.turn("one", "1")
    talk.retry("2", expected=first.id)
    begun = talk.begin("still running", answers=[NewAnswer("main"), NewAnswer(None)])
    store.append_ids(begun.answer_ids[0], [1], "x")
    fork = Talk(store, store.create_session(clock="c", fork_of=(talk.id, first.id)))
    fork.turn("東京", "🦆\0")
    store.undo(fork.id)
    store.create_session(clock="c")
    assert store.verify() == []
    assert store.verify(fork.id) == []
