"""What of a session is on disk: found there, dropped from there, kept there by the engines."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from radchat.daemon.base import Base
from radchat.daemon.disk import kept_name
from radchat.daemon.disk_paths import Ranges, delete, doomed_paths, on_disk
from radchat.daemon.forecast import Path, path_to

if TYPE_CHECKING:
    from radchat.daemon.finding import Place
    from radchat.daemon.loaded import Loaded
    from radchat.engine.engine import Engine
    from radchat_sessions.store import Store

DRAIN_S = 5.0  # for the one block that is being written
LOOK_S = 0.5


class Kept(Base):
    # -- looking ---------------------------------------------------------------------------------

    def _on_disk(self, store: Store, place: Place, loaded: Loaded | None) -> dict[str, Ranges]:
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
        await self._stop_writing([kept_name(session, each) for each in branches] or [f"{session}/"])

    async def _unkeep_all(self) -> None:
        await self._stop_writing([""])

    async def _stop_writing(self, names: list[str]) -> None:
        """Of paths whose names begin so."""
        engines = [loaded.engine for loaded in self._engines.all]

        def unkeep() -> None:
            for engine in engines:
                for name in names:
                    engine.unkeep(name)

        await self._worker.call(unkeep)
        for engine in engines:
            await self._drained(engine, DRAIN_S)

    async def _drained(self, engine: Engine, seconds: float) -> bool:
        """What is copied for the disk is written; looked at again and again, for no thread waits
        long when the daemon ends.
        """
        for _ in range(math.ceil(seconds / LOOK_S)):
            if await asyncio.to_thread(engine.drain, LOOK_S):
                return True
        return False

    def _drop_blocks(self, store: Store, session: str, doomed: set[str]) -> tuple[int, int]:
        """Delete the blocks that only these messages use, of every model; tokens and bytes.

        On the desk, before the messages go: a kill between leaves time to pay, and no words.
        """
        disk = self._disk.opened
        if disk is None or store is not self._desk.stored or not doomed:
            return 0, 0
        while disk.tidy(adopt=False):  # what a kill left without a row may be of these words
            pass
        return delete(disk, doomed_paths(store, session, doomed))

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
