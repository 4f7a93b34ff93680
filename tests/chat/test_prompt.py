"""The prompt by its keys, without a terminal: what is typed, pasted and kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from radchat.chat import commands
from radchat.chat.history_file import add, forget, latest
from radchat.chat.pastes import Pastes
from radchat.chat.prompt import Prompt, WantsTree, is_open_block, unquoted
from radchat.errors import UsageError
from tests.waiting import wait_until


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


def read(keyboard: PipeInput, keys: str, *, history: Path | None = None) -> str:
    keyboard.send_text(keys)
    return Prompt(history=history, input=keyboard, output=DummyOutput()).read("> ")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("one\ntwo\r", "one\ntwo"),  # Ctrl+J
        ("one\x1b\rtwo\r", "one\ntwo"),  # Alt+Enter
        ("one\x1b[13;2utwo\r", "one\ntwo"),  # Shift+Enter, as two kinds of terminals tell it
        ("one\x1b[27;2;13~two\r", "one\ntwo"),
        ('"""a\rb\r\rc"""\r', "a\nb\n\nc"),
        ('"""one line"""\r', "one line"),
        ('say """x\r', 'say """x'),
        ("ab\x7fc\r", "ac"),
        ("\x1b[200~a\r\nb\r\nc\x1b[201~\r", "a\nb\nc"),
        ("\x1b[200~x\x1b[31mred\x1b[201~\r", "x\x1b[31mred"),
        ("see: \x1b[200~p\x1b[201~ ok\r", "see: p ok"),
        ("\x1b[200~a\x1b[201~b\rc\x1b[201~\r", "ab\nc"),  # the end of a paste in a paste
        ("\x1b[200~a\x1b[201~b\x1b[200~c\x1b[201~\r", "abc"),
        ("one\x1b[13;3utwo\r", "one\ntwo"),  # Alt+Enter, as kitty tells it
        ("kept\x1b\x1b\rx\r", "kept\nx"),  # Esc, and Alt+Enter
        ("\x1bOP\x1b[15~\x1b[3;5~x\r", "x"),  # keys that mean nothing here
        ("one two\x17three\r", "one three"),
        ("one\ntwo\x15three\r", "one\nthree"),
        ("one two\x01\x0bthree\r", "three"),
        ("one\ntwo\x1b[A!\r", "one!\ntwo"),  # up: a line of the text, not of the history
    ],
)
def test_what_the_keys_make(keyboard: PipeInput, keys: str, text: str) -> None:
    assert read(keyboard, keys) == text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one\rtwo\x1b\r", "one\ntwo"),
        ('one\rtwo\r"""\r', "one\ntwo"),
        ('"""a\rb"""\r', "a\nb"),
        ("one\ntwo\x1b\r", "one\ntwo"),  # Ctrl+J
        ('x = """\ry\r""" + z\x1b\r', 'x = """\ny\n""" + z'),
        ('b\r"""\x1b[A\x1b[Ha\r\x1b\r', 'a\nb\n"""'),  # above the quotes, Enter sends nothing
        ("/multiline\r", "/multiline"),
        ("/usr/bin is\rfull\x1b\r", "/usr/bin is\nfull"),
    ],
)
def test_in_multiline_mode_enter_is_a_newline(keyboard: PipeInput, keys: str, text: str) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    prompt.is_multiline = True
    keyboard.send_text(keys)
    assert prompt.read("> ") == text


def test_ctrl_d_leaves_an_empty_prompt_and_deletes_in_mid_line(keyboard: PipeInput) -> None:
    with pytest.raises(EOFError):
        read(keyboard, "\x04")
    assert read(keyboard, "ab\x1b[D\x04\r") == "a"


def test_ctrl_c_tells_whether_there_was_text(keyboard: PipeInput) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    for keys, had_text in (("\x03", False), ("abc\x03", True)):
        keyboard.send_text(keys)
        with pytest.raises(KeyboardInterrupt):
            prompt.read("> ")
        assert prompt.had_text is had_text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("\x12fer\r\r", "the ferry goes"),  # the first Enter takes the line, the second sends it
        ("\x12fer\r!\r", "the !ferry goes"),
        ("\x12e\x12\r\r", "the ferry goes"),
        ("draft\x12fer\x03 kept\r", "draft kept"),
        ("draft\x12nowhere\r kept\r", "draft kept"),
    ],
)
def test_a_found_line_is_taken_into_the_prompt_not_sent(
    keyboard: PipeInput, keys: str, text: str
) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    for line in ("the ferry goes", "hello"):
        keyboard.send_text(line + "\r")
        prompt.read("> ")
    keyboard.send_text(keys)
    assert prompt.read("> ") == text


