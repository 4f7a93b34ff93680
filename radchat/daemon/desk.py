"""The one thread that owns the session stores and the templates' tokenizers.

SQLite connections and tokenizers belong to one thread each; both are used in short turns, so one
thread serves both, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from radchat import errors
from radchat.paths import Places, private_folder
from radchat_sessions import errors as store_errors
from radchat_sessions.store import IN_MEMORY, Store

T = TypeVar("T")

_CLASSES: tuple[tuple[type[store_errors.StoreError], type[errors.RadchatError]], ...] = (
    (store_errors.NotFound, errors.NotFound),
    (store_errors.Refused, errors.UsageError),
    (store_errors.Unreadable, errors.InvalidInput),
    (store_errors.StoreError, errors.RadchatError),
)


def translate(error: store_errors.StoreError) -> errors.RadchatError:
    """The store's error as the one a user meets; an ambiguous REF keeps its matches."""
    cls = next(ours for theirs, ours in _CLASSES if isinstance(error, theirs))
    if isinstance(error, store_errors.Ambiguous):
        return cls(error.message, matches=list(error.matches))
    return cls(error.message, **({"taken": True} if isinstance(error, store_errors.Taken) else {}))


class EphemeralStore(Store):
    """Sessions of ``--ephemeral`` chats: in memory, each known to its own terminal only.

    No session of one store has a name of the other's.
    """

    def use(
        self,
        session_id: str,
        *,
        terminal: str | None = None,
        folder: str | None = None,
        only_terminal: bool = True,  # noqa: ARG002 - always
    ) -> None:
        super().use(session_id, terminal=terminal, folder=folder, only_terminal=True)


class Desk:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desk")
        self.stored: Store  # set by open
        self.ephemeral: EphemeralStore
        self.passing: EphemeralStore  # conversations that API clients tell anew with each request

    async def open(self) -> None:
        """Open the database, migrate it, recover what the last daemon left unfinished."""

        def opening() -> None:
            private_folder(self._places.data)
            private_folder(self._places.running)
            self.stored = Store.open(self._places.database, running_dir=self._places.running)
            self.ephemeral = EphemeralStore.open(IN_MEMORY)
            self.passing = EphemeralStore.open(IN_MEMORY)
            self.ephemeral.beside, self.stored.beside = self.stored, self.ephemeral

        await self.run(opening)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the desk's thread; its store errors come out as radchat's."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except store_errors.StoreError as error:
            raise translate(error) from error

    async def close(self) -> None:
        def closing() -> None:
            self.stored.close()
            self.ephemeral.close()
            self.passing.close()

        await self.run(closing)
        self._thread.shutdown(wait=False)
