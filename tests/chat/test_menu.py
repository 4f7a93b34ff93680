"""The menu of the prompt: what it offers where, how it is gone through, and that no key waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from radchat.chat.completer import Menu
from radchat.chat.files import named_files
from radchat.chat.known import Candidate, Known, files
from radchat.chat.prompt import Prompt
from radchat.errors import Unreachable
from tests.chat.conftest import Open
from tests.chat.fake_server import FakeDaemon
from tests.chat.talking import sent
from tests.chat.trees import long
from tests.waiting import wait_until

REFS = {
    "": [Candidate("HEAD", "assistant: It would fall"), Candidate("price", "user: -10 %"),
         Candidate("3", "user: and costs?"), Candidate("12", "user: x")],
    "other:": [Candidate("main", "user: there")],
}  # fmt: skip


def known() -> Known:
    return Known(
        {
            "refs": lambda beginning: REFS[beginning],
            "models": lambda _beginning: [Candidate("smollm2-135m", "269 MiB")],
            "sessions": lambda _beginning: [Candidate("report-q3"), Candidate("two words")],
            "files": files,
        },
        lambda: None,
    )


def offered(before: str, at: Known | None = None) -> list[str]:
    """The lines that a choice would make of what stands ``before`` the cursor."""
    found = Menu(at or known()).get_completions(Document(before), CompleteEvent())
    return [before[: len(before) + each.start_position] + each.text for each in found]


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ("/fo", ["/fork "]),
        ("/FORK", ["/fork "]),
        ("/he", ["/help"]),
        ("/ex", ["/exit", "/export "]),  # another name, where its own does not begin so
        ("/switch ", ["/switch HEAD", "/switch price", "/switch 3", "/switch 12"]),
        ("/switch p", ["/switch price"]),
        ("/fork #", ["/fork #3", "/fork #12"]),
        ("/fork 3 pr", []),  # a name of one's own
        ("/edit 1", ["/edit 12"]),
        ("/edit 12 wor", []),
        ("/switch other:", ["/switch other:main"]),
        ("/compare HEAD pr", ["/compare HEAD price"]),
        ("/compare HEAD 3 12 pr", ["/compare HEAD 3 12 price"]),
        ("/why pri", ["/why price"]),
        ("/model smol", ["/model smollm2-135m"]),
        ("/sessions t", ["/sessions two words"]),
        ("/think h", ["/think high", "/think hide"]),
        ("/set temp", ["/set temperature"]),
        ("/set temperature 0", []),
        ("/cache ev", ["/cache evict"]),
        ("/cache evict p", ["/cache evict price"]),
        ("/cache ls p", []),
        ("/tree c", ["/tree cache"]),
        ("/bye ", []),
        ("/usr/b", []),
        ("/nothing x", []),
        ("say /fo", []),
        ("a\n/fo", []),
        ("", []),
    ],
)
def test_what_is_offered_where(before: str, lines: list[str]) -> None:
    assert offered(before) == lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.md", "a b.md", ".hidden", "Caf\u00e9.md", "bad\x1b[31m.md"):
        (tmp_path / name).write_text(f"words of {name}")
    (tmp_path / "notes" / "old ones").mkdir(parents=True)
    (tmp_path / "notes" / "n.md").write_text("n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("before", "lines"),
    [
        ("see @", ['see @"a b.md"', "see @b.md", "see @Caf\u00e9.md", "see @notes/"]),
        ("@.", []),
        ("@.h", ["@.hidden"]),
        ("@~", ['@"~/a b.md"', "@~/b.md", "@~/Caf\u00e9.md", "@~/notes/"]),
        ("@~/b", ["@~/b.md"]),
        ("@a", ['@"a b.md"']),
        ('@"a b', ['@"a b.md"']),
        ("@notes/", ["@notes/n.md", '@"notes/old ones/']),
        ('@"notes/old', ['@"notes/old ones/']),
        ("a\nb @b", ["a\nb @b.md"]),
        ("/file a b", ["/file a b.md"]),
        ("/export n", ["/export notes/"]),
        ("me@b", []),
        ("@none/b", []),
        ("@~nobody-here/b", []),
        ("@b.md and", []),
    ],
)  # fmt: skip
def test_files_are_offered_behind_an_at(before: str, lines: list[str]) -> None:
    if before == "@.":  # this folder's and what is hidden in it
        assert set(offered(before)) == {"@./b.md", '@"./a b.md"', "@./Caf\u00e9.md", "@./notes/"}
    else:
        assert offered(before) == lines


@pytest.mark.usefixtures("folder")
def test_a_message_names_files_as_the_menu_writes_them() -> None:
    text = 'compare @b.md, @"a b.md" (@~/notes/n.md) and @notes/n.md; @nobody, me@b.md @notes @"no'
    assert [file["name"] for file in named_files(text)] == ["b.md", "a b.md", "n.md"]


def test_no_key_waits_for_an_answer_and_what_comes_late_is_shown() -> None:
    may_go, has_come = threading.Event(), threading.Event()
    asked: list[str] = []

    def slow(beginning: str) -> list[Candidate]:
        asked.append(beginning)
        assert may_go.wait(60)
        return [Candidate("price")]

    at = Known({"refs": slow}, has_come.set)
    assert offered("/switch ", at) == []
    assert offered("/switch p", at) == []
    assert not has_come.is_set()
    may_go.set()
    assert has_come.wait(60)
    assert offered("/switch p", at) == ["/switch price"]
    assert asked == [""]
    at.forget()
    assert offered("/switch p", at) == ["/switch price"]
    assert asked == ["", ""]


def _fails(_beginning: str) -> list[Candidate]:
    raise Unreachable("gone")


@pytest.mark.parametrize("source", [_fails, lambda _beginning: None])
def test_what_cannot_be_had_is_left_out(
    source: Callable[[str], list[Candidate] | None],
) -> None:
    assert offered("/switch ", Known({"refs": source}, lambda: None)) == []


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


class Driven:
    """A prompt read in a thread, so that a key is pressed when the last has been acted on."""

    def __init__(self, keyboard: PipeInput) -> None:
        self.prompt = Prompt(
            history=None, completer=Menu(known()), input=keyboard, output=DummyOutput()
        )
        self._keyboard = keyboard
        self._text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._text = self.prompt.read("> ")

    def press(self, keys: str, menu: list[str] | None, line: str) -> None:
        """... and wait for the menu and the line."""
        self._keyboard.send_text(keys)
        wait_until(lambda: (self.menu, self.prompt.buffer.text) == (menu, line))

    @property
    def menu(self) -> list[str] | None:
        state = self.prompt.buffer.complete_state
        return None if state is None else [each.text for each in state.completions]

    def text(self) -> str:
        self._thread.join(60)
        return self._text


def test_the_menu_narrows_and_enter_runs_what_stands_in_the_line(keyboard: PipeInput) -> None:
    driven = Driven(keyboard)
    driven.press("/fo", ["/fork "], "/fo")
    driven.press("\x7f", ["/file ", "/fork "], "/f")
    driven.press("o", ["/fork "], "/fo")
    driven.press("\t", ["HEAD", "price", "3", "12"], "/fork ")  # the only one there is
    driven.press("\x1b[B\x1b[B", ["HEAD", "price", "3", "12"], "/fork price")
    driven.press("\r", None, "/fork price")  # takes it
    driven.press("\r", None, "/fork price")
    assert driven.text() == "/fork price"


def test_escape_closes_the_menu_and_leaves_the_line(keyboard: PipeInput) -> None:
    driven = Driven(keyboard)
    driven.press("/switch ", ["HEAD", "price", "3", "12"], "/switch ")
    driven.press("\t", ["HEAD", "price", "3", "12"], "/switch HEAD")
    driven.press("\x1b", None, "/switch ")
    driven.press("\t", ["HEAD", "price", "3", "12"], "/switch ")
    driven.press("3", None, "/switch 3")  # all of it stands there: nothing to choose
    driven.press("\r", None, "/switch 3")
    assert driven.text() == "/switch 3"


def test_the_menu_in_a_terminal(chat: Open, daemon: FakeDaemon, tmp_path: Path) -> None:
    row = {"ref": "price", "kind": "branch", "text": "user: price \x1b[31m-10 %"}
    daemon.script["refs"] = {"session": long("e7f2"), "name": "report-q3", "refs": [row]}
    (tmp_path / "plan.md").write_text("words of the plan")
    terminal = chat("chat", HOME=str(tmp_path))
    terminal.wait_for("> ")
    terminal.wait_for("main@d9f1")  # the session is open
    terminal.type("/s")
    terminal.wait_for("/switch REF | -")
    terminal.wait_for("go to a branch or message")
    assert "/fork" not in terminal.text
    terminal.type("witch ")
    terminal.wait_for("user: price")
    assert "\x1b[31m" not in terminal.raw.decode().partition("user: price")[2][:12]
    assert daemon.asked("refs")[0]["head"] == {"branch": "main", "message": long("d9f1")}
    terminal.type("\x15sum up @~/pl")
    terminal.wait_for(lambda t: any(line.strip() == "plan.md" for line in t.lines))
    terminal.type("\t")
    terminal.wait_for("> sum up @~/plan.md")
    terminal.wait_for(lambda t: not any(line.strip() == "plan.md" for line in t.lines))
    terminal.type(" please\r")
    call = sent(daemon, 1)[0]
    assert call["text"] == "sum up @~/plan.md please"
    assert [file["text"] for file in call["files"]] == ["words of the plan"]


@pytest.mark.parametrize("how", ["--plain", "TERM=dumb"])
def test_a_plain_prompt_has_no_menu_and_no_status_bar(
    chat: Open, daemon: FakeDaemon, how: str
) -> None:
    terminal = chat("--plain", "chat") if how == "--plain" else chat("chat", TERM="dumb")
    terminal.wait_for("> ")
    terminal.type("/s")
    terminal.settle(0.3)
    terminal.type("\x7f\x7f@")
    terminal.settle(0.3)
    assert [line for line in terminal.lines if line] == ["> @"]
    assert "/switch" not in terminal.everything
    assert "main@d9f1" not in terminal.everything
    assert daemon.asked("refs") == []


def test_a_file_that_cannot_be_read_is_told_and_the_message_stays(
    chat: Open, daemon: FakeDaemon, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    terminal = chat("chat", HOME=str(tmp_path))
    terminal.wait_for("> ")
    terminal.type("read @~/x.bin\r")
    terminal.wait_for("error: ~/x.bin is not UTF-8 text")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == "> read @~/x.bin"
    assert daemon.asked("generate") == []