def test_a_long_paste_is_a_placeholder_on_screen_and_whole_in_the_message(
    keyboard: PipeInput,
) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    lines = "\r\n".join(f"line {i}" for i in range(10_000))
    keys = f"before \x1b[200~{lines}\x1b[201~ after\r"
    threading.Thread(target=keyboard.send_text, args=(keys,), daemon=True).start()
    text = prompt.read("> ")
    assert len(prompt.pastes._texts) == 1  # as one piece, not key by key
    assert text == "before " + lines.replace("\r\n", "\n") + " after"
    shown = prompt._session.history.get_strings()[-1]
    assert shown == "before [pasted #1: 10,000 lines] after"


LONG = "\n".join(f"line {i}" for i in range(12))
PASTE = f"\x1b[200~{LONG}\x1b[201~"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (f"{PASTE}\x7fx\r", "x"),
        (f"a {PASTE}\x17b\r", "a b"),
        (f"a {PASTE}\x1b\x7fb\r", "a b"),
        (f"{PASTE}\x01\x1b[3~x\r", "x"),
        (f"{PASTE}\x01\x04x\r", "x"),
        (f"{PASTE}\x1b[Dx\r", f"x{LONG}"),
        (f"{PASTE}\x01\x1b[Cx\r", f"{LONG}x"),
        (f"{PASTE} and {PASTE}\r", f"{LONG} and {LONG}"),
        (f"[pasted #9: 2 lines]\x7f{PASTE}\r", f"[pasted #9: 2 lines{LONG}"),
    ],
)
def test_a_placeholder_is_one_letter_to_the_keys(keyboard: PipeInput, keys: str, text: str) -> None:
    assert read(keyboard, keys) == text


@pytest.mark.parametrize(
    ("paste", "shown"),
    [
        ("x" * 999, "x" * 999),
        ("x" * 1000, "[pasted #1: 1,000 characters]"),
        ("x\n" * 6 + "x", "x\n" * 6 + "x"),
        ("x\n" * 12, "[pasted #1: 12 lines]"),
    ],
)
def test_a_paste_is_a_placeholder_from_a_length_on(paste: str, shown: str) -> None:
    assert Pastes().shown(paste) == shown


def test_a_placeholder_that_is_recalled_is_whole_again(keyboard: PipeInput) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    keyboard.send_text(f"one {PASTE}\r\x1b[A two\r")
    assert [prompt.read("> "), prompt.read("> ")] == [f"one {LONG}", f"one {LONG} two"]


@pytest.mark.parametrize("keys", ["\x07", "\x18\x05"])
def test_the_editor_gets_a_paste_whole_and_what_it_gives_is_offered(
    keyboard: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/seen\necho "$1" >{tmp_path}/name\n'
                      'echo written >"$1"\n')  # fmt: skip
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())

    def go_on() -> None:
        wait_until(lambda: prompt.buffer.text == "written")
        keyboard.send_text(" and sent\r")

    threading.Thread(target=go_on, daemon=True).start()
    keyboard.send_text(f"see {PASTE}{keys}")
    assert prompt.read("> ") == "written and sent"
    assert (tmp_path / "seen").read_text().rstrip("\n") == f"see {LONG}"
    assert (tmp_path / "name").read_text().strip().endswith(".md")


def test_esc_esc_at_an_empty_prompt_wants_the_tree(keyboard: PipeInput) -> None:
    with pytest.raises(WantsTree):
        read(keyboard, "\x1b\x1b")
    with pytest.raises(WantsTree):
        read(keyboard, "x\x7f\x1b\x1b")


def test_a_short_paste_is_shown_as_it_is(keyboard: PipeInput) -> None:
    prompt = Prompt(history=None, input=keyboard, output=DummyOutput())
    keyboard.send_text("\x1b[200~" + "\n".join("abcdefg") + "\x1b[201~\r")
    prompt.read("> ")
    assert "pasted" not in prompt._session.history.get_strings()[-1]


