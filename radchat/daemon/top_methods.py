"""The method of `cache top`: what sits where, what is locked, what goes next."""

from __future__ import annotations

import time
from typing import Any

from radchat.daemon.cache_methods import CacheMethods
from radchat.daemon.held import Snapshot
from radchat.daemon.loaded import Loaded
from radchat.daemon.tiers import stats_json
from radchat.daemon.top_rows import Blocks, Table
from radchat.protocol import Where
from radchat_sessions.kv_store import KVFolder

NO_TOKENS = {"total": 0, "free": 0, "locked": 0}


class TopMethods(CacheMethods):
    async def cache_top(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Of the engine that the session meant talks with, else of the one used last; all sessions
        of all branches. What the rows hold adds up to what is on the device.
        """
        loaded = await self._engine_here(where, session)
        stats, snapshot = await self._at_once(loaded)
        tier = await self._disk.tier()
        stored, ephemeral = self._desk.stored, self._desk.ephemeral

        def look() -> tuple[Table, float]:
            began = time.perf_counter()
            table = Table(snapshot)
            table.add(stored, self._blocks_by_session(loaded))
            table.add(ephemeral, None)
            tokens = NO_TOKENS if stats is None else stats["tokens"]
            table.share_out(tokens["total"] - tokens["free"], tokens["locked"])
            return table, time.perf_counter() - began

        table, look_s = await self._desk.run(look)
        return {
            "model": None if loaded is None else loaded.name,
            "dtype": None if loaded is None else loaded.dtype,
            **stats_json(stats, tier),
            "running": 0 if stats is None else stats["running"],
            "waiting": 0 if stats is None else stats["waiting"],
            "look_s": look_s,  # on the desk, which keeps running answers, too
            "answers": table.answers,
            "rows": table.rows(),
        }

    async def _at_once(
        self, loaded: Loaded | None
    ) -> tuple[dict[str, Any] | None, Snapshot | None]:
        """An engine's numbers and its tree between the same two steps."""
        if loaded is None:
            return None, None
        engine, tokenizer, key = loaded.engine, loaded.tokenizer.hash, loaded.key
        return await self._worker.look(
            lambda: (engine.stats(), Snapshot(engine.cache, tokenizer, key))
        )

    def _blocks_by_session(self, loaded: Loaded | None) -> Blocks:
        """Of this engine where it is of the session's model, else of that model."""
        store, known = self._desk.stored, dict[str | None, KVFolder | None]()

        def blocks(session: str) -> tuple[KVFolder | None, str | None]:
            model = store.session(session).model
            if loaded is not None and model == loaded.name:
                return self._disk.blocks(loaded.model.fingerprint), loaded.tokenizer.hash
            if model not in known:
                known[model] = self._blocks_of(model, None)
            return known[model], None

        return blocks
