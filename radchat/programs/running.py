"""One run of a program: the open program it asks, its states, and how all of it ends."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from radchat.errors import RadchatError
from radchat.programs.errors import Cancelled, ProgramError
from radchat.programs.remote import EMPTY, Remote, Settings

if TYPE_CHECKING:
    from radchat.programs.lane import Lane

MOST_AT_ONCE = 128  # calls under way: each is a connection
current: ContextVar[Running | None] = ContextVar("program", default=None)


class Running:
    """What all states of a run share."""

    def __init__(
        self, remote: Remote, settings: Settings, *, slots: threading.Semaphore | None = None
    ) -> None:
        self.remote, self.settings = remote, settings
        self.slots = slots or threading.BoundedSemaphore(MOST_AT_ONCE)
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._numbers: list[int] = []
        self._streams: list[Callable[[], None]] = []
        self._given_up: ProgramError | None = None
        self.ended: ProgramError | None = None

    def begin(self) -> int:
        """A state in which nothing is said."""
        numbers: list[int] = list(self.remote.fork(EMPTY, 1)["states"])
        self.hold(numbers)
        return numbers[0]

    def add(self, lane: Lane) -> None:
        with self._lock:
            self._lanes.append(lane)
            error = self._given_up
        if error is not None:
            lane.end(error)

    def hold(self, numbers: list[int]) -> None:
        """States of the daemon's, until the run ends."""
        with self._lock:
            self._numbers += numbers

    @contextlib.contextmanager
    def streams(self) -> Iterator[Callable[[Callable[[], None]], None]]:
        """Takes what closes a stream; giving up closes it, until the end of the block."""
        held: list[Callable[[], None]] = []

        def hold_stream(close: Callable[[], None]) -> None:
            with self._lock:
                self._streams.append(close)
                held.append(close)
                is_late = self._given_up is not None
            if is_late:
                close()

        try:
            yield hold_stream
        finally:
            with self._lock:
                for close in held:
                    self._streams.remove(close)

    def wait(self) -> None:
        """Until no state has anything left to do."""
        at = 0
        while at < len(self._lanes):  # a lane may make others
            self._lanes[at].wait()
            at += 1

    def untold(self) -> list[ProgramError]:
        """What branches failed with, and nobody read."""
        found: list[ProgramError] = []
        for lane in self._lanes:
            if lane.error is not None and not lane.error.is_told and lane.error not in found:
                found.append(lane.error)
        return found

    def give_up(self, why: str) -> None:
        """Nothing more is begun, what streams is ended, and who waits is told. Waits for none."""
        error = Cancelled(why)
        with self._lock:
            self._given_up = self._given_up or error
            lanes, streams = list(self._lanes), list(self._streams)
        for lane in lanes:
            lane.end(error)
        for close in streams:
            close()

    def end(self) -> None:
        """The states are forgotten: what is read from now on is what there is here."""
        self.ended = Cancelled("the program has ended: its state can be read, not gone on with")
        for lane in self._lanes:
            lane.end(self.ended)
        self.forget()

    def forget(self) -> None:
        """The daemon forgets its states, and ends what runs for them."""
        with contextlib.suppress(RadchatError, OSError):
            self.remote.drop(self._numbers)

    def seed(self, path: str, number: int) -> int | None:
        """Of one generation: the same whatever else runs, and in which order."""
        seed = self.settings.options.get("seed")
        if seed is None:
            return None
        digest = hashlib.blake2b(f"{seed} {path} {number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1
