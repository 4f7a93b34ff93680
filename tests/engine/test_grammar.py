"""Grammars compiled for a model's tokens: what is taken, what is refused, and how it is said."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from radchat.engine.grammar import Grammar, GrammarKind
from radchat.engine.grammars import Grammars
from radchat.engine.matcher import Matcher
from radchat.errors import InvalidInput, UsageError
from tests.engine.text_toys import toy_tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def grammars(layout: str = "gpt2", *, padded: int = 50) -> Grammars:
    tokenizer = toy_tokenizer("chatml", layout)
    stop = tokenizer.control["<|im_end|>"]
    return Grammars(tokenizer, tokenizer.vocab_size + padded, frozenset({stop}))


def matcher(kind: GrammarKind, source: object, layout: str = "gpt2", **more: Any) -> Matcher:
    text = source if isinstance(source, str) else json.dumps(source)
    return grammars(layout).compile(Grammar(kind, text, **more)).matcher()


def allowed(at: Matcher) -> list[int]:
    bits = np.unpackbits(at.mask().view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def walk(at: Matcher, dice: random.Random, most: int = 400, *, jumps: bool = False) -> list[int]:
    """Ids to the end, drawn at random from what is allowed; the end comes when it may."""
    ids: list[int] = []
    while len(ids) < most:
        run = at.forced() if jumps else []
        if not run:
            may = allowed(at)
            assert may, at.trouble
            ends = at.end_id in may and (len(may) == 1 or dice.random() < 0.3)
            run = [at.end_id if ends and at.end_id is not None else dice.choice(may)]
        ids += run
        if run[-1] == at.end_id:
            return ids
        assert at.take(run)
    return ids


@pytest.mark.parametrize("layout", ["gpt2", "llama3", "metaspace-always", "prefix-normalizer"])
def test_whatever_is_drawn_a_finished_answer_is_of_the_grammar(layout: str) -> None:
    tokenizer = toy_tokenizer("chatml", layout)
    dice = random.Random(5)
    finished = 0
    for seed in range(20):
        at = matcher("json_schema", PERSON, layout)
        ids = walk(at, dice, jumps=bool(seed % 2))
        if ids[-1] == at.end_id:
            person = json.loads(tokenizer.decode(ids[:-1]))
            assert set(person) == {"name", "age"}
            assert person["age"] >= 0
            finished += 1
        assert not tokenizer.control_ids.intersection(ids[:-1])
    assert finished > 5


def test_what_is_forced_is_the_only_thing_allowed() -> None:
    """So leaving the model out can not change an id."""
    at = matcher("json_schema", PERSON)
    dice = random.Random(1)
    num_forced = 0
    for _ in range(200):
        run = at.forced()
        if run == [at.end_id]:
            break
        for token in run or [dice.choice(allowed(at))]:
            if run:
                assert allowed(at) == [token]
                num_forced += 1
            if token == at.end_id:
                break
            assert at.take([token])
    assert num_forced > 5


def test_the_end_is_one_id_and_only_where_the_answer_is_whole() -> None:
    tokenizer = toy_tokenizer("chatml")
    stops = frozenset(sorted(tokenizer.control_ids)[:3])
    at = Grammars(tokenizer, tokenizer.vocab_size, stops).compile(Grammar("regex", "a{2,3}"))
    here = at.matcher()
    assert here.end_id == min(stops)
    assert not stops.intersection(allowed(here))
    assert here.take(tokenizer.encode_text("aa"))
    assert stops.intersection(allowed(here)) == {min(stops)}
    assert here.is_accepting
    assert not here.is_finished
    assert here.take(tokenizer.encode_text("a"))
    assert here.is_finished
    assert here.forced() == allowed(here) == [min(stops)]


def test_an_end_is_never_taken_so_that_going_back_removes_no_id() -> None:
    """llguidance takes no notice of an end, and then gives up a real id for it."""
    at = matcher("regex", "ab")
    assert at.take(toy_tokenizer("chatml").encode_text("ab"))
    assert not at.take([at.end_id or 0])
    before = at.count
    at.rollback(1)
    assert at.count == before - 1
    assert at.forced()


def test_a_refused_id_spoils_nothing() -> None:
    """An error never leaves llguidance's matcher."""
    at = matcher("regex", "abc")
    assert not at.take(toy_tokenizer("chatml").encode_text("z"))
    assert at.trouble == ""
    assert at.take(at.forced())


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"tags": {"uniqueItems": True}}}, "properties.tags.uniqueItems"),
        ({"not": {}}, "not"),
        ({"if": {"type": "string"}, "then": {}}, "if, then"),
        ({"items": {"contains": {}}}, "items.contains"),
        ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
        ({"type": "string", "format": "foo"}, "format"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ],
    ids=str,
)
def test_what_can_not_be_enforced_is_refused_with_its_place(
    schema: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        matcher("json_schema", schema)
    assert says in refusal.value.message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "not JSON"),
        ("null", "an object, or true"),
        ("[]", "an object, or true"),
        ('"x"', "an object, or true"),
        ("false", "nothing meets it"),
        ('{"type": "foo"}', "type"),
        ('{"$ref": "#/nowhere"}', "$ref"),
        ('{"$ref": "https://example.org/a.json"}', "$ref"),
        ('{"type": "integer", "minimum": 3, "maximum": 2}', "minimum"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "minLength"),
        ('{"enum": []}', "enum"),
        ('{"allOf": [{"type": "string"}, {"type": "integer"}]}', "incompatible"),
        ('{"type": "string", "pattern": "("}', "pattern"),
        ('{"type": "string", "pattern": "(?=a)b"}', "pattern"),
        ('{"properties": {"a": {"minimum": "x"}}}', "properties.a.minimum"),
        (
            '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}',
            "without end",
        ),
        ('{"type":"array","items":' * 5000 + "{}" + "}" * 5000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_schema_is_refused_in_words(source: str, says: str) -> None:
    with pytest.raises((InvalidInput, UsageError)) as refusal:
        matcher("json_schema", source)
    assert says in refusal.value.message
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize("source", ["true", "{}"])
def test_a_schema_of_anything_takes_any_json(source: str) -> None:
    tokenizer = toy_tokenizer("chatml")
    for text in ('{"a": [1, null]}', '"x"', "-1.5", "true"):
        at = matcher("json_schema", source)
        assert at.take(tokenizer.encode_text(text)), text
        assert at.is_accepting


def test_lenient_says_what_it_leaves_out() -> None:
    schema = {"items": {"uniqueItems": True, "type": "array"}, "not": {}}
    compiled = grammars().compile(Grammar("json_schema", json.dumps(schema), lenient=True))
    assert set(compiled.warnings) == {"items.uniqueItems", "not"}


def test_a_schema_can_not_make_itself_lenient() -> None:
    with pytest.raises(UsageError):
        matcher("json_schema", {"not": {}, "x-guidance": {"lenient": True}})


@pytest.mark.parametrize(
    "source", ["(", "(?=a)b", "(a)\\1", "a\\b", "(" * 500 + "a" + ")" * 500], ids=lambda s: s[:20]
)
def test_a_bad_regex_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match="the regex"):
        matcher("regex", source)


