"""Methods on the cache: how full, what, in which order it would go; and to make it go."""

from __future__ import annotations

import time
from typing import Any, Literal

from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.finding import target_of
from radchat.daemon.tree_methods import TreeMethods
from radchat.errors import UsageError
from radchat.protocol import Where


class CacheMethods(TreeMethods):
    async def cache_stats(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        loaded = self._engines.loaded
        model = None if loaded is None else {"model": loaded.name, "dtype": loaded.dtype}
        return {**views.stats_json(self._stats()), **(model or {})}

    async def cache_ls(
        self,
        where: Where | None = None,
        by: Literal["lru", "size"] = "lru",
        session: str | None = None,
    ) -> dict[str, Any]:
        rows, about = await self._nodes()
        now = time.time()
        entries: list[dict[str, Any]] = []
        for row in rows:
            serves = about.serves.get(row.id, [])
            entries.append(
                {
                    "rank": row.rank,
                    "node": row.id,
                    "tokens": row.end - row.start,
                    "frees": row.frees * about.page_size,
                    "tier": "G",
                    "locks": row.locks,
                    "last_used_s": max(0.0, now - row.last_used),
                    "hits": row.hits,
                    "session": about.session_of.get(serves[-1]) if serves else None,
                    "name": about.name_of.get(serves[-1]) if serves else None,
                    "message": serves[-1] if serves else None,
                    "text": about.text_of(row),
                }
            )
        if by == "size":
            entries.sort(key=lambda e: -e["tokens"])
        else:
            entries.sort(key=lambda e: (e["rank"] is None, e["rank"]))
        return {"entries": entries}

    async def cache_tree(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        rows, about = await self._nodes()
        now = time.time()
        return {
            "nodes": [
                {
                    "id": row.id,
                    "parent": row.parent,
                    "depth": row.depth,
                    "start": row.start,
                    "end": row.end,
                    "tokens_text": about.text_of(row),
                    "pages": row.pages,
                    "locks": row.locks,
                    "last_used_s": max(0.0, now - row.last_used),
                    "hits": row.hits,
                    "tier": "G",
                    "lru_rank": row.rank,
                    "messages": about.serves.get(row.id, []),
                }
                for row in rows
            ]
        }

    async def cache_evict(
        self,
        where: Where,
        ref: str | None = None,
        tokens: int | None = None,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """Forget so many tokens in eviction order, or those of a message and what follows it."""
        loaded = self._engines.loaded
        if loaded is None:
            return {"freed_tokens": 0}
        engine = loaded.engine
        size = engine.cache.page_size
        if tokens is not None:
            freed = await self._worker.call(lambda: engine.evict(-(-tokens // size)))
            return {"freed_tokens": freed * size}
        if ref is None:
            raise UsageError("evict: want a REF or a number of tokens")

        def look() -> tuple[list[views.Path], set[str]]:
            store, place = self._place(where, session, head)
            target = target_of(store, place, ref)
            below = views.subtree(store.messages(target.session), target.message)
            return self._paths(store, store.session(target.session)), {m.id for m in below}

        paths, doomed = await self._desk.run(look)
        return {"freed_tokens": await self._forget(paths, doomed)}

    async def cache_clear(
        self,
        where: Where | None = None,
        all: bool = False,  # noqa: A002 - the flag's name; one tier so far
        session: str | None = None,
    ) -> dict[str, Any]:
        loaded = self._engines.loaded
        if loaded is None:
            return {"freed_tokens": 0}
        freed = await self._worker.call(loaded.engine.clear)
        return {"freed_tokens": freed * loaded.engine.cache.page_size}

    async def _nodes(self) -> tuple[list[views.NodeRow], _About]:
        loaded = self._engines.loaded
        if loaded is None:
            return [], _About(1, {}, {}, {}, None)
        engine = loaded.engine

        def look() -> tuple[list[views.Path], dict[str, str], dict[str, str]]:
            paths: list[views.Path] = []
            session_of: dict[str, str] = {}
            name_of: dict[str, str] = {}
            for store in (self._desk.stored, self._desk.ephemeral):
                for summary in store.sessions():
                    mine = self._paths(store, summary.session)
                    paths.extend(mine)
                    for path in mine:
                        for part in path.parts:
                            session_of.setdefault(part.message, summary.session.id)
                            name_of.setdefault(part.message, summary.session.name)
            return paths, session_of, name_of

        paths, session_of, name_of = await self._desk.run(look)
        rows, held = await self._worker.call(
            lambda: (views.node_rows(engine), views.probe(engine, paths))
        )
        about = _About(
            engine.cache.page_size, views.owners(held), session_of, name_of, loaded.tokenizer
        )
        return rows, about


class _About:
    """Whom the nodes serve, and their words."""

    def __init__(
        self,
        page_size: int,
        serves: dict[int, list[str]],
        session_of: dict[str, str],
        name_of: dict[str, str],
        tokenizer: Any,
    ) -> None:
        self.page_size, self.serves = page_size, serves
        self.session_of, self.name_of = session_of, name_of
        self._tokenizer = tokenizer

    def text_of(self, row: views.NodeRow, num_tokens: int = 24) -> str:
        return (
            "" if self._tokenizer is None else str(self._tokenizer.decode(row.tokens[:num_tokens]))
        )
