"""An agent at work: a scripted model, and all else real: daemon, tools, sandbox, terminal, disk."""

from __future__ import annotations

import json
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


def test_a_turn_that_is_retried_or_edited_is_worked_on_too(project: Project) -> None:
    """Beside the first one; what that has done to the files is said, and can be had back."""
    project.begin("mends")
    with project.terminal("-y", "mend it") as screen:
        screen.wait_for(lambda t: after(t, "It is mended.", "main@"))
        first = project.path()
        screen.type("/retry\r")
        screen.wait_for(lambda t: after(t, "left them elsewhere: 1 file", "main-2@"))
        retried = project.path()
        assert [message.role for message in retried[:2]] == ["system", "user"]
        assert retried[:2] == first[:2]
        assert [message.role for message in retried].count("tool") == 3, "it is not mended: it was"
        screen.type("/edit 1 mend it well\r")
        screen.wait_for(lambda t: after(t, "(was", "main-2@"))
        edited = project.path()
        assert edited[1].text == "mend it well"
        assert [message.role for message in edited].count("tool") == 3
        screen.type("/retry 2\r")
        screen.wait_for("an agent gives one answer at a time")
        screen.type("/bye\r")
        assert screen.wait_end() == 0
    assert histories.problems(edited) == []


def test_one_task_prints_its_last_words_alone_and_tells_the_rest_elsewhere(
    project: Project,
) -> None:
    project.begin("mends")
    shell = project.shell()
    asked = ("agent", "-p", *SANDBOX, "mend it")
    closed = shell(*asked, code=55)
    assert closed.out == ""
    assert "shell python3 test_calc.py: it runs python3 test_calc.py" in closed.err
    assert project.calc == CALC

    gone_on = shell.json(
        "agent", "-p", "-c", *SANDBOX, "--allowed-tools", "shell(python3 test_calc.py:*)",
        "--permission-mode", "acceptEdits", "--output-format", "json", "go on",
    )  # fmt: skip
    assert (gone_on["result"], gone_on["ended"], gone_on["turns"]) == ("It is mended.", "answer", 5)
    assert gone_on["permission_denials"] == []
    assert gone_on["usage"]["input_tokens"] == sum(gone_on["cache"].values())
    assert gone_on["cache"]["computed"] < gone_on["usage"]["input_tokens"] / 10
    assert project.calc == CALC.replace("a - b", "a + b")
    assert histories.problems(project.path()) == []

    project.root.joinpath("calc.py").write_text(CALC)
    done = shell(
        "agent", "-p", "-y", *SANDBOX, "--max-turns", "2", "--output-format", "stream-json", "mend",
        code=53,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.out.splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds[-2:] == ["error", "result"]
    assert set(kinds) <= {
        *("init", "message", "text_delta", "reasoning_delta", "tool_use", "tool_result"),
        *("warning", "error", "result"),
    }
    uses = [line["id"] for line in lines if line["type"] == "tool_use"]
    assert uses == [line["call"] for line in lines if line["type"] == "tool_result"]
    assert lines[-1]["is_error"] is True
    assert lines[-1]["error"]["exit_code"] == 53
    assert "\x1b" not in done.out
    plain = shell("agent", "-p", "-y", *SANDBOX, "mend")
    assert plain.out == "It is mended.\n"
    assert plain.err.count("cached ") == 5, "the share of each step"
    project.home.assert_balanced()


def test_a_conversation_with_calls_goes_out_and_comes_back(project: Project) -> None:
    project.begin("mends")
    shell = project.shell()
    shell("agent", "-p", "-y", *SANDBOX, "mend it")
    before = project.path()
    shell("sessions", "export", "-o", "talk.json")
    markdown = shell("sessions", "export", "-o", "-", "--format", "md").out
    assert "python3 test_calc.py" in markdown
    openai = json.loads(shell("sessions", "export", "-o", "-", "--format", "openai").out)
    roles = [message["role"] for message in openai["messages"]]
    assert roles == [message.role for message in before]
    waiting: list[str] = []
    for message in openai["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
        waiting += [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting
    shell("fork", "HEAD", "-n", "other", "and now?", "--max-tokens", "20")
    assert histories.problems(project.path()) == []
    shell("switch", "main")
    shell("sessions", "import", "talk.json")
    assert "all as they were" in shell("sessions", "verify").err
    found = shell("sessions", "search", "AssertionError").out
    assert found
    tree = shell("tree", "--filter", "no-tools").out
    assert "-> shell python3 test_calc.py" in tree
    assert "tool " not in tree
    assert "python3 test_calc.py" in shell("log").out
