"""TM-01, TM-02, TM-08: foreign text in every place it can get to, shown by every command.

Session, branch and folder names, labels, file names, questions, errors. What a terminal is sent has
no control character that is not our own colour; square brackets and wide letters are shown as they
are, at any width.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EXACT
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.waiting import PATIENCE

EVIL = (
    "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]52;c;aGk=\x07\x1bPq\x1b\\\x1b_x\x1b\\"
    "\x1bc\x1b[6n\x9b31m\x90q\x9c\x07\b\r\x00\x7f\x1b]0;never ended"
)
MARKUP = "[red]x [/INST] a[0] [bold list[str] [/path]"
WIDE = "漢字 한국어 e\u0301 🇨🇭 👨‍👩‍👧 ✔\ufe0f"
OURS = re.compile(r"\x1b\[[0-9;]*m")  # the colours
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SHOWS = [
    ("tree",), ("tree", "--show-cache"), ("tree", "--lru"), ("tree", "--ids"), ("log",),
    ("log", "-r"), ("sessions", "ls"), ("sessions", "show"), ("branch",), ("cache", "ls"),
    ("cache", "tree"), ("cache", "stats"), ("cache", "top"), ("undo",), ("redo",),
    ("switch", "mark"), ("switch", "main"), ("fork",), ("switch", "-"), ("models", "ls"),
    ("models", "ps"), ("daemon", "status"), ("doctor",), ("sessions", "search", "red"),
    ("sessions", "verify"), ("sessions", "search", "-l", "red"), ("prune", "--dry-run"),
]  # fmt: skip


@pytest.fixture(scope="module")
def evil(shared: Home) -> Shell:
    """A terminal in a folder, with a chat, that is all of it hostile."""
    shell = Shell(shared, "evil", EXACT)
    text = EVIL.replace("\x00", "")  # no argument can hold that one
    shell.folder = shell.folder / text.replace("/", ":")
    shell.folder.mkdir()
    file = shell.folder / f"{text.replace('/', ':')}{MARKUP.replace('/', ':')}.md"
    file.write_text(f"{EVIL} {MARKUP} {WIDE}")
    shell("ask", f"{MARKUP} {text} {WIDE}", "-f", file.name, *EXACT)
    shell("ask", "-c", WIDE * 9, *EXACT)
    shell("branch", "--label", "HEAD", "[/INST][red]x")
    shell("branch", "--label", "HEAD", "mark")
    return shell


def test_no_command_shows_a_control_character_of_others(evil: Shell) -> None:
    for command in SHOWS:
        painted = evil(*command, CLICOLOR_FORCE="1", COLUMNS="44")
        assert CONTROL.findall(OURS.sub("", painted.out + painted.err)) == [], command


def test_what_is_imported_shows_no_control_character(evil: Shell) -> None:
    """A file of somebody else's, hostile in every field that is text."""
    document = json.loads(evil("sessions", "export", "--format", "json").out)
    file = evil.home.root / "evil.json"
    file.write_text(json.dumps(_hostile(document)))
    taken = evil("sessions", "import", str(file))
    assert CONTROL.findall(taken.out + taken.err) == []
    for command in (("tree",), ("log",), ("sessions", "ls"), ("sessions", "show"), ("branch",)):
        painted = evil(*command, CLICOLOR_FORCE="1")
        assert CONTROL.findall(OURS.sub("", painted.out + painted.err)) == [], command


def _hostile(value: Any, key: str = "") -> Any:
    """What is no name (those are checked) and has no digest; the texts are hostile already."""
    if isinstance(value, dict):
        return {k: v if k == "parts" else _hostile(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_hostile(one, key) for one in value]
    if isinstance(value, str) and key in ("model", "folder", "dtype"):
        return f"{value}{EVIL}"
    return value


def test_an_export_to_a_terminal_drives_it_no_more_than_the_log_does(evil: Shell) -> None:
    for format_ in ("md", "json"):
        command = [sys.executable, "-P", "-m", "radchat", "sessions", "export", "--format", format_]
        with Terminal(command, {**evil.env, "TERM": "xterm"}, cwd=Path(evil.folder)) as terminal:
            assert terminal.wait_end(PATIENCE) == 0
            sent = terminal.raw.replace(b"\r\n", b"\n").decode()
        assert CONTROL.findall(OURS.sub("", sent)) == [], format_


def test_brackets_and_wide_letters_are_shown_as_they_are(evil: Shell) -> None:
    log = evil("log").out
    assert MARKUP in log
    assert WIDE * 9 in log
    assert MARKUP.split(maxsplit=1)[0] in evil("tree").out
    first = evil.json("log")["messages"][0]
    assert MARKUP in first["text"]


def test_a_hostile_name_is_refused_or_cleaned_and_never_echoed_raw(terminal: Shell) -> None:
    name = EVIL.replace("\x00", "")
    terminal.quick("hello")
    for command in (
        ("fork", "HEAD", "-n", name), ("sessions", "rename", name), ("branch", name),
        ("switch", name), ("log", name), ("tree", name), ("fork", name),
        ("sessions", "show", "--session", name), ("sessions", "rm", "-y", name),
        ("models", "show", name), ("ask", "x", "-f", name), ("ask", "x", "-m", name),
        ("ask", "x", "--dtype", name), ("ask", "x", "-o", f"{name}={name}"), (name,),
        ("config", "get", name), ("cache", "evict", name, "-y"), ("cache", "why", name),
    ):  # fmt: skip
        process = terminal.start(*command)
        assert process.stderr is not None
        assert process.stdout is not None
        said = process.stdout.read() + process.stderr.read()
        assert process.wait(PATIENCE) in (0, 1, 2, 42, 66), (command, said)
        assert CONTROL.findall(said) == [], command
        assert "Traceback" not in said


def test_a_chat_in_a_hostile_session_sends_its_terminal_nothing_of_it(
    evil: Shell,
) -> None:
    """Opened, looked at with the slash commands, closed; at a width where nothing fits."""
    env = {**evil.env, "TERM": "xterm-256color", "COLUMNS": "20"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "-c", *EXACT]
    with Terminal(command, env, cwd=Path(evil.folder), columns=20) as chat:
        chat.wait_for("> ", PATIENCE)
        chat.settle()
        for line in (
            "/tree print",
            "/branches",
            "/sessions",
            "/cache",
            "/status",
            "/undo",
            "/redo",
        ):
            chat.type(f"{line}\r")
            chat.settle(0.4)
        raw = chat.raw
        chat.type("\x15/bye\r")
        assert chat.wait_end(PATIENCE) == 0
    for made in (b"\x1b]", b"\x1bP", b"\x1b_", b"\x1bc", b"\xc2\x9b", b"\xc2\x90", b"\x07"):
        assert made not in raw, made
    assert os.fsencode("漢字") in raw
