"""Several chats at once that write KV as fast as they can, until their daemon is killed.

Each is a thread with a session of its own: turns, forks and votes, evicting and saving, in random
order. ``told`` is what a daemon has said is done: it must be there ever after.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from radchat.client import Client
from radchat.errors import Unreachable
from tests.e2e.homes import Home
from tests.waiting import wait_until

CHATS = 3
WORDS = ("the sea ", "a green book ", "weather, and more of it ", "the lamp at six ")
ENOUGH = 1200  # tokens of a session: then another
OTHERS = 80  # tokens of a turn besides those that were typed, at most


@dataclass(frozen=True)
class Told:
    """A turn that has ended."""

    session: str
    user: str
    message: str
    asked: str
    answered: str


class Chat:
    """One thread's session."""

    def __init__(self, home: Home, number: int, seed: int) -> None:
        self.home, self.number = home, number
        self.random = random.Random(f"{seed}.{number}")
        self.where = {"terminal": f"%busy{number}", "folder": str(home.root)}
        self.session: str | None = None
        self.told: list[Told] = []
        self._num_tokens = 0  # of all turns of the session, those too that were cut short
        self._client: Client | None = None

    def live(self) -> None:
        """Until the daemon is gone."""
        steps = {
            self.turn: 6,
            self.fork: 3,
            self.vote: 1,
            self.save: 3,
            self.evict: 2,
        }
        try:
            self._client = Client.connect(self.home.places, start=False)
            while True:
                self.random.choices(list(steps), list(steps.values()))[0]()
        except Unreachable:
            return

    def turn(self) -> None:
        self._generate(text=self._words())

    def fork(self) -> None:
        mine = [told for told in self.told if told.session == self.session]
        at = {"at": self.random.choice(mine).message} if mine else {}
        self._generate(text=self._words(), **at)

    def vote(self) -> None:
        if self.session is not None:
            options = {"temperature": 1, "seed": 7, "max_tokens": 20}
            for _ in self._stream("generate", kind="retry", n=4, options=options):
                pass

    def save(self) -> None:
        if self.session is not None:
            for _ in self._stream("cache.save"):
                pass

    def evict(self) -> None:
        assert self._client is not None
        tokens = self.random.choice((64, 300, 1000))
        self._client.call("cache.evict", where=self.where, tokens=tokens)

    def _words(self) -> str:
        return "".join(self.random.choices(WORDS, k=self.random.choice((1, 8, 30))))

    def _generate(self, text: str, **args: Any) -> None:
        if self._num_tokens > ENOUGH:
            self.session, self._num_tokens, args = None, 0, {}
        self._num_tokens += len(text) + OTHERS
        options = {"temperature": 0, "max_tokens": self.random.choice((4, 12, 40))}
        *_, done = self._stream("generate", text=text, options=options, **args)
        assert done.name == "done", done
        self.session = done.data["session"]
        answer = done.data["branches"][0]
        self.told.append(
            Told(self.session, answer["parent"], answer["message"], text, answer["text"])
        )

    def _stream(self, method: str, **args: Any) -> Any:
        if method == "generate":
            args = {"dtype": "fp32", "new_session": self.session is None, **args}
        assert self._client is not None
        with self._client.stream(method, where=self.where, session=self.session, **args) as events:
            yield from events


class Busy:
    """A home of chats, over as many daemons as it takes."""

    def __init__(self, home: Home, seed: int) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.chats = [Chat(home, number, seed) for number in range(CHATS)]

    @property
    def told(self) -> list[Told]:
        return [told for chat in self.chats for told in chat.told]

    def client(self) -> Client:
        client = Client.connect(self.home.places)
        self.home.pids.add(self.home.pid)
        return client

    def until_killed(self, moments: Callable[[random.Random], float]) -> None:
        """All at once, and SIGKILL so many seconds after the first answer there is."""
        self.client()
        before = len(self.told)
        with ThreadPoolExecutor(CHATS) as pool:
            living = [pool.submit(chat.live) for chat in self.chats]
            wait_until(lambda: len(self.told) > before or any(each.done() for each in living))
            time.sleep(moments(self.random))
            self.home.kill()
            for each in living:
                each.result()
