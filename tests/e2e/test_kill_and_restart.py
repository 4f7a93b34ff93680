"""The daemon dies, or its folders do: what was shown is there, and the next command works."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

from radchat.errors import RadchatError
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, finish, is_daemon, spoken, until
from tests.waiting import alive, wait_until


@pytest.mark.parametrize("words", [1, 40])
def test_a_killed_daemon_loses_nothing_that_was_shown(shell: Shell, home: Home, words: int) -> None:
    """Promise 6, at the spine's level: kill -9 in mid-answer."""
    first = shell.ask("before")
    events = shell.stream(
        text="tell me more", new_session=False, dtype="fp32", options={"temperature": 0}
    )
    seen = until(events, "delta", words)
    home.kill()
    with pytest.raises(RadchatError, match="ended in the middle"):
        seen.extend(events)  # whatever was on its way
        raise AssertionError
    shown = spoken(seen)
    said = shell.json("log")["messages"]
    assert [m["id"] for m in said[:2]] == [m["id"] for m in shell.json("log", "2")["messages"][:2]]
    assert said[1]["id"] == first["message"]
    assert (said[2]["role"], said[2]["text"]) == ("user", "tell me more")
    assert said[3]["finish_reason"] == "abort"
    assert said[3]["text"].startswith(shown)
    kept = said[3]["id"]
    after = shell.say("and now?")
    ids = home.ids(after["message"])
    assert ids[: len(home.ids(kept))] == home.ids(kept)
    home.assert_balanced()


def test_a_daemon_killed_while_it_loads_or_reads_a_prompt_costs_only_that(
    shell: Shell, home: Home
) -> None:
    shell("sessions", "ls")
    asking = shell.start("ask", "hello", *EXACT)
    wait_until(lambda: home.status()["state"] == "loading")
    home.kill()
    done = finish(asking)
    assert done.code == 69, done
    assert "Traceback" not in done.err
    assert shell.num_sessions() == 0
    shell("models", "load", "tiny", "--dtype", "fp32")
    events = shell.stream(text="word " * 600, dtype="fp32")
    until(events, "start")  # 3,000 tokens to read, of which none is shown yet
    home.kill()
    events.close()
    said = shell.texts()
    assert said[0] == ("user", "word " * 600)
    answer = shell.json("retry", *EXACT)["branches"][0]
    assert answer["usage"]["output_tokens"] == 8
    home.assert_balanced()


def test_continue_goes_on_where_a_killed_daemon_ended(shell: Shell, home: Home) -> None:
    events = shell.stream(text="tell me", dtype="fp32", options={"temperature": 0})
    until(events, "delta", 10)
    home.kill()
    events.close()
    cut = shell.json("log")["messages"][-1]
    num = len(home.out_ids(cut["id"])) + 20  # however far it came
    rest = shell.json("continue", *EXACT, "--max-tokens", "20")
    whole = shell.ask("tell me", "--max-tokens", str(num))
    assert len(home.out_ids(rest["message"])) == num
    assert home.out_ids(rest["message"]) == home.out_ids(whole["message"])
    assert rest["text"] == whole["text"]


def test_a_runtime_folder_deleted_under_a_live_daemon_is_made_again(
    shell: Shell, home: Home
) -> None:
    shell.ask("hello")
    pid = home.pid
    events = shell.stream(text="meanwhile", new_session=False, dtype="fp32")
    until(events, "delta", 3)
    run = home.places.run
    assert run is not None
    shutil.rmtree(run)
    until(events, "delta", 3)  # a chat that talks goes on talking
    events.close()
    wait_until(run.exists)
    assert shell.say("still there?")["usage"]["cached_input_tokens"] > 0
    assert home.pid == pid


def test_state_and_data_deleted_under_a_chat_are_put_back(shell: Shell, home: Home) -> None:
    """PS-07"""
    first = shell.ask("remember this")
    events = shell.stream(text="and go on", new_session=False, dtype="fp32")
    until(events, "delta", 3)
    shutil.rmtree(home.places.state)
    home.places.database.unlink()
    until(events, "delta", 3)
    events.close()
    home.assert_balanced()
    texts = shell.texts()
    assert texts[0] == ("user", "remember this")
    assert texts[2] == ("user", "and go on")
    assert shell.say("and then?")["session"] == first["session"]
    shell("daemon", "restart")
    assert shell.texts()[: len(texts)] == texts


def test_one_home_is_one_home_with_and_without_a_runtime_folder(homes: Homes) -> None:
    """Clients find the socket in the lock file, whoever started the daemon."""
    home = homes()
    root = home.root
    places = {
        "RADCHAT_DATA_DIR": str(home.places.data),
        "RADCHAT_STATE_DIR": str(home.places.state),
        "RADCHAT_CACHE_DIR": str(home.places.cache),
        "RADCHAT_CONFIG": str(home.places.config),
    }
    bare = {k: v for k, v in home.env.items() if k != "RADCHAT_HOME"} | places
    (root / "xdg").mkdir(mode=0o700)
    one, two = Shell(home, "1", EXACT), Shell(home, "2", EXACT)
    one.env = {**bare, "TMUX_PANE": "%1"}
    two.env = {**bare, "TMUX_PANE": "%2", "XDG_RUNTIME_DIR": str(root / "xdg")}
    first = one.ask("from without")
    pid = one.json("daemon", "status")["pid"]
    assert two.json("daemon", "status")["pid"] == pid
    assert [s["id"] for s in two.json("sessions", "ls")["sessions"]] == [first["session"]]
    assert two.ask("x", "-r", first["session"])["session"] == first["session"]
    one("daemon", "stop")
    assert not home.is_up


