"""The line below the prompt: one line at any width, of what the chat was told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from radchat.chat.status_bar import Facts, line
from radchat.chat.width import width
from radchat.protocol import Event
from tests.chat.conftest import SESSION, Open
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.talking import sent
from tests.chat.trees import long

DONE = {
    "context": {"used": 1240, "limit": 8192},
    "usage": {"input_tokens": 1211, "cached_input_tokens": 1180},
}
ALL = Facts(model="smollm2-135m", dtype="int4", branch="main", message=long("d9f1"), done=DONE)
MOST = "smollm2-135m int4 \u00b7 main@d9f1 \u00b7 ctx 1.2k/8.2k 15%"


@pytest.mark.parametrize(
    ("facts", "columns", "shown"),
    [
        (
            ALL,
            200,
            "smollm2-135m int4 \u00b7 main@d9f1 \u00b7 ctx 1.2k/8.2k 15% \u00b7 cached 97.4%",
        ),
        (
            ALL,
            80,
            "smollm2-135m int4 \u00b7 main@d9f1 \u00b7 ctx 1.2k/8.2k 15% \u00b7 cached 97.4%",
        ),
        (ALL, 60, MOST),
        (ALL, 40, "smollm2-135m int4 \u00b7 main@d9f1 \u00b7 ctx 15%"),
        (ALL, 30, "smollm2-135m int4 \u00b7 main@d9f1"),
        (ALL, 20, "smollm2-135m int4..."),
        (Facts(), 80, ""),
        (Facts(model="tiny", is_loaded=False, branch="main"), 80, "tiny not loaded \u00b7 main"),
        (Facts(doing="loading tiny 45%", model="tiny"), 80, "loading tiny 45%"),
        (Facts(model="x\x1b[31m\ny", branch="b\x9b"), 80, "x\\x1b[31m y \u00b7 b\\x9b"),
    ],
)
def test_it_is_cut_where_it_says_least(facts: Facts, columns: int, shown: str) -> None:
    assert line(facts, columns) == shown


@pytest.mark.parametrize("columns", [1, 2, 20, 40, 80])
def test_it_is_one_line_whatever_the_names(columns: int) -> None:
    wide = "\u6f22\u5b57" * 40
    facts = Facts(doing=wide, model=wide, branch=wide, message=long("d9f1"), done=DONE)
    assert width(line(facts, columns)) <= columns


@pytest.mark.parametrize(("columns", "env"), [(80, {}), (200, {}), (80, {"NO_COLOR": "1"})])
def test_it_stands_below_the_prompt_and_follows_what_is_told(
    chat: Open, daemon: FakeDaemon, columns: int, env: dict[str, str]
) -> None:
    def loading(args: dict[str, Any]) -> Any:
        while not daemon.asked("generate"):
            yield Event("progress", {"stage": "load", "done": 45, "total": 100, "text": "tiny"})
            time.sleep(0.02)
        yield Event("done", {"model": "tiny", "dtype": "bf16"})

    daemon.script["models.load"] = loading
    daemon.script["generate"] = lambda args: answer_events(["hi"])
    moved = {"session": SESSION["id"], "name": "report-q3", "branch": "price"}
    daemon.script["switch"] = {**moved, "head": long("d9f1")}
    terminal = chat("chat", columns=columns, **env)
    terminal.wait_for(lambda t: t.lines[-1] == "loading tiny 45% \u00b7 main@d9f1")
    terminal.type("hello\r")
    terminal.wait_for("tok/s")
    terminal.wait_for(
        lambda t: t.lines[-1] == MOST.replace("int4", "bf16") + " \u00b7 cached 97.4%"
    )
    before = len(daemon.calls)
    terminal.type("some words of which nobody is asked anything")
    terminal.settle()
    assert len(daemon.calls) == before
    assert b"\x1b[7m" not in terminal.raw  # no bar in reverse
    terminal.type("\x15/switch price\r")
    sent(daemon, 1, "switch")
    terminal.wait_for(lambda t: "price@d9f1" in t.lines[-1])
    assert "ctx" not in terminal.lines[-1]  # of an answer one does not stand at


def test_it_tells_of_the_answer_one_goes_to(chat: Open, daemon: FakeDaemon) -> None:
    def told(used: int) -> dict[str, Any]:
        return {**DONE, "context": {"used": used, "limit": 8192}}

    daemon.script["sessions.open"] = {**SESSION, "answered": told(4096)}
    at = {"session": SESSION["id"], "name": "report-q3", "branch": "main", "head": long("d9f1")}
    daemon.script["undo"] = {**at, "answered": told(2048)}
    daemon.script["switch"] = {**at, "branch": "price", "answered": None}
    terminal = chat("chat", "-c")
    terminal.wait_for(
        lambda t: t.lines[-1].endswith("main@d9f1 · ctx 4.1k/8.2k 50% · cached 97.4%")
    )
    terminal.type("/undo\r")
    terminal.wait_for(lambda t: "ctx 2.0k/8.2k 25%" in t.lines[-1])
    terminal.type("/switch price\r")
    terminal.wait_for(lambda t: t.lines[-1].endswith("price@d9f1"))


def test_a_model_that_could_not_be_loaded_is_not(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["models.load"] = lambda args: [Event("error", {"code": "busy", "message": "no"})]
    terminal = chat("chat")
    terminal.wait_for(lambda t: t.lines[-1] == "tiny not loaded \u00b7 main@d9f1")
