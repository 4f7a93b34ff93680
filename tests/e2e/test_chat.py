"""An open chat at a terminal, with a real daemon behind it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.e2e.tiny_models import converted
from tests.waiting import PATIENCE, wait_until

Open = Callable[..., Terminal]
STOP = "<|im_end|>"


@pytest.fixture
def chat(shell: Shell) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_(*args: str) -> Terminal:
        env = {**shell.env, "TERM": "xterm-256color"}
        command = [sys.executable, "-P", "-m", "radchat", "chat", *args]
        terminal = Terminal(command, env, cwd=shell.folder, rows=50)
        opened.append(terminal)
        terminal.wait_for("> ", PATIENCE)
        return terminal

    yield open_
    for terminal in opened:
        terminal.child.close(force=True)


def say(terminal: Terminal, text: str, seen: str = "first token") -> None:
    """Type it, and wait for the footer of its answer: there is one more then."""
    before = terminal.everything.count(seen)
    terminal.type(text + "\r")
    terminal.wait_for(lambda t: t.everything.count(seen) > before, PATIENCE)
    terminal.settle()


def test_a_chat_talks_is_cancelled_goes_on_forks_and_comes_back(
    chat: Open, shell: Shell, home: Home
) -> None:
    terminal = chat(*EXACT)
    say(terminal, "hello", "main@")
    say(terminal, "and again", "main@")
    assert "cached" in terminal.text
    terminal.type("/set max_tokens 3000\r")
    terminal.settle()
    terminal.type("say very much\r")
    wait_until(lambda: home.status()["running"] == 1)
    wait_until(lambda: terminal._read(0.05) is not None and _is_talking(home))
    terminal.type("\x03")
    terminal.wait_for("what came so far is kept", PATIENCE)
    home.assert_balanced()
    said = shell.json("log")["messages"]
    assert said[-1]["finish_reason"] == "abort"
    assert said[-2]["text"] == "say very much"
    terminal.type("/set max_tokens 6\r")
    terminal.settle()
    say(terminal, "go on", "main@")
    last = shell.json("log")["messages"][-1]
    ids = home.ids(said[-1]["id"])
    assert home.ids(last["id"])[: len(ids)] == ids
    shell("switch", "HEAD~2")  # moves the stored HEAD, never the open chat's
    say(terminal, "still here", "main@")
    assert shell.tree()["head"] != shell.tree()["branches"]["main"]  # nor the chat that one
    texts = [text for role, text in shell.texts("main") if role == "user"]
    assert texts == ["hello", "and again", "say very much", "go on", "still here"]
    shell("switch", "main")
    terminal.type("/fork 2 side\r")  # takes along a stored HEAD that stood where it stood
    terminal.wait_for("side>", PATIENCE)
    terminal.settle()
    terminal.type("\x15another road\r")  # the old words are offered: cleared
    terminal.wait_for(lambda t: t.everything.count("side@") >= 3, PATIENCE)  # the footer, too
    side = [text for role, text in shell.texts("side") if role == "user"]
    assert side == ["hello", "another road"]
    terminal.type("\x04")
    assert terminal.wait_end(PATIENCE) == 0
    assert "Continue: radchat chat -r hello" in terminal.everything
    again = chat("-c", *EXACT)
    say(again, "back again", "side@")
    assert [t for r, t in shell.texts("side") if r == "user"][-1] == "back again"
    again.type("/bye\r")
    assert again.wait_end(PATIENCE) == 0


def _is_talking(home: Home) -> bool:
    """Words are on their way: the running file has some."""
    return any(path.stat().st_size > 80 for path in home.places.running.glob("*.ids"))


def test_a_session_and_a_ref_in_it_are_talked_from_and_its_name_is_answered(
    chat: Open, shell: Shell
) -> None:
    shell.ask("first")
    second = shell.say("second")
    shell.ask("elsewhere")
    there = shell.json("ask", "-r", "first:2", "not second", *EXACT)
    assert there["session"] == second["session"]
    texts = [text for role, text in shell.texts(there["branch"], "first") if role == "user"]
    assert texts == ["first", "not second"]
    told = shell("switch", "first", code=66).err
    assert f"first is a session: radchat switch first:{there['branch']}" in told
    terminal = chat("-r", "first:1", *EXACT)
    assert "first · a new branch at the beginning" in terminal.text
    assert "> not second" not in terminal.text  # that is where the session stands, not we
    say(terminal, "not first", "@")
    texts = [text for role, text in shell.texts(session="first") if role == "user"]
    assert texts == ["not first"]


def test_how_full_the_context_is_is_one_number_everywhere(homes: Homes, tmp_path: Path) -> None:
    """Also where answers end by themselves: their stop token stands in the next turn too."""
    home = homes({"brief": converted(tmp_path / "models", "brief", favours=("h", "i", STOP))})
    shell = Shell(home, "1", EXACT)
    for number in range(4):
        done = shell.ask(f"turn {number}", *(["-c"] if number else []))
        assert done["finish_reason"] == "stop"
    used = done["usage"]["input_tokens"] + done["usage"]["output_tokens"]
    tree = shell.json("tree", "--show-cache")
    assert sum(m["tokens"] for m in tree["messages"]) == used
    assert sum(m["tokens"] for m in shell.json("log")["messages"]) == used
    assert shell.json("branch")["branches"][0]["tokens"] == used
    held = sum(m["cached"]["device"] for m in tree["messages"])
    assert used - 1 <= held <= used
    shell.ask("something else", "--new-session", "beside")
    assert shell.json("tree", "--show-cache")["name"] == "beside"
    mine, whole = shell.json("tree", "--show-cache")["tiers"], home.stats()["tiers"]
    assert 0 < mine["device"]["tokens"] < whole["device"]["tokens"]
    assert mine["device"]["budget_bytes"] == whole["device"]["budget_bytes"]
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "-r", "turn-0"]
    with Terminal(command, env, cwd=shell.folder) as terminal:
        terminal.wait_for("> ", PATIENCE)
        terminal.type("/context\r")
        terminal.wait_for(f"{used} tokens of ", PATIENCE)


def test_a_chat_whose_daemon_is_killed_in_mid_answer_goes_on_from_what_was_said(
    chat: Open, shell: Shell, home: Home
) -> None:
    terminal = chat(*EXACT)
    say(terminal, "hello", "main@")
    terminal.type("/set max_tokens 3000\r")
    terminal.settle()
    terminal.type("say very much\r")
    terminal.wait_for("say very much", PATIENCE)

    def shown() -> str:
        return "".join(terminal.everything.rpartition("say very much")[2].split())

    wait_until(lambda: terminal._read(0.05) is not None and _is_talking(home) and shown()[20:])
    home.kill()
    terminal.wait_for("the daemon ended in the middle of the answer", PATIENCE)
    terminal.settle()
    terminal.type("/set max_tokens 6\r")
    terminal.settle()
    say(terminal, "go on", "main@")
    terminal.wait_for(lambda t: " · ctx " in t.lines[-1])
    assert "daemon" not in terminal.lines[-1]  # it was waited for, and is there
    said = shell.call("log")["messages"]
    assert [m["text"] for m in said if m["role"] == "user"] == ["hello", "say very much", "go on"]
    assert [m["finish_reason"] for m in said[1::2]] == ["length", "abort", "length"]
    words = said[3]["text"]
    assert len(words) > 20  # written before they are shown: the last may be on disk alone
    assert "".join(words.split())[:20] in "".join(terminal.everything.split())
    terminal.type("/edit 2\r")  # and its branch is the one it was
    terminal.wait_for("change it", PATIENCE)
    assert shell.tree()["branches"] == {"main": said[-1]["id"]}
    terminal.type("\x03\x04")
    assert terminal.wait_end(PATIENCE) == 0


def test_a_chat_lives_through_a_killed_daemon_and_deleted_folders(
    chat: Open, shell: Shell, home: Home
) -> None:
    terminal = chat(*EXACT)
    say(terminal, "hello", "main@")
    home.kill()
    say(terminal, "after the end", "main@")
    run = home.places.run
    assert run is not None
    shutil.rmtree(run)
    wait_until(run.exists)
    shutil.rmtree(home.places.state)
    say(terminal, "after the flood", "main@")
    texts = [text for role, text in shell.texts() if role == "user"]
    assert texts == ["hello", "after the end", "after the flood"]
    terminal.type("\x04")
    assert terminal.wait_end(PATIENCE) == 0
    assert "Traceback" not in terminal.everything