def test_history_is_kept_privately_and_survives_broken_letters(
    keyboard: PipeInput, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "history"
    read(keyboard, "first\r", history=path)
    prompt = Prompt(history=path, input=keyboard, output=DummyOutput())
    prompt._session.history.store_string("broken \udcff half")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "broken \ufffd half" in path.read_text(encoding="utf-8")
    assert read(keyboard, "\x1b[A\x1b[A\r", history=path) == "first"


def test_a_paste_is_in_the_history_file_whole(keyboard: PipeInput, tmp_path: Path) -> None:
    """Its placeholder means nothing, or another paste, in the next chat."""
    path = tmp_path / "history"
    lines = "\n".join(f"line {i}" for i in range(12))
    read(keyboard, f"sum up \x1b[200~{lines}\x1b[201~\r", history=path)
    assert "pasted" not in path.read_text()
    assert read(keyboard, "\x1b[A\r", history=path) == f"sum up {lines}"


def test_history_waits_until_it_is_known_whether_it_may_be_kept(
    keyboard: PipeInput, tmp_path: Path
) -> None:
    path = tmp_path / "history"
    prompt = Prompt(history=path, input=keyboard, output=DummyOutput())

    def typed(text: str) -> str:
        keyboard.send_text(f"{text}\r")
        prompt.read("> ")
        return path.read_text()

    prompt.keep_history(None)
    assert typed("early") == ""
    prompt.keep_history(True)
    assert "early" in path.read_text()
    prompt.keep_history(False)
    assert "secret" not in typed("secret")
    prompt.keep_history(None)
    typed("also secret")
    prompt.keep_history(False)
    prompt.keep_history(True)
    assert "open" in typed("open")
    assert "secret" not in path.read_text()


def test_what_was_typed_in_a_session_is_taken_out_and_nothing_else(
    keyboard: PipeInput, tmp_path: Path
) -> None:
    path = tmp_path / "history"
    prompt = Prompt(history=path, input=keyboard, output=DummyOutput())
    for session, words in (("aaaa", "walnut\x1b\r# 2026 bbbb"), ("bbbb", "pear"), ("aaaa", "fig")):
        prompt.keep_history(None)  # until it is known which session it is
        keyboard.send_text(f"{words}\r")
        prompt.read("> ")
        prompt.keep_history(True, session)
    with path.open("a") as file:
        file.write("\n# 2024-01-01 10:00:00.000000\n+of an older radchat\n")
    before = path.read_bytes()
    assert forget(path, ["cccc"]) == 0
    assert path.read_bytes() == before
    assert forget(path, ["aaaa", "cccc"]) == 2
    assert b"walnut" not in path.read_bytes()
    assert b"fig" not in path.read_bytes()
    assert read(keyboard, "\x1b[A\r", history=path) == "of an older radchat"
    path.write_bytes(path.read_bytes().partition(b"\n# 2024")[0])
    assert read(keyboard, "\x1b[A\r", history=path) == "pear"
    assert forget(tmp_path / "none", ["aaaa"]) == 0


def test_a_history_file_that_vanished_is_made_again_as_private(
    keyboard: PipeInput, tmp_path: Path
) -> None:
    path = tmp_path / "history"
    prompt = Prompt(history=path, input=keyboard, output=DummyOutput())
    path.unlink()
    before = os.umask(0)
    try:
        keyboard.send_text("hello\r")
        prompt.read("> ")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_of_a_long_history_the_latest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history"
    for number in range(300):
        add(path, f"entry {number}\n+of two lines", "aaaa")
    assert latest(path) == [f"entry {number}\n+of two lines" for number in range(299, -1, -1)]
    some = latest(path, 2000)
    assert some == latest(path)[: len(some)]
    assert 10 < len(some) < 50
    assert latest(path, 5) == []


def test_without_a_history_file_nothing_is_written(keyboard: PipeInput, tmp_path: Path) -> None:
    read(keyboard, "secret\r", history=None)
    assert list(tmp_path.iterdir()) == []


def test_blocks_of_three_quotes() -> None:
    assert is_open_block('"""a')
    assert is_open_block('"""')
    assert not is_open_block('"""a"""')
    assert not is_open_block('a """b')
    assert unquoted('"""\na\nb\n"""') == "a\nb"
    assert unquoted('"quoted"') == '"quoted"'


# --- slash commands ---


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", ("help", "")),
        ("/?", ("help", "")),
        ("/exit", ("bye", "")),
        ("/fork 4 price idea", ("fork", "4 price idea")),
        ("/BRANCH", ("fork", "")),
        ("/rewind 2", ("undo", "2")),
        ("/he", ("help", "")),  # no other begins so
        ("/check price", ("switch", "price")),
    ],
)
def test_a_slash_command_is_parsed(text: str, command: tuple[str, str]) -> None:
    assert commands.is_command(text)
    assert commands.parse(text) == command


def test_an_unknown_slash_command_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean /retry"):
        commands.parse("/retyr")
    for word in ("zzz", "u", "re"):  # one letter, and the beginning of several, are none
        with pytest.raises(UsageError, match=r"/help lists them|did you mean"):
            commands.parse(f"/{word}")
    with pytest.raises(UsageError, match="/new begins a session"):
        commands.parse("/clear")


@pytest.mark.parametrize("text", ["/usr/bin is a folder", "/", "a /help", "/multi\nline", ""])
def test_what_only_looks_like_a_command_is_a_message(text: str) -> None:
    assert not commands.is_command(text)


def test_every_slash_command_has_an_action_and_a_line_of_help() -> None:
    from radchat.chat.actions import ACTIONS
    from radchat.cli.chat import PROGRAMS

    assert {*ACTIONS, *PROGRAMS} == {slash.name for slash in commands.SLASHES}
    words = "\n".join(commands.help_lines())
    assert all(f"/{word}" in words for word in commands.BY_WORD)
    assert all(len(line) <= 90 for line in commands.help_lines())


def test_refs_may_be_written_as_a_shell_would_not_allow() -> None:
    assert [commands.ref(r) for r in ("#4", "~2", "d9f1", "-")] == ["4", "HEAD~2", "d9f1", "-"]
