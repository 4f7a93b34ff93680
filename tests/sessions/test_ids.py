"""Whose ids are whose: nothing is tokenized twice, every id the engine saw can be told again."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from radchat_sessions.content import pack_ids, text_part, unpack_ids
from radchat_sessions.errors import Refused
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from tests.sessions.talk import Talk, given


def test_each_prompt_begins_with_all_the_ids_before_it(talk: Talk) -> None:
    before = array("I")
    for n in range(6):
        answer = talk.turn(f"question {n}", f"answer {n}")
        ids = talk.ids(answer.id)
        assert ids[: len(before)] == before
        before = ids
    assert before == talk.expected_ids(talk.tip)


def test_a_fork_stores_only_its_new_ids(talk: Talk) -> None:
    first = talk.turn("a long first question", "1")
    talk.turn("two", "2")
    begun = talk.begin("three", parent=first.id, branch="side")
    tail = talk.store.prompt(begun.prompt).tail
    assert len(tail) == len("three") + 2


def test_spans_cut_a_path_into_its_messages(talk: Talk) -> None:
    talk.turn("one", "1")
    talk.turn("two", "2")
    ids = talk.ids(talk.tip)
    spans = talk.store.spans(talk.id)
    told = [
        bytes(i for i in ids[spans[m.id].start : spans[m.id].stop] if i > 2).decode()
        for m in talk.store.path(talk.head)
    ]
    assert told == ["one", "1", "two", "2"]
    assert {m.id: talk.store.span(m.id) for m in talk.store.messages(talk.id)} == spans


def test_the_ids_of_a_question_end_where_its_share_ends(talk: Talk) -> None:
    talk.turn("one", "1")
    begun = talk.begin("two")
    ids = talk.ids(begun.messages[0])
    assert bytes(list(ids)).endswith(b"\x01two")
    assert len(ids) == given(talk.store.span(begun.messages[0])).stop


def test_an_unanswered_question_has_no_ids_until_the_next_tail_contains_it(talk: Talk) -> None:
    talk.turn("one", "1")
    begun = talk.begin("two")
    question = begun.messages[0]
    talk.store.abandon(begun.answer_ids[0])
    assert talk.store.span(question) is None
    assert talk.store.ids(question) is None
    answer = talk.turn("three", "3")
    assert talk.store.span(question) is not None
    assert bytes(list(talk.ids(question))).endswith(b"\x01two")
    assert talk.ids(answer.id) == talk.expected_ids(answer.id)


@pytest.mark.parametrize("kept", range(13))
def test_a_rewrite_keeps_any_part_of_an_answers_path(talk: Talk, kept: int) -> None:
    answer = talk.turn("one", "1")
    second = talk.turn("two", "2")
    old = talk.ids(second.id)
    assert len(talk.ids(answer.id)) == 7
    assert len(old) == 14
    begun = talk.store.begin(
        talk.id,
        parent=second.id,
        new=[NewMessage.of("user", "three")],
        prompt=NewPrompt(
            tail=array("I", [77, 78]),
            tokenizer="t",
            settings="s",
            base_message=second.id,
            kept=kept,
        ),
        answers=[NewAnswer("main")],
    )
    assert talk.store.prompt_ids(begun.prompt) == old[:kept] + array("I", [77, 78])


def test_a_prompt_can_stand_on_an_earlier_prompt(talk: Talk) -> None:
    first = talk.turn("one", "1")
    base = talk.store.prompt(given(first.prompt))
    whole = talk.store.prompt_ids(base.id)
    for kept in range(base.length + 1):
        begun = talk.store.begin(
            talk.id,
            parent=first.id,
            new=[NewMessage.of("user", "x")],
            prompt=NewPrompt(
                tail=array("I", [9]), tokenizer="t", settings="s", base_prompt=base.id, kept=kept
            ),
            answers=[NewAnswer(None)],
        )
        assert talk.store.prompt_ids(begun.prompt) == whole[:kept] + array("I", [9])


def test_siblings_share_one_prompt_row(talk: Talk) -> None:
    begun = talk.begin("pick", answers=[NewAnswer(None, choice=n) for n in range(4)])
    answers = [talk.finish(answer_id, str(n)) for n, answer_id in enumerate(begun.answer_ids)]
    assert {answer.prompt for answer in answers} == {begun.prompt}


def test_a_continued_answer_is_a_sibling_that_begins_with_the_old_ids(talk: Talk) -> None:
    begun = talk.begin("count")
    cut = talk.store.finish(
        begun.answer_ids[0],
        ids=array("I", list(b"1, 2")),
        parts=[text_part("1, 2")],
        finish_reason="length",
    ).message
    again = talk.store.begin(
        talk.id,
        parent=cut.parent,
        prompt=given(cut.prompt),
        answers=[NewAnswer("main")],
        expected=cut.id,
    )
    whole = talk.store.finish(
        again.answer_ids[0],
        ids=given(talk.store.out(cut.id)) + array("I", list(b", 3")),
        parts=[text_part("1, 2, 3")],
        finish_reason="stop",
        extra={"continues": cut.id},
    ).message
    assert talk.head == whole.id
    before = talk.ids(cut.id)
    assert talk.ids(whole.id)[: len(before)] == before


def test_the_prompts_on_a_path_come_newest_first(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    talk.begin("elsewhere", parent=first.id, branch="side")
    assert [p.id for p in talk.store.prompts_on(second.id)] == [second.prompt, first.prompt]
    assert talk.store.prompts_on(None) == []


def test_a_prompt_that_keeps_more_than_there_is_is_refused_and_leaves_nothing(talk: Talk) -> None:
    answer = talk.turn("one", "1")
    before = talk.store.messages(talk.id)

    plain = NewPrompt(tail=array("I", [1]), tokenizer="t", settings="s")

    def refused(match: str, prompt: NewPrompt) -> None:
        with pytest.raises(Refused, match=match):
            talk.store.begin(
                talk.id,
                parent=answer.id,
                new=[NewMessage.of("user", "x")],
                prompt=prompt,
                answers=[NewAnswer("main")],
            )

    refused("can't keep 8 of 7", replace(plain, base_message=answer.id, kept=8))
    refused("can't keep -1", replace(plain, base_message=answer.id, kept=-1))
    refused("can't keep 1 of 0", replace(plain, kept=1))
    refused("is an answer", replace(plain, base_message=answer.parent, kept=1))
    refused("more than its path has", replace(plain, shares=[(0, 1)] * 4))
    refused("share of 0 to 2", replace(plain, shares=[(0, 2)]))
    assert talk.store.messages(talk.id) == before
    assert talk.head == answer.id


def test_a_prompt_is_asked_again_only_where_it_ends(talk: Talk) -> None:
    first = talk.turn("one", "1")
    second = talk.turn("two", "2")
    for parent, new in ((second.parent, []), (first.parent, [NewMessage.of("user", "x")])):
        with pytest.raises(Refused, match="asked again only where it ends"):
            talk.store.begin(
                talk.id,
                parent=parent,
                new=new,
                prompt=given(first.prompt),
                answers=[NewAnswer(None)],
            )


def test_an_answer_needs_a_message_before_it(talk: Talk) -> None:
    with pytest.raises(Refused, match="needs a message"):
        talk.store.begin(
            talk.id, parent=None, prompt=talk.prompt(None, []), answers=[NewAnswer(None)]
        )


def test_ids_are_stored_as_little_endian_words() -> None:
    ids = array("I", [1, 256, 2**32 - 1])
    assert pack_ids(ids) == b"\x01\0\0\0\0\x01\0\0\xff\xff\xff\xff"
    assert unpack_ids(pack_ids(ids)) == ids
