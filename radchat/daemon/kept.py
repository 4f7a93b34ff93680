"""What of a session is on disk: found there, dropped from there, kept there by the engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from radchat.daemon.base import Base
from radchat.daemon.disk import kept_name
from radchat.daemon.disk_paths import Doomed, OnDisk, delete, doomed_paths, on_disk
from radchat.daemon.forecast import Path, path_to
from radchat.daemon.handing import beside
from radchat.errors import Busy

if TYPE_CHECKING:
    from radchat.daemon.finding import Place
    from radchat.daemon.loaded import Loaded
    from radchat.daemon.remote.engine import RemoteEngine
    from radchat.engine.engine import Engine
    from radchat_sessions.kv_store import KVStore
    from radchat_sessions.store import Store

T = TypeVar("T")
DRAIN_S = 5.0  # for the one block that is being written
DELETE_S = 60.0
HANGS = "the disk does not answer that KV is written to: nothing was removed, try again later"


class Dropped(NamedTuple):
    """What was deleted from disk, and where some may lie that could not be."""

    tokens: int = 0
    bytes: int = 0
    left: str | None = None


class Kept(Base):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.drain_s = DRAIN_S
        self._dropping = asyncio.Lock()  # what one takes for staying, no other removes meanwhile

    # -- looking ---------------------------------------------------------------------------------

    def _on_disk(self, store: Store, place: Place, loaded: Loaded | None) -> dict[str, OnDisk]:
        """Where each message of a session is on disk, for the model the session talks with, in the
        dtype of its engine, else of the last answer. On the desk.
        """
        if store is not self._desk.stored or self._disk.store is None:
            return {}
        model, read = place.session.model, path_to(store, place.message)
        mine = read if read is not None and read.model == model else None
        if loaded is not None and loaded.name == model:
            blocks = self._disk.blocks(loaded.model.fingerprint)
            tokenizer: str | None = loaded.tokenizer.hash
        else:
            blocks = self._blocks_of(model, None if mine is None else mine.dtype)
            tokenizer = None if mine is None else mine.tokenizer
        if blocks is None:
            return {}
        return on_disk(store, place.session.id, blocks, tokenizer)

    # -- dropping --------------------------------------------------------------------------------

    async def _unkeep(self, session: str, *branches: str) -> None:
        """Write no more of these branches, or of the whole session; what is being written is."""
        names = [kept_name(session, each) for each in branches] or [f"{session}/"]
        await self._unkeep_all(*names)

    async def _unkeep_all(self, *names: str, of: str = "") -> None:
        """Write no more of paths whose names begin so; ``of``: in engines whose keys begin so."""
        await self._worker.unkeep(names, of)

    async def _stop_writing(self) -> None:
        """Wait for what is being written. Raises Busy where the disk hangs: nothing may be removed
        then, for it could come after.
        """
        if not await self._worker.has_written(self.drain_s):
            raise Busy(HANGS)

    async def _drained(self, engine: Engine | RemoteEngine, seconds: float) -> bool:
        """What is copied for the disk is written."""
        return await beside(lambda: engine.drain(seconds))

    async def _remove(
        self, store: Store, session: str, meant: Callable[[], set[str]], remove: Callable[[], T]
    ) -> tuple[T, str | None]:
        """``remove`` the messages that are ``meant``, both on the desk, after all that only they
        have on disk; and where some of that may be left.

        While that is deleted others talk: if this session does too, what goes is looked for again.
        """
        async with self._dropping:
            await self._unkeep(session)
            try:
                await self._stop_writing()
                while not (done := await self._remove_once(store, session, meant, remove)):
                    pass
                return done[0]
            except Exception:  # refused, or the disk does not answer: it stays, and is kept
                await self._keep_branches(store, session)
                raise

    async def _remove_once(
        self, store: Store, session: str, meant: Callable[[], set[str]], remove: Callable[[], T]
    ) -> list[tuple[T, str | None]]:
        """Nothing where more was said meanwhile."""
        going, dropped = await self._drop_blocks(store, session, meant)

        def work() -> list[tuple[T, str | None]]:
            return [(remove(), dropped.left)] if going in (None, meant()) else []

        return await self._desk.run(work)

    async def _drop_blocks(
        self, store: Store, session: str, meant: Callable[[], set[str]]
    ) -> tuple[set[str] | None, Dropped]:
        """Delete the blocks, of every model, that only these messages use: before they go, for a
        kill between leaves time to pay, and no words. Also which messages those were; None where
        nothing is on disk, and nothing was looked for.

        Raises Busy where the disk does not answer.
        """
        if store is not self._desk.stored or not await _answered(beside(self._disk.holds_any)):
            return None, Dropped()

        def look() -> tuple[set[str], Doomed]:
            doomed = meant()
            return doomed, doomed_paths(store, session, doomed)

        going, doomed = await self._desk.run(look)
        disk, dropped = self._disk.opened, Dropped()
        if doomed.paths and disk is None:
            dropped = Dropped(left=self._disk.may_hold())
        elif doomed.paths and disk is not None:
            dropped = await _answered(beside(lambda: self._delete(disk, doomed)))
        return going, dropped

    def _delete(self, disk: KVStore, doomed: Doomed) -> Dropped:
        """On any thread."""
        tokens, num_bytes = delete(disk, doomed)
        is_swept = disk.sweep(lambda _fingerprint, raw: doomed.goes(raw))
        return Dropped(tokens, num_bytes, None if is_swept else self._disk.may_hold())

    # -- keeping ---------------------------------------------------------------------------------

    async def _keep_branches(self, store: Store, session: str) -> None:
        """Tell the engines of a session's branches, as they are now."""
        if self._disk.store is None or store is not self._desk.stored:
            return

        def read() -> list[tuple[str, Path]]:
            named = store.branches(session)
            paths = ((branch.name, path_to(store, branch.message)) for branch in named)
            return [(kept_name(session, name), path) for name, path in paths if path is not None]

        for name, path in await self._desk.run(read):
            for loaded in self._engines.all:
                if (loaded.name, loaded.dtype) == (path.model, path.dtype):
                    self._worker.keep(loaded.key, [(name, path.ids)])


async def _answered(asked: Awaitable[T]) -> T:
    """By the disk; raises Busy where it hangs."""
    try:
        return await asyncio.wait_for(asked, DELETE_S)
    except TimeoutError:
        raise Busy(HANGS) from None
