"""What a terminal shows of an answer whose text is not shown before it is whole."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chat.conftest import Run
from tests.chat.fake_server import FakeDaemon
from tests.chat.many_events import TEXTS, Speakers
from tests.e2e.harness import Terminal, clean_env, radchat

Asked = Callable[..., Terminal]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def to_file(home: Path, daemon: FakeDaemon, out: Path) -> Asked:
    """The command with stdout in a file: all that is seen is stderr."""

    def start(*args: str) -> Terminal:
        line = shlex.join(radchat("--daemon", str(daemon.path), *args))
        script = f"{line} > {shlex.quote(str(out))}; echo ended $?"
        return Terminal(["/bin/sh", "-c", script], clean_env(home, RADCHAT_MODEL="tiny"))

    return start


def seen(terminal: Terminal) -> list[str]:
    """What stays of it."""
    return [line.strip() for line in terminal.lines if line.strip()]


@pytest.mark.parametrize(
    "line",
    [
        "ask hi --json",
        "ask hi --output-format json",
        "retry --json",
        "edit other words --json",
        "continue --json",
        "fork d9f1 and now --json",
        "ask hi --no-stream",
        "ask hi -x",
    ],
)
def test_the_prompt_and_the_tokens_so_far_are_told_until_it_is_whole(
    to_file: Asked, daemon: FakeDaemon, out: Path, line: str
) -> None:
    speakers = Speakers(daemon, [], samples=1)
    with to_file(*shlex.split(line)) as terminal:
        speakers.event("progress", choice=0, stage="extend", done=32, total=100)
        terminal.wait_for("reading the prompt 32%")
        if "json" in line:  # where thoughts are not shown either
            speakers.event("reasoning", choice=0, text="hm", tokens=9)
            terminal.wait_for("9 tokens")
        speakers.event("delta", choice=0, text="a word", tokens=1213)
        terminal.wait_for("1,213 tokens")
        assert out.read_bytes() == b""
        speakers.say(0, "a word")
        speakers.end_all()
        terminal.wait_for("ended 0")
        assert "1,213 tokens" not in terminal.text
        if "json" in line:
            assert seen(terminal) == ["ended 0"]
            assert isinstance(json.loads(out.read_text()), dict)
        else:
            assert out.read_text() == "a word\n"


def test_of_several_it_is_all_their_tokens(to_file: Asked, daemon: FakeDaemon, out: Path) -> None:
    speakers = Speakers(daemon, TEXTS)
    with to_file("what-if", *TEXTS, "--json") as terminal:
        speakers.event("progress", choice=0, stage="extend", done=32, total=100)
        terminal.wait_for("reading the prompt 32%")
        for choice in range(4):
            speakers.event("delta", choice=choice, text="a word", tokens=300)
        terminal.wait_for("4 answering · 1,200 tokens")
        speakers.end_all()
        terminal.wait_for("ended 0")
        assert seen(terminal) == ["ended 0"]
        assert len(json.loads(out.read_text())["branches"]) == 4


def test_nothing_of_it_with_q_or_where_stderr_is_no_terminal(
    to_file: Asked, run: Run, daemon: FakeDaemon, out: Path
) -> None:
    def answers() -> None:
        speakers = Speakers(daemon, [], samples=1)
        speakers.event("progress", choice=0, stage="extend", done=32, total=100)
        speakers.event("delta", choice=0, text="a word", tokens=213)
        speakers.end_all()

    answers()
    with to_file("-q", "ask", "hi", "--json") as terminal:
        terminal.wait_for("ended 0")
        assert terminal.raw.strip() == b"ended 0"
        assert json.loads(out.read_text())["branch"] == "main-1"
    answers()
    piped = run("ask", "hi", "--json")
    assert (piped.code, piped.err) == (0, "")
    assert json.loads(piped.out)["branch"] == "main-1"
