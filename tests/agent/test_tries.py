"""Several tries of the real command in real copies and sandboxes; the model is a script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from radchat.agent.files.checkpoints import FileCheckpoints
from radchat.agent.files.rewind import rewind_to
from radchat.agent.files.workspace import Folder
from radchat.agent.journal import Journal
from radchat.agent.tries.copies import Copies, size_of
from radchat.agent.tries.entries import TryEntries, bring
from radchat.agent.tries.steps import first_branch
from radchat.agent.tries.tools import here
from radchat.agent.types import Call, Preview
from radchat.client import Client
from radchat.errors import RadchatError, UsageError
from radchat.paths import Places
from tests.agent.calls import Entries
from tests.agent.sandboxes import KINDS, running
from tests.agent.scripted_steps import Calls, shell
from tests.agent.scripted_tries import SESSION, ScriptedTries
from tests.chat.fake_server import FakeDaemon
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

SANDBOX = () if KINDS else ("--no-sandbox",)
Script = Sequence[str | Calls]


def asked(terminal: Terminal, num: int) -> bool:
    return terminal.everything.count("allow it?") == num


def write(path: str, content: str) -> Calls:
    return [("write_file", {"path": path, "content": content})]


class Work:
    def __init__(self, root: Path, daemon: FakeDaemon) -> None:
        self.root, self.daemon = root / "work", daemon
        self.root.mkdir()
        self.home = root / "home"
        self.env = clean_env(self.home)
        self.model = ScriptedTries(daemon, [])

    def words(self, *more: str) -> list[str]:
        agent = ("agent", "--tries", "3", *SANDBOX)
        return radchat("--daemon", str(self.daemon.path), *agent, *more, "do it")

    def start(self, scripts: Sequence[Script], *more: str, **gates: Any) -> subprocess.Popen[str]:
        self.model = ScriptedTries(self.daemon, scripts, gates.get("gates"))
        return subprocess.Popen(
            self.words("-p", "--output-format", "json", *more),
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, scripts: Sequence[Script], *more: str, **gates: Any) -> dict[str, Any]:
        with self.start(scripts, *more, **gates) as command:
            out, err = command.communicate(timeout=60)
        assert out, err
        return {**json.loads(out), "code": command.returncode, "err": err}

    def copies(self) -> list[Path]:
        return sorted((self.home / "cache" / "tries").glob("*"))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with FakeDaemon() as daemon:
        yield Work(tmp_path, daemon)


def test_the_first_that_passes_is_kept(work: Work) -> None:
    """One fails, one passes, one is still at it: it is cancelled, whatever it runs."""
    number = f"30.{time.monotonic_ns()}"
    (work.root / "sum.py").write_text("print(1)\n")
    (work.root / "link").symlink_to("sum.py")
    (work.root / ".venv").mkdir()
    root = str(work.root)
    scripts: list[Script] = [
        [write("sum.py", "print(3)\n"), "three"],
        [
            write(f"{root}/sum.py", "print(2)\n"),
            shell(f"pwd; cat {root}/sum.py; echo new > {root}/added; chmod 700 added; rm link"),
            shell(f"cat {root}/link; cat {root}2/x"),
            "two",
        ],
        [write("sum.py", "print(4)\n"), shell(f"setsid sleep {number} & sleep {number}"), "four"],
    ]
    gate = threading.Event()

    def when_it_hangs() -> None:
        wait_until(lambda: len(running(number)) >= 2)
        gate.set()

    threading.Thread(target=when_it_hangs, daemon=True).start()
    check = f"cd {root} && test $(python3 sum.py) = 2 && echo right || {{ echo wrong; exit 3; }}"
    ended = work.run(scripts, "-y", "--check", check, gates={(2, 4): gate})
    assert (ended["code"], ended["result"], ended["branch"]) == (0, "two", "try-2")
    assert not running(number)
    first, second, third = ended["tries"]
    assert [one["won"] for one in ended["tries"]] == [False, True, False]
    assert (first["check"]["code"], first["check"]["output"]) == (3, "wrong\n")
    assert (second["check"]["code"], second["check"]["output"]) == (0, "right\n")
    assert (third["ended"], third["check"]) == ("cancelled", None)
    assert second["changed"] == ["added", "link", "sum.py"]
    assert (work.root / "sum.py").read_text() == "print(2)\n"
    assert (work.root / "added").stat().st_mode & 0o777 == 0o700
    assert not (work.root / "link").is_symlink()
    assert work.copies() == []
    assert work.model.switched == ["try-2"]
    said = work.model.results[2][1]["text"]
    assert f"{root}\nprint(2)\n" in said, "of the copy, under the folder's name"
    told = json.dumps(work.daemon.asked("generate"))
    assert "tries/run-" not in told
    assert ended["usage"]["input_tokens"] == 1211 * (1 + 1 + 3 + 1), "what they share, once"

    journal = Journal(work.home / "data" / "agent" / SESSION)
    calls = ["c2.1.0", "c2.2.0", "c2.3.0"]
    rewind_to(work.root, journal, calls[:1])
    assert (work.root / "sum.py").read_text() == "print(2)\n"
    assert (work.root / "link").is_symlink()
    assert not (work.root / "added").exists()
    rewind_to(work.root, journal, [])
    assert (work.root / "sum.py").read_text() == "print(1)\n"
    rewind_to(work.root, journal, calls)
    assert (work.root / "added").read_text() == "new\n"
    journal.close()


def test_none_passes_and_what_a_user_changed_stays(work: Work) -> None:
    (work.root / "a").write_text("old")
    scripts: list[Script] = [[write("a", str(n)), f"it is {n}"] for n in range(3)]
    ended = work.run(scripts, "-y", "--check", "grep 7 a")
    assert (ended["code"], ended["ended"]) == (1, "none")
    told = ended["error"]["message"]
    assert "none of 3 tries passes grep 7 a: try-1 (exit code 1), try-2" in told
    assert (work.root / "a").read_text() == "old"
    kept = [Path(one["copy"]) for one in ended["tries"]]
    assert [(copy / "a").read_text() for copy in kept] == ["0", "1", "2"]
    assert all(str(copy) in told for copy in kept)
    assert len(work.copies()) == 3

    gate = threading.Event()
    with work.start(
        scripts, "-y", "--check", "grep 1 a", gates={(2, 2): gate, (3, 2): gate}
    ) as command:
        wait_until(lambda: len(work.model.results.get(2, [])) == 1)
        (work.root / "a").write_text("of the user")
        gate.set()
        out, err = command.communicate(timeout=60)
    won = json.loads(out)
    assert won["left"] == ["a: changed since the agent left it"]
    assert (work.root / "a").read_text() == "of the user"
    assert (Path(won["tries"][1]["copy"]) / "a").read_text() == "1"
    assert "left as it is: a: changed" in err


def test_ctrl_c_and_a_kill_leave_no_copy(work: Work) -> None:
    number = f"30.{time.monotonic_ns()}"
    scripts: list[Script] = [[shell(f"sleep {number}")]] * 3
    for how, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        with work.start(scripts, "-y", "--check", "true") as command:
            wait_until(lambda: len(running(number)) >= 3)
            assert len(work.copies()) == 1, "what was killed before is gone"
            command.send_signal(how)
            command.communicate(timeout=60)
        assert command.returncode == code
        wait_until(lambda: not running(number))
    assert work.copies() == []
    assert work.model.switched == []


def test_approvals_without_anybody_end_it(work: Work) -> None:
    ended = work.run([[write("a", "x")]] * 3, "--check", "true")
    assert ended["code"] == 55
    assert len(ended["permission_denials"]) == 3
    assert not (work.root / "a").exists()
    assert work.copies() == []


def test_at_a_terminal_each_asks_and_one_is_picked(work: Work) -> None:
    scripts: list[Script] = [[write("a", f"{n}\n"), f"it is {n}"] for n in (1, 2, 3)]
    work.model = ScriptedTries(work.daemon, scripts)
    with Terminal(work.words("--check", "false"), work.env, cwd=work.root) as terminal:
        for num in range(1, 4):
            terminal.wait_for(partial(asked, num=num))
            terminal.type("y")
        terminal.wait_for("keep which?")
        text = terminal.everything
        assert all(f"try {number}: write_file a" in text for number in (1, 2, 3))
        assert "3    try-3   exit code 1  1      2      it is 3" in text
        terminal.type("c\r")
        terminal.wait_for("of try-3")
        terminal.type("2\r")
        terminal.wait_for("try 2 is kept, on try-2: 1 file changed here")
        assert terminal.wait_end() == 0
    assert (work.root / "a").read_text() == "2\n"
    assert work.model.switched == ["try-2"]
    assert work.copies() == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tries", "3", "-p", "x"], "wants --check"),
        (["--tries", "1", "--check", "true", "x"], "want 2 to 8"),
        (["--check", "true", "-p", "x"], "--check is for --tries"),
        (["--tries", "2", "--check", " ", "-p", "x"], "the command is empty"),
        (["--tries", "2", "--check", "true", "-p", "--no-stdin"], "wants a task"),
    ],
)
def test_words_that_can_not_be_meant(work: Work, words: list[str], told: str) -> None:
    line = radchat("--daemon", str(work.daemon.path), "agent", *words)
    done = subprocess.run(
        line, env=work.env, cwd=work.root, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


# -- copies, and the way back ----------------------------------------------------------------------


def test_copies_are_whole_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path / "home")})
    origin = tmp_path / "work"
    (origin / "deep" / "er").mkdir(parents=True)
    (origin / "deep" / "f").write_bytes(b"x" * 5000)
    (origin / "link").symlink_to("/no/where")
    (origin / "deep").chmod(0o500)
    assert size_of(origin)[1] == 2
    copies = Copies.make(origin, 2, places)
    for root in copies.roots:
        assert root.name == "work"
        assert os.readlink(root / "link") == "/no/where"  # noqa: PTH115 - its very text
        assert (root / "deep" / "f").read_bytes() == b"x" * 5000
        assert (root / "deep").stat().st_mode & 0o777 == 0o500
    kept = copies.keep(1)
    folder = copies.folder
    copies.close()
    assert not folder.exists()
    assert (kept / "deep" / "f").exists()
    killed = places.cache / "tries" / "run-killed"
    killed.mkdir()
    Copies.make(origin, 1, places).close()
    assert not killed.exists()
    assert kept.exists()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inner = Copies.make(tmp_path / "home", 1, places)
    assert (tmp_path / "home") not in inner.folder.parents
    inner.close()
    with pytest.raises(UsageError, match="no place for copies"):
        Copies.make(tmp_path, 1, places)
    with pytest.raises(RadchatError, match="can't be copied"):
        Copies.make(tmp_path / "none", 1, places)
    assert [path.name for path in killed.parent.iterdir()] == [kept.parent.name]


def test_branches_are_numbered_on(tmp_path: Path) -> None:
    """Of a session that has had tries before."""
    there = [{"name": name} for name in ("main", "try-2", "try-x", "try-10")]
    branches = {"session": SESSION, "name": "s", "branches": there}
    with FakeDaemon({"branch.list": branches}) as daemon:
        places = Places.from_env({"RADCHAT_HOME": str(tmp_path)})
        client = Client.connect(places, daemon_socket=daemon.path)
        where = {"terminal": "t", "folder": "/"}
        assert first_branch(client, {"where": where, "session": SESSION}) == "try-11"
        assert first_branch(client, {"where": where, "new_session": True}) == "try-1"


def test_large_folders_are_not_copied_unasked(work: Work) -> None:
    with (work.root / "large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 400 * 1024**2)
    ended = work.run([["x"]] * 3, "--check", "true")
    assert ended["code"] == 2
    assert "3 copies of work, each 400.0 MiB in 1 file" in ended["error"]["message"]
    assert "-y makes them" in ended["error"]["message"]
    assert work.daemon.asked("generate") == []


@pytest.mark.parametrize("killed_at", [None, 0, 1])
def test_what_is_brought_survives_a_kill(tmp_path: Path, killed_at: int | None) -> None:
    """A kill between two files: the next process brings the rest."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    (root / "a").write_text("1")
    (root / "b").write_text("1")
    shutil.copytree(root, copy)
    session = Entries(tmp_path)
    entries = TryEntries(session, threading.Lock())
    checkpoints = FileCheckpoints(Folder.of(copy), entries)
    call = Call("c1", "shell", {})
    checkpoints.before(call, "m", Preview("shell"))
    for name in ("a", "b"):
        (copy / name).write_text("2")
    checkpoints.after(call, "m")
    assert entries.changed() == ["a", "b"]
    assert session.lines == []
    if killed_at is None:
        assert bring(root, entries).restored == ("a", "b")
    else:
        files = iter(range(9))

        def kill(_path: str) -> None:
            if next(files) == killed_at:
                raise KeyboardInterrupt

        session.append({**entries.own[-1], "elsewhere": True})
        with pytest.raises(KeyboardInterrupt):
            rewind_to(root, session, ["c1"], at_file=kill)
        from radchat.agent.files.rewind import finish

        assert finish(root, session) is not None
    assert [(root / name).read_text() for name in "ab"] == ["2", "2"]
    rewind_to(root, session, [])
    assert [(root / name).read_text() for name in "ab"] == ["1", "1"]


def test_the_folders_path_is_the_copys_in_commands() -> None:
    origin, copy = Path("/w/app"), Path("/c/1/app")
    line = "cd /w/app && cat '/w/app/x' /w/app2 /w/app.bak /w/app-old; ls /w/app"
    assert here(line, origin, copy) == (
        "cd /c/1/app && cat '/c/1/app/x' /w/app2 /w/app.bak /w/app-old; ls /c/1/app"
    )
