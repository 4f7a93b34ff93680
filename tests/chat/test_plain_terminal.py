"""NO_COLOR, TERM=dumb and --plain in a real terminal: not one escape byte (TM-04, TM-05)."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from radchat.chat.plain_lines import HOW
from tests.chat.conftest import Open
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.talking import sent
from tests.e2e.harness import Terminal, clean_env, radchat

WAIT = 60.0
COMMANDS = (
    "tree --show-cache --lru", "log", "sessions ls", "sessions show", "branch -l", "cache stats",
    "cache ls", "cache tree", "cache top --once", "config list", "models ls", "models ps",
    "daemon status", "doctor", "switch main", "fork d9f1", "ask hello", "retry", "--help",
)  # fmt: skip
PLAIN = {
    "--plain": {},
    "NO_COLOR": {"NO_COLOR": "1"},
    "TERM=dumb": {"TERM": "dumb"},
}


def shown(daemon: FakeDaemon, home: Path, line: str, **env: str) -> bytes:
    """Every byte a command wrote to its terminal."""
    command = radchat("--daemon", str(daemon.path), *line.split())
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny") | env) as terminal:
        terminal.wait_end(WAIT)
        return terminal.raw


@pytest.mark.parametrize(
    ("line", "names"),
    [(line, [name]) for line, name in zip(COMMANDS, itertools.cycle(PLAIN), strict=False)]
    + [pytest.param(line, list(PLAIN), marks=pytest.mark.slow) for line in COMMANDS],
)
def test_no_escape_reaches_a_terminal_that_wants_none(
    daemon: FakeDaemon, home: Path, line: str, names: list[str]
) -> None:
    """Each in one of the three ways; among the slow tests in all of them."""
    for name in names:
        env = PLAIN[name]
        flags = f"{name} " if name.startswith("--") else ""
        raw = shown(daemon, home, flags + line, **env)
        # NO_COLOR is about colour; a line of progress may still be wiped in place
        wiped = raw.replace(b"\r\x1b[2K", b"") if name == "NO_COLOR" else raw
        assert b"\x1b" not in wiped, (name, raw)
        assert raw


def test_colour_is_there_where_it_may_be(daemon: FakeDaemon, home: Path) -> None:
    assert b"\x1b[" in shown(daemon, home, "tree")
    assert b"\x1b[" in shown(daemon, home, "tree", NO_COLOR="")
    assert b"\x1b[" not in shown(daemon, home, "tree --color never")
    assert b"\x1b[" in shown(daemon, home, "--plain tree --color always")


@pytest.mark.parametrize("name", PLAIN)
def test_a_chat_can_be_held_without_colour_or_moving_lines(
    daemon: FakeDaemon, home: Path, name: str
) -> None:
    flags = [name] if name.startswith("--") else []
    env = clean_env(home, RADCHAT_MODEL="tiny") | PLAIN[name]
    with Terminal(radchat("--daemon", str(daemon.path), *flags, "chat"), env) as terminal:
        terminal.wait_for("> ", WAIT)
        terminal.type("hello\r")
        terminal.wait_for(lambda t: "Hello world" in t.text and t.text.endswith("\n>"), WAIT)
        terminal.type("/bye\r")
        assert terminal.wait_end(WAIT) == 0
        coloured = re.findall(rb"\x1b\[(?:3[0-9]|4[0-9]|9[0-9]|38|48)[;\d]*m", terminal.raw)
        assert coloured == []
        if name == "TERM=dumb":
            assert b"\x1b" not in terminal.raw, terminal.raw
            shown = terminal.everything.splitlines()
            assert [line for line in shown if ">" in line] == ["> hello", "> /bye"]


def test_a_dumb_terminal_edits_its_own_lines(chat: Open, daemon: FakeDaemon) -> None:
    """A block, a lost line, what was typed ahead, what is offered: each a line it has once."""
    terminal = chat("chat", TERM="dumb")
    typed = threading.Event()

    def words() -> Iterator[str]:
        yield "Hello"
        assert typed.wait(WAIT)

    daemon.script["generate"] = lambda _args: answer_events(words())
    terminal.wait_for("> ")
    terminal.type("gone")
    terminal.wait_for("> gone")
    terminal.type("\x03")
    terminal.wait_for(lambda t: t.text.endswith("exit\n>"))
    terminal.type('"""one\r')
    terminal.type('two"""\r')
    assert [call["text"] for call in sent(daemon, 1)] == ["one\ntwo"]
    terminal.wait_for("Hello")
    terminal.type("nexx\x7ft\r/bogus\rhalf")
    typed.set()
    terminal.wait_for(lambda t: t.text.endswith(f"half\n{HOW}\n>"))
    terminal.type("\r")
    assert [call["text"] for call in sent(daemon, 3)] == ["one\ntwo", "next", "half"]
    terminal.wait_for(lambda t: t.text.count("tok/s") == 3 and t.text.endswith("\n>"))
    terminal.type("\x04")
    assert terminal.wait_end(WAIT) == 0
    shown = terminal.everything.splitlines()
    marks = ["> gone^C", '> """one', "> next", "> /bogus", ">", ">"]
    assert [line for line in shown if line.startswith(">")] == marks, shown
    assert b"\x1b" not in terminal.raw
