"""Which messages are pinned, and until when.

A pin is a label in its session, so it outlives the daemon: its value is the end of it on the wall
clock, in seconds since the epoch. While the daemon lives an end is kept on the clock since boot,
sleep included: "for 24 hours" is a promise about days, and no change of the wall clock moves it.
What a pin does is the engine's (engine/pins.py); the book tells each engine that is loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from radchat_sessions.store import Store

log = logging.getLogger(__name__)

Key = tuple[str, str]  # session, message


def boot_time() -> float:
    """Seconds since boot, those of a sleep among them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class Entry:
    session: str
    message: str
    until: float  # on the book's clock
    is_ephemeral: bool

    @property
    def name(self) -> str:
        """What the engine calls it."""
        return f"{self.session}:{self.message}"


class PinBook:
    """Used on the event loop, but for ``read``."""

    def __init__(
        self,
        clock: Callable[[], float] = boot_time,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._entries: dict[Key, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        """The last to end first."""
        return iter(sorted(self._entries.values(), key=lambda entry: -entry.until))

    def now(self) -> float:
        return self._clock()

    def left_s(self, entry: Entry) -> float:
        return max(0.0, entry.until - self._clock())

    def label(self, entry: Entry) -> str:
        """The value of its label."""
        return f"{self._wall_clock() + entry.until - self._clock():.0f}"

    def of(self, session: str) -> dict[str, Entry]:
        """The pins of a session, by message."""
        return {
            entry.message: entry for entry in self._entries.values() if entry.session == session
        }

    def find(self, session: str, message: str) -> Entry | None:
        return self._entries.get((session, message))

    def add(self, entry: Entry) -> None:
        self._entries[entry.session, entry.message] = entry

    def remove(self, entry: Entry) -> None:
        self._entries.pop((entry.session, entry.message), None)

    def over(self) -> list[Entry]:
        """Those whose time has come."""
        now = self._clock()
        return [entry for entry in self._entries.values() if entry.until <= now]

    def read(self, store: Store) -> None:
        """At the daemon's start: what the labels of the last one say. Those that have ended
        meanwhile are in ``over`` at once.
        """
        offset = self._clock() - self._wall_clock()
        for label in store.pins():
            try:
                until = float(label.value) + offset
            except ValueError:
                log.warning("a pin of session %s has no end: it is over", label.session[:8])
                until = 0.0
            self.add(Entry(label.session, label.message, until, is_ephemeral=False))


def is_written(store: Store, entry: Entry) -> bool:
    """Whether its label is there still: it goes with its session, or its message."""
    return any(
        (label.kind, label.message) == ("pin", entry.message)
        for label in store.labels(entry.session)
    )
