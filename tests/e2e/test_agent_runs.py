"""The whole `radchat agent` command while its tools hang, kill, and are killed with it.

The model is a script, everything else is real: the command, its sandbox, its journal, its signals.
"""

from __future__ import annotations

import json
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.sandboxes import KINDS, running
from tests.agent.scripted_steps import Calls, ScriptedModel, shell
from tests.chat.conftest import full_script
from tests.chat.fake_server import FakeDaemon
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

SANDBOX = () if KINDS else ("--no-sandbox",)


def _hangs_up() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Work:
    """A folder, a home, and a daemon that is a script."""

    def __init__(self, root: Path, daemon: FakeDaemon) -> None:
        self.root, self.daemon = root / "work", daemon
        self.root.mkdir()
        self.home = root / "home"
        self.env = clean_env(self.home)
        self.model = ScriptedModel(daemon, [])

    def words(self, *more: str) -> list[str]:
        return radchat("--daemon", str(self.daemon.path), "agent", "-p", "-y", *SANDBOX, *more)

    def start(self, steps: list[str | Calls], *more: str) -> subprocess.Popen[str]:
        self.model = ScriptedModel(self.daemon, steps)
        return subprocess.Popen(
            self.words("--output-format", "json", *more, "do it"),
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hangs_up,  # noqa: PLW1509 - also under nohup; there is one thread
        )

    def run(self, steps: list[str | Calls], *more: str) -> dict[str, Any]:
        with self.start(steps, *more) as command:
            out, err = command.communicate(timeout=60)
        assert out, err
        found: dict[str, Any] = json.loads(out)
        return found

    def journal(self) -> list[dict[str, Any]]:
        (path,) = (self.home / "data" / "agent").glob("*/journal.jsonl")
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return [entry for entry in entries if "state" in entry]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with FakeDaemon() as daemon:
        yield Work(tmp_path, daemon)


def unique() -> str:
    return f"30.{time.monotonic_ns()}"


def test_commands_that_hang_hide_and_kill_end_as_results(work: Work) -> None:
    """One after the other, and the agent goes on to its answer."""
    number = unique()
    hangs = f"echo partial; trap '' TERM; (trap '' TERM; setsid sleep {number}) | sleep {number}"
    steps: list[str | Calls] = [
        shell(f"sleep {number} & setsid sleep {number} & echo begun"),
        shell(hangs, timeout=1),
        shell("kill -9 $PPID; kill -9 0; true"),
        shell("cat; read x </dev/tty; head -c 3000000 /dev/zero | tr '\\0' y; printf 'caf\\xe9'"),
        [("python", {"code": "print(input())"})],
        "all of it ended",
    ]
    ended = work.run(steps)
    assert (ended["result"], ended["ended"], ended["turns"]) == ("all of it ended", "answer", 6)
    assert not running(number)
    told = [(result["status"], result["text"]) for result in work.model.results]
    assert told[0][0] == "ok"
    assert "2 left running and ended" in told[0][1]
    assert told[0][1].endswith("begun\n")
    assert told[1][0] == "timeout"
    assert told[1][1].endswith("partial\n")
    assert "SIGKILL" in told[2][1] or "its own supervisor" in told[2][1]
    assert "characters are left out" in told[3][1]
    assert len(told[3][1]) < 20_000
    assert told[4][0] == "error"
    assert "EOFError" in told[4][1]


