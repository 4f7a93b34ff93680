"""`radchat ask --schema` and its like: what is asked of the daemon, what is printed, the code."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from radchat.chat.footer import footer
from radchat.chat.view import DIM, RESET, View
from radchat.cli.complete import wanted
from radchat.protocol import Event
from tests.chat.conftest import Run
from tests.chat.fake_server import FakeDaemon, answer_events, usage

WHOLE = ('{"name": "', "Ada", '"}')


def events(pieces: Iterable[str] = WHOLE, **body: Any) -> list[Event]:
    """An answer under a schema whose ``message`` and ``done`` have this, too."""
    found = list(answer_events(pieces))
    for event in found[-2:]:
        answer = event.data if event.name == "message" else event.data["branches"][0]
        answer |= {"grammar": "json_schema", "data": None} | body
    return found


def asked(daemon: FakeDaemon) -> dict[str, Any]:
    return daemon.asked("generate")[-1]


@pytest.mark.parametrize(
    ("flags", "kind", "source"),
    [
        (("--schema", "FILE"), "json_schema", '{"type": "object"}'),
        (("--schema", ' {"type": "null"}'), "json_schema", ' {"type": "null"}'),
        (("--schema", "true", "--no-jump"), "json_schema", "true"),
        (("--regex", "-[0-9]+"), "regex", "-[0-9]+"),
        (("--grammar", "FILE"), "lark", '{"type": "object"}'),
        (("--choice", "yes", "--choice", "no, never"), "choices", '["yes", "no, never"]'),
    ],
)
def test_what_is_asked_for(
    run: Run, daemon: FakeDaemon, tmp_path: Path, flags: tuple[str, ...], kind: str, source: str
) -> None:
    path = tmp_path / "a file"
    path.write_text('{"type": "object"}')
    done = run("ask", *(str(path) if flag == "FILE" else flag for flag in flags), "hi")
    assert (done.code, done.out) == (0, "Hello world\n"), done.err
    grammar = asked(daemon)["grammar"]
    assert (grammar["kind"], grammar["source"]) == (kind, source)
    assert asked(daemon)["jump"] is ("--no-jump" not in flags)


def test_nothing_is_asked_for_without_a_flag(run: Run, daemon: FakeDaemon) -> None:
    assert run("ask", "hi").code == 0
    assert not {"grammar", "jump"} & asked(daemon).keys()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--schema", "nowhere.json"), 42, "nowhere.json: No such file"),
        (("--schema", '{"type": '), 42, "--schema is not JSON"),
        (("--schema", "true", "--regex", "a"), 2, "--schema and --regex"),
        (("--choice", "a", "--grammar", "f"), 2, "--grammar and --choice"),
        (("--schema-lenient",), 2, "goes with --schema"),
        (("--show-forced",), 2, "--show-forced and --no-jump"),
        (("--no-jump",), 2, "--show-forced and --no-jump"),
    ],
)
def test_what_can_not_be_asked_for(
    run: Run, daemon: FakeDaemon, flags: tuple[str, ...], code: int, words: str
) -> None:
    done = run("ask", "hi", *flags)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert daemon.asked("generate") == []


def test_an_answer_that_holds_is_one_document_with_its_data(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: events(data={"name": "Ada"})
    done = run("ask", "--schema", "true", "hi", "--json")
    assert done.code == 0
    assert json.loads(done.out)["data"] == {"name": "Ada"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"finish_reason": "length", "schema_error": "the answer was cut off"}, "after 62 tokens"),
        ({"finish_reason": "dead_end"}, "could not go on"),
        ({"schema_error": "tags: not\x1b[2J unique"}, "the schema: tags: not"),
        ({"grammar": "regex", "finish_reason": "length"}, "does not meet the regex"),
    ],
)
def test_an_answer_that_does_not_hold_is_printed_and_the_code_is_57(
    run: Run, daemon: FakeDaemon, body: dict[str, Any], why: str
) -> None:
    daemon.script["generate"] = lambda args: events(**body)
    done = run("ask", "--schema", "true", "hi")
    assert (done.code, done.out) == (57, "".join(WHOLE) + "\n")
    assert why in done.err
    assert "\x1b" not in done.err

    document = run("ask", "--schema", "true", "hi", "--json")
    error = json.loads(document.out)["error"]
    assert (document.code, error["exit_code"], error["code"]) == (57, 57, "output_invalid")
    assert error["answer"]["text"] == "".join(WHOLE)

    lines = run("ask", "--schema", "true", "hi", "--output-format", "stream-json")
    told = [json.loads(line) for line in lines.out.splitlines()]
    assert lines.code == 57
    assert [each["type"] for each in told[-3:]] == ["message", "error", "result"]
    assert told[-1]["is_error"] is True
    assert told[-1]["branches"][0]["text"] == "".join(WHOLE)

    assert run("continue").code == 57


def test_what_is_cut_off_without_a_grammar_is_no_failure(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: answer_events(["Hello"], finish_reason="length")
    assert run("ask", "hi").code == 0


@pytest.mark.parametrize("dims", [True, False])
def test_forced_text_is_dim_where_that_is_asked_for(dims: bool) -> None:
    out = io.StringIO()
    view = View(out, io.StringIO(), lambda _: None, lambda _: None, dims_forced=dims)
    pieces = (('{"\x1b[2J', True), ("Ada", False), ("}", True))
    for text, forced in pieces:
        view.show(Event("delta", {"text": text} | ({"forced": True} if forced else {})))
    view.finish()
    assert "\x1b[2J" not in out.getvalue()
    text = out.getvalue().replace(DIM, "<").replace(RESET, ">")
    assert text.startswith("<") is dims
    assert text.endswith("Ada<}>\n" if dims else "Ada}\n")


def test_the_footer_counts_what_was_forced_if_anything_was() -> None:
    answer = {"branch": "main", "usage": usage(output=42) | {"forced_tokens": 18}}
    assert "forced 18/42 tokens" in footer(answer, context={}, saved_s=None)
    answer["usage"] = usage(output=42)
    assert "forced" not in footer(answer, context={}, saved_s=None)


def test_files_are_completed_after_what_wants_one() -> None:
    assert "files" in wanted(["ask", "--schema"], "").kinds
    assert "files" in wanted(["ask", "--grammar"], "").kinds
    assert wanted(["ask", "--regex"], "").kinds == ()