def test_choices_gbnf_and_lark_take_what_they_say() -> None:
    tokenizer = toy_tokenizer("chatml")
    for kind, source, good, bad in (
        ("choices", ["yes", 'a "quoted" one', "línea\n"], 'a "quoted" one', "no"),
        ("lark", 'start: "x" /[0-9]+/', "x12", "y"),
        ("lark", 'root ::= "x" [0-9]+', "x12", "y"),
    ):
        at = matcher(kind, source)  # type: ignore[arg-type]
        assert not at.copy().take(tokenizer.encode_text(bad))
        assert at.take(tokenizer.encode_text(good))
        assert at.is_accepting


TOOLS = [
    {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}},
                                     "required": ["at"], "additionalProperties": False}},
    {"name": "listen"},
]  # fmt: skip


def test_a_call_in_free_text_is_of_a_known_tool() -> None:
    tokenizer = toy_tokenizer("chatml")
    at = matcher("tools", TOOLS)
    assert at.take(tokenizer.encode_text("I shall look. <tool_call>"))
    assert tokenizer.decode(at.forced()).startswith('\n{"name": "l')
    good, bad = at.copy(), at.copy()
    call = '\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
    assert good.take(tokenizer.encode_text(call))
    assert good.is_accepting
    more = good.copy()
    assert not more.take(tokenizer.encode_text(" So."))  # no result is made up
    assert more.take(tokenizer.encode_text("\n<tool_call>" + call))
    assert more.is_accepting
    assert not bad.take(tokenizer.encode_text('\n{"name": "lock"'))


def test_a_thought_comes_before_the_grammar() -> None:
    tokenizer = toy_tokenizer("chatml")
    at = matcher("json_schema", PERSON, after="</think>")
    assert at.take(tokenizer.encode_text("well {"))
    assert at.take(tokenizer.encode_text("}</think>"))
    assert tokenizer.decode(at.forced()).startswith('{"name')
