"""KV on disk, for one engine: what is restored, what is kept, what that costs and did.

All of it is the engine thread's, between two steps; two threads beside it wait for the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from radchat.engine.block_store import BlockStore
from radchat.engine.kv_pool import KVPool
from radchat.engine.node import Node
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Ids, Tiers
from radchat.engine.restoring import CopyPages, Restoring
from radchat.engine.saving import Saving

CLOSE_S = 2.0  # a disk that hangs shall not keep an engine from going


class DiskTier:
    def __init__(
        self,
        store: BlockStore,
        pool: KVPool,
        cache: PrefixCache,
        *,
        copy_pages: CopyPages,
        tokens_per_s: Callable[[], float | None],
        chunk_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self.restoring = Restoring(
            store, pool, cache, copy_pages, tokens_per_s, chunk_tokens, clock
        )
        self.saving = Saving(store, pool, cache, clock)
        cache.on_evict = self._on_evict

    def _on_evict(self, node: Node, end: int) -> None:
        """Before a node's tokens behind ``end`` go."""
        if self.saving.has_unsaved or self.restoring.ahead:
            raw, table, namespace = self._cache.path_of(node)
            if not namespace:  # others' KV is no part of the tier, whatever their ids are
                self.saving.evicting(raw, table, end)
                self.restoring.ahead.evicted(raw, end)

    def probe(self, ids: Ids) -> Tiers:
        raw = ids.tobytes()
        device = self._cache.match_raw(raw)
        return Tiers(device, self.restoring.beyond(raw, device))

    def loadable(self, ids: Ids) -> Ids:
        """As much of the ids as a ``load`` can have: what is cached, and what is restored then."""
        raw = ids.tobytes()
        return ids[: max(1, self.restoring.reach(raw, self._cache.match_raw(raw)))]

    def load_seconds(self, tokens: int) -> float:
        return self.restoring.seconds(tokens)

    def stats(self, restored_tokens: int) -> dict[str, Any]:
        """From any thread: reads counters only. ``restored_tokens``: that rows have read."""
        return {
            "restored_tokens": restored_tokens,
            "saved_tokens": self.saving.saved_tokens,
            "saved_bytes": self.saving.saved_bytes,
            "staged_bytes": self.saving.staged_bytes,
            "read_bytes_per_s": self.restoring.speed.bytes_per_s,
            "kept_paths": self.saving.kept_paths,
        }

    def close(self) -> None:
        """End both threads. One that hangs in the disk is left behind after CLOSE_S, and with it
        the pool: so not on the engines' thread, where other engines wait.
        """
        deadline = time.monotonic() + CLOSE_S
        for thread in [self.restoring.stop(), self.saving.stop()]:
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
