"""What will be computed a second time is told before it is, whatever asks for it (Streams, 6)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from radchat.protocol import Event
from tests.e2e.conftest import EXACT
from tests.e2e.homes import Shell

LONG = "a long story of plums " * 25  # 550 tokens


def events(shell: Shell, session: str | None = None, **args: Any) -> list[Event]:
    args = {"options": {"temperature": 0, "max_tokens": 12, **args.pop("options", {})}, **args}
    new = session is None
    with shell.stream(session=session, new_session=new, dtype="fp32", **args) as stream:
        return list(stream)


def told(seen: list[Event]) -> list[dict[str, Any]]:
    return [e.data for e in seen if e.name == "notice" and e.data["code"] == "recompute"]


@pytest.fixture
def session(terminal: Shell) -> str:
    """Two turns, the first of them long."""
    first = events(terminal, text=LONG)[-1].data["session"]
    events(terminal, first, text="and on")
    return str(first)


WAYS: dict[str, dict[str, Any]] = {
    "the next turn": {"kind": "turn", "text": "more"},
    "a retry": {"kind": "retry"},
    "an edit of an early turn": {"kind": "edit", "ref": "2", "text": "otherwise"},
    "a fork": {"kind": "turn", "at": "2", "text": "elsewhere"},
    "continue": {"kind": "continue"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_path_whose_kv_is_gone_is_told_before_it_is_computed_again(
    terminal: Shell, session: str, way: dict[str, Any]
) -> None:
    assert told(events(terminal, session, **way)) == []  # it is there
    terminal.call("cache.clear")
    seen = events(terminal, session, **way)
    (line,) = told(seen)
    assert re.fullmatch(
        rf"this recomputes {line['tokens']:,} tokens, (about|less than) [\d.]+ s: "
        r"it is no longer cached \(KV is not kept on disk: persist = off\)",
        line["text"],
    )
    names = [event.name for event in seen]
    assert names.index("notice") < names.index("start")
    start = next(event.data for event in seen if event.name == "start")
    assert sum(start["cached"].values()) == 0
    assert start["computed"] - 40 <= line["tokens"] <= start["computed"]


def test_a_smaller_context_computes_nothing_again(terminal: Shell, session: str) -> None:
    seen = events(terminal, session, text="more", options={"num_ctx": 900})
    assert told(seen) == []
    start = next(event.data for event in seen if event.name == "start")
    assert start["computed"] < 40


def test_the_cost_is_a_warning_line_of_json_lines_and_in_the_document(
    terminal: Shell, session: str
) -> None:
    terminal.call("cache.clear")
    flags = (*EXACT, "-r", session)
    lines = terminal("ask", "more", *flags, "--output-format", "stream-json").out.splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    assert kinds.index("warning") < kinds.index("text_delta")
    warning = json.loads(lines[kinds.index("warning")])
    assert warning["code"] == "recompute"
    assert warning["tokens"] > 550
    terminal.call("cache.clear")
    document = terminal("ask", "more", *flags, "--json")
    assert [w["code"] for w in document.json["warnings"]] == ["recompute"]
    assert "this recomputes" in document.err


@pytest.mark.parametrize("most", [1, 5, 11])
def test_an_answer_ended_by_a_stop_string_goes_on_as_if_it_had_not(
    terminal: Shell, most: int
) -> None:
    """Token for token, wherever the string begins; also when it is given again."""
    whole = events(terminal, text="tell me all", options={"max_tokens": 30})[-1].data["branches"][0]
    stop = whole["text"][most : most + 3]
    options = {"max_tokens": 30, "stop": [stop]}
    done = events(terminal, text="tell me all", options=options)[-1].data
    cut = done["branches"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    kept = len(terminal.home.out_ids(cut["message"]))
    rest = events(terminal, done["session"], kind="continue", options={"max_tokens": 30 - kept})
    out = terminal.home.out_ids(rest[-1].data["branches"][0]["message"])
    assert out == terminal.home.out_ids(whole["message"])
    assert rest[-1].data["branches"][0]["text"] == whole["text"]
