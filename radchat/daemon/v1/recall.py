"""Conversations of clients that tell all of it with each request, found again by what was said.

The model's answers then stand in the prompt as the very ids that it drew, and what was read of them
is read again from the cache. They live in a store of their own, in memory, that nobody lists; the
longest unused go. docs/adr/0033.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from radchat.daemon.awake import awake_time
from radchat.daemon.desk import Desk
from radchat_sessions.errors import StoreError

MOST = 256  # conversations
IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Told:
    """Where a conversation stands: after this answer. ``digest``: of all of it."""

    session: str
    message: str
    digest: str


@dataclass
class _Kept:
    used: float
    users: int = 0
    digests: list[str] = field(default_factory=list)


class Recall:
    """On the event loop. ``key``s are part of the digests: nobody finds another's."""

    def __init__(self, desk: Desk, clock: Callable[[], float] = awake_time) -> None:
        self._desk, self._clock = desk, clock
        self._known: dict[str, Told] = {}
        self._sessions: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, digests: Sequence[str]) -> tuple[int, Told] | None:
        """The last of them at which an answer stands, and its number."""
        for index in range(len(digests) - 1, -1, -1):
            found = self._known.get(digests[index])
            if found is not None:
                return index, found
        return None

    def of_message(self, key: str, message: str) -> Told | None:
        """An answer by its id."""
        return self._known.get(f"{key} {message}")

    def begin(self, session: str) -> None:
        """Somebody talks in it: it stays until ``end``."""
        kept = self._sessions.setdefault(session, _Kept(self._clock()))
        kept.users += 1
        self._touch(session, kept)

    def add(self, key: str, told: Told) -> None:
        kept = self._sessions[told.session]
        for name in (told.digest, f"{key} {told.message}"):
            self._known[name] = told
            kept.digests.append(name)

    async def end(self, session: str) -> None:
        kept = self._sessions[session]
        kept.users -= 1
        self._touch(session, kept)
        await self.tidy()

    def _touch(self, session: str, kept: _Kept) -> None:
        kept.used = self._clock()
        self._sessions.move_to_end(session)

    async def tidy(self) -> None:
        """Drop those that nobody came back to; one in which nothing was said too."""
        now = self._clock()
        going: list[str] = []
        for session, kept in self._sessions.items():
            too_many = len(self._sessions) - len(going) > MOST
            is_old = now - kept.used > IDLE_S
            if not kept.users and (too_many or is_old or not kept.digests):
                going.append(session)
        for session in going:
            for name in self._sessions.pop(session).digests:
                if (told := self._known.get(name)) is not None and told.session == session:
                    del self._known[name]

        def remove() -> None:
            for session in going:
                try:
                    self._desk.passing.remove(session)
                except StoreError:  # a session in which nothing began was not kept
                    continue

        if going:
            await self._desk.run(remove)
