"""Models that want to do harm, under the grammar of tools: what they call parses and validates."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from radchat.engine.grammars import Grammars
from radchat.engine.matcher import Matcher
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.tool_calls import CallSplitter, WrittenCall
from radchat.engine.tool_form import HERMES, ToolForm
from radchat.engine.tool_grammar import tool_grammar
from tests.engine.test_tools import LLAMA, WITH_ID
from tests.engine.text_toys import toy_template, toy_tokenizer

CLOSED = {"type": "object", "additionalProperties": False}
PARAMETERS: dict[str, dict[str, Any]] = {
    "edit": {
        **CLOSED,
        "properties": {
            "path": {"type": "string", "minLength": 1, "maxLength": 30},
            "old": {"type": "string"},
            "all": {"type": "boolean"},
        },
        "required": ["path", "old"],
    },
    "list": {**CLOSED, "properties": {}},
    "wait_é": {
        **CLOSED,
        "properties": {
            "seconds": {"type": "integer", "minimum": 1, "maximum": 40},
            "for": {"enum": ["a", 'b"', None]},
            "more": {"type": "array", "items": {"type": "object"}, "maxItems": 2},
        },
        "required": ["seconds"],
    },
}
TOOLS = [{"name": name, "parameters": parameters} for name, parameters in PARAMETERS.items()]
TYPED = '<tool_call>\n{"name": "rm", "arguments": {"path": "/"}}\n</tool_call>'
WANTS = {
    "results of its own": '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>\n'
    "<tool_response>\nall is well\n</tool_response>\nSo I am done.",
    "another tool": f"Look: {TYPED}",
    "braces": '<tool_call>\n{"name": "edit", "arguments": {"path": "}{}}\\"]", "old": "'
    f'{TYPED.replace(chr(34), chr(92) + chr(34))}"}}}}\n</tool_call>\n{TYPED}',
    "numbers": '<tool_call>\n{"name": "wait_é", "arguments": {"seconds": 41, "for": "c"}}',
    "the mark in words": "I write <tool_call> and <tool_call><tool_call> {}",
    "JSON of Llama": '{"name": "edit", "parameters": {"path": "a", "old": "{"}} and {"name": "x"',
    "calls of Mistral": '[TOOL_CALLS][TOOL_CALLS][{"name": "list", "arguments": {}}, {"name": "li',
    "space": " \n" * 200,
}
MOST = 300  # tokens of an answer
FORMS = {
    "block": (HERMES, "chatml"),
    "marks that are tokens": (HERMES, "qwen3"),
    "llama3": (LLAMA, "chatml"),
    "ids": (WITH_ID, "chatml"),
}


def _tokenizer(name: Any) -> Tokenizer:
    return toy_template(name).tokenizer if name == "qwen3" else toy_tokenizer(name)


@cache
def _grammars(name: str) -> Grammars:
    tokenizer = _tokenizer(name)
    return Grammars(tokenizer, tokenizer.vocab_size, frozenset({tokenizer.control["<|im_end|>"]}))


def _drawn(at: Matcher, tokenizer: Tokenizer, want: str, dice: random.Random) -> list[int] | None:
    """It writes what it wants, token by token, wherever it may; else anything, soon what closes.
    None: it did not end.
    """
    ids: list[int] = []
    while len(ids) < MOST:
        bits = np.unpackbits(at.mask().view(np.uint8), bitorder="little")
        may = {int(i): tokenizer.decode([int(i)]) for i in np.flatnonzero(bits)}
        assert may, at.trouble
        fits = [i for i, text in may.items() if text and want.startswith(text)]
        if fits:
            one = max(fits, key=lambda i: len(may[i]))
            want = want[len(may[one]) :]
        else:
            closing = [i for i, text in may.items() if text[-1:] in ('"', "]", "}", ">")]
            one = dice.choice(closing if closing and dice.random() < 0.6 else list(may))
            one = at.end_id if at.end_id in may and dice.random() < 0.5 else one
        if one == at.end_id:
            return ids
        assert at.take([one])
        ids.append(one)
    return None


def _read(form: ToolForm, text: str) -> tuple[str, list[WrittenCall], str | None]:
    splitter = CallSplitter(form, PARAMETERS)
    words, calls = splitter.push(text)
    return words + splitter.flush(), calls, splitter.error


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("kind", FORMS)
def test_whatever_a_model_wants_its_calls_are_whole_and_valid(kind: str, want: str) -> None:
    form, name = FORMS[kind]
    tokenizer = _tokenizer(name)
    num_calls = 0
    for seed in range(6):
        choice: Any = "required" if seed % 3 == 0 else "auto"
        at = _grammars(name).compile(tool_grammar(form, TOOLS, choice)).matcher()
        lead = form.open + form.begin
        wants = (WANTS[want], WANTS[want] + lead, lead + WANTS[want])[seed % 3]
        ids = _drawn(at, tokenizer, wants, random.Random(f"{kind} {want} {seed}"))
        if ids is None:
            continue
        text = tokenizer.decode(ids)
        words, calls, error = _read(form, text)
        assert error is None, text
        assert form.trigger not in words
        assert calls or choice == "auto"
        for call_ in calls:
            jsonschema.validate(call_.arguments, PARAMETERS[call_.name])
        if calls:
            ending = form.close or form.after_id or form.end
            assert text.rstrip().endswith(ending.rstrip())
        num_calls += len(calls)
    assert num_calls
