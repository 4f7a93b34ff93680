"""Ctrl+C in a turn, without a terminal: a signal to this very process."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.chat.turn import LAST_WORDS_S, run_turn
from radchat.chat.view import Answer, View
from radchat.client import Client
from radchat.errors import ModelBroken
from radchat.paths import Places
from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.trees import long
from tests.waiting import wait_until

Turn = Callable[..., tuple[Answer, bool]]
PAYLOAD: dict[str, Any] = {"where": {"terminal": None, "folder": "/"}, "text": "hi"}


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def view(shown: io.StringIO) -> View:
    return View(out=shown, err=io.StringIO(), note=lambda text: None, status=lambda text: None)


@pytest.fixture
def turn(daemon: FakeDaemon, tmp_path: Path, view: View) -> Iterator[Turn]:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path)})
    client = Client.connect(places, daemon_socket=daemon.path)
    before = signal.getsignal(signal.SIGINT)
    yield lambda **more: run_turn(client, PAYLOAD, view, **more)
    assert signal.getsignal(signal.SIGINT) is before


def interrupted(
    daemon: FakeDaemon, shown: io.StringIO, *, listens: bool
) -> Callable[[dict[str, Any]], Any]:
    """An answer that gets a SIGINT after its third piece, and may listen to the cancel."""
    cancelled = threading.Event()

    def on_cancel(args: dict[str, Any]) -> dict[str, Any]:
        cancelled.set()
        return {"cancelled": True}

    def pieces() -> Iterator[str]:
        yield from ("one ", "two ", "three ")
        wait_until(lambda: "three " in shown.getvalue())
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (listens and cancelled.is_set()):
            time.sleep(0.01)
            yield "."

    daemon.script["cancel"] = on_cancel
    return lambda args: answer_events(pieces(), message=long("abcd"), finish_reason="abort")


def test_a_turn_that_is_left_alone_ends_by_itself(turn: Turn, shown: io.StringIO) -> None:
    answer, cancelled = turn()
    assert not cancelled
    assert shown.getvalue() == "Hello world\n"
    assert answer.head == {"branch": "main", "message": long("d9f1")}


def test_a_cancelled_answer_is_listened_to_until_it_says_how_it_ended(
    turn: Turn, daemon: FakeDaemon, shown: io.StringIO
) -> None:
    daemon.script["generate"] = interrupted(daemon, shown, listens=True)
    answer, cancelled = turn(last_words_s=30.0)
    assert cancelled
    assert answer.done["branches"][0]["finish_reason"] == "abort"
    assert daemon.asked("cancel") == [{"request": "r1"}]
    assert daemon.cancelled == []
    assert shown.getvalue().startswith("one two three ")
    assert shown.getvalue().endswith(".\n")


def test_one_that_does_not_listen_is_hung_up_on_and_its_part_is_the_head(
    turn: Turn, daemon: FakeDaemon, shown: io.StringIO
) -> None:
    daemon.script["generate"] = interrupted(daemon, shown, listens=False)
    answer, cancelled = turn()
    assert cancelled
    assert answer.done == {}  # it would have come in the end
    assert answer.head == {"branch": "main", "message": long("abcd")}
    assert shown.getvalue().startswith("one two three ")
    assert daemon.noticed_cancel.wait(60)


def test_before_any_word_the_head_is_the_message_that_was_said(
    turn: Turn, daemon: FakeDaemon, view: View
) -> None:
    def silent(args: dict[str, Any]) -> Iterator[Event]:
        yield next(iter(answer_events([])))
        wait_until(lambda: view.answer.init)
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)
            yield Event("progress", {"stage": "extend", "done": 1, "total": 9})

    daemon.script["generate"] = silent
    answer, cancelled = turn()
    assert cancelled
    assert answer.head == {"branch": "main", "message": long("c2aa")}


def test_an_error_of_the_answer_is_raised_and_the_words_so_far_are_kept(
    turn: Turn, daemon: FakeDaemon, shown: io.StringIO
) -> None:
    def broken(args: dict[str, Any]) -> Iterator[Event]:
        events = iter(answer_events(["a", "b"]))
        yield from (next(events) for _ in range(3))
        yield Event("error", ModelBroken("weights are broken").to_json())

    daemon.script["generate"] = broken
    with pytest.raises(ModelBroken, match="weights are broken"):
        turn()
    assert shown.getvalue() == "a\n"


class Slow:
    """A daemon that is interrupted before it says anything, and asked to cancel; ``begins``: too
    late, the turn is there.
    """

    def __init__(self, daemon: FakeDaemon, *, begins: bool, says_where: bool) -> None:
        self._begins, self._says_where, self._daemon = begins, says_where, daemon
        self._told = threading.Event()
        daemon.script |= {"generate": self._generate, "cancel": self._cancel}

    def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        mine = self._daemon.asked("generate")[0]["request"]
        if args["request"] == mine and len(self._daemon.asked("cancel")) > 1:  # at first unknown
            self._told.set()
        return {"cancelled": self._told.is_set()}

    def _generate(self, args: dict[str, Any]) -> Iterator[Event]:
        if self._says_where:
            return self._events()
        os.kill(os.getpid(), signal.SIGINT)  # not even the head of the answer has come
        self._told.wait(60)
        return self._events()

    def _events(self) -> Iterator[Event]:
        if self._says_where:
            yield Event("progress", {"stage": "queue", "done": 0, "total": 0, "text": "in line"})
            os.kill(os.getpid(), signal.SIGINT)
        assert self._told.wait(60)
        if self._begins:
            time.sleep(4 * LAST_WORDS_S)  # a disk takes its time
            yield next(iter(answer_events([])))
            while not self._daemon.noticed_cancel.is_set():
                yield Event("progress", {"stage": "extend", "done": 1, "total": 9})


@pytest.mark.parametrize("says_where", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_before_anything_is_heard_the_daemon_says_whether_the_turn_has_begun(
    turn: Turn, daemon: FakeDaemon, begins: bool, says_where: bool
) -> None:
    Slow(daemon, begins=begins, says_where=says_where)
    answer, cancelled = turn()
    assert cancelled
    assert answer.head == ({"branch": "main", "message": long("c2aa")} if begins else None)
    assert len(daemon.asked("generate")) == 1


def test_a_daemon_that_is_gone_is_not_waited_for(turn: Turn, daemon: FakeDaemon) -> None:
    """It goes while the request is on its way, and none can be asked what came of it."""
    gone = threading.Event()

    def generate(args: dict[str, Any]) -> Iterator[Event]:
        daemon.path.unlink()
        os.kill(os.getpid(), signal.SIGINT)
        gone.wait(60)
        return iter(())

    daemon.script["generate"] = generate
    try:
        with pytest.raises(KeyboardInterrupt):
            turn()
    finally:
        gone.set()
