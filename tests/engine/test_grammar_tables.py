"""JSON schema feature by feature against an independent validator, and grammars meant to harm."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import jsonschema
import pytest

from radchat.engine.grammar import Grammar, GrammarKind
from radchat.engine.matcher import Matcher
from radchat.engine.schema_checks import without_old_forms
from radchat.engine.schema_parts import mapped
from radchat.errors import InvalidInput, UsageError
from tests.engine.test_grammar import TOOLS, allowed, grammars, matcher
from tests.engine.text_toys import toy_tokenizer

TOKENIZER = toy_tokenizer("chatml")
BIG = 2**53
# schema, documents that must be taken, documents that must not
FEATURES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ['"abc"'], ['"abcd"', '"A"', '""']),
    ({"type": "string", "pattern": "b", "minLength": 3, "maxLength": 4}, ['"abc"'], ['"b"']),
    ({"type": "string", "pattern": "^\\D$"}, ['"a"'], ['"1"', '"٣"']),
    ({"type": "string", "pattern": "^[^\\w]$"}, ['"-"'], ['"a"', '"é"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xa"']),
    ({"type": "string", "minLength": 2, "maxLength": 2}, ['"éé"', '"\\n\\n"', '"🙂🙂"'], ['"🙂"']),
    ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"1.2.3.400"']),
    ({"type": "integer"}, ["0", "-1", "12345678901234567890"], ["01", "1.5", "--1", "1e1"]),
    ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "03", "7.0"]),
    ({"type": "integer", "minimum": -123, "maximum": 42}, ["-123", "0"], ["-124", "43", "-00"]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
    ({"type": "integer", "minimum": BIG - 1, "maximum": BIG + 1}, [f"{BIG}"], [f"{BIG + 2}"]),
    ({"type": "integer", "multipleOf": 3}, ["3", "0", "-3"], ["4"]),
    ({"type": "number", "multipleOf": 0.5}, ["0.5", "1"], ["0.3"]),
    ({"type": "number", "minimum": 0.5, "maximum": 1.5}, ["0.5", "1"], ["0.4", "1.6", "-1"]),
    (
        {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1.0},
        ["0.6", "0.999"],
        ["0.5", "1", "1.0", "0.50", "1.00"],
    ),
    ({"type": "number"}, ["1e5", "1.5E-3", "-0"], ["01", ".5", "1."]),
    ({"type": "boolean"}, ["true"], ["1"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
     ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]", '["a"]']),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
     ['["a"]', '["a", 1]', "[]"], ["[1]", '["a", "b"]']),
    ({"type": "array", "items": [{"type": "string"}], "additionalItems": False},
     ['["a"]'], ["[1]", '["a", "b"]']),
    ({"enum": ['a"b', "línea\n", 1, 1.5, True, None, {"k": [1]}]},
     ['"a\\"b"', '"línea\\n"', "1", "1.5", "true", "null", '{"k": [1]}'], ["2", "false", '"x"']),
    ({"const": {"a": 1}}, ['{"a": 1}'], ['{"a": 2}']),
    ({"enum": ["aa", "b"], "minLength": 2}, ['"aa"'], ['"b"']),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}},
      "additionalProperties": False},
     ["{}", '{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}'], ['{"c": 1}', '{"b": 2, "a": 1}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}}},
     ['{"x": null}', '{"é\\n": 1}'], ['{"a": "s"}', '{"\\u0061": "s"}', '{"x": 1, "a": "s"}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}},
      "additionalProperties": {"type": "string"}}, ['{"a": 1, "b": "x"}'], ['{"b": 1}']),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
     ['{"x1": 1}', '{"y": "a"}'], ['{"x": "a"}', '{"\\u0078": "a"}']),
    ({"type": "object", "required": ["a"]}, ['{"a": 1}'], ["{}", '{"b": 1}']),
    ({"type": "object", "maxProperties": 1}, ['{"a": 1}'], ['{"a": 1, "b": 2}']),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}], "maxLength": 2}, ["1"], ['"abc"']),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1"], ["null"]),
    ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, ["3", "5"], ["2", "6"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {}}, "required": ["b"]}]},
     ['{"a": 1, "b": "x"}'], ['{"a": 1}', '{"a": "x", "b": 1}']),
    ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, ["1"], ["5", '"a"']),
    ({"$ref": "#/components/a", "components": {"a": {"type": "string", "pattern": "^\\W$"}}},
     ['"-"'], ['"é"']),
    ({"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}},
      "required": ["c"], "additionalProperties": False},
     ['{"c": []}', '{"c": [{"c": [{"c": []}]}]}'], ["{}", '{"c": [1]}']),
    ({"uniqueItems": False, "type": "array"}, ["[1, 1]"], ["1"]),
]  # fmt: skip


def takes(at: Matcher, text: str) -> bool:
    return at.take(TOKENIZER.encode_text(text)) and at.is_accepting


@pytest.mark.parametrize(("schema", "good", "bad"), FEATURES, ids=lambda v: json.dumps(v)[:50])
def test_a_feature_is_enforced_as_the_validator_has_it(
    schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    base = matcher("json_schema", schema)
    validator = jsonschema.Draft202012Validator(mapped(schema, without_old_forms))
    for text in good:
        assert takes(base.copy(), text), text
        assert validator.is_valid(json.loads(text))
    for text in bad:
        assert not takes(base.copy(), text), text


def test_exactly_the_integers_in_range_are_taken() -> None:
    for low, high in ((3, 12), (-13, 4), (0, 0), (-7, -2), (95, 106)):
        base = matcher("json_schema", {"type": "integer", "minimum": low, "maximum": high})
        taken = {n for n in range(-130, 130) if takes(base.copy(), str(n))}
        assert taken == set(range(low, high + 1))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"n": {"multipleOf": 0.1}}}, "properties.n.multipleOf"),
        ({"items": {"maximum": 0.9999999999999999}}, "items.maximum"),  # 1 would be taken
        ({"items": {"type": "object", "minProperties": 2}}, "items.minProperties"),
        ({"properties": {"s": {"pattern": "[a-z&&[^b]]"}}}, "properties.s.pattern"),
        ({"properties": {"s": {"pattern": "a*+a"}}}, "properties.s.pattern"),
        ({"items": {"properties": {"required": {}, "a": {"oneOf": [{}, {}]}}}},
         "items.properties.a.oneOf"),
        ({"anyOf": [{"minimum": 1}, {"type": "integer", "minimum": 3, "maximum": 2},
                    {"type": "string", "pattern": "\\bx"}]}, "anyOf.2.pattern"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_names_the_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError) as refusal:
        matcher("json_schema", schema)
    assert f"{place}:" in refusal.value.message


@pytest.mark.parametrize("wish", [" ", "\n", "\t"])
def test_white_space_ends_however_much_it_is_wished_for(wish: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"},
              "maxItems": 3}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    at = matcher("json_schema", schema)
    ids: list[int] = []
    while len(ids) < 60:
        may = allowed(at)
        if at.end_id in may:
            break
        ids.append(max(may, key=lambda i: (TOKENIZER.decode([i]).count(wish), -i)))
        assert at.take(ids[-1:])
    text = TOKENIZER.decode(ids)
    json.loads(text)
    assert allowed(at) == [at.end_id]
    assert "  " not in text


CHAIN = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(5000)}
MANY = {f"d{i}": {"pattern": f"^a{i}"} for i in range(1500)}
HOSTILE: list[tuple[GrammarKind, str]] = [
    ("regex", "a{1000000}"),
    ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    ("regex", "(.*a.{30}b.*)+"),
    ("regex", "(a+)+$"),
    ("regex", ".*" * 500),
    ("regex", "\ud800"),
    ("json_schema", '{"const": 1e999}'),
    ("json_schema", '{"const": NaN}'),
    ("json_schema", '{"const": "\\ud800"}'),
    ("json_schema", '{"type": "string", "minLength": 1000000000}'),
    ("json_schema", '{"type": "integer", "multipleOf": 1000003}'),
    ("json_schema", json.dumps({"prefixItems": [{"multipleOf": 19000 - i} for i in range(150)]})),
    ("json_schema", json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(40)]})),
    ("json_schema", json.dumps({"$ref": "#/$defs/0", "$defs": CHAIN})),
    ("json_schema", json.dumps({"$defs": MANY, "prefixItems": [{"oneOf": [{}, {}]}] * 199})),
    ("json_schema", '{"pattern": "a{99999999999}"}'),
    ("json_schema", '{"patternProperties": {"a{99999999999}": {}}}'),
    ("json_schema", json.dumps({"items": {"pattern": "(" * 500 + "a" + ")" * 500}})),
    ("json_schema", json.dumps({"patternProperties": {f"^{i}x": {} for i in range(300)}})),
    ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(1500)}})),
    (
        "json_schema",
        json.dumps(
            {
                "$ref": "#/$defs/a0",
                "$defs": {
                    f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(30)
                }
                | {"a30": {"type": "integer"}},
            }
        ),
    ),
    ("lark", 'start: ("a" "b"){1000000}'),
    ("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
    ("lark", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
    ("choices", json.dumps([f"w{i}" for i in range(10_000)])),
    ("choices", "[" * 100_000),
    ("tools", "[" * 100_000),
]


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=lambda v: v[:40])
def test_a_grammar_meant_to_harm_is_refused_or_ends_in_time(kind: GrammarKind, source: str) -> None:
    begun = time.thread_time()
    with contextlib.suppress(InvalidInput, UsageError):
        at = grammars().compile(Grammar(kind, source)).matcher()
        for _ in range(20):
            run = at.forced() or allowed(at)[:1]
            if at.end_id in run or not run or not at.take(run):
                break
    assert time.thread_time() - begun < 2


def test_of_many_choices_each_can_be_written() -> None:
    base = matcher("choices", [f"w{i}" for i in range(10_000)])
    assert takes(base.copy(), "w0")
    assert takes(base.copy(), "w9999")


@pytest.mark.parametrize(
    "source",
    [
        "start: <|im_start|>",
        "start: <[3-9]>",
        'start: x # "\nx: <[3-9]>\n# "',
        'start: "a" <|im_end|>',
        '{"grammars": []}',
    ],
)
def test_a_grammar_can_not_name_control_tokens(source: str) -> None:
    with pytest.raises(InvalidInput, match="the grammar"):
        matcher("lark", source)
    assert takes(matcher("lark", 'start: "<b>" /<[a-z]>/ // <c>'), "<b><x>")


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([TOOLS[0], {"name": "x", "parameters": {"not": {}}}], "tools[1].parameters"),
        ([{"name": "x", "parameters": "x"}], "tools[0].parameters"),
        ([{"name": ""}], "tools[0]"),
        ([5], "tools[0]"),
        ({}, "a list of tools"),
    ],
    ids=str,
)
def test_a_bad_tool_is_named(tools: Any, says: str) -> None:
    with pytest.raises((InvalidInput, UsageError)) as refusal:
        matcher("tools", tools)
    assert says in refusal.value.message


def test_a_grammar_is_compiled_once() -> None:
    ours = grammars()
    first = ours.compile(Grammar("regex", "a+"))
    for number in range(63):
        ours.compile(Grammar("regex", f"b{number}"))
        assert ours.compile(Grammar("regex", "a+")) is first
    for number in range(64):
        ours.compile(Grammar("regex", f"c{number}"))
    assert ours.compile(Grammar("regex", "a+")) is not first
