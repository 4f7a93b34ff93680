"""Typed while there is no prompt: it acts at the next one as if it were typed there. Only what
follows a failure waits for another Enter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.output import DummyOutput

from radchat.chat.prompt import Prompt
from radchat.chat.typed_ahead import early
from radchat.errors import Busy
from tests.chat.conftest import Open
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.talking import sent, slowly
from tests.e2e.harness import Terminal, clean_env, radchat

LINES = "\n".join(f"line {i}" for i in range(300))


@pytest.fixture
def prompt() -> Iterator[tuple[Prompt, PipeInput]]:
    with create_pipe_input() as pipe:
        yield Prompt(history=None, input=pipe, output=DummyOutput()), pipe


# what was typed, and what of it is offered where something went wrong
HELD = [
    ("one\rtwo\r", "one\ntwo"),
    ("\r\rone\n\n", "one"),
    ("ab\x7fc", "ac"),
    ("gone\x15kept", "kept"),
    ("a\x1b[Ab\x04c\x1b\x1b", "abc"),  # no history, no end, no tree
    ("a\x1bfb\x1b\rc", "ab\nc"),  # Alt and a letter; Alt and Enter
    ("/tree\rmore\r", "/tree\nmore"),
    (f"\x1b[200~{LINES}\x1b[201~ sum up\r", f"{LINES} sum up"),
    ("", ""),
]


@pytest.mark.parametrize(("keys", "text"), HELD)
@pytest.mark.parametrize("offered", ["", "said before"])
def test_after_a_failure_keys_are_a_text_that_waits(
    prompt: tuple[Prompt, PipeInput], keys: str, text: str, offered: str
) -> None:
    ours, pipe = prompt
    pipe.send_text(keys)
    ours.take()
    ours.hold()
    pipe.send_text("!\r")  # typed afterwards
    whole = "\n".join(part for part in (offered, text) if part)
    assert ours.read("> ", offered) == f"{whole}!"


def test_keys_that_were_taken_act_as_if_typed_at_the_next_prompt(
    prompt: tuple[Prompt, PipeInput],
) -> None:
    ours, pipe = prompt
    pipe.send_text(f"one\rtwo\nlines\r\x1b[200~{LINES[:40]}")  # a paste that is not at its end
    ours.take()
    assert [ours.read("> "), ours.read("> ")] == ["one", "two\nlines"]
    ours.take()
    pipe.send_text(f"{LINES[40:]}\x1b[201~\r")
    assert ours.read("> ") == LINES


def test_an_escape_that_was_taken_is_no_beginning_of_a_later_key(
    prompt: tuple[Prompt, PipeInput],
) -> None:
    ours, pipe = prompt
    pipe.send_text("one\x1b")
    ours.take()
    pipe.send_text("b")
    ours.hold()
    pipe.send_text("\r")
    assert ours.read("> ") == "oneb"  # Alt+b goes back a word


@pytest.mark.parametrize(
    ("cooked", "text"),
    [
        ("hello\n", "hello"),
        ("hel", "hel!"),
        ("one\ntwo\n", "one\ntwo!"),  # a paste that came too early sends nothing
        ("one\n\x1b[31mtwo", "one\ntwo!"),
        ("", "!"),
    ],
)
def test_what_is_typed_before_the_chat_has_the_terminal(
    prompt: tuple[Prompt, PipeInput], cooked: str, text: str
) -> None:
    ours, pipe = prompt
    store_typeahead(pipe, early(cooked))
    pipe.send_text("!\r")
    assert ours.read("> ") == text


def test_an_enter_before_the_prompt_is_up_sends(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat")
    terminal.type("early\r")
    assert sent(daemon, 1)[0]["text"] == "early"
    terminal.wait_for("tok/s")


def test_a_paste_that_arrives_before_the_prompt_is_not_lost(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat")
    terminal.type("one\r\ntwo\r\nthree")  # too early for bracketed paste
    terminal.wait_for("three")
    terminal.settle(0.3)
    assert daemon.asked("generate") == []
    terminal.type("\r")
    text = str(sent(daemon, 1)[0]["text"])
    assert [line for line in text.split("\n") if line] == ["one", "two", "three"]


def test_messages_commands_and_pastes_typed_while_an_answer_comes_follow_it(
    chat: Open, daemon: FakeDaemon
) -> None:
    is_typed = threading.Event()

    def words() -> Iterator[str]:
        while not is_typed.wait(0.02):
            yield "a "

    daemon.script["generate"] = lambda args: answer_events(words())
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("a a")
    assert terminal.raw.rindex(b"\x1b[?2004h") > terminal.raw.rindex(b"\x1b[?2004l")
    terminal.type("blindly\x7fe\r/set seed 7\r")
    terminal.paste(LINES.replace("\n", "\r"))
    terminal.type(" sum up\r")
    terminal.settle()
    assert "blind" not in terminal.everything
    is_typed.set()
    calls = sent(daemon, 3)
    assert [call["text"] for call in calls] == ["go", "blindle", f"{LINES} sum up"]
    assert [call["options"] for call in calls] == [{}, {}, {"seed": 7}]
    terminal.wait_for("> [pasted #1: 300 lines] sum up")
    terminal.settle()
    terminal.type("\x04")
    assert terminal.wait_end() == 0


TYPED = "one\rtwo\x1b[A\x04 \x1b[200~three\r\nfour\x1b[201~\r"
DRAFT = "one\ntwo three\nfour"


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_nothing_typed_ahead_is_sent_after_a_failure(
    chat: Open, daemon: FakeDaemon, ends: str
) -> None:
    is_typed = threading.Event()

    def words() -> Iterator[str]:
        for number in range(3000):
            yield f"word{number} "
            if is_typed.wait(0.02) and ends == "failed":
                raise ConnectionResetError

    daemon.script["generate"] = lambda args: answer_events(words())
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("word3")
    terminal.type(TYPED)
    terminal.settle()
    is_typed.set()
    if ends == "cancelled":
        terminal.type("\x03")
    terminal.wait_for("cancelled: what" if ends == "cancelled" else "error: the daemon ended")
    terminal.wait_for("two three")
    terminal.settle()
    assert len(daemon.asked("generate")) == 1
    daemon.script["generate"] = lambda args: answer_events(["done"])
    terminal.type("\r")
    assert sent(daemon, 2)[1]["text"] == DRAFT


def test_a_command_that_fails_holds_what_follows_it(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["switch"] = Busy("not now")
    daemon.script["generate"] = lambda args: slowly(["a ", "b "], 0.2)
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("one\r/switch price\rgo on there\r")
    terminal.wait_for("error: not now")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == "> go on there"
    assert [call["text"] for call in daemon.asked("generate")] == ["one"]


def test_after_ctrl_z_and_fg_the_answer_is_whole_and_nothing_is_echoed_into_it(
    home: Path, daemon: FakeDaemon
) -> None:
    is_seen = threading.Event()

    def words() -> Iterator[str]:
        for number in range(150):
            is_seen.wait(0.02 if number < 100 else 60)
            yield f"word{number} "

    daemon.script["generate"] = lambda args: answer_events(words())
    command = " ".join(radchat("--daemon", str(daemon.path), "chat"))
    env = clean_env(home, RADCHAT_MODEL="tiny", PS1="SHELL ")
    with Terminal(["/bin/sh", "-i"], env) as terminal:  # it takes a terminal as it finds it
        terminal.wait_for("SHELL ")
        terminal.type(command + "\r")
        terminal.wait_for("\n> ")
        terminal.settle()
        terminal.type("go\r")
        terminal.wait_for("word3")
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        assert terminal.raw.rindex(b"\x1b[?2004l") > terminal.raw.rindex(b"\x1b[?2004h")
        terminal.type("stty -a | grep -o ' echo '; fg\r")
        terminal.wait_for("word20")
        assert terminal.raw.rindex(b"\x1b[?2004h") > terminal.raw.rindex(b"\x1b[?2004l")
        assert " echo" in terminal.everything.split("Stopped")[1].split("fg", 1)[1]
        terminal.type("typed blindly")
        terminal.wait_for("word90")
        assert "blindly" not in terminal.everything
        is_seen.set()
        terminal.wait_for("> typed blindly")
        joined = "".join(terminal.everything.split())
        assert all(f"word{number}" in joined for number in range(150))


def test_a_program_run_from_the_chat_has_ctrl_c_and_the_terminal(
    chat: Open, daemon: FakeDaemon
) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("!trap 'echo caught; exit 3' INT; echo begun; stty -a; cat\r")
    terminal.wait_for(lambda t: "begun" in t.lines)
    terminal.wait_for(" icanon")
    terminal.type("a line\r")
    terminal.wait_for(lambda t: t.lines.count("a line") == 2)
    terminal.type("\x03")
    terminal.wait_for("caught")
    terminal.wait_for("(ended with 3)")
    terminal.type("!sleep 0.5; echo slept\r")
    terminal.settle()
    terminal.type("after it\r")
    assert sent(daemon, 1)[0]["text"] == "after it"
    terminal.settle()
    terminal.type("\x1b[A\x1b[A")
    terminal.wait_for(lambda t: t.lines[t._screen.cursor.y].startswith("> !sleep"))


def test_esc_esc_is_the_tree_and_nothing_in_a_line_that_has_words(
    chat: Open, daemon: FakeDaemon
) -> None:
    terminal = chat("--plain", "chat")
    terminal.wait_for("> ")
    terminal.type("kept\x1b\x1b")
    terminal.settle(0.8)
    terminal.type(" words\r")
    assert sent(daemon, 1)[0]["text"] == "kept words"
    terminal.wait_for("tok/s")
    terminal.settle()
    assert daemon.asked("tree") == []
    terminal.type("\x1b\x1b")
    assert sent(daemon, 1, "tree")
    terminal.wait_for("Revenue would fall")
