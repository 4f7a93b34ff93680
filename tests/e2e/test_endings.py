"""Answers that end in the middle: one of several stopped, a terminal that hangs up, tmux killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import EXACT
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell, spoken, until
from tests.e2e.ptys import env_of
from tests.waiting import PATIENCE, wait_until

CHAT = (sys.executable, "-P", "-m", "radchat", "chat", *EXACT, "--max-tokens")


def told(home: Home, before: int) -> bool:
    """Answers are on their way, and have some words."""
    return bool(home.status()["running"]) and int(home.stats()["output_tokens"]) > before + 60


# -- one of several --------------------------------------------------------------------------------


def test_a_what_if_computes_what_is_shared_once_and_one_of_it_is_stopped_alone(
    terminal: Shell,
) -> None:
    home = terminal.home
    words = "a report that all of them stand on, word after word, line after line " * 8
    base = terminal.ask(words, "--max-tokens", "2")
    terminal.call("cache.clear", pinned=True)
    texts = ["up by ten", "down by ten", "as it was", "gone"]
    before = home.stats()
    with terminal.stream(
        kind="what-if", texts=texts, new_session=False, dtype="fp32",
        options={"temperature": 0, "max_tokens": 150},
    ) as running:  # fmt: skip
        seen = until(running, "delta", 8)
        init = next(event.data for event in seen if event.name == "init")
        call = home.client().call
        assert call("cancel", request=init["request"], choice=2) == {"cancelled": True}
        assert call("cancel", request=init["request"], choice=4) == {"cancelled": False}
        seen += running
    done = seen[-1].data
    bodies = done["branches"]
    assert [body["finish_reason"] for body in bodies] == ["length", "length", "abort", "length"]
    assert [body["text"] for body in bodies] == [spoken(seen, choice) for choice in range(4)]
    home.assert_balanced()

    after, shared = home.stats(), done["shared"]
    assert shared["tokens"] == shared["computed"] > len(words)
    num = sum(body["usage"]["output_tokens"] for body in bodies)
    computed = shared["computed"] + shared["new"]
    assert done["cache"]["computed"] == computed
    assert after["rows_run"] - before["rows_run"] == computed + num - 4
    assert after["steps"] - before["steps"] < 150 + 10, "not in the same steps"

    tree = terminal.tree()
    assert (tree["branch"], tree["head"]) == ("main", base["message"])
    assert terminal.json("switch", "2")["branch"] == "down-by-ten"
    assert terminal.texts()[-2:] == [("user", "down by ten"), ("assistant", bodies[1]["text"])]
    assert terminal.json("switch", "3")["head"] == bodies[2]["message"]
    answer = terminal.say("and on", "--max-tokens", "2")
    assert answer["usage"]["cached_input_tokens"] >= shared["tokens"]
    assert terminal.json("switch", "1")["branch"] is None  # a turn again


# -- a terminal that goes --------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["say very much", "/what-if 'say much' 'say more'"])
def test_a_terminal_that_hangs_up_ends_its_chat_and_what_came_is_kept(
    terminal: Shell, command: str
) -> None:
    """As ssh does when the line drops: the pty is closed, and the chat gets SIGHUP."""
    home = terminal.home
    env = {**terminal.env, "TERM": "xterm-256color"}
    with Terminal([*CHAT, "3000"], env, cwd=terminal.folder, rows=50) as chat:
        chat.wait_for("> ", PATIENCE)
        before = home.stats()["output_tokens"]
        chat.type(command + "\r")
        wait_until(lambda: chat._read(0.05) is not None and told(home, before))
    assert chat.child.ptyproc.signalstatus != signal.SIGKILL, "it had to be killed"
    home.assert_balanced()
    answers = [m for m in terminal.tree()["messages"] if m["role"] == "assistant"]
    assert len(answers) == (2 if "what-if" in command else 1)
    with home.store() as store:
        for message in answers:
            kept = store.message(message["id"])
            assert kept.finish_reason == "abort"
            assert (kept.out_len or 0) > 20


@pytest.fixture
def tmux(shared: Home) -> Iterator[list[str]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    command = ["tmux", "-S", str(shared.root / "t"), "-f", "/dev/null"]
    yield command
    subprocess.run([*command, "kill-server"], capture_output=True, check=False)


def test_an_answer_goes_on_in_a_tmux_that_was_left_and_is_kept_when_tmux_is_killed(
    shared: Home, tmux: list[str]
) -> None:
    env = env_of(shared, HOME=str(shared.root))

    def run(*words: str) -> str:
        done = subprocess.run([*tmux, *words], env=env, capture_output=True, text=True, check=True)
        return done.stdout

    chat = " ".join(f"'{word}'" for word in (*CHAT, "300"))
    start = ["new-session", "-x", "100", "-y", "40", "-c", str(shared.root), chat]
    with Terminal([*tmux, *start], env, rows=40, columns=100) as window:
        window.wait_for("> ", PATIENCE)
        before = shared.stats()["output_tokens"]
        window.type("say much\r")
        wait_until(lambda: window._read(0.05) is not None and told(shared, before))
        run("detach-client")
        window.wait_for("detached", PATIENCE)
        assert window.wait_end(PATIENCE) == 0
    # nobody looks, and it comes to its end, on the screen too
    wait_until(lambda: "main@" in run("capture-pane", "-p"))
    pane = run("list-panes", "-F", "#{pane_id}").strip()
    there = Shell(shared, pane.lstrip("%"), EXACT)
    assert there.call("log")["messages"][-1]["finish_reason"] == "length"

    run("send-keys", "/set max_tokens 3000", "Enter")
    wait_until(lambda: "3000" in run("capture-pane", "-p").partition("/set")[2])
    before = shared.stats()["output_tokens"]
    run("send-keys", "say very much", "Enter")
    wait_until(lambda: told(shared, before))
    run("kill-server")
    shared.assert_balanced()
    last = there.call("log")["messages"][-1]
    assert (last["role"], last["finish_reason"]) == ("assistant", "abort")
    assert len(last["text"]) > 20
