"""Promise 6: `kill -9` at any moment costs at most the unfinished token.

The daemon dies in the very instant that is named: while it loads, reads a prompt, answers, commits.
Twice each here, ten times each in the slow run. What follows is one chat over all its deaths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radchat.client import Client
from radchat.errors import Unreachable
from radchat.protocol import Event
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, spoken
from tests.e2e.hooked_daemon import MOMENTS
from tests.waiting import wait_until

HOOKED = Path(__file__).with_name("hooked_daemon.py")
OPTIONS = {"temperature": 0, "max_tokens": 24}
LONG = "word " * 400  # read in four steps, by each next daemon anew


def places_to_die(phase: str, times: int) -> list[str]:
    """Of each moment of the phase in turn, the first, then the second …; ``load`` has four of one
    and one of the other.
    """
    moments = MOMENTS[phase]
    if phase == "load":
        every = [f"{moments[0]} {n}" for n in (1, 2, 3)] + [f"{moments[1]} 1"]
        return [every[(3 + number) % len(every)] for number in range(times)]
    if phase == "prefill":
        return [f"{moments[0]} {1 + number % 3}" for number in range(times)]
    if phase == "commit":  # an answer has one of each
        return [f"{moments[(2 + number) % len(moments)]} 1" for number in range(times)]
    return [f"{moments[n % len(moments)]} {1 + n // len(moments)}" for n in range(times)]


class Chat:
    """One session, over as many daemons as it takes; ``said`` is all that must be in it."""

    def __init__(self, home: Home, hooks: Path) -> None:
        self.home, self.hooks = home, hooks
        self.command = (sys.executable, "-P", str(HOOKED), str(hooks))
        self.where = {"terminal": "%kills", "folder": str(home.root)}
        self.session: str | None = None
        self.said: list[tuple[str, str]] = []

    def client(self) -> Client:
        client = Client.connect(self.home.places, command=self.command)
        self.home.pids.add(self.home.pid)
        return client

    def ask(self, text: str, *, hear: Callable[[Event], None]) -> None:
        asked = {"text": text, "dtype": "fp32", "options": OPTIONS, "where": self.where}
        new = self.session is None
        with self.client().stream(
            "generate", **asked, session=self.session, new_session=new
        ) as events:
            for event in events:
                hear(event)

    def log(self) -> list[tuple[str, str]]:
        """What a next command finds."""
        log = self.client().call("log", where=self.where, session=self.session)
        return [(message["role"], message["text"]) for message in log["messages"]]

    def talk(self, text: str) -> None:
        """A turn with nobody in its way."""
        seen: list[Event] = []
        self.ask(text, hear=seen.append)
        done = seen[-1].data
        self.session = done["session"]
        answer = done["branches"][0]
        assert answer["usage"]["output_tokens"] == OPTIONS["max_tokens"]
        assert answer["text"] == spoken(seen)
        self.said += [("user", text), ("assistant", answer["text"])]
        assert self.log() == self.said

    def die(self, text: str, where: str) -> None:
        """A turn that the daemon dies of; then all that was shown is there."""
        self.client()
        pid = self.home.pid
        (self.hooks / "die").write_text(where)
        seen: list[Event] = []
        with pytest.raises(Unreachable, match=r"ended (in the middle of the|before it) answer"):
            self.ask(text, hear=seen.append)
        wait_until(lambda: not self.home.is_up)
        assert not (self.hooks / "die").exists()
        found = self.log()
        assert self.home.pid != pid
        assert found[: len(self.said)] == self.said
        turn, shown = found[len(self.said) :], spoken(seen)
        names = [event.name for event in seen]
        if "init" in names:  # the turn was shown to have begun
            assert turn[0] == ("user", text)
        else:
            assert turn in ([], [("user", text)])
        if shown:
            assert turn[1][0] == "assistant"
            assert turn[1][1].startswith(shown)
        assert len(turn) <= 2
        self.said = found
        with self.home.store() as store:
            assert store.verify() == []


@pytest.fixture
def chat(homes: Homes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Chat]:
    # what is not cached is computed: prompts have steps to die in
    home = homes(RADCHAT_KV_DEVICE="8192tok", RADCHAT_PERSIST="off")
    for name, value in home.env.items():  # of the daemons that this process starts
        monkeypatch.setenv(name, value)
    yield Chat(home, tmp_path)
    home.stop()


@pytest.mark.parametrize(
    "times", [2, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_whenever_the_daemon_is_killed_nothing_shown_is_lost_and_the_next_command_works(
    chat: Chat, times: int
) -> None:
    chat.talk(LONG)
    chat.home.stop()
    for phase in MOMENTS:
        for number, where in enumerate(places_to_die(phase, times)):
            chat.die(f"{phase} {number}", where)
        chat.talk(f"after all of {phase}")
        chat.client().call("cache.clear")
    chat.home.assert_balanced()
    chat.home.stop()
    shell = Shell(chat.home, "kills", EXACT)
    log = shell.json("log", "--session", str(chat.session))["messages"]
    assert [(m["role"], m["text"]) for m in log] == chat.said
    reasons = {m["finish_reason"] for m in log if m["role"] == "assistant"}
    assert reasons == {"abort", "length"}
    left = os.listdir(chat.home.places.running)  # noqa: PTH208
    assert left == []


def test_every_phase_has_two_places_to_die_that_come_to_pass() -> None:
    for phase in MOMENTS:
        assert len(set(places_to_die(phase, 2))) == 2
    commits = {place.rpartition(" ")[0] for place in places_to_die("commit", 10)}
    assert commits == set(MOMENTS["commit"])
