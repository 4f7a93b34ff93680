"""What a turn reads of a long conversation: its path once, and ids only of what is looked at."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from radchat.daemon.past import Past
from radchat.engine.conversation import PromptRecord
from radchat_sessions.content import text_part
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from radchat_sessions.store import IN_MEMORY, Store

TURN = 12  # ids of a user message, and of an answer


def talk(turns: int, *, rewrites: bool = False) -> tuple[Store, str]:
    """A chat of so many turns. ``rewrites``: each prompt keeps half of the last one's ids."""
    store = Store.open(IN_MEMORY)
    session = store.create_session(clock="2026-01-01T00:00:00+00:00")
    parent, prompt_id, length = None, None, 0
    for number in range(turns):
        tail = array("I", range(number * 100, number * 100 + TURN))
        prompt = NewPrompt(tail, "tok", "set", extra={"cleared": []})
        if parent is not None and rewrites:
            prompt = replace(prompt, base_prompt=prompt_id, kept=length // 2)
        elif parent is not None:
            prompt = replace(prompt, base_message=parent, kept=length + TURN)
        begun = store.begin(
            session.id,
            parent=parent,
            new=[NewMessage.of("user", "hello")],
            prompt=prompt,
            answers=[NewAnswer("main")],
        )
        parent, prompt_id, length = begun.answer_ids[0], begun.prompt, prompt.kept + TURN
        out = array("I", range(5000 + number * 100, 5000 + number * 100 + TURN))
        store.finish(parent, ids=out, parts=[text_part("x")], finish_reason="stop")
    assert parent is not None
    return store, parent


@contextmanager
def counted(store: Store) -> Iterator[Counter[str]]:
    """Statements that SQLite runs meanwhile."""
    counts: Counter[str] = Counter()
    connection = store._db._connection
    connection.set_trace_callback(lambda sql: counts.update([sql.split()[0]]))
    try:
        yield counts
    finally:
        connection.set_trace_callback(None)


@pytest.mark.parametrize("rewrites", [False, True])
def test_the_ids_are_those_of_the_store_whatever_is_asked_first(rewrites: bool) -> None:
    store, last = talk(30, rewrites=rewrites)
    path = store.path(last)
    prompts = [m.prompt for m in path if m.prompt is not None]
    whole = Past(store, path)
    for prompt in prompts[::-1] + prompts:
        assert whole.ids(prompt) == store.prompt_ids(prompt)
    for prompt in prompts:  # each by itself
        assert Past(store, path).ids(prompt) == store.prompt_ids(prompt)


def test_ids_that_stand_on_another_path_are_the_stores() -> None:
    store, last = talk(5)
    path = store.path(last)
    prompts = [m.prompt for m in path if m.prompt is not None]
    short = Past(store, path[-1:])
    assert short.ids(prompts[-1]) == store.prompt_ids(prompts[-1])


def test_a_turn_reads_each_message_once_and_puts_together_one_prompt() -> None:
    reads = {}
    for turns in (50, 200):
        store, last = talk(turns)
        path = store.path(last)
        with counted(store) as counts:
            past = Past(store, path)
            seen = past.turns("tok")
            assert len(seen) == 2 * turns
            record = seen[-1].prompt
            assert isinstance(record, PromptRecord)
            assert record.settings == "set"
            assert seen[-1].is_sampled
            ids = record.ids
        reads[turns] = counts.total()
        assert list(past._ids) == [path[-1].prompt]
        assert len(ids) == 2 * TURN * turns - TURN
    assert reads[200] <= 4 * reads[50]
    assert reads[200] <= 200 + 5


def test_every_prompt_of_a_path_costs_no_more_statements_than_its_answers() -> None:
    store, last = talk(200, rewrites=True)
    path = store.path(last)
    with counted(store) as counts:
        seen = Past(store, path).turns("tok")
        for turn in seen:
            if turn.prompt is not None:
                assert turn.prompt.ids
    assert counts.total() <= 200 + 5


def test_answers_of_another_tokenizer_are_text() -> None:
    store, last = talk(3)
    seen = Past(store, store.path(last)).turns("another")
    assert not any(turn.is_sampled for turn in seen)
    assert [turn.text for turn in seen] == ["hello", "x"] * 3
