"""Methods on one session's tree: look at it, move in it."""

from __future__ import annotations

from typing import Any, Literal

from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.base import at_least
from radchat.daemon.branch_methods import BranchMethods
from radchat.daemon.finding import Place, is_stored, moved, stands
from radchat.daemon.held import held_of
from radchat.daemon.pin_book import is_written
from radchat.daemon.tiers import tiers_json
from radchat.errors import NotFound
from radchat.protocol import Where
from radchat_sessions.errors import Ambiguous
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.store import Store

Filter = Literal["default", "user-only", "no-tools", "labeled", "all"]


class TreeMethods(BranchMethods):
    # -- looking ---------------------------------------------------------------------------------

    async def tree(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        show_cache: bool = False,
        lru: bool = False,
        depth: int | None = None,
        filter: Filter = "default",  # noqa: A002 - the flag's name
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        at_least(1, depth=depth)
        loaded = await self._engine_of(lambda: self._tree_root(where, session, ref, head)[:2])
        snapshot = await self._snapshot(loaded) if show_cache or lru else None
        if snapshot is not None or loaded is None:
            counts = await self._stats(loaded)
        else:
            counts = loaded.engine.stats()  # as `daemon status`: without waiting for a step
        tiers = tiers_json(counts, await self._disk.tier())
        pins = list(self._pins)

        def look() -> dict[str, Any]:
            store, place, root = self._tree_root(where, session, ref, head)
            held = {} if snapshot is None else held_of(store, place.session.id, snapshot)
            disk = self._on_disk(store, place, loaded) if show_cache or lru else {}
            messages = views.subtree(store.messages(place.session.id), root)
            total = len(messages)
            named = {b.message for b in store.branches(place.session.id) if b.message}
            named |= views.Labels(store, place.session.id).messages
            messages, below, under = views.filtered(messages, filter, depth, named, place.message)
            kept = {
                message.id
                for entry in pins
                if entry.is_ephemeral == (store is self._desk.ephemeral)
                if is_written(store, entry)
                for message in store.path(entry.message)
            }
            body = views.tree_json(store, place, messages, held, tiers, kept, disk, below)
            dtype = None if loaded is None else loaded.dtype  # of the cache that is told of
            return {**body, "dtype": dtype, "num_messages": total, "head_below": under}

        return await self._desk.run(look)

    def _tree_root(
        self, where: Where, session: str | None, ref: str | None, head: ChatHead | None
    ) -> tuple[Store, Place, str | None]:
        """REF|SESSION: a message of the current session, else a session of that name."""
        if ref is None:
            return *self._place(where, session, head), None
        try:
            store, place, target = self._target(where, session, head, ref)
        except (StoreNotFound, NotFound) as no_message:
            try:
                return *self._place(where, ref, None), None
            except Ambiguous:
                raise
            except StoreNotFound:
                raise no_message from None
        return store, place, target.message

    async def log(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        n: int | None = None,
        head: ChatHead | None = None,
        pick: bool = False,
    ) -> dict[str, Any]:
        """``pick``: a bare number may be that of a branch just made."""
        at_least(1, n=n)

        def work() -> dict[str, Any]:
            if ref is None:
                store, place = self._place(where, session, head)
                return views.log_json(store, place, place.message, n)
            store, place, target = self._target(where, session, head, ref, pick=pick)
            return views.log_json(store, place, target.message, n)

        return await self._desk.run(work)

    # -- moving ----------------------------------------------------------------------------------

    async def fork(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        name: str | None = None,
        new_session: bool | str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """A new branch at REF, and HEAD on it; or a session of its own that begins there."""

        def work() -> dict[str, Any]:
            if ref is None:
                store, place = self._place(where, session, head)
                at, text = place.message, None
            else:
                store, place, point = self._point(where, session, head, ref)
                at, text = point.message, point.text
            moved_from = {"branch": place.branch, "head": place.message}
            if new_session:
                place = self._fork_session(store, place, at, new_session, where)
            else:
                free = name or store.free_branch_name(place.session.id, place.last_branch)
                takes_head = is_stored(store, place)
                made = store.create_branch(place.session.id, free, at)
                if takes_head:
                    store.move_head(place.session.id, branch=made.name)
                    self._use(store, place, where)
                place = Place(place.session, made.name, at, made.name)
            return {
                **moved(store, place),
                "text": text,
                "moved_from": moved_from,
                **views.fork_json(place),
            }

        return await self._desk.run(work)

    def _fork_session(
        self, store: Store, place: Place, at: str | None, name: bool | str, where: Where
    ) -> Place:
        made = store.create_session(
            name=name if isinstance(name, str) else None,
            model=place.session.model,
            folder=where["folder"],
            settings=place.session.settings,
            clock=place.session.clock,
            fork_of=(place.session.id, at),
        )
        place = stands(store, made, None)
        self._use(store, place, where)
        return place

    async def switch(
        self,
        where: Where,
        ref: str,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> tuple[Store, dict[str, Any]]:
            store, place, point = self._point(where, session, head, ref, pick=True)
            if is_stored(store, place):
                if point.branch is not None:
                    store.move_head(place.session.id, branch=point.branch)
                else:
                    store.move_head(place.session.id, message=point.message)
                self._use(store, place, where)
                place = stands(store, place.session, None)
            else:
                branch = point.branch or self._branch_at(store, place, point.message)
                place = Place(place.session, branch, point.message, branch or place.last_branch)
            return store, {**moved(store, place), "text": point.text}

        store, result = await self._desk.run(work)
        return {**result, "recompute": await self._forecast(store, result["head"])}

    async def undo(
        self, where: Where, n: int = 1, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        at_least(1, n=n)

        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            asked = [m for m in store.path(place.message) if m.role == "user"]
            own = None if is_stored(store, place) else place.head
            after = store.undo(place.session.id, n, at=own)
            if own is None:
                self._use(store, place, where)
            place = Place(place.session, after.branch, after.message, after.last_branch)
            is_taken = after.message == asked[-n].parent  # else a compaction was
            return {**moved(store, place), "text": asked[-n].text if is_taken else None}

        return await self._desk.run(work)

    async def redo(
        self, where: Where, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            own = None if is_stored(store, place) else place.head
            after = store.redo(place.session.id, at=own)
            if own is None:
                self._use(store, place, where)
            place = Place(place.session, after.branch, after.message, after.last_branch)
            return moved(store, place)

        return await self._desk.run(work)
