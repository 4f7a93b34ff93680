"""A full context in an open chat: what is told, what is offered, and that nothing typed is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import context_overflow
from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat

QUESTION = "[c]ompact, [f]ork from an earlier turn, or [s]top? "
WORDS = "what I typed so long at"


@pytest.fixture
def terminal(home: Path, daemon: FakeDaemon) -> Iterator[Terminal]:
    daemon.script["models.load"] = lambda args: [Event("done", {"model": "tiny"})]
    command = radchat("--daemon", str(daemon.path), "chat", "-o", "num_ctx=8192")
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny"), columns=100, rows=40) as opened:
        opened.wait_for("> ")
        yield opened


def at_the_limit(terminal: Terminal, daemon: FakeDaemon) -> None:
    """The context is full for one message, and has room again after that."""
    full: list[Any] = [context_overflow(9000, 8192)]
    daemon.script["generate"] = lambda args: full.pop() if full else answer_events(["fine"])
    terminal.type(WORDS + "\r")
    terminal.wait_for(QUESTION)
    assert "the prompt has 9,000 tokens and the context holds 8,192" in terminal.text


def at_prompt_with(terminal: Terminal, mark: str, words: str) -> bool:
    terminal.settle()
    return terminal.lines[terminal._screen.cursor.y] == f"{mark}{words}".rstrip()


def test_at_the_limit_compact_is_one_of_three_and_the_words_are_offered_again(
    terminal: Terminal, daemon: FakeDaemon
) -> None:
    at_the_limit(terminal, daemon)
    terminal.type("c\r")
    terminal.wait_for("back: /undo, /switch - or /switch before-compact")
    assert "from 6,210 to 812 tokens, read with your next message" in terminal.lines
    assert "this reads 90 tokens (80 cached)" in terminal.text
    assert "in short: x\\x1b[31my\\x9bz" in terminal.text
    assert at_prompt_with(terminal, "compact> ", WORDS)
    terminal.type(" and more\r")
    terminal.wait_for("tok/s")
    (call,) = daemon.asked("compact")
    assert call["options"] == {"num_ctx": 8192}
    assert call["head"] == {"branch": "main", "message": long("d9f1")}
    again = daemon.asked("generate")[1]
    assert again["text"] == WORDS + " and more"
    assert again["head"] == {"branch": "compact", "message": long("beef")}


def test_at_the_limit_one_may_fork_before_a_turn_and_keeps_the_words(
    terminal: Terminal, daemon: FakeDaemon
) -> None:
    at_the_limit(terminal, daemon)
    terminal.type("f\r")
    terminal.wait_for("before which turn, 1 to 1? ")
    terminal.type("#1\r")
    terminal.wait_for("report-q3 · ")
    (call,) = daemon.asked("fork")
    assert call["ref"] == "1"
    terminal.wait_for(f"> {WORDS}")
    assert daemon.asked("compact") == []


@pytest.mark.parametrize("key", ["s\r", "\r", "\x03", "\x04", "nonsense\r", "f\r\r"], ids=repr)
def test_at_the_limit_one_may_stop_and_nothing_is_done(
    terminal: Terminal, daemon: FakeDaemon, key: str
) -> None:
    at_the_limit(terminal, daemon)
    for letters in key.split("\r")[:-1] or [key]:
        terminal.type(letters + ("\r" if "\r" in key else ""))
        terminal.settle()
    assert at_prompt_with(terminal, "> ", WORDS)
    assert daemon.asked("compact") == daemon.asked("fork") == []
    terminal.type("\x15\x1b[A")  # the choice is in no history
    assert at_prompt_with(terminal, "> ", WORDS)


def test_ctrl_c_ends_a_summary_and_one_is_where_one_was(
    terminal: Terminal, daemon: FakeDaemon
) -> None:
    def slowly(_args: dict[str, Any]) -> Iterator[Event]:
        for number in range(3000):
            time.sleep(0.02)
            yield Event("delta", {"choice": 0, "text": f"word{number} "})

    daemon.script["compact"] = slowly
    terminal.type("/compact the numbers\r")
    terminal.wait_for("word5")
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    assert daemon.noticed_cancel.wait(10)
    assert daemon.asked("compact")[0]["text"] == "the numbers"
    assert at_prompt_with(terminal, "> ", "")


def test_what_fills_the_context_is_shown_in_bars(terminal: Terminal) -> None:
    terminal.type("/context\r")
    terminal.wait_for("48 tokens of 100, 48%, then 12 to open your next turn")
    terminal.settle()
    shown = terminal.lines
    assert [
        line.split()[:3] for line in shown if "#" in line and "%" in line and "..." in line
    ] == [
        ["files", "8", "####" + "." * 46],
        ["your", "words", "12"],
        ["answers", "20", "#" * 10 + "." * 40],
        ["template", "marks", "8"],
        ["next", "turn", "opens"],
    ]
    assert any(line.split()[:2] == ["free", "40"] for line in shown)
    assert "before your next words 15 of 60 to compute, cached 45 on device (75.0%)" in shown
    assert any(line.startswith("  #2   asst") and "x\\x1b[31my" in line for line in shown)
