"""Methods on the cache: how full, what, in which order it would go; and to make it go."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.base import at_least
from radchat.daemon.held import Held, Snapshot, held_of, owners
from radchat.daemon.loaded import Loaded
from radchat.daemon.pin_methods import PinMethods
from radchat.errors import UsageError
from radchat.protocol import Where

SHOWN_TOKENS = 24  # of a node's words


class CacheMethods(PinMethods):
    async def cache_stats(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Of the engine that the session meant talks with, else of the one used last."""
        loaded = await self._engine_here(where, session)
        return {
            **views.stats_json(await self._stats(loaded)),
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
        rows = await self._nodes(await self._engine_here(where, session))
        if by == "size":
            rows.sort(key=lambda row: -row.tokens)
        else:  # those that something relies on, or keeps, last
            rows.sort(key=lambda row: row.rank or math.inf)
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
        ]
        return {"entries": entries}

    async def cache_tree(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        loaded = await self._engine_here(where, session)
        return {
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
            ]
        }

    async def cache_evict(
        self,
        where: Where,
        ref: str | None = None,
        tokens: int | None = None,
        tier: Literal["device"] | None = None,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """Forget so many tokens in eviction order, a whole tier, or those of a message and what
        follows it. What is pinned stays, and is counted.
        """
        at_least(0, tokens=tokens)
        if sum(each is not None for each in (ref, tokens, tier)) != 1:
            raise UsageError("evict: want one of a REF, a number of tokens and a tier")
        if ref is None:
            loaded = await self._engine_here(where, session)
            if loaded is None:
                return {"freed_tokens": 0, "pinned_tokens": 0}
            return await self._evict(loaded, tokens)
        assert ref is not None
        snapshots = await self._snapshots()

        def look() -> tuple[list[dict[str, Held]], set[str]]:
            store, _, target = self._target(where, session, head, ref)
            below = views.subtree(store.messages(target.session), target.message)
            held = [held_of(store, target.session, each) for each in snapshots]
            return held, {m.id for m in below}

        held, doomed = await self._desk.run(look)
        pairs = list(zip(snapshots, held, strict=True))
        return {
            "freed_tokens": sum([await self._forget(*pair, doomed) for pair in pairs]),
            "pinned_tokens": sum(
                mine[each].device
                for mine in held
                for each in doomed & mine.keys()
                if mine[each].pinned
            ),
        }

    async def _evict(self, loaded: Loaded, tokens: int | None) -> dict[str, int]:
        """So many tokens, or all that can go; what is pinned is counted where that is meant."""

        def evict() -> dict[str, int]:
            cache = loaded.engine.cache
            size = cache.page_size
            if tokens is not None:
                return {"freed_tokens": cache.evict(-(-tokens // size)) * size, "pinned_tokens": 0}
            return {"freed_tokens": cache.clear() * size, "pinned_tokens": cache.pinned * size}

        return await self._worker.call(evict)

    async def cache_clear(self, pinned: bool = False) -> dict[str, Any]:
        """Forget all that no request relies on, in every engine; what is pinned only if asked, and
        then no pin is left.
        """
        if pinned:
            await self._unpin(list(self._pins))
        freed = [await self._evict(loaded, None) for loaded in list(self._engines.all)]
        return {key: sum(each[key] for each in freed) for key in ("freed_tokens", "pinned_tokens")}

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
