"""Methods on sessions as a whole: list, show, rename, remove, open."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from radchat.daemon.base import at_least, session_json
from radchat.daemon.finding import find_session, find_store, moved, new_session, stands
from radchat.daemon.fullness import told_of
from radchat.daemon.held import Held, Snapshot, held_of
from radchat.daemon.kept import Kept
from radchat.errors import Busy, NotFound
from radchat.protocol import Where
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.messages import Removed, Session
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.searches import Search


class SessionMethods(Kept):
    _searches: dict[str, Search]  # that are open

    def _require_no_search(self, store: Store, session: Session) -> None:
        """A search goes on from messages that nothing keeps: none are deleted under it."""
        for search in list(self._searches.values()):
            if search.is_of(store, session.id):
                search_is = f"search s{search.number} is running in {session.name}"
                raise Busy(f"{search_is}: stop it, or wait for its end")

    async def sessions_list(
        self,
        where: Where,
        session: str | None = None,
        limit: int | None = None,
        folder: str | None = None,
        begun: bool = False,
    ) -> dict[str, Any]:
        """All, or those made in a folder, the last used first; ``begun``: only those in which
        something was said. One of them is current: the one named, else this place's. ``total``
        counts those beyond the limit too.
        """
        at_least(1, limit=limit)

        def work() -> dict[str, Any]:
            try:
                current = self._place(where, session, None)[1].session.id
            except (StoreNotFound, NotFound):
                current = None
            rows = [
                {
                    **session_json(summary.session),
                    "messages": summary.messages,
                    "branches": summary.branches,
                    "head": summary.head.message,
                    "branch": summary.head.branch,
                    "current": summary.session.id == current,
                    "ephemeral": store is self._desk.ephemeral,
                }
                for store in (self._desk.stored, self._desk.ephemeral)
                for summary in store.sessions(folder=folder)
                if summary.messages or not begun
            ]
            rows.sort(key=lambda row: -row["used"])  # each store's own order stands among equals
            return {"sessions": rows[:limit], "total": len(rows)}

        return await self._desk.run(work)

    async def sessions_show(self, where: Where, session: str | None = None) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            messages = store.messages(place.session.id)
            spans = store.spans(place.session.id)
            named = store.branches(place.session.id)
            return {
                **session_json(place.session),
                "messages": len(messages),
                "branches": {b.name: b.message for b in named},
                "head": place.message,
                "branch": place.branch,
                "tokens": sum(span.stop - span.start for span in spans.values()),
                "settings": dict(place.session.settings),
            }

        return await self._desk.run(work)

    async def sessions_rename(
        self, where: Where, name: str, session: str | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            return session_json(store.rename(place.session.id, name))

        return await self._desk.run(work)

    async def sessions_rm(self, where: Where, sessions: list[str]) -> dict[str, Any]:
        """Delete sessions, and forget the KV only they used, on disk too; messages others share
        stay. None is deleted where one is not found or has an answer running. ``kv_left``: where
        some of its KV may lie still, and why.
        """

        def meant() -> list[tuple[Store, Session]]:
            places = [self._place(where, ref, None) for ref in sessions]
            for store, place in places:
                if store.running(place.session.id):
                    raise Busy(
                        f"an answer is running in {place.session.name}: cancel it, or wait for it"
                    )
                self._require_no_search(store, place.session)
            return list({place.session.id: (s, place.session) for s, place in places}.values())

        removed = []
        for store, session in await self._desk.run(meant):
            snapshots = await self._snapshots()

            def going(store: Store = store, ref: str = session.id) -> set[str]:
                return set(store.remove(ref, dry_run=True).messages)

            def remove(
                store: Store = store, ref: str = session.id, all_of: Sequence[Snapshot] = snapshots
            ) -> tuple[list[dict[str, Held]], Removed]:
                return [held_of(store, ref, each) for each in all_of], store.remove(ref)

            (held, what), kv_left = await self._remove(store, session.id, going, remove)
            await self._unkeep(session.id)  # of a turn that has ended meanwhile
            for snapshot, mine in zip(snapshots, held, strict=True):
                await self._forget(snapshot, mine, set(what.messages))
            # what an agent of it has kept: its journal, whole results, files as they were
            kept = partial(shutil.rmtree, self._places.data / "agent" / session.id, True)
            await self._desk.run(kept)
            removed.append(
                {
                    "id": session.id,
                    "name": session.name,
                    "messages": len(what.messages),
                    "shared": what.shared,
                    "kv_left": kv_left,
                }
            )
        return {"removed": removed}

    async def sessions_use(self, where: Where, session: str | None = None) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            self._use(store, place, where)
            return {"id": place.session.id, **moved(store, place)}

        return await self._desk.run(work)

    async def sessions_open(
        self,
        where: Where,
        session: str | None = None,
        new: bool = False,
        name: str | None = None,
        ephemeral: bool = False,
        model: str | None = None,
        at: str | None = None,
    ) -> dict[str, Any]:
        """For an open chat: the session to talk in, what going on there would compute again, and
        the session used last. ``at``: it will go on from this REF, and not from HEAD.
        """

        def work() -> tuple[Store, dict[str, Any], str | None]:
            stored = self._desk.stored
            last = stored.current_session(where["terminal"], where["folder"])
            store = find_store(self._desk, None if new else session, ephemeral=ephemeral)
            if new:
                made = new_session(store, where, name=name, model=model)
                place = stands(store, made, None)
            else:
                place = stands(store, find_session(store, session, where), None)
            goes_on: dict[str, str | None] = {}
            if at is not None:
                store, place, point = self._point(where, place.session.id, None, at)
                goes_on["at"] = point.message
            if not new:
                self._use(store, place, where)
            previous = None
            if last is not None and last.id != place.session.id:
                count = len(stored.message_ids(last.id))
                previous = {"name": last.name, "id": last.id, "used": last.used, "messages": count}
            body = {
                **session_json(place.session),
                "branch": place.branch,
                "head": place.message,
                "messages": len(store.message_ids(place.session.id)),
                "last": previous,
                "ephemeral": store is self._desk.ephemeral,
                "answered": told_of(store, place.message),
                **goes_on,
            }
            return store, body, goes_on.get("at", place.message)

        store, opened, message = await self._desk.run(work)
        return {**opened, "recompute": await self._forecast(store, message, model)}
