"""Methods on the cache: how full, what, in which order it would go; and to make it go."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from radchat.daemon.disk_rows import disk_rows
from radchat.daemon.held import Held, Snapshot, held_of, owners
from radchat.daemon.loaded import Loaded
from radchat.daemon.pin_methods import PinMethods
from radchat.daemon.tiers import stats_json, tiers_json
from radchat.protocol import Where

SHOWN_TOKENS = 24  # of a node's words


class CacheMethods(PinMethods):
    async def cache_stats(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Of the engine that the session meant talks with, else of the one used last."""
        loaded = await self._engine_here(where, session)
        return {
            **stats_json(await self._stats(loaded), await self._disk.tier()),
            **self._disk.about(),
            "model": None if loaded is None else loaded.name,
            "dtype": None if loaded is None else loaded.dtype,
            "pins": await self._pin_rows(loaded),
            **await self._pin_totals(loaded),
        }

    async def cache_ls(
        self,
        by: Literal["lru", "size"] = "lru",
        where: Where | None = None,
        session: str | None = None,
    ) -> dict[str, Any]:
        """The nodes of one engine's cache, and the blocks on disk of all models; each in the order
        in which they would go from their tier.
        """
        rows = await self._nodes(await self._engine_here(where, session))
        rows.sort(key=lambda row: row.rank or math.inf)  # what something relies on, or keeps, last
        entries = [
            {
                "rank": row.rank,
                "node": row.id,
                "tokens": row.tokens,
                "frees": row.frees,
                "tier": "G",
                "pinned": row.pinned,
                "locks": row.locks,
                "last_used_s": row.last_used_s,
                "hits": row.hits,
                "session": row.session,
                "name": row.name,
                "message": row.messages[-1] if row.messages else None,
                "text": row.text,
            }
            for row in rows
        ] + await self._disk_rows()
        if by == "size":
            entries.sort(key=lambda entry: -entry["tokens"])
        return {"entries": entries}

    async def _disk_rows(self) -> list[dict[str, Any]]:
        store = self._disk.store
        if store is None:
            return []
        decode = {
            each.model.fingerprint: lambda ids, each=each: str(
                each.tokenizer.decode(ids[:SHOWN_TOKENS])
            )
            for each in self._engines.all
        }
        return await self._desk.run(lambda: disk_rows(store.entries(), self._desk.stored, decode))

    async def cache_tree(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        loaded = await self._engine_here(where, session)
        return {
            "tiers": tiers_json(await self._stats(loaded), await self._disk.tier()),
            "nodes": [
                {
                    "id": row.id,
                    "parent": row.parent,
                    "depth": row.depth,
                    "start": row.start,
                    "end": row.start + row.tokens,
                    "tokens_text": row.text,
                    "pages": row.pages,
                    "locks": row.locks,
                    "last_used_s": row.last_used_s,
                    "hits": row.hits,
                    "tier": "G",
                    "pinned": row.pinned,
                    "lru_rank": row.rank,
                    "messages": row.messages,
                }
                for row in await self._nodes(loaded)
            ],
        }

    async def _nodes(self, loaded: Loaded | None) -> list[_Row]:
        """Every node of the radix tree: its place in the eviction order, whom it serves, its words.

        The spans of every message there is are read, ids only as far as they are cached: about
        0.3 ms a session on the desk.
        """
        snapshot = await self._snapshot(loaded)
        if loaded is None or snapshot is None:
            return []

        def look() -> list[_Row]:
            held: dict[str, Held] = {}
            session_of: dict[str, tuple[str | None, str | None]] = {}
            for store in (self._desk.stored, self._desk.ephemeral):
                mine = held_of(store, None, snapshot)
                names: dict[str | None, str | None] = {None: None}
                for message in mine:
                    origin = store.message(message).origin
                    if origin not in names:
                        names[origin] = store.session(str(origin)).name
                    session_of[message] = origin, names[origin]
                held |= mine
            return _rows(snapshot, loaded, owners(held), session_of)

        return await self._desk.run(look)


@dataclass(frozen=True, slots=True)
class _Row:
    """A node as it is listed."""

    id: int
    parent: int | None
    depth: int
    start: int
    tokens: int
    pages: int
    locks: int
    pinned: bool
    last_used_s: float
    hits: int
    rank: int | None  # 1 goes first
    frees: int  # tokens
    text: str
    messages: list[str]
    session: str | None
    name: str | None


def _rows(
    snapshot: Snapshot,
    loaded: Loaded,
    serves: Mapping[int, list[str]],
    session_of: Mapping[str, tuple[str | None, str | None]],
) -> list[_Row]:
    rank: dict[int, int] = {}
    frees: dict[int, int] = {}
    for step in snapshot.plan:
        rank.setdefault(step.node_id, len(rank) + 1)
        frees[step.node_id] = frees.get(step.node_id, 0) + step.pages * snapshot.page_size
    now = time.time()
    rows = []
    for node in snapshot.nodes:
        messages = serves.get(node.id, [])
        session, name = session_of[messages[-1]] if messages else (None, None)
        rows.append(
            _Row(
                id=node.id,
                parent=node.parent,
                depth=node.depth,
                start=node.start,
                tokens=node.end - node.start,
                pages=len(node.pages),
                locks=node.lock_ref,
                pinned=node.pins > 0,
                last_used_s=max(0.0, now - node.last_used),
                hits=node.hits,
                rank=rank.get(node.id),
                frees=frees.get(node.id, 0),
                text=str(loaded.tokenizer.decode(node.tokens[:SHOWN_TOKENS])),
                messages=messages,
                session=session,
                name=name,
            )
        )
    return rows
