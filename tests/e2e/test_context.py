"""How full the context is: told when it matters, with numbers and the ways out (Streams, 8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radchat.errors import WAYS_OUT, ContextOverflow
from radchat.protocol import Event
from tests.e2e.conftest import EXACT
from tests.e2e.homes import Shell

CTX = 200


def said(
    shell: Shell, text: str = "", ctx: int = CTX, most: int = 8, **args: Any
) -> tuple[list[Event], dict[str, Any]]:
    """A turn; the lines about the context before its end, and its end."""
    options = {"temperature": 0, "max_tokens": most, "num_ctx": ctx}
    args = {"session": None, "new_session": False, "dtype": "fp32", **args}
    with shell.stream(text=text, options=options, **args) as events:
        seen = list(events)
    told = [e for e in seen if e.name == "notice" and e.data["code"] == "context_full"]
    return told, seen[-1].data


@pytest.fixture
def frame(terminal: Shell) -> int:
    """Ids of a turn besides its text, the first of a session."""
    return int(said(terminal, "qq", new_session=True)[1]["usage"]["input_tokens"]) - 2


def test_a_turn_that_crosses_a_mark_says_so_once_with_numbers_and_the_ways_out(
    terminal: Shell, frame: int
) -> None:
    """At 75, 90 and 100 %, by the prompt or by the answer."""
    told, _ = said(terminal, "q" * (149 - 8 - frame), new_session=True)  # a token short of 75 %
    assert told == []
    told, done = said(terminal, "q")
    asked = done["usage"]["input_tokens"]
    (line,) = told
    percent = 100 * asked // CTX
    assert line.data["text"] == (
        f"the context is {percent}% full, {asked} of {CTX} tokens; the ways out: {WAYS_OUT}"
    )
    told, done = said(terminal, "q" * (149 - frame), new_session=True)
    assert [event.data["used"] for event in told] == [157] == [done["context"]["used"]]
    told, done = said(terminal, kind="continue", most=4)
    assert told == []  # the same path: it was told
    told, done = said(terminal, kind="continue", most=500)
    assert [event.data["used"] for event in told] == [CTX] == [done["context"]["used"]]
    assert "the context is 100% full" in told[0].data["text"]


def test_a_path_that_was_told_is_not_told_again_and_another_is(terminal: Shell, frame: int) -> None:
    said(terminal, "q" * (100 - frame), new_session=True, most=2)
    assert len(said(terminal, "w" * 26, most=2)[0]) == 1
    assert said(terminal, "a", most=1)[0] == []
    assert len(said(terminal, "e" * 26, most=2, at="2")[0]) == 1
    assert said(terminal, "b", ctx=4000)[0] == []  # nothing is full there
    assert len(said(terminal, "b", ctx=CTX + 60)[0]) == 1  # and here it is


def test_a_warning_is_a_line_on_stderr_an_event_of_json_lines_and_in_the_document(
    terminal: Shell, frame: int
) -> None:
    flags = (*EXACT, "--ctx", str(CTX))
    text = "q" * (190 - frame)
    done = terminal("ask", text, *flags, "--output-format", "stream-json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    warned = [line for line in lines if line["type"] == "warning"]
    assert [(w["code"], w["used"], w["limit"]) for w in warned] == [("context_full", 190, CTX)]
    assert lines[-1]["type"] == "result"
    whole = terminal("ask", text, *flags, "--json")
    assert [w["used"] for w in whole.json["warnings"]] == [190]
    assert "the context is 95% full, 190 of 200 tokens" in whole.err
    full = terminal("ask", text, *flags, "--max-tokens", "500")
    assert "the context is 100% full" in full.err
    assert "cut off after 10 tokens: the context is full" in full.err
    assert "context" not in full.out


def test_the_secret_word_at_the_head_is_in_every_prompt_up_to_the_last_that_fits(
    terminal: Shell,
) -> None:
    """AP-04: nothing is ever dropped from the prompt by itself."""
    _, done = said(terminal, "the secret word is plum", new_session=True)
    begins = terminal.home.prompt_ids(done["head"]["message"])
    turns = 1
    with pytest.raises(ContextOverflow) as refused:
        while True:
            _, done = said(terminal, f"go on {turns}")
            ids = terminal.home.prompt_ids(done["head"]["message"])
            assert ids[: len(begins)] == begins
            turns += 1
    assert turns > 3
    assert refused.value.exit_code == 56
    assert refused.value.data["prompt_tokens"] >= refused.value.data["limit"] == CTX
    assert WAYS_OUT in refused.value.message
    assert "or --ctx, up to 4,096" in refused.value.message
    assert terminal.texts()[0] == ("user", "the secret word is plum")
