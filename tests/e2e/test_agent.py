"""An agent at work: a scripted model, and all else real: daemon, tools, sandbox, terminal, disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from radchat_sessions.messages import Message
from tests import histories
from tests.agent.sandboxes import KINDS
from tests.e2e.conftest import Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Shell
from tests.e2e.hooked import Hooked

CALC = "def add(a, b):\n    return a - b\n"
TEST = 'from calc import add\nassert add(2, 2) == 4, "AssertionError"\n'
SANDBOX = () if KINDS else ("--no-sandbox",)


def after(screen: Terminal, mark: str, what: str) -> bool:
    """Is it drawn behind the last of these marks?"""
    _, found, rest = screen.text.rpartition(mark)
    return bool(found) and what in rest


class Project:
    """A home with a scripted model, and a folder with a test that fails."""

    def __init__(self, hooked: Hooked, root: Path) -> None:
        self.hooked, self.home, self.root = hooked, hooked.home, root
        (root / "calc.py").write_text(CALC)
        (root / "calc.py").chmod(0o640)
        (root / "test_calc.py").write_text(TEST)

    def begin(self, script: str) -> None:
        self.hooked.answers_by(f"tests.agent.scripts:{script}")
        self.hooked.client()

    def terminal(self, *words: str, rows: int = 40, columns: int = 100) -> Terminal:
        command = [sys.executable, "-m", "radchat", "agent", *SANDBOX, *words]
        env = {**self.home.env, "TERM": "xterm-256color"}
        return Terminal(command, env, rows=rows, columns=columns, cwd=self.root)

    def shell(self) -> Shell:
        shell = Shell(self.home, "agent")
        shell.folder = self.root
        return shell

    def path(self) -> list[Message]:
        with self.home.store() as store:
            (session,) = [each.session for each in store.sessions()]
            head = store.head(session.id)
            return store.path(head.message)

    @property
    def calc(self) -> str:
        return (self.root / "calc.py").read_text()


@pytest.fixture
def project(homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    home = homes(RADCHAT_KV_DEVICE="16384tok")
    for name, value in home.env.items():  # of the daemon that this process starts
        monkeypatch.setenv(name, value)
    (tmp_path / "hooks").mkdir()
    hooked = Hooked(home, tmp_path / "hooks")
    root = tmp_path / "project"
    root.mkdir()
    return Project(hooked, root)


def test_a_failing_test_is_mended_and_the_mending_taken_back(project: Project) -> None:
    """Approved at a terminal, rewound two steps: files byte for byte, and almost nothing to compute
    for what is said then.
    """
    project.begin("mends")
    with project.terminal("mend the failing test") as screen:
        screen.wait_for("[Esc] stop")
        assert "| python3 test_calc.py" in screen.everything
        screen.type("s")
        screen.wait_for(lambda t: after(t, "+    return a + b", "[Esc] stop"))
        assert "-    return a - b" in screen.everything
        assert project.calc == CALC, "nothing is written before it is allowed"
        screen.type("y")
        screen.wait_for("It is mended.")
        screen.wait_for(lambda t: after(t, "It is mended.", "cached"))
        assert project.calc == CALC.replace("a - b", "a + b")
        assert histories.problems(project.path()) == []
        shares = [line for line in screen.everything.splitlines() if line.startswith("step ")]
        assert len(shares) == 5

        screen.type("/rewind\r")
        screen.wait_for("/rewind N goes to a step")
        screen.type("/rewind 3\r")  # before the edit, and what followed it
        screen.wait_for("1 file restored")
        assert project.calc == CALC
        assert (project.root / "calc.py").stat().st_mode & 0o777 == 0o640
        assert project.path()[-1].role == "tool"

        screen.type("never mind\r")
        screen.wait_for(lambda t: after(t, "never mind", "[Esc] stop"))
        screen.type("\x1b")
        screen.wait_for("not allowed")
        screen.type("/bye\r")
        assert screen.wait_end() == 0
        assert "Continue: radchat agent -r" in screen.everything
    path = project.path()
    assert histories.problems(path) == []
    asked = next(message for message in reversed(path) if message.role == "user")
    answer = next(message for message in path if message.parent == asked.id)
    words = sum(len(part["text"].encode()) for part in asked.parts)
    computed = (answer.usage or {})["cache"]["computed"]
    assert computed - words <= 24, "what closes a message, and opens the next: 22 bytes of ChatML"
