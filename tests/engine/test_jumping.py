"""What a grammar forces is not drawn, and nothing else is different for it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from radchat.engine.grammar import GrammarKind
from radchat.engine.request import Event, FinishReason, Priority, Request, Tokens
from tests.engine.jumping import (
    LAYOUTS,
    PERSON,
    Asked,
    asking,
    held_to,
    jumping_engine,
)
from tests.fakes import drain, finished, output, text

CALL = [{"name": "search", "parameters": {"type": "object", "properties": {"q": {"enum": ["a"]}}}}]


def some_grammar(dice: random.Random, layout: str) -> Any:
    kinds: list[tuple[GrammarKind, object]] = [
        ("json_schema", PERSON),
        ("json_schema", {"const": {"tools": ["weather — 漢字 😀"] * 3}}),
        ("json_schema", {"type": "array", "items": {"enum": ["yes", "no"]}, "maxItems": 4}),
        ("regex", r"The answer is [0-9]{1,3}\. (Thanks|Hello there); (.|\n){0,9}!!"),
        ("regex", r"漢字é(a|b)😀😀"),
        ("choices", ["weather", "weather in the sun", "search"]),
        ("tools", CALL),
    ]
    kind, source = dice.choice(kinds)
    return held_to(kind, source, layout)


def some_request(dice: random.Random, name: str, layout: str) -> Request:
    more: dict[str, Any] = {
        "seed": dice.getrandbits(64),
        "temperature": dice.choice([0.0, 0.7, 2.0]),
    }
    if dice.random() < 0.3:
        more["max_tokens"] = dice.randint(1, 40)
    if dice.random() < 0.3:
        more["stop"] = tuple(dice.sample(['"', "system", "e", "answer is", "字", '": ', "ea"], 2))
    if dice.random() < 0.2:
        more["repetition_penalty"] = 1.3
    if dice.random() < 0.2:
        more |= {"presence_penalty": 0.7, "frequency_penalty": -0.4}
    if dice.random() < 0.2:
        more["logit_bias"] = {dice.randrange(400): dice.choice([-100, 60])}
    if dice.random() < 0.1:
        more["logprobs"] = 1
    grammar = some_grammar(dice, layout) if dice.random() < 0.8 else None
    more["n"] = dice.choice([1, 1, 2, 4])
    more["priority"] = dice.choice(list(Priority))
    return asking(name, grammar, layout, words="hello there " * dice.randint(1, 9), **more)


def said(events: Sequence[Event], name: str) -> list[Tokens]:
    return [each for each in events if isinstance(each, Tokens) and each.request_id == name]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_small", [False, True])
def test_jumping_changes_no_id(layout: str, is_small: bool) -> None:
    """Whatever else is in the batch, and also where the pool is too small for all."""
    small = {"pool_tokens": 16 * 13, "growth_tokens": 0, "chunk_tokens": 32}
    forced = retractions = 0
    for seed in range(4):
        dice = random.Random(f"{layout} {is_small} {seed}")
        requests = [some_request(dice, f"r{number}", layout) for number in range(6)]
        asked = Asked(*requests, layout=layout, **(small if is_small else {}))
        forced += asked.engine[True].stats()["forced_tokens"]
        retractions += asked.engine[True].stats()["retractions"]
        assert asked.steps[0] <= asked.steps[1] or is_small
    assert forced > 50
    assert (retractions > 0) == is_small


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_answer_is_of_its_grammar_and_much_of_it_is_not_drawn(layout: str) -> None:
    asked = Asked(asking("a", held_to("json_schema", PERSON, layout), layout), layout=layout)
    events = asked.events[True]
    person = json.loads(text(events, "a"))
    assert set(person) == {"name", "system", "content"}
    end = finished(events, "a")
    assert (end.reason, end.stopped) == (FinishReason.STOP, True)
    assert end.kept == end.usage.output_tokens == len(output(events, "a"))
    forced = end.usage.forced_tokens
    assert 10 < forced < end.usage.output_tokens
    rows = [engine.rows_run for engine in asked.engine.values()]
    assert rows[0] <= rows[1], "a forced end runs no row, and no token runs twice"


def test_the_rows_run_are_those_of_the_usage() -> None:
    """Promise 2: of the prompt what was not cached; of the answer what stands before the last id
    that was drawn. What is forced behind that ends the answer, and no row runs for it.
    """
    request = asking("a", held_to("json_schema", PERSON))
    engine = jumping_engine()
    engine.submit(request)
    events = drain(engine)
    before, *last = itertools.dropwhile(lambda each: each.forced, reversed(said(events, "a")))
    assert not before.forced
    num_rows = sum(len(each.ids) for each in last)
    assert engine.rows_run == finished(events, "a").usage.computed + num_rows
