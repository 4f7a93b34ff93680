"""Random schemas, random walks under the mask: all that ends is valid for an independent checker.

And: fork and rollback of a matcher are the same as taking the ids from the start.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from radchat.engine.grammar import Grammar
from radchat.engine.grammars import Grammars
from radchat.engine.matcher import Matcher
from radchat.errors import InvalidInput, UsageError
from tests.engine.test_grammar import PERSON, TOOLS, allowed
from tests.engine.text_toys import toy_tokenizer

TOKENIZER = toy_tokenizer("chatml")
NAMES = st.sampled_from(["a", "b", "é", 'q"', "x y", "n\n", "🙂"])
PATTERNS = ("^[a-c]+$", "b", "^\\d{2,4}$", "^\\W+$", "[^\\d]$", "^(ab|é)*$", '^"\\\\$', "^.{1,3}$")
BOUNDS = st.integers(-1200, 1200) | st.sampled_from([0.5, -0.5, 2.25, 2**53, -(2**53) + 1])


@cache
def shared() -> Grammars:
    stop = TOKENIZER.control["<|im_end|>"]
    return Grammars(TOKENIZER, TOKENIZER.vocab_size, frozenset({stop}))


def some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


def typed(name: str, more: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda keywords, bare: keywords if bare else {"type": name, **keywords},
                     more, st.sampled_from([False, False, False, True]))  # fmt: skip


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from([1.5, "a", 'b"', "é\n", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
LEAVES = st.one_of(
    st.sampled_from([{}, {"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}]),
    typed("string", some(minLength=st.integers(0, 3), maxLength=st.integers(0, 6),
                         pattern=st.sampled_from(PATTERNS))),
    typed("string", some(format=st.sampled_from(["date", "time", "uuid", "ipv4", "email"]))),
    typed("integer", some(minimum=BOUNDS, maximum=BOUNDS, exclusiveMinimum=BOUNDS,
                          multipleOf=st.sampled_from([1, 2, 7]))),
    typed("number", some(minimum=BOUNDS, exclusiveMaximum=BOUNDS, exclusiveMinimum=BOUNDS,
                         multipleOf=st.sampled_from([0.5, 3, 0.1]))),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, VALUES),
    st.just({"$ref": "#/$defs/tree"}),
)  # fmt: skip


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        typed("object", some(properties=named, required=st.lists(NAMES, max_size=3, unique=True),
                             additionalProperties=st.booleans() | inner,
                             minProperties=st.integers(0, 2), maxProperties=st.integers(0, 3))),
        typed("object", some(patternProperties=st.dictionaries(st.sampled_from(["^a", "y$"]), inner,
                                                               max_size=1), properties=named)),
        typed("array", some(items=st.booleans() | inner, minItems=st.integers(0, 2),
                            maxItems=st.integers(0, 3), uniqueItems=st.booleans(),
                            prefixItems=st.lists(inner, min_size=1, max_size=2))),
        st.builds(lambda each, key: {key: each}, st.lists(inner, min_size=1, max_size=3),
                  st.sampled_from(["anyOf", "anyOf", "oneOf", "allOf"])),
    )  # fmt: skip


TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
    "required": ["v"],
    "additionalProperties": False,
}
SCHEMAS = st.recursive(LEAVES, larger, max_leaves=6).map(lambda s: {**s, "$defs": {"tree": TREE}})


def draw(at: Matcher, dice: random.Random, most: int) -> list[int] | None:
    """Ids of a whole answer; short ones are likely. None if it did not end."""
    ids: list[int] = []
    while len(ids) < most:
        run = at.forced()
        if not run:
            may = allowed(at)
            assert may, at.trouble
            ends = at.end_id in may
            closing = [i for i in may if TOKENIZER.decode([i])[-1:] in '"]}']
            run = [dice.choice(closing if closing and dice.random() < 0.4 else may)]
            if ends and dice.random() < 0.5:
                return ids
        if run[-1] == at.end_id:
            return ids + run[:-1]
        assert at.take(run)
        ids += run
    return None


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_ends_under_a_random_schema_is_valid(schema: dict[str, Any], seed: int) -> None:
    try:
        compiled = shared().compile(Grammar("json_schema", json.dumps(schema)))
    except (InvalidInput, UsageError):
        return
    validator = jsonschema.Draft202012Validator(schema)
    dice = random.Random(seed)
    for _ in range(3):
        ids = draw(compiled.matcher(), dice, 120)
        if ids is None:
            continue
        assert not TOKENIZER.control_ids.intersection(ids)
        text = TOKENIZER.decode(ids)
        said = json.loads(text)
        if "Infinity" in json.dumps(said):  # no float holds it: whoever reads the answer refuses it
            continue
        assert not list(validator.iter_errors(said)), text


class ForkAndRollBack(RuleBasedStateMachine):
    """Matchers that go on, fork and go back; each always equals one that took its ids at once."""

    @initialize(kind=st.sampled_from(["schema", "regex", "tools", "after"]))
    def begin(self, kind: str) -> None:
        grammar = {
            "schema": Grammar("json_schema", json.dumps(PERSON)),
            "regex": Grammar("regex", "(ab|a|é[0-9]{1,3} )+"),
            "tools": Grammar("tools", json.dumps(TOOLS)),
            "after": Grammar("json_schema", json.dumps(PERSON), after="</think>"),
        }[kind]
        self.compiled = shared().compile(grammar)
        self.all: list[tuple[Matcher, list[int]]] = [(self.compiled.matcher(), [])]

    @rule(which=st.integers(0, 9), dice=st.randoms(use_true_random=False), jump=st.booleans())
    def goes_on(self, which: int, dice: random.Random, jump: bool) -> None:
        at, ids = self.all[which % len(self.all)]
        run = at.forced() if jump else []
        if not run:
            run = [dice.choice(allowed(at))]
        if at.end_id in run:
            assert not at.take(run)
            return
        assert at.take(run)
        ids += run

    @rule(which=st.integers(0, 9), token=st.integers(0, TOKENIZER.vocab_size - 1))
    def is_given_anything(self, which: int, token: int) -> None:
        at, ids = self.all[which % len(self.all)]
        may = token in allowed(at) and token != at.end_id
        # the mask may allow less than fits: of what fits, only the tokens our tokenizer writes
        if at.take([token]):
            ids.append(token)
        else:
            assert not may

    @rule(which=st.integers(0, 9))
    def forks(self, which: int) -> None:
        at, ids = self.all[which % len(self.all)]
        self.all = [*self.all[:4], (at.copy(), list(ids))]

    @rule(which=st.integers(0, 9), num=st.integers(0, 20))
    def goes_back(self, which: int, num: int) -> None:
        at, ids = self.all[which % len(self.all)]
        num = min(num, len(ids))
        at.rollback(num)
        del ids[len(ids) - num :]

    def teardown(self) -> None:
        for at, ids in getattr(self, "all", []):
            other = self.compiled.matcher()
            assert other.take(ids)
            assert at.count == other.count == len(ids)
            assert at.forced() == other.forced()
            assert np.array_equal(at.mask(), other.mask())
            assert (at.is_accepting, at.is_finished) == (other.is_accepting, other.is_finished)


TestForkAndRollBack = ForkAndRollBack.TestCase
TestForkAndRollBack.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