def test_a_second_daemon_is_refused_and_the_first_goes_on(shell: Shell, home: Home) -> None:
    shell("daemon", "start")
    pid = home.pid
    refused = shell("daemon", "start", "--foreground", code=75)
    assert str(pid) in refused.err
    assert "already running" in shell("daemon", "start").err
    assert shell.json("daemon", "status")["pid"] == pid
    assert shell("daemon", "stop").err == "stopped\n"
    assert shell("daemon", "stop").err == "not running\n"
    assert not alive(pid)


def test_a_pipe_of_two_first_commands_starts_one_daemon(shell: Shell, home: Home) -> None:
    """`radchat ask A | radchat ask B`, from cold"""
    first = shell.start("ask", "say a thing", *EXACT, "--max-tokens", "12")
    second = shell.start("ask", "what of it?", *EXACT, "--json", stdin=first.stdout)
    assert first.stdout is not None
    first.stdout.close()
    done = finish(second)
    assert done.code == 0, done
    assert first.wait() == 0
    said = [m["text"] for m in shell.json("log", "--session", done.json["session"])["messages"]]
    answers = [
        m["text"]
        for s in shell.json("sessions", "ls")["sessions"]
        if s["id"] != done.json["session"]
        for m in shell.json("log", "--session", s["id"])["messages"]
        if m["role"] == "assistant"
    ]
    assert said[0] == f"{answers[0]}\n\nwhat of it?"
    assert home.log().count("listening at") == 1


def test_without_a_terminal_and_with_an_open_idle_stdin_it_answers(
    shell: Shell, home: Home
) -> None:
    del shell.env["TMUX_PANE"]
    silent = shell.start(
        "ask", "hello", *EXACT, "--stdin-timeout", "0.5", stdin=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert silent.stderr is not None
    assert "--no-stdin" in silent.stderr.read()
    assert silent.wait() == 42
    for options in ({"stdin": subprocess.DEVNULL}, {"stdin": subprocess.PIPE}):
        asking = shell.start(
            "ask", "hello", "--no-stdin", *EXACT, start_new_session=True, **options
        )
        assert asking.stdout is not None
        assert asking.stdout.read().strip()
        assert asking.wait() == 0
    done = shell("ask", *EXACT, "--json", stdin="only piped\n")
    assert shell.json("log", "--session", done.json["session"])["messages"][0]["text"] == (
        "only piped"
    )
    assert shell("ask", stdin="", code=42).out == ""
    home.assert_balanced()


def test_without_a_daemon_of_its_own_a_command_has_one_and_takes_it_along(
    shell: Shell, home: Home
) -> None:
    alone = {"RADCHAT_NO_DAEMON": "1"}
    first = shell.ask("hello", **alone)
    assert not home.is_up
    second = shell.say("and on", **alone)
    assert second["session"] == first["session"]
    assert [r for r, _ in shell.texts()] == ["user", "assistant"] * 2  # starts a lasting one
    refused = shell("ask", "hello", *EXACT, code=75, **alone)
    assert "RADCHAT_NO_DAEMON" in refused.err
    shell("daemon", "stop")
    asking = shell.start("ask", "much", *EXACT, "--max-tokens", "3000", env=alone)
    assert asking.stdout is not None
    asking.stdout.read(3)
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    wait_until(lambda: not home.is_up)
    assert shell.json("log")["messages"][-1]["finish_reason"] == "abort"


def test_an_idle_model_is_unloaded_and_an_idle_daemon_ends(homes: Homes) -> None:
    home = homes(RADCHAT_KEEP_ALIVE="1s", RADCHAT_IDLE_EXIT="3s")
    shell = Shell(home, "1", EXACT)
    first = shell.ask("hello")
    pid = home.pid
    wait_until(lambda: not home.is_up or home.status()["model"] is None)
    wait_until(lambda: not home.is_up)
    assert not alive(pid)
    after = shell.say("again")
    assert after["session"] == first["session"]
    assert after["cache"]["device"] == 0
    assert after["cache"]["disk"] == after["usage"]["cached_input_tokens"] > 0


def test_the_daemon_is_a_process_of_its_own_that_outlives_the_command(
    shell: Shell, home: Home
) -> None:
    """And `is_daemon`, by which these tests end what is left, knows one."""
    shell("daemon", "start")
    assert is_daemon(home.pid)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_daemon(other.pid)
    finally:
        other.communicate(b"\n")
