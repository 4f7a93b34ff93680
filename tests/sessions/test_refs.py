"""REF: the user's ways to name a message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from radchat_sessions.errors import Ambiguous, NotFound
from radchat_sessions.messages import Head
from radchat_sessions.names import shortest
from radchat_sessions.refs import point, resolve
from radchat_sessions.scores import read
from radchat_sessions.store import Store
from tests.sessions.talk import Talk, given


@pytest.fixture
def chat() -> Iterator[Talk]:
    """Ids that are easy to name: 1110…, 1111…, one more for each thing made."""
    numbers = itertools.count(0x11100)
    store = Store.open(":memory:", new_id=lambda: f"{next(numbers):05x}".ljust(32, "0"))
    talk = Talk(store)
    for n in range(1, 5):
        talk.turn(f"question {n}", f"answer {n}")
    yield talk
    store.close()


def meant(chat: Talk, ref: str, at: Head | None = None) -> str | None:
    target = resolve(chat.store, ref, chat.id, at=at)
    return target.message and chat.store.message(target.message).text


def test_head_and_turns_back(chat: Talk) -> None:
    assert meant(chat, "HEAD") == meant(chat, "") == meant(chat, "head") == "answer 4"
    assert meant(chat, "HEAD~1") == meant(chat, "~1") == meant(chat, "HEAD~") == "answer 3"
    assert meant(chat, "HEAD~0") == "answer 4"
    assert meant(chat, "~3") == "answer 1"
    assert meant(chat, "HEAD~4") is None
    with pytest.raises(NotFound, match="only 4 turns"):
        meant(chat, "HEAD~5")


def test_a_number_of_up_to_three_digits_is_a_turn_of_the_current_path(chat: Talk) -> None:
    assert meant(chat, "2") == meant(chat, "#2") == meant(chat, "002") == "question 2"
    for ref in ("0", "5", "999", "#12"):
        with pytest.raises(NotFound, match="this path has 4"):
            meant(chat, ref)


def test_turns_are_counted_on_an_open_chats_own_head(chat: Talk) -> None:
    second = resolve(chat.store, "HEAD~2", chat.id).message
    own = Head(chat.id, None, second, "main")
    assert meant(chat, "HEAD", at=own) == "answer 2"
    assert meant(chat, "~1", at=own) == "answer 1"
    with pytest.raises(NotFound, match="this path has 2"):
        meant(chat, "3", at=own)


def test_an_id_prefix_of_four_digits_or_more(chat: Talk) -> None:
    message = chat.store.path(chat.head)[3]
    assert meant(chat, message.id[:5]) == meant(chat, message.id) == message.text
    assert meant(chat, message.id[:5].upper()) == message.text
    with pytest.raises(NotFound, match="4 hex digits"):
        meant(chat, "abc")
    with pytest.raises(NotFound):
        meant(chat, "abcdef")
    with pytest.raises(NotFound, match=f"no branch, label or message nothing in {chat.name}"):
        meant(chat, "nothing")


def test_an_ambiguous_prefix_lists_all_that_fit(chat: Talk) -> None:
    with pytest.raises(Ambiguous) as caught:
        meant(chat, "1110")
    assert len(caught.value.matches) >= 8
    assert any("user question 1" in match for match in caught.value.matches)
    assert "fits" in caught.value.message


def test_an_id_of_another_session_is_not_found_without_its_name(chat: Talk) -> None:
    other = Talk(chat.store)
    other.turn("elsewhere", "yes")
    with pytest.raises(NotFound):
        meant(chat, other.tip)
    assert meant(chat, f"{other.name}:HEAD") == "yes"
    assert meant(chat, f"{other.name}:") == "yes"
    assert meant(chat, f"{other.name}:1") == "elsewhere"
    assert meant(chat, f"{other.id[:6]}:{other.tip[:6]}") == "yes"
    with pytest.raises(NotFound, match="no session"):
        meant(chat, "nowhere:HEAD")


def test_another_session_is_seen_from_its_own_head(chat: Talk) -> None:
    other = Talk(chat.store)
    other.turn("elsewhere", "yes")
    own = Head(chat.id, None, None, "main")
    assert meant(chat, f"{other.name}:HEAD", at=own) == "yes"
    assert meant(chat, f"{chat.name}:HEAD", at=own) is None


def test_branches_come_before_labels_and_labels_before_ids(chat: Talk) -> None:
    path = chat.store.path(chat.head)
    chat.store.create_branch(chat.id, "face", path[1].id)
    chat.store.add_label(chat.id, path[3].id, "face")
    chat.store.add_label(chat.id, path[5].id, "good")
    assert meant(chat, "face") == "answer 1"
    assert resolve(chat.store, "face", chat.id).branch == "face"
    assert meant(chat, "good") == "answer 3"
    prefix = path[2].id[:5]
    chat.store.add_label(chat.id, path[7].id, prefix + "x")
    assert meant(chat, prefix) == path[2].text


def test_a_label_on_two_messages_is_ambiguous(chat: Talk) -> None:
    path = chat.store.path(chat.head)
    for message in path[:2]:
        chat.store.add_label(chat.id, message.id, "good")
    with pytest.raises(Ambiguous):
        meant(chat, "good")


def test_a_thought_is_a_ref_by_its_name_with_or_without_a_score(chat: Talk) -> None:
    path = chat.store.path(chat.head)
    chat.store.add_label(chat.id, path[1].id, "s1.1", "score")
    chat.store.add_label(chat.id, path[3].id, "s1.1.2=7.5", "score")
    chat.store.add_label(chat.id, path[5].id, "s1.1.20=0.001", "score")
    assert meant(chat, "s1.1") == "answer 1"
    assert meant(chat, "s1.1.2") == meant(chat, f"{chat.name}:s1.1.2") == "answer 2"
    assert resolve(chat.store, "s1.1.2", chat.id).kind == "thought"
    for nothing in ("s1.1.2=7.5", "s1", "s1.2", "s1.1.", "s01.1", "S1.1"):
        with pytest.raises(NotFound):
            meant(chat, nothing)
    chat.store.add_label(chat.id, path[7].id, "s1.1")  # a person's own word goes first
    assert meant(chat, "s1.1") == "answer 4"
    chat.store.create_branch(chat.id, "s1.1.2", path[7].id)
    assert meant(chat, "s1.1.2") == "answer 4"


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("s1.1.2=7.5", ("s1.1.2", 7.5)),
        ("s2.10", ("s2.10", None)),
        ("s1.1=-3e-2", ("s1.1", -0.03)),
        ("0.25", (None, 0.25)),
        ("s1.1=much", ("s1.1", None)),
        ("s1.1=nan", ("s1.1", None)),
        ("s1.1=1e999", ("s1.1", None)),
        ("s1.1=1_0", ("s1.1", None)),
        ("s1.1=٣", ("s1.1", None)),
        ("s1=7", (None, None)),
        ("s1.0", (None, None)),
        ("s1.1\n", (None, None)),
        ("best", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_a_score_says(value: str, means: tuple[str | None, float | None]) -> None:
    assert read(value) == means


def test_a_score_that_names_no_thought_is_no_ref(chat: Talk) -> None:
    chat.store.add_label(chat.id, chat.tip, "best", "score")
    with pytest.raises(NotFound):
        meant(chat, "best")


def test_a_dash_is_the_previous_branch(chat: Talk) -> None:
    with pytest.raises(NotFound, match="no previous branch"):
        meant(chat, "-")
    chat.store.create_branch(chat.id, "side", chat.store.path(chat.head)[1].id)
    chat.store.move_head(chat.id, branch="side")
    assert resolve(chat.store, "-", chat.id).branch == "main"
    assert meant(chat, "-") == "answer 4"


def test_a_user_message_means_the_point_before_it_and_offers_its_words(chat: Talk) -> None:
    where = point(chat.store, resolve(chat.store, "3", chat.id))
    assert chat.store.message(given(where.message)).text == "answer 2"
    assert where.text == "question 3"
    first = point(chat.store, resolve(chat.store, "1", chat.id))
    assert (first.message, first.text) == (None, "question 1")


def test_an_answer_or_a_branch_means_its_end(chat: Talk) -> None:
    begun = chat.begin("unanswered")
    for ref in ("HEAD", "main"):
        where = point(chat.store, resolve(chat.store, ref, chat.id))
        assert (where.message, where.text) == (begun.messages[0], None)
    answer = chat.store.path(chat.head)[1]
    where = point(chat.store, resolve(chat.store, answer.id[:5], chat.id))
    assert (where.message, where.text) == (answer.id, None)


def test_short_ids_are_the_shortest_that_tell_apart() -> None:
    assert shortest(["abcdef", "abcdff", "123456"]) == {
        "abcdef": "abcde",
        "abcdff": "abcdf",
        "123456": "1234",
    }
    assert shortest([]) == {}


def test_sessions_are_found_by_name_then_by_id(store: Store) -> None:
    one = store.create_session(clock="c", name="one")
    assert store.find_session("one") == store.find_session(one.id[:6]) == one
    with pytest.raises(NotFound):
        store.find_session(one.id[:3])
    with pytest.raises(NotFound):
        store.find_session("two")


def test_an_ambiguous_session_lists_both(chat: Talk) -> None:
    chat.store.create_session(clock="c")
    with pytest.raises(Ambiguous) as caught:
        chat.store.find_session("1110")
    assert len(caught.value.matches) == 2
