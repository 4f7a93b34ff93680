"""Calls as they are written: their parts, however the text comes."""

from __future__ import annotations

import pytest

from radchat.engine.tool_calls import CallSplitter
from radchat.engine.tool_form import ToolForm

WRITTEN = [
    '{"path": "a}b{", "text": "say \\"{}\\" [ok]\\\\"}',
    "{}",
    '{"a": [1, {"b": "]"}], "c": ""}',
]


FORMS = [
    ToolForm(),
    ToolForm('{"name": "', '", "parameters": ', "}", ", ", "<|tools|>[", "]"),
    ToolForm("<f=", ">", "", before_id="<id>", after_id="</id>"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arguments", WRITTEN)
def test_parts_of_calls_are_the_calls_however_the_text_is_cut(
    form: ToolForm, arguments: str
) -> None:
    ids = [f"{form.before_id}{n}{form.after_id}" if form.has_id else form.end for n in "ab"]
    one = f"{form.begin}one{form.middle}{arguments}{ids[0]}"
    two = f"{form.begin}two{form.middle}{{}}{ids[1]}"
    text = f"words {form.open}{one}{form.between}{two}{form.close}"
    ways = [[text[:cut], text[cut:]] for cut in range(len(text) + 1)]
    for way in (*ways, [*text]):
        splitter = CallSplitter(form, ["one", "two"])
        parts, calls = [], []
        for piece in way:
            calls += splitter.push(piece)[1]
            parts += splitter.take_parts()
        assert splitter.flush() == ""
        assert splitter.error is None
        assert [call.text for call in calls] == [arguments, "{}"]
        for index, call in enumerate(calls):
            mine = [part for part in parts if part.index == index]
            assert "".join(part.text for part in mine) == call.text
            assert [part.name for part in mine] == [call.name] + [None] * (len(mine) - 1)


def test_what_was_written_of_a_call_that_is_cut_was_told() -> None:
    form, arguments = ToolForm(), '{"path": "src'
    splitter = CallSplitter(form, ["one"])
    told = []
    for letter in f"{form.begin}one{form.middle}{arguments}":
        splitter.push(letter)
        told += splitter.take_parts()
    assert [part.name for part in told].count("one") == 1
    assert "".join(part.text for part in told) == arguments
    splitter.flush()
    assert splitter.error is not None
