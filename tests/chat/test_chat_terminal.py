"""The chat in a terminal: a pty, a scripted daemon, real keys."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import (
    Busy,
    ConfigInvalid,
    ModelBroken,
    NotFound,
    RadchatError,
    Unreachable,
)
from radchat.protocol import Event
from tests.chat.conftest import SESSION, Open, log
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.talking import sent, slowly
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat

PATIENCE = 60.0  # seconds
# what prompt_toolkit and the status line write; anything else came from the content
OWN = re.compile(
    rb"\x1b\[\??[0-9;]*[A-Za-z]|\r\x1b\[2K",
)


def at_prompt(terminal: Terminal) -> bool:
    return any(line.startswith(">") for line in terminal.lines[-1:] + terminal.lines)


def test_two_turns_each_from_where_the_chat_stands(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("62 tok/s")
    assert "Hello world" in terminal.text
    # one line of 80 columns: the model and how full the context is are left out
    line = "main@d9f1 · cached 1,180/1,211 (97.4%) · first token 41 ms · 62 tok/s"
    assert line in terminal.text
    terminal.type("again\r")
    calls = sent(daemon, 2)
    assert calls[0]["head"] == {"branch": "main", "message": long("d9f1")}
    assert [c["text"] for c in calls] == ["hello", "again"]
    assert {c["session"] for c in calls} == {SESSION["id"]}
    terminal.settle()
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert "Continue: radchat chat -r report-q3" in terminal.text


def test_goodbye_names_the_session_as_its_first_message_did(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["sessions.open"] = {**SESSION, "name": "e7f2e7f2", "messages": 0}
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert "Continue: radchat chat -r report-q3" in terminal.text


@pytest.mark.parametrize(("code", "is_told"), [("restore", False), ("recompute", True)])
def test_a_chat_that_opens_tells_what_it_restores_once(
    chat: Open, daemon: FakeDaemon, code: str, is_told: bool
) -> None:
    forecast = {"code": code, "text": "going on here does something", "tokens": 9, "restores": 900}
    daemon.script["sessions.open"] = {**SESSION, "recompute": forecast}
    daemon.script["models.load"] = lambda args: [Event("done", {"restoring": 900})]
    terminal = chat("chat", "-c")
    terminal.wait_for("900 tokens come from disk")
    assert ("going on here" in terminal.text) == is_told
    terminal.type("/sessions report-q3")  # nothing is restored before the next message
    terminal.wait_for("> /sessions report-q3")  # the prompt is up: Enter is no newline
    terminal.type("\r")
    terminal.wait_for("going on here does something")


def test_a_chat_at_an_earlier_place_tells_of_that_place(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["sessions.open"] = {**SESSION, "at": long("c2aa")}
    daemon.script["models.load"] = lambda args: [Event("done", {"restoring": 900})]
    terminal = chat("chat", "-r", "report-q3", "--at", "4")
    terminal.wait_for("report-q3 · a new branch at c2aa · tiny · 14 messages")
    terminal.wait_for("900 tokens come from disk")
    assert daemon.asked("sessions.open")[0]["at"] == "4"
    assert daemon.asked("log")[0]["ref"] == long("c2aa")
    assert daemon.asked("models.load")[0]["head"]["message"] == long("c2aa")


def test_the_prompt_is_up_while_the_daemon_still_starts(chat: Open, daemon: FakeDaemon) -> None:
    def opening(args: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1.0)
        return {**SESSION, "last": {"name": "old", "used": None, "messages": 14}}

    def loading(args: dict[str, Any]) -> Any:
        for done in range(0, 100, 10):
            yield Event("progress", {"stage": "load", "done": done, "total": 100, "text": "tiny"})
            time.sleep(0.05)
        yield Event("done", {"model": "tiny"})

    daemon.script |= {"sessions.open": opening, "models.load": loading}
    terminal = chat()
    terminal.wait_for("> ")
    assert daemon.asked("models.load") == []
    terminal.type("typed early")
    terminal.wait_for("typed early")
    terminal.wait_for("last: old, 14 messages: -c")
    terminal.wait_for("loading tiny")
    terminal.wait_for(lambda t: "loading" not in t.text)
    terminal.type("\r")
    terminal.wait_for("Hello world")
    assert sent(daemon, 1)[0]["text"] == "typed early"


@pytest.mark.parametrize(
    ("line", "session", "is_new"),
    [((), None, True), (("-c",), None, False), (("-r", "report-q3"), "report-q3", False)],
)
def test_which_session_is_opened(
    chat: Open, daemon: FakeDaemon, line: tuple[str, ...], session: str | None, is_new: bool
) -> None:
    terminal = chat(*line)
    terminal.wait_for("> ")
    call = sent(daemon, 1, "sessions.open")[0]
    assert (call["session"], call["new"]) == (session, is_new)
    assert call["where"]["terminal"].startswith("/dev/")


@pytest.mark.parametrize("how", ["-c", "/sessions"])
def test_opening_a_session_says_which_and_its_last_words(
    chat: Open, daemon: FakeDaemon, how: str
) -> None:
    daemon.script["log"] = {
        "session": SESSION["id"],
        "messages": [
            {"id": long("c2aa"), "role": "user", "text": "and then?\nsay", "turn": 7},
            {"id": long("d9f1"), "role": "assistant", "text": "word " * 60, "turn": 7},
        ],
    }
    terminal = chat("chat", *(["-c"] if how == "-c" else []))
    terminal.wait_for("> ")
    if how != "-c":
        terminal.type("/sessions report-q3\r")
    terminal.wait_for("report-q3 · main@d9f1 · tiny · 14 messages")
    terminal.wait_for("wo...")
    terminal.settle()
    lines = terminal.lines
    at = lines.index("report-q3 · main@d9f1 · tiny · 14 messages")
    assert lines[at + 1] == "> and then? say"
    assert lines[at + 2] == ("word " * 16).rstrip()
    assert lines[at + 3].endswith("word wo...")
    assert lines[at + 4] == ">"
    assert b"\x1b[2m> and then? say" in terminal.raw


def test_a_retry_in_a_chat_says_where_the_branch_was(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: answer_events(["other"], message=long("3935"))
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/retry\r")
    terminal.wait_for("report-q3 · main@3935 (was d9f1)")


def test_a_chat_opens_at_a_ref_and_says_how_to_go_on_with_a_cut_off_answer(
    chat: Open, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = lambda args: answer_events(["x"], finish_reason="length")
    terminal = chat("chat", "-r", "report-q3:c2aa")
    terminal.wait_for("> ")
    terminal.type("on\r")
    terminal.wait_for("cut off after 62 tokens: /continue goes on with it")
    assert sent(daemon, 1, "sessions.open")[0]["session"] == "report-q3"
    assert sent(daemon, 1)[0]["at"] == "c2aa"


def test_a_session_named_to_switch_is_answered_with_what_to_type(
    chat: Open, daemon: FakeDaemon
) -> None:
    daemon.script["switch"] = NotFound("no branch other")
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/switch other\r")
    terminal.wait_for("error: other is a session: /sessions other")


def test_a_notice_about_reasoning_is_shown_once(chat: Open, daemon: FakeDaemon) -> None:
    notice = Event("notice", {"text": "tiny has no reasoning mode", "code": "think"})
    daemon.script["generate"] = lambda args: answer_events(["x"], before=[notice])
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/think high\r")
    terminal.wait_for("think high")
    terminal.settle()
    terminal.type("hi\r")
    terminal.wait_for("tiny has no reasoning mode")
    assert sent(daemon, 1)[0]["think"] == "high"
    terminal.settle()
    terminal.type("again\r")
    assert sent(daemon, 2)[1]["text"] == "again"
    terminal.settle()
    assert terminal.text.count("tiny has no reasoning mode") == 1


def test_ctrl_c_in_mid_reply_keeps_the_part_and_is_back_at_once(
    chat: Open, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = lambda args: slowly([f"word{i} " for i in range(3000)])
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("word5")
    terminal.type("\x03")
    terminal.wait_for("cancelled: what came so far is kept", PATIENCE)
    assert "word2999" not in terminal.everything
    assert daemon.noticed_cancel.wait(60)
    assert sent(daemon, 1, "cancel")[0] == {"request": "r1"}
    daemon.script["generate"] = lambda args: answer_events(["done"])
    terminal.type("next\r")
    terminal.wait_for("tok/s")
    assert sent(daemon, 2)[1]["head"] == {"branch": "main", "message": long("d9f1")}
    terminal.type("\x04")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_message_after_a_quick_ctrl_c_waits_for_the_answer_to_end(
    chat: Open, daemon: FakeDaemon, is_kept: bool
) -> None:
    """A step of the model's is not broken off, and may have brought words that were not heard."""
    is_over = threading.Event()

    def reading(args: dict[str, Any]) -> Any:
        yield next(iter(answer_events([], message=long("eeee"))))
        while not is_over.wait(0.02):
            yield Event("progress", {"stage": "extend", "done": 1, "total": 10})

    daemon.script["generate"] = reading
    daemon.script["cancel"] = lambda args: {"cancelled": not is_over.is_set()}
    if not is_kept:
        daemon.script["log"] = NotFound("no message eeee")
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("reading the prompt 10%")
    terminal.type("\x03")
    terminal.wait_for("cancelled: what came so far is kept", PATIENCE)
    daemon.script["generate"] = lambda args: answer_events(["done"])
    terminal.type("again\r")
    sent(daemon, 4, "cancel")
    assert len(daemon.asked("generate")) == 1
    is_over.set()
    at = long("eeee") if is_kept else long("c2aa")
    assert sent(daemon, 2)[1]["head"] == {"branch": "main", "message": at}
    terminal.wait_for("tok/s")