def test_ctrl_c_ends_the_tool_and_its_result_says_so(work: Work) -> None:
    number = unique()
    with work.start([shell(f"echo partial; setsid sleep {number} & sleep {number}")]) as command:
        wait_until(lambda: len(running(number)) >= 2)
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=60)
    assert not running(number)
    assert command.returncode == 130, err
    assert json.loads(out)["ended"] == "interrupted"
    ended = work.journal()[-1]
    assert (ended["state"], ended["result"]["status"]) == ("ended", "interrupted")
    assert ended["result"]["text"] == "[interrupted by the user]\npartial\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_kill_leaves_nothing_running_and_what_ran_is_told(
    work: Work, how: signal.Signals
) -> None:
    """The next command goes on from its journal."""
    number = unique()
    (work.root / "begun").touch()
    hangs = shell(f"echo x >> begun; setsid sleep {number} & sleep {number}")
    with work.start([hangs]) as command:
        wait_until(lambda: len(running(number)) >= 2)
        command.send_signal(how)
        command.communicate(timeout=60)
    wait_until(lambda: not running(number))
    assert [entry["state"] for entry in work.journal()] == ["started"]
    model = work.model
    model.steps = [hangs, "went on"]
    done = subprocess.run(
        work.words("-c", "go on"), env=work.env, cwd=work.root, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "went on\n"
    (result,) = model.results
    assert result["status"] == "interrupted"
    assert (work.root / "begun").read_text() == "x\n", "it is not run again"


def test_ctrl_c_at_a_terminal_ends_the_tool_and_leads_back_to_the_prompt(work: Work) -> None:
    """The tools ignore it, the agent does not; the model reads that it was interrupted."""
    number = unique()
    work.daemon.script = full_script()
    hangs = shell(f"trap '' INT TERM; echo begun; setsid sleep {number} & sleep {number}")
    work.model = ScriptedModel(work.daemon, [hangs, "went on"])
    words = radchat("--daemon", str(work.daemon.path), "agent", "-y", *SANDBOX)
    with Terminal(words, work.env, cwd=work.root) as terminal:
        terminal.wait_for("tiny · main@")
        terminal.type("do it\r")
        terminal.wait_for(lambda _: len(running(number)) >= 2)
        terminal.type("\x03")
        terminal.wait_for("interrupted: what came so far is kept")
        terminal.wait_for("tiny · main@0001")
        assert not running(number)
        terminal.type("go on\r")
        terminal.wait_for("tiny · main@0002")
        assert "went on" in terminal.text
        terminal.type("/bye\r")
        assert terminal.wait_end() == 0
    (result,) = work.model.results
    assert result["status"] == "interrupted"


def test_ctrl_c_twice_ends_it_all(work: Work) -> None:
    """Whatever is at work when the second one comes: the end of the tool, or the prompt."""
    number = unique()
    work.daemon.script = full_script()
    hangs = shell(f"trap '' INT TERM; sleep {number}; true")
    work.model = ScriptedModel(work.daemon, [hangs])
    words = radchat("--daemon", str(work.daemon.path), "agent", "-y", *SANDBOX)
    with Terminal(words, work.env, cwd=work.root) as terminal:
        terminal.wait_for("tiny · main@")
        terminal.type("do it\r")
        terminal.wait_for(lambda _: len(running(number)) >= 1)
        deadline = time.monotonic() + 60
        while terminal.child.isalive() and time.monotonic() < deadline:
            terminal.type("\x03")  # two at once may be one
            terminal.settle(0.1, 0.2)
        assert terminal.wait_end() == 0
        assert "Continue: radchat agent -r" in terminal.everything
        assert not running(number)


def test_the_terminal_is_as_it_was(work: Work) -> None:
    """AG-09: what wants a terminal gets none, and takes no keys."""
    wants = """stty -echo raw </dev/tty; stty -echo raw; reset; cat; sudo -k true; git init -q .
        git commit --allow-empty; printf '\\033[2J\\033]0;mine\\007'"""
    work.model = ScriptedModel(work.daemon, [shell(wants), "done"])
    with Terminal(work.words("do it"), work.env, cwd=work.root) as terminal:
        before = termios.tcgetattr(terminal.child.child_fd)
        terminal.wait_for("done")
        after = termios.tcgetattr(terminal.child.child_fd)
        assert terminal.wait_end() == 0
    assert after == before
    assert b"\x1b[2J" not in terminal.raw
    assert b"\x1b]0;" not in terminal.raw


@pytest.mark.skipif(not KINDS, reason="no sandbox works here")
def test_radchats_own_folders_are_not_read(work: Work) -> None:
    """Of the real places of this home, by the real command."""
    for name in ("data", "state", "config"):
        (work.home / name).mkdir(parents=True)
        (work.home / name / "secret").write_text("what was said")
    work.run(
        [shell(f"cat {work.home}/*/secret {work.home}/data/agent/*/*; echo x > {work.home}/x")]
    )
    (result,) = work.model.results
    assert "was said" not in result["text"]
    assert "started" not in result["text"]
    assert result["status"] == "error"
    assert not (work.home / "x").exists()
    assert list(work.root.iterdir()) == []


HOSTILE = """
printf x > "$(printf 'bad\\377\\n\\033[2J')"; mkfifo pipe; ln -s . loop
mkdir no; echo x > no/x; chmod 0 no
truncate -s 3G big; echo two > two
python3 -c '
import os
for place in (".", os.environ["TMPDIR"]):
    os.chdir(place)
    for _ in range(1100): os.mkdir("d"); os.chdir("d")
    os.chdir("/" if place != "." else os.environ["PWD"])'
"""


def test_what_a_command_leaves_in_the_folder_ends_no_agent(work: Work) -> None:
    """Names that are no text, pipes, loops, what can't be read, folders 1,100 deep."""
    looks: Calls = [
        ("list", {"path": "."}),
        ("glob", {"pattern": "**"}),
        ("grep", {"pattern": "two"}),
        ("read_file", {"path": "pipe"}),
        ("shell", {"command": "echo \ud800"}),
        ("write_file", {"path": "new", "content": "\udcff"}),
    ]
    try:
        ended = work.run([shell(HOSTILE), looks, "done"])
    finally:  # pytest can't
        subprocess.run(["rm", "-rf", work.root], check=True)
    assert ended["ended"] == "answer"
    made, listed, found, grepped, *_ = work.model.results
    assert made["text"] == "[exit code 0; no output]"
    assert "bad\ufffd" in listed["text"]
    assert "bad\ufffd" in found["text"]
    assert grepped["text"] == "two:1:two"
