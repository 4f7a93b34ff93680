"""`cache why`: what of an answer's prompt was reused when it was asked, and why no more was."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from tests.e2e.conftest import EXACT
from tests.e2e.homes import Shell

LONG = "a text of some length, to be read once and kept. " * 8


def why(terminal: Shell, ref: str = "HEAD") -> dict[str, Any]:
    """Of the one answer that REF is about; whatever it says adds up."""
    (answer,) = terminal.call("cache.why", ref=ref)["answers"]
    parts, num = answer["parts"], answer["input_tokens"]
    assert answer["matched"] + answer["restored"] + answer["computed"] == num
    assert answer["matched"] == answer["cache"]["device"]
    assert answer["computed"] == answer["cache"]["computed"]
    assert parts[0]["start"] == answer["matched"]
    assert parts[-1]["end"] == num
    assert all(a["end"] == b["start"] for a, b in pairwise(parts))
    return dict(answer)


def causes(answer: dict[str, Any]) -> list[str]:
    return [part["cause"] for part in answer["parts"]]


def test_words_nobody_has_said_are_new_and_reuse_ends_where_they_begin(terminal: Shell) -> None:
    first = terminal.quick(LONG)
    answer = why(terminal)
    assert (answer["message"], answer["matched"], causes(answer)) == (first["message"], 0, ["new"])
    path = len(terminal.home.ids(first["message"]))
    terminal.quick("and then?", first["session"])
    answer = why(terminal)
    assert causes(answer) == ["new"]
    assert path - 1 <= answer["matched"] <= path
    assert answer["ended"]["position"] == answer["matched"]
    ended = answer["ended"]
    said = terminal.home.ids(answer["message"])
    assert len(ended["before"]) == 8
    assert answer["parts"][0]["end"] == len(terminal.home.prompt_ids(answer["message"])) < len(said)


def test_what_was_evicted_is_told_from_what_is_new(terminal: Shell) -> None:
    first = terminal.quick(LONG)
    terminal.call("cache.clear")
    terminal.quick("and then?", first["session"])
    answer = why(terminal)
    assert causes(answer) == ["evicted", "new"]
    assert answer["matched"] == 0
    assert answer["parts"][0]["end"] == len(terminal.home.ids(first["message"])) - 1
    assert "no longer cached" in answer["parts"][0]["why"]


def test_an_edited_turn_says_where_it_leaves_the_old_words(terminal: Shell) -> None:
    first = terminal.quick("hello world, and all of it")
    terminal.json("edit", first["parent"], "hello wxrld, and all of it", *EXACT)
    answer = why(terminal)
    assert causes(answer) == ["edited"]
    ended = answer["ended"]
    assert (ended["token"], ended["after"]) == ("x", "rld, and")
    assert ended["before"].endswith("hello w")
    shown = terminal("cache", "why").out
    assert "hello w>>x<<rld, and" in shown
    assert "edited: this turn said something else before" in shown


def test_another_system_prompt_is_the_cause_of_all_that_is_said_again(terminal: Shell) -> None:
    terminal.ask(LONG, "-s", "Be kind.")
    terminal.say("now?", "-s", "Be short.")
    answer = why(terminal)
    assert causes(answer) == ["system", "new"]
    new = answer["parts"][1]
    assert len("now?") <= new["end"] - new["start"] <= len("now?") + 30


def test_a_model_that_reads_what_another_wrote_is_the_cause(terminal: Shell) -> None:
    first = terminal.quick(LONG)
    terminal.say("and you?", "-m", "other")
    answer = why(terminal)
    assert causes(answer) == ["model", "new"]
    assert "tiny fp32 read it last" in answer["parts"][0]["why"]
    num = why(terminal, first["message"])["input_tokens"]
    assert why(terminal, first["message"])["now"]["device"] == num - 1
    terminal("models", "stop", "tiny")
    old = why(terminal, first["message"])
    assert (old["now"], old["now_why_not"]) == (None, "tiny fp32 is not loaded")
    assert old["parts"]


def test_a_retry_computes_its_last_token_and_after_an_eviction_what_it_asked_before(
    terminal: Shell,
) -> None:
    first = terminal.quick(LONG)
    terminal.json("retry", *EXACT)
    assert causes(why(terminal)) == ["last"]
    assert why(terminal)["ended"] is None
    terminal.call("cache.clear")
    terminal.json("retry", *EXACT)
    answer = why(terminal)
    assert (causes(answer), answer["matched"]) == (["evicted"], 0)
    of_turn = terminal.call("cache.why", ref=first["parent"])["answers"]
    assert len(of_turn) == 3
    assert {a["message"] for a in of_turn} >= {first["message"], answer["message"]}


def test_now_is_what_the_same_prompt_then_reuses(terminal: Shell) -> None:
    first = terminal.quick(LONG)
    for tokens in (0, 64, 1, 10_000):
        terminal.call("cache.evict", tokens=tokens)
        now = why(terminal, first["message"])["now"]
        again = terminal.json("retry", first["message"], *EXACT, "--max-tokens", "1")
        assert again["cache"] == now


def test_the_tokens_of_every_kind_of_request_add_up_to_what_it_was_charged(
    terminal: Shell,
) -> None:
    """A continued answer's request is the prompt and what was said of the answer before."""
    asked = [terminal.ask(LONG), terminal.say("and then?")]
    continued = terminal.json("continue", *EXACT)
    again = terminal.json("continue", *EXACT)
    assert again["usage"]["input_tokens"] == continued["usage"]["input_tokens"] + 8
    asked += [continued, again]
    for line in ("retry", "retry -N 3", "fork 1 other words", "edit 1 hello"):
        answer = terminal.json(*line.split(), *EXACT)
        asked += answer.get("branches") or [answer]
    assert len(asked) == 10
    for answer in asked:
        (told,) = terminal.call("cache.why", ref=answer["message"])["answers"]
        num = answer["usage"]["input_tokens"]
        assert told["input_tokens"] == num
        assert told["matched"] + told["restored"] + told["computed"] == num
        assert told["matched"] == answer["cache"]["device"]
        assert told["now"]["device"] + told["now"]["computed"] == num
    assert why(terminal, again["message"])["now"]["device"] == again["usage"]["input_tokens"] - 1
    shown = terminal("cache", "why", again["message"]).out
    assert all(float(share) <= 100 for share in re.findall(r"\(([\d.]+)%\)", shown))


def test_why_on_the_terminal_and_as_one_document(terminal: Shell) -> None:
    terminal.quick("line one\nline two \x1b[31mred\x1b[0m")
    shown = terminal("cache", "why")
    assert shown.err == ""
    assert "\x1b" not in shown.out
    assert "reuse ended at token 0" in shown.out
    assert "new: the first time" in shown.out
    assert terminal.json("cache", "why")["answers"][0]["parts"][0]["cause"] == "new"


def test_a_place_without_an_answer_is_named(terminal: Shell) -> None:
    terminal.ask("hello", "-s", "Be kind.")
    system = terminal.tree()["messages"][0]
    assert system["role"] == "system"
    error = terminal.json("cache", "why", system["id"], code=66)["error"]
    assert "has no answer" in error["message"]
    assert "`radchat cache why`" in terminal("why", code=2).err