def test_ctrl_c_before_the_first_word_gives_the_text_back(chat: Open, daemon: FakeDaemon) -> None:
    def stuck(args: dict[str, Any]) -> Any:
        for _ in range(300):
            time.sleep(0.02)
            yield Event("progress", {"stage": "queue", "done": 0, "total": 0, "text": "in line"})

    daemon.script["generate"] = stuck
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("my question\r")
    terminal.wait_for("waiting in line")
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == "> my question"


def test_two_quick_ctrl_c_only_cancel_once(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: slowly([f"word{i} " for i in range(300)])
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("word5")
    terminal.type("\x03")
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    terminal.settle(0.4)
    assert terminal.child.isalive()
    terminal.type("/show\r")
    terminal.wait_for("session     report-q3")


def test_ctrl_c_at_an_empty_prompt_says_how_to_leave(chat: Open) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("\x03")
    terminal.wait_for("Ctrl+D or /bye to exit")
    terminal.settle()
    terminal.type("half a line\x03")
    terminal.settle()
    assert terminal.text.count("Ctrl+D or /bye") == 1
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


def test_the_terminal_is_as_before_after_every_ending(home: Path, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: slowly([f"word{i} " for i in range(300)])
    command = " ".join(radchat("--daemon", str(daemon.path), "chat"))
    script = (
        f"trap : INT; before=$(stty -g); {command}; code=$?; "
        '[ "$before" = "$(stty -g)" ] && echo SAME $code'
    )
    env = clean_env(home, RADCHAT_MODEL="tiny")
    for keys, code in (("\x04", 0), ("TERM", 143)):
        with Terminal(["/bin/sh", "-c", script], env) as terminal:
            terminal.wait_for("> ")
            terminal.type("go\r")
            terminal.wait_for("word3")
            if keys == "TERM":
                terminal.type("typed while it comes")
                _kill_child(terminal)
            else:
                terminal.type("\x03")
                terminal.wait_for("cancelled")
                terminal.type(keys)
            terminal.wait_for(f"SAME {code}")


def _kill_child(terminal: Terminal) -> None:
    import os
    import signal

    import psutil

    for child in psutil.Process(terminal.child.pid).children():
        os.kill(child.pid, signal.SIGTERM)


def test_ctrl_r_searches_beside_the_prompt_and_lets_go_of_it(
    chat: Open, daemon: FakeDaemon
) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("the ferry goes\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    row = terminal._screen.cursor.y
    terminal.type("\x12fer")
    terminal.wait_for("search)`fer': the ferry goes")
    assert "the ferry goes" in terminal.lines[row]
    terminal.type("\x03")
    terminal.settle()
    assert terminal.lines[row] == ">"
    terminal.type("\x12fer\r")
    terminal.settle()
    assert terminal.lines[row] == "> the ferry goes"
    assert len(daemon.asked("generate")) == 1
    terminal.type("\r")
    assert sent(daemon, 2)[1]["text"] == "the ferry goes"


def test_a_paste_with_line_ends_is_one_message_and_waits_for_enter(
    chat: Open, daemon: FakeDaemon
) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.paste("one\r\ntwo\r\nthree")
    terminal.wait_for("three")
    terminal.settle(0.3)
    assert daemon.asked("generate") == []
    terminal.type("\r")
    assert sent(daemon, 1)[0]["text"] == "one\ntwo\nthree"


def test_a_paste_of_ten_thousand_lines_is_a_placeholder_and_quick(
    chat: Open, daemon: FakeDaemon
) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    text = "\r\n".join(f"line {i}" for i in range(10_000))
    terminal.paste(text)
    terminal.wait_for("[pasted #1: 10,000 lines]", PATIENCE)
    terminal.type(" sum up\r")
    assert sent(daemon, 1)[0]["text"] == text.replace("\r\n", "\n") + " sum up"


def test_escapes_in_a_paste_and_in_the_answer_have_no_effect(
    chat: Open, daemon: FakeDaemon
) -> None:
    hostile = ["a\x1b", "]0;owned\x07b\x1b[2", "Jc\x9b31m", "\x1b[6n\rd[/INST]"]
    daemon.script["generate"] = lambda args: slowly(hostile, 0.0)
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.paste("x\x1b]0;owned\x07y\x1b[2Jz")
    terminal.settle()
    terminal.type("\r")
    terminal.wait_for("tok/s")
    assert "a\\x1b]0;owned\\x07b\\x1b[2Jc\\x9b31m\\x1b[6n\\rd[/INST]" in terminal.text.replace(
        "\n", ""
    )
    terminal.settle()  # no sequence is cut in two
    rest = OWN.sub(b"", terminal.raw)
    assert b"\x1b" not in rest
    assert b"\x07" not in rest
    assert b"\x9b" not in rest.replace(b"\xc2\x9b", b"")
    assert b"\xc2\x9b" not in rest


def test_ctrl_z_and_fg_at_the_prompt_go_on_with_the_line(home: Path, daemon: FakeDaemon) -> None:
    command = " ".join(radchat("--daemon", str(daemon.path), "chat"))
    env = clean_env(home, RADCHAT_MODEL="tiny", PS1="SHELL ")
    with Terminal(["/bin/bash", "--norc", "--noprofile", "-i"], env) as terminal:
        terminal.wait_for("SHELL ")
        terminal.type(command + "\r")
        terminal.wait_for("\n> ")
        terminal.settle()
        terminal.type("half a")
        terminal.settle()
        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        terminal.type("fg\r")
        terminal.settle()
        terminal.type(" line\r")
        assert sent(daemon, 1)[0]["text"] == "half a line"
        terminal.wait_for("tok/s")
        terminal.settle()
        terminal.type("\x03")  # a key of the prompt's, no signal
        terminal.wait_for("Ctrl+D or /bye to exit")


def test_a_wide_answer_and_a_resize_in_mid_reply_lose_nothing(
    chat: Open, daemon: FakeDaemon
) -> None:
    words = [f"漢字{i} " for i in range(60)]
    daemon.script["generate"] = lambda args: slowly(words, 0.01)
    terminal = chat("chat", rows=24, columns=80)
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("漢字5")
    terminal.resize(50, 200)
    terminal.wait_for("tok/s")
    whole = terminal.raw.replace(b"\r\n", b"")  # a line may end between ideographs
    for word in words:
        assert word.strip().encode() in whole
    terminal.type("/tree cache\r")
    terminal.wait_for("shared by all branches: 8,765 tokens, computed once")


def test_500_lines_are_each_printed_once(chat: Open, daemon: FakeDaemon) -> None:
    lines = [f"- item {i} of the list\n" for i in range(500)]
    daemon.script["generate"] = lambda args: slowly(lines, 0.0)
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("tok/s")
    for i in (0, 1, 250, 499):
        assert terminal.everything.count(f"- item {i} of the list") == 1


@pytest.mark.parametrize("refusal", [Busy, ConfigInvalid, ModelBroken])
def test_an_error_is_told_and_the_chat_goes_on_with_the_text_offered_again(
    chat: Open, daemon: FakeDaemon, refusal: type[RadchatError]
) -> None:
    daemon.script["generate"] = refusal("the daemon is about to end: try again")
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("too long\r")
    terminal.wait_for("error: the daemon is about to end: try again")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == "> too long"


def test_slash_commands_move_this_chats_own_head(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/fork #2 price\r")
    terminal.wait_for("report-q3 · price@d9f1")
    call = sent(daemon, 1, "fork")[0]
    assert (call["ref"], call["name"]) == ("2", "price")
    assert call["head"] == {"branch": "main", "message": long("d9f1")}
    terminal.wait_for("price> ")
    terminal.type("\x03")  # the offered text
    terminal.settle()
    terminal.type("more\r")
    assert sent(daemon, 1)[0]["head"] == {"branch": "price", "message": long("d9f1")}


def test_the_slash_commands_that_show_print_and_harm_nothing(chat: Open) -> None:
    terminal = chat("chat", rows=60, columns=200)
    terminal.wait_for("> ")
    for command, shown in (
        ("/help", "this list"),
        ("/tree print", "Revenue would fall..."),
        ("/log", "say [bold]"),
        ("/branches", "branch"),
        ("/sessions", "messages"),
        ("/cache", "hit rate"),
        ("/context", "48 tokens"),
        ("/status", "ready"),
        ("/show", "report-q3"),
        ("/set temperature 0.5", "temperature = 0.5"),
        ("/set", "temperature = 0.5"),
        ("/set tmperature 1", "did you mean temperature?"),
        ("/system", "no system prompt"),
        ("/model", "tiny"),
        ("/think high", "think high"),
        ("/rename other", "renamed to other"),
        ("/tere", "did you mean /tree?"),
        ("!echo from the shell", "from the shell"),
    ):
        terminal.type(command + "\r")
        terminal.wait_for(_shows(shown))
        terminal.type("\x0c")  # Ctrl+L: a clean screen for the next
        terminal.settle(0.05)
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


def test_multiline_and_the_editor_are_other_ways_to_type(
    chat: Open, daemon: FakeDaemon, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf \'%s\\nsecond\\n\' "$(cat "$1") written" >"$1"\n')
    editor.chmod(0o700)
    terminal = chat("chat", EDITOR=str(editor))
    terminal.wait_for("> ")
    terminal.type("/editor a thing\r")
    terminal.wait_for("a thing written")  # offered, not sent
    terminal.wait_for("second")
    assert daemon.asked("generate") == []
    terminal.settle()
    terminal.type("\r")
    assert sent(daemon, 1)[0]["text"] == "a thing written\nsecond"
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/multiline\r")
    terminal.wait_for("/multiline ends it")
    terminal.type('one\rtwo\r"""\r')
    assert sent(daemon, 2)[1]["text"] == "one\ntwo"
    terminal.settle()
    terminal.type("/multiline\r")
    terminal.wait_for(_shows("Enter sends"))
    terminal.type("three\r")
    assert sent(daemon, 3)[2]["text"] == "three"


def test_an_editor_that_fails_is_told_and_the_chat_goes_on(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat", VISUAL="/no/such/editor", EDITOR="true")
    terminal.wait_for("> ")
    terminal.type("/editor\r")
    terminal.wait_for("cannot start the editor")
    terminal.type("hello\r")
    assert sent(daemon, 1)[0]["text"] == "hello"


def _shows(words: str) -> Callable[[Terminal], bool]:
    """On a line that is not the one typed."""
    return lambda t: any(words in line and not line.startswith("> ") for line in t.lines)


def test_set_file_and_edit_reach_the_next_request(
    chat: Open, daemon: FakeDaemon, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("words of a")
    (tmp_path / "b.md").write_text("words of b")
    terminal = chat("chat", columns=200)
    terminal.wait_for("> ")
    terminal.type(f"/set seed 7\r/file {tmp_path}/a.md\r")
    terminal.wait_for("with the next message")
    terminal.type(f"compare with @{tmp_path}/b.md please, @nobody\r")
    call = sent(daemon, 1)[0]
    assert call["options"] == {"seed": 7}
    assert [f["text"] for f in call["files"]] == ["words of a", "words of b"]
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/edit\r")
    terminal.wait_for("change it and press Enter")
    terminal.settle()
    terminal.type(" again\r")
    call = sent(daemon, 2)[1]
    assert (call["kind"], call["ref"]) == ("edit", long("c2aa"))
    assert call["text"].endswith(" again")
    assert call["files"] == []


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        ("\x15/show\r", "session     report-q3"),
        ("\x15\r", "left as it is"),
        ("\x15  \r", "left as it is"),
    ],
)
def test_a_command_or_an_emptied_line_lets_go_of_the_turn_that_was_to_be_edited(
    chat: Open, daemon: FakeDaemon, keys: str, seen: str
) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/edit\r")
    terminal.wait_for("edit 1> say [bold]")
    terminal.settle()
    terminal.type(keys)
    terminal.wait_for(seen)
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == ">"
    terminal.type("something new\r")
    assert sent(daemon, 1)[0]["kind"] == "turn"


def test_an_edit_that_was_not_begun_is_offered_again_as_an_edit(
    chat: Open, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = Unreachable("nobody there")
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/edit\r")
    terminal.wait_for("change it and press Enter")
    terminal.settle()
    terminal.type(" again\r")
    terminal.wait_for("error: nobody there")
    terminal.settle()
    terminal.type("\r")
    calls = sent(daemon, 2)
    assert [(c["kind"], c["ref"], c["text"]) for c in calls] == 2 * [
        ("edit", long("c2aa"), calls[0]["text"])
    ]


OTHER = {**SESSION, "id": long("aaaa"), "name": "other", "head": long("bbbb"), "messages": 2}


@pytest.mark.parametrize("command", ["/switch other:price", "/fork other:price", "/undo"])
def test_a_command_that_leads_to_another_session_takes_the_chat_there(
    chat: Open, daemon: FakeDaemon, command: str
) -> None:
    moved = {"session": OTHER["id"], "name": "other", "branch": "price", "head": long("cccc")}
    method = command[1:].split(maxsplit=1)[0]
    daemon.script[method] = {**moved, "text": None}
    daemon.script["sessions.open"] = lambda args: OTHER if args["session"] else SESSION
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type(command + "\r")
    terminal.wait_for("other · price@cccc")
    terminal.type("on\r")
    call = sent(daemon, 1)[0]
    assert (call["session"], call["head"]) == (
        OTHER["id"], {"branch": "price", "message": long("cccc")}
    )  # fmt: skip


def test_an_edit_in_another_session_takes_the_chat_there(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["sessions.open"] = lambda args: OTHER if args["session"] else SESSION
    asked = {"id": long("dddd"), "role": "user", "text": "said there", "turn": 1}
    daemon.script["log"] = {"session": OTHER["id"], "messages": [asked]}
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/edit other:1\r")
    terminal.wait_for("change it and press Enter")
    terminal.settle()
    daemon.script["generate"] = lambda args: answer_events(["there"], session=long("aaaa"))
    terminal.type(" again\r")
    call = sent(daemon, 1)[0]
    assert (call["kind"], call["ref"]) == ("edit", f"{OTHER['id']}:{long('dddd')}")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("on\r")
    assert sent(daemon, 2)[1]["session"] == OTHER["id"]


def test_new_in_an_ephemeral_chat_is_ephemeral_and_a_kept_session_is_not(
    chat: Open, daemon: FakeDaemon
) -> None:
    def opened(args: dict[str, Any]) -> dict[str, Any]:
        if args["new"]:
            return {**SESSION, "ephemeral": bool(args["ephemeral"])}
        return {**OTHER, "ephemeral": False}

    daemon.script["sessions.open"] = opened
    terminal = chat("chat", "--ephemeral")
    terminal.wait_for("ephemeral: nothing said here is kept on disk")
    terminal.wait_for("> ")
    terminal.type("/show\r")
    terminal.wait_for("nothing of this session is on disk")
    terminal.type("/new\r")
    terminal.wait_for("new session report-q3")
    assert sent(daemon, 2, "sessions.open")[1]["ephemeral"] is True
    terminal.type("one\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/sessions other\r")
    terminal.wait_for("other · main@bbbb")
    terminal.type("two\r")
    assert [call["ephemeral"] for call in sent(daemon, 2)] == [True, False]


def test_what_is_said_in_an_ephemeral_session_of_a_kept_chat_is_not_in_the_history(
    chat: Open, home: Path, daemon: FakeDaemon
) -> None:
    daemon.script["sessions.open"] = lambda args: {**SESSION, "ephemeral": not args["new"]}
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("open words\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/sessions hidden\r")
    terminal.wait_for("report-q3 · main@d9f1")
    terminal.type("secret words\r")
    sent(daemon, 2)
    terminal.settle()
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    written = [p.read_bytes() for p in home.rglob("*") if p.is_file()]
    assert any(b"open words" in data for data in written)
    assert not any(b"secret words" in data for data in written)


def broken_off(args: dict[str, Any]) -> Any:
    """A daemon that dies after some words: the connection just ends."""
    events = iter(answer_events(["some ", "words"], message=long("eeee")))
    yield from (next(events) for _ in range(4))
    raise ConnectionResetError


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_answer_that_breaks_off_is_gone_on_from(
    chat: Open, daemon: FakeDaemon, is_kept: bool
) -> None:
    """The next daemon finds what had been said; or it says where the chat stands."""
    daemon.script["generate"] = broken_off
    if not is_kept:
        daemon.script["log"] = NotFound("no message eeee")
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("error: the daemon ended in the middle of the answer")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == ">"  # it was said: not offered again
    daemon.script["generate"] = lambda args: answer_events(["done"])
    terminal.type("go on\r")
    call = sent(daemon, 2)[1]
    kept, asked = long("eeee"), long("c2aa")
    assert call["head"] == {"branch": "main", "message": kept if is_kept else asked}
    terminal.wait_for("tok/s")
    told = "nothing of the last answer was kept: going on from main@c2aa"
    assert (told in terminal.everything) is not is_kept


def test_sessions_in_which_nothing_was_said_are_not_kept(chat: Open, daemon: FakeDaemon) -> None:
    made = iter((long("1111"), long("2222"), long("3333")))
    daemon.script["sessions.open"] = lambda args: {**SESSION, "id": next(made), "messages": 0}
    daemon.script["generate"] = lambda args: answer_events(["hi"], session=args["session"])
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/new\r")
    terminal.wait_for("new session")
    terminal.type("hello\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/new\r")
    sent(daemon, 3, "sessions.open")
    terminal.settle()
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert sent(daemon, 1, "sessions.rm")[0]["sessions"] == [long("1111"), long("3333")]


def test_an_ephemeral_chat_writes_no_history(chat: Open, home: Path, daemon: FakeDaemon) -> None:
    terminal = chat("chat", "--ephemeral")
    terminal.wait_for("> ")
    terminal.type("secret words\r")
    terminal.wait_for("tok/s")
    assert sent(daemon, 1)[0]["ephemeral"] is True
    terminal.type("\x04")
    assert terminal.wait_end() == 0
    assert "Continue" not in terminal.text
    assert not [p for p in home.rglob("*") if p.is_file() and b"secret" in p.read_bytes()]


def test_a_plain_terminal_gets_no_status_line_and_no_colour(chat: Open) -> None:
    terminal = chat("chat", "--plain", "hello there")
    terminal.wait_for("tok/s")
    assert b"\x1b[2K" not in terminal.raw
    assert b"\x1b[2m" not in terminal.raw


def test_export_and_copy_take_out_what_was_said(
    chat: Open, daemon: FakeDaemon, tmp_path: Path
) -> None:
    daemon.script["sessions.export"] = lambda args: {
        "name": "report-q3", "format": args["format"], "messages": 2, "text": "the text\n",
    }  # fmt: skip
    terminal = chat("chat", "-c", PATH="/nowhere")
    terminal.wait_for("> ")
    target = tmp_path / "talk.json"
    terminal.type(f"/export {target}\r")
    terminal.wait_for("2 messages in")
    terminal.settle()
    terminal.type(f"/export {target}\r")
    terminal.wait_for("(replaced)")
    assert target.read_text() == "the text\n"
    (call, _) = daemon.asked("sessions.export")
    assert (call["format"], call["head"]["branch"]) == ("json", SESSION["branch"])
    terminal.type("/copy\r")
    terminal.wait_for("copied ")
    copied = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", terminal.raw)
    assert copied is not None
    answers = [m["text"] for m in log()["messages"] if m["role"] == "assistant"]
    assert base64.b64decode(copied[1]).decode() == answers[-1]


def test_an_export_without_a_name_is_named_after_the_session_and_writes_over_nothing(
    home: Path, daemon: FakeDaemon, tmp_path: Path
) -> None:
    daemon.script["sessions.export"] = {
        "name": "a/b", "format": "md", "messages": 2, "text": "the text\n",
    }  # fmt: skip
    command = radchat("--daemon", str(daemon.path), "chat", "-c")
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny"), cwd=tmp_path) as terminal:
        terminal.wait_for("> ")
        terminal.type("/export\r")
        terminal.wait_for("in a-b.md")
        terminal.type("/export\r")
        terminal.wait_for("there is a a-b.md already")
    assert (tmp_path / "a-b.md").read_text() == "the text\n"


def test_a_slash_in_an_offered_line_begins_a_command_and_the_offered_words_are_not_lost(
    chat: Open, daemon: FakeDaemon
) -> None:
    moved = {"session": SESSION["id"], "name": "report-q3", "branch": "main", "head": None}
    daemon.script["undo"] = {**moved, "text": "first question"}
    daemon.script["redo"] = {**moved, "text": None}
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/undo\r")
    terminal.wait_for("> first question")
    terminal.settle()
    terminal.type("/redo\r")
    sent(daemon, 1, "redo")
    terminal.settle()
    assert daemon.asked("generate") == []
    terminal.type("\x15\x1b[A\x1b[A")
    terminal.wait_for(lambda t: t.lines[t._screen.cursor.y] == "> first question")
    terminal.type(" and/or\r")  # touched: a slash is a slash
    assert sent(daemon, 1)[0]["text"] == "first question and/or"


def test_the_model_is_told_once_it_has_answered(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["sessions.open"] = {**SESSION, "model": None}
    daemon.script["generate"] = lambda args: answer_events(["hi"])
    terminal = chat("chat", "-c")
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("tok/s")
    terminal.settle()
    terminal.type("/show\r")
    terminal.wait_for("model       smollm2-135m")
    terminal.type("/model\r")
    terminal.wait_for(lambda t: "smollm2-135m" in t.lines)


def test_an_error_is_broken_at_words_on_a_terminal(chat: Open, daemon: FakeDaemon) -> None:
    words = "a message of many words that a terminal of forty columns cannot show on a line"
    daemon.script["undo"] = NotFound(words)
    terminal = chat("chat", columns=40)
    terminal.wait_for("> ")
    terminal.type("/undo\r")
    terminal.wait_for("a line")  # the third
    assert all(f" {line} " in f" error: {words} " for line in terminal.lines if "of " in line)
    assert sum("of " in line for line in terminal.lines) == 2


def test_edit_takes_the_new_words_on_its_line(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/edit 1 What is a brig?\r")
    call = sent(daemon, 1)[0]
    assert (call["kind"], call["ref"], call["text"]) == ("edit", long("c2aa"), "What is a brig?")
    assert daemon.asked("log")[0]["ref"] == "1"


def test_ctrl_c_in_ask_says_what_is_kept_and_how_to_go_on(chat: Open, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: slowly(["word "] * 3000)
    terminal = chat("ask", "hello")
    terminal.wait_for("word word")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    words = " ".join(terminal.text.split())
    kept = "cancelled: what came so far is kept in report-q3 · main@d9f1"
    assert f"{kept}; `radchat continue` goes on" in words


def test_thinking_that_the_model_cannot_do_is_told_at_once(chat: Open, daemon: FakeDaemon) -> None:
    words = "this model has no reasoning to switch"
    daemon.script["context"] = lambda args: {"think": words if args["think"] == "high" else None}
    terminal = chat("chat")
    terminal.wait_for("> ")
    terminal.type("/think high\r")
    terminal.wait_for(f"think high: {words}")
    terminal.type("/think off\r")
    terminal.wait_for(lambda t: "think off" in t.lines)
