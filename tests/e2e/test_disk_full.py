"""PS-02 on a live daemon: from one moment on no file can be written, and then they can again.

The kernel itself refuses (a file size limit of 0 bytes, set from outside): the database, the
running files and the log alike.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from radchat.protocol import Event
from tests.e2e.conftest import EXACT
from tests.e2e.homes import Home, Shell, finish, spoken, until

pytestmark = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="the limits of another process: Linux only"
)
LIMIT = resource.RLIMIT_FSIZE


@contextmanager
def disk_full(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, LIMIT)
    resource.prlimit(pid, LIMIT, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, LIMIT, before)


def test_an_answer_is_shown_whole_on_a_full_disk_and_saved_when_there_is_room(
    terminal: Shell,
) -> None:
    home = terminal.home
    before = terminal.ask("before", "--new-session", f"full-{terminal.name}")
    session = before["session"]
    options = {"temperature": 0, "max_tokens": 200}
    with terminal.stream(
        text="and now?", dtype="fp32", session=session, new_session=False, options=options
    ) as events:
        seen = until(events, "delta", 3)
        with disk_full(home.pid):
            rest: list[Event] = []
            for event in events:
                rest.append(event)
                if event.name == "notice":
                    break
            assert rest[-1].data["code"] == "not_saved"
            assert "not saved yet" in rest[-1].data["text"]
            # commands that look work all the while; the question is there, its answer is not yet
            said = terminal.call("log", session=session)["messages"]
            assert [m["text"] for m in said[:2]] == ["before", before["text"]]
            assert said[2]["text"] == "and now?"
        seen += [*rest, *events]
    done = seen[-1].data["branches"][0]
    assert done["usage"]["output_tokens"] == 200
    assert spoken(seen) == done["text"] == terminal.texts(session=session)[-1][1]
    assert [event.data["code"] for event in seen if event.name == "notice"] == ["not_saved"]
    home.assert_balanced()
    assert os.listdir(home.places.running) == []  # noqa: PTH208


def test_a_turn_that_cannot_be_begun_is_refused_in_one_line_and_leaves_nothing(
    terminal: Shell,
) -> None:
    home = terminal.home
    before = terminal.ask("before", "--new-session", f"none-{terminal.name}")
    with disk_full(home.pid):
        refused = terminal("ask", "-r", before["session"], "and now?", *EXACT, code=1)
        assert refused.out == ""
        assert len(refused.err.strip().splitlines()) == 1
        assert "radchat.db" in refused.err
        new = terminal("ask", "something else", *EXACT, code=1)
        assert new.out == ""
        assert "Traceback" not in new.err
        terminal("sessions", "ls")
    assert [text for _, text in terminal.texts(session=before["session"])] == [
        "before", before["text"]
    ]  # fmt: skip
    after = terminal.ask("and now?", "-r", before["session"])
    assert after["session"] == before["session"]
    home.assert_balanced()


def test_a_daemon_that_cannot_write_its_files_does_not_start_and_says_why(
    shell: Shell, home: Home
) -> None:
    def nothing_may_be_written() -> None:
        resource.setrlimit(LIMIT, (0, resource.getrlimit(LIMIT)[1]))

    asking = shell.start("ask", "hello", *EXACT, preexec_fn=nothing_may_be_written)
    done = finish(asking)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"error: {home.places.lock} can't be written: File too large\n"
    assert not home.is_up
    assert shell.ask("hello")["usage"]["output_tokens"] == 8


def test_a_log_that_cannot_be_written_costs_its_lines_and_no_answer(
    terminal: Shell,
) -> None:
    home = terminal.home
    with terminal.stream(text="say much", dtype="fp32") as events:
        until(events, "delta", 3)
        with disk_full(home.pid):
            size = home.places.log.stat().st_size
            until(events, "delta", 20)  # the running file cannot be written: a warning for the log
            assert home.places.log.stat().st_size == size
    home.assert_balanced()
    terminal("models", "stop")
    wait = home.log()[size:]
    assert "unloaded" in wait
    assert terminal.ask("hello")["usage"]["output_tokens"] == 8
