"""Time that passes otherwise than one thinks: stopped processes, clocks that jump, a sleep.

Nothing expires in mid-answer, and nobody gives up on one that is only slow.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from radchat.client import PATIENCE, Client
from radchat.daemon.lock import is_suspended
from radchat.errors import Busy
from radchat.stop import stop_daemon
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Shell, finish, spoken, until
from tests.e2e.hooked import Hooked
from tests.waiting import wait_until

LOOKS_S = 1.3  # the daemon looks at its clocks once a second: it has looked


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_suspended(pid))
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_daemon_stopped_while_it_loads_and_in_mid_answer_goes_on(homes: Homes) -> None:
    """For longer than its model is kept and than it stays idle."""
    home = homes(RADCHAT_KEEP_ALIVE="1s", RADCHAT_IDLE_EXIT="1s")
    shell = Shell(home, "1", EXACT)
    asking = shell.start("ask", "hello", *EXACT, "--max-tokens", "300", "--json")
    wait_until(lambda: home.is_up and home.status()["state"] == "loading")
    pid = home.pid
    with stopped(pid):
        time.sleep(1.2)
        assert asking.poll() is None
    wait_until(lambda: home.status()["running"] == 1)
    with stopped(pid):
        time.sleep(1.2)
        assert asking.poll() is None
    done = finish(asking)
    assert (done.code, done.err) == (
        0,
        "cut off after 300 tokens: radchat continue goes on with it\n",
    )
    assert done.json["usage"]["output_tokens"] == 300
    assert shell.texts()[-1] == ("assistant", done.json["text"])


def test_a_command_stopped_in_mid_answer_misses_no_word(terminal: Shell) -> None:
    """Ctrl+Z, a coffee, fg."""
    home = terminal.home
    asking = terminal.start("ask", "say much", *EXACT, "--max-tokens", "400")
    assert asking.stdout is not None
    first = asking.stdout.read(3)
    with stopped(asking.pid):
        wait_until(lambda: home.status()["answers"] == 0)
    done = finish(asking)
    assert done.code == 0, done
    last = terminal.json("log")["messages"][-1]
    assert last["finish_reason"] == "length"
    assert (first + done.out).rstrip("\n") == last["text"]


def test_a_daemon_that_is_stopped_is_named_with_what_wakes_it(terminal: Shell) -> None:
    home = terminal.home
    pid = home.pid
    client = Client.connect(home.places, start=False)
    with stopped(pid):
        assert f"(pid {pid}) is suspended: kill -CONT {pid}" in client.silence()
    assert "radchat daemon stop --force" in client.silence()


def test_a_stop_in_a_long_step_takes_a_bounded_time_and_keeps_what_was_shown(
    hooked: Hooked,
) -> None:
    session = hooked.ask("before", new_session=True)["session"]
    hooked.hold("words")
    with hooked.stream("say much", 3500, session=session) as events:
        seen = until(events, "delta")
        client = hooked.client()
        tree = client.call("tree", where=hooked.where, session=session)
        assert len(tree["messages"]) == 4 - 1  # the answer is none yet
        with pytest.raises(Busy, match="in one step for"):
            client.call("tree", where=hooked.where, session=session, show_cache=True)
        begin = time.monotonic()
        assert stop_daemon(hooked.home.places)
        assert time.monotonic() - begin < PATIENCE / 2  # of whoever stops it
        with pytest.raises(Busy):
            seen += events
    hooked.release()
    log = hooked.client().call("log", where=hooked.where, session=session)["messages"]
    assert (log[-1]["finish_reason"], log[-1]["text"]) == ("abort", spoken(seen))


def test_clocks_that_jump_end_no_answer_and_age_only_what_is_idle(hooked: Hooked) -> None:
    home = hooked.home
    first = hooked.ask("before", new_session=True)
    session, pid = first["session"], home.pid
    hooked.hold("words")
    with hooked.stream("say much", 3500, session=session) as events:
        seen = until(events, "delta")
        for awake, wall in ((8.0, 8.0), (8.0, -8.0)):
            hooked.set(awake_h=awake, wall_h=wall)
            time.sleep(LOOKS_S)
            assert (home.pid, hooked.model(), home.status()["answers"]) == (pid, "tiny", 1)
        request = next(event for event in seen if event.name == "init").data["request"]
        assert hooked.client().call("cancel", request=request) == {"cancelled": True}
        hooked.release()
        seen += events
    answer = seen[-1].data["branches"][0]
    assert (answer["finish_reason"], answer["text"]) == ("abort", spoken(seen))
    time.sleep(LOOKS_S)  # it was used just now, whatever the clock said when it began
    assert (home.pid, hooked.model()) == (pid, "tiny")
    # hours back on the wall: what came last still comes last
    log = hooked.client().call("log", where=hooked.where, session=None)
    assert log["session"] == session
    assert [m["role"] for m in log["messages"]] == ["user", "assistant"] * 2
    assert hooked.ask("after", session=session)["parent"] is not None
    home.assert_balanced()


def test_a_laptops_sleep_ends_nothing_and_time_awake_does(hooked: Hooked) -> None:
    """Eight hours pass on the wall and none awake: the model and its cache are still there."""
    home = hooked.home
    first = hooked.ask("good night", new_session=True)
    pid = home.pid
    hooked.set(wall_h=8.0)
    time.sleep(LOOKS_S)
    assert (home.pid, hooked.model()) == (pid, "tiny")
    morning = hooked.ask("good morning", session=first["session"])
    assert morning["usage"]["cached_input_tokens"] > 0
    hooked.set(wall_h=8.0, awake_h=0.4)
    time.sleep(LOOKS_S)
    assert hooked.model() == "tiny"
    hooked.set(wall_h=8.0, awake_h=0.6)
    wait_until(lambda: hooked.model() is None)
    assert home.pid == pid
    hooked.set(wall_h=8.0, awake_h=8.0)
    wait_until(lambda: not home.is_up)
    assert "idle for" in home.log()
    assert hooked.ask("again", session=first["session"])["session"] == first["session"]
