"""Methods that make KV go: from the device, from disk."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.base import at_least
from radchat.daemon.handing import beside
from radchat.daemon.held import Held, held_of
from radchat.daemon.loaded import Loaded
from radchat.daemon.top_methods import TopMethods
from radchat.errors import UsageError
from radchat.models import registry
from radchat.protocol import Where
from radchat_sessions.store import Store

Tier = Literal["device", "disk"]
NOTHING = {"freed_tokens": 0, "freed_bytes": 0, "pinned_tokens": 0}


class EvictMethods(TopMethods):
    async def cache_evict(
        self,
        where: Where,
        ref: str | None = None,
        tokens: int | None = None,
        tier: Tier | None = None,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """Forget so many tokens in eviction order, a whole tier, or those of a message and what
        follows it; on the device unless the tier is the disk. What is pinned stays, and is counted.
        """
        at_least(0, tokens=tokens)
        if (ref is not None and tokens is not None) or (ref, tokens, tier) == (None, None, None):
            raise UsageError("evict: want a REF or a number of tokens, a tier, or one of a tier")
        if tier == "disk":
            if tokens is not None:
                raise UsageError("evict: a number of tokens is of the device")
            return {**NOTHING, **await self._evict_disk(where, ref, session, head)}
        if ref is not None:
            return await self._evict_ref(where, ref, session, head)
        loaded = await self._engine_here(where, session)
        return NOTHING if loaded is None else await self._evict(loaded, tokens)

    async def _evict_ref(
        self, where: Where, ref: str, session: str | None, head: ChatHead | None
    ) -> dict[str, Any]:
        snapshots = await self._snapshots()
        bytes_of = {each.key: each.bytes_per_token for each in self._engines.all}

        def look() -> tuple[list[dict[str, Held]], set[str]]:
            store, named, below = self._below(where, session, head, ref)
            return [held_of(store, named, each) for each in snapshots], below

        held, doomed = await self._desk.run(look)
        tokens = num_bytes = 0
        for snapshot, mine in zip(snapshots, held, strict=True):
            freed = await self._forget(snapshot, mine, doomed)
            tokens += freed
            num_bytes += freed * bytes_of.get(snapshot.key, 0)
        return {
            "freed_tokens": tokens,
            "freed_bytes": num_bytes,
            "pinned_tokens": sum(
                mine[each].device
                for mine in held
                for each in doomed & mine.keys()
                if mine[each].pinned
            ),
        }

    def _below(
        self, where: Where, session: str | None, head: ChatHead | None, ref: str
    ) -> tuple[Store, str, set[str]]:
        """The store and the session of a REF, its message and what follows it."""
        store, _, target = self._target(where, session, head, ref)
        below = views.subtree(store.messages(target.session), target.message)
        return store, target.session, {message.id for message in below}

    async def _evict(self, loaded: Loaded, tokens: int | None) -> dict[str, int]:
        """So many tokens, or all that can go; what is pinned is counted where that is meant."""

        def evict() -> dict[str, int]:
            cache = loaded.engine.cache
            size = cache.page_size
            stays = 0 if tokens is not None else cache.pinned * size
            pages = cache.clear() if tokens is None else cache.evict(-(-tokens // size))
            freed = pages * size
            num_bytes = freed * loaded.bytes_per_token
            return {"freed_tokens": freed, "freed_bytes": num_bytes, "pinned_tokens": stays}

        return await self._worker.look(evict)

    async def _evict_disk(
        self,
        where: Where,
        ref: str | None,
        session: str | None,
        head: ChatHead | None,
    ) -> dict[str, int]:
        self._disk.require_opened()
        if ref is None:
            freed = await self._clear_disk()
        else:
            freed = await self._evict_ref_from_disk(where, ref, session, head)
        return {"freed_tokens": freed[0], "freed_bytes": freed[1]}

    async def _evict_ref_from_disk(
        self, where: Where, ref: str, session: str | None, head: ChatHead | None
    ) -> tuple[int, int]:
        def look() -> tuple[Store, str, set[str], list[str]]:
            store, named, below = self._below(where, session, head, ref)
            ends = [each.name for each in store.branches(named) if each.message in below]
            return store, named, below, [*ends, *(below if self._disk.keeps_unnamed else ())]

        async with self._dropping:
            store, named, below, ends = await self._desk.run(look)
            if ends:  # or they are written again at once
                await self._unkeep(named, *ends)
                await self._stop_writing()
            _, dropped = await self._drop_blocks(store, named, lambda: below)
        return dropped.tokens, dropped.bytes

    async def _clear_disk(self, model: str | None = None) -> tuple[int, int]:
        """All that is on disk, or all of a model, and nothing more is written before something is
        said again.
        """
        store = self._disk.require_opened()
        folder = None if model is None else registry.find(self._places, model).folder
        await self._unkeep_all("", of="" if folder is None else f"{folder}:")
        await self._stop_writing()
        if folder is None:
            return await beside(store.clear)
        freed = [await beside(partial(store.clear, name)) for name in self._disk.names_of(folder)]
        return sum(tokens for tokens, _ in freed), sum(num_bytes for _, num_bytes in freed)

    async def cache_clear(
        self,
        pinned: bool = False,
        device: bool = True,
        disk: bool = False,
        model: str | None = None,
    ) -> dict[str, Any]:
        """Forget all that no request relies on, in every engine; what is pinned only if asked, and
        then no pin is left. ``disk``: all that is on disk, of every model, or of one: that goes.
        """
        if model is not None and (device or pinned):
            raise UsageError("clear: a model's KV is cleared on disk, and there only")
        if not device and not disk:
            raise UsageError("clear: want the device, the disk, or both")
        gone = (0, 0)
        if disk and (not device or self._disk.opened is not None):
            gone = await self._clear_disk(model)
        if pinned:
            await self._unpin(list(self._pins))
        freed = [NOTHING]
        if device:
            freed += [await self._evict(loaded, None) for loaded in list(self._engines.all)]
        sums = {key: sum(each[key] for each in freed) for key in ("freed_tokens", "pinned_tokens")}
        return {**sums, "disk_tokens": gone[0], "disk_bytes": gone[1]}
