"""Methods on one session's tree: look at it, move in it, name places in it."""

from __future__ import annotations

from typing import Any, Literal

from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.finding import Place, is_stored, point_of, stands, target_of
from radchat.daemon.session_methods import SessionMethods
from radchat.daemon.turns import shown
from radchat.errors import RadchatError, UsageError
from radchat.protocol import Where
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.store import Store

Filter = Literal["default", "user-only", "no-tools", "labeled", "all"]


class TreeMethods(SessionMethods):
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
        ids: bool = False,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def look() -> tuple[Store, Place, str | None, list[views.Path]]:
            store, place, root = self._tree_root(where, session, ref, head)
            paths = self._paths(store, place.session) if show_cache or lru else []
            return store, place, root, paths

        store, place, root, paths = await self._desk.run(look)
        held = await self._probe(paths)
        tiers = views.tiers_json(self._stats())

        def join() -> dict[str, Any]:
            messages = views.subtree(store.messages(place.session.id), root)
            total = len(messages)
            named = {b.message for b in store.branches(place.session.id) if b.message}
            named |= {label.message for label in store.labels(place.session.id)}
            if filter not in ("default", "all") or depth is not None:
                messages = views.filtered(messages, filter, depth, named)
            body = views.tree_json(store, place, messages, held, tiers)
            return {**body, "num_messages": total}

        return await self._desk.run(join)

    def _tree_root(
        self, where: Where, session: str | None, ref: str | None, head: ChatHead | None
    ) -> tuple[Store, Place, str | None]:
        """REF|SESSION: a message of the current session, else a session of that name."""
        if ref is None:
            return *self._place(where, session, head), None
        try:
            store, place = self._place(where, session, head)
            target = target_of(store, place, ref)
        except (StoreNotFound, RadchatError):
            try:
                return *self._place(where, ref, None), None
            except (StoreNotFound, RadchatError):
                store, place = self._place(where, session, head)
                target = target_of(store, place, ref)
        if target.session != place.session.id:
            place = stands(store, store.session(target.session), None)
        return store, place, target.message

    async def log(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        n: int | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            at = place.message
            if ref is not None:
                target = target_of(store, place, ref)
                if target.session != place.session.id:
                    place_of = stands(store, store.session(target.session), None)
                    return views.log_json(store, place_of, target.message, n)
                at = target.message
            return views.log_json(store, place, at, n)

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
            store, place = self._place(where, session, head)
            moved_from = {"branch": place.branch, "head": place.message}
            takes_head = head is None or is_stored(store, place)
            at, text = place.message, None
            if ref is not None:
                place, point = point_of(store, place, ref)
                at, text = point.message, point.text
            if new_session:
                made = store.create_session(
                    name=new_session if isinstance(new_session, str) else None,
                    model=place.session.model,
                    folder=where["folder"],
                    settings=place.session.settings,
                    clock=place.session.clock,
                    fork_of=(place.session.id, at),
                )
                store.use(made.id, terminal=where["terminal"], folder=where["folder"])
                place = stands(store, made, None)
            else:
                made_branch = store.create_branch(place.session.id, name, at)
                if takes_head:
                    store.move_head(place.session.id, branch=made_branch.name)
                    self._use(store, place, where)
                place = Place(place.session, made_branch.name, at, made_branch.name)
            return {**place.moved(), "text": text, "moved_from": moved_from}

        return await self._desk.run(work)

    async def switch(
        self,
        where: Where,
        ref: str,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            takes_head = head is None or is_stored(store, place)
            place, point = point_of(store, place, ref)
            if takes_head:
                if point.branch is not None:
                    store.move_head(place.session.id, branch=point.branch)
                else:
                    store.move_head(place.session.id, message=point.message)
                self._use(store, place, where)
                place = stands(store, place.session, None)
            else:
                branch = point.branch or self._branch_at(store, place, point.message)
                place = Place(place.session, branch, point.message, branch or place.last_branch)
            return {**place.moved(), "text": point.text}

        return await self._desk.run(work)

    async def undo(
        self, where: Where, n: int = 1, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            asked = [m for m in store.path(place.message) if m.role == "user"]
            if head is None or is_stored(store, place):
                after = store.undo(place.session.id, n)
                place = stands(store, place.session, None)
                assert after.message == place.message
            else:
                at = store.back(place.message, n)
                if place.branch is not None:
                    store.set_branch(place.session.id, place.branch, at, expected=place.message)
                place = Place(place.session, place.branch, at, place.last_branch)
            text = asked[-n].text if n <= len(asked) else None
            return {**place.moved(), "text": text}

        return await self._desk.run(work)

    async def redo(
        self, where: Where, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            if head is not None and not is_stored(store, place):
                raise UsageError("nothing to redo here: this chat has moved since")
            store.redo(place.session.id)
            return stands(store, place.session, None).moved()

        return await self._desk.run(work)

    # -- branches --------------------------------------------------------------------------------

    async def branch_list(
        self, where: Where, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            spans = store.spans(place.session.id)
            rows = []
            for branch in store.branches(place.session.id):
                message = None if branch.message is None else store.message(branch.message)
                span = None if message is None else spans.get(message.id)
                rows.append(
                    {
                        "name": branch.name,
                        "message": branch.message,
                        "text": None if message is None else shown(message),
                        "tokens": None if span is None else span.stop,
                        "current": branch.name == place.branch,
                        "updated": None if message is None else message.created,
                    }
                )
            return {"session": place.session.id, "name": place.session.name, "branches": rows}

        return await self._desk.run(work)

    async def branch_create(
        self,
        where: Where,
        name: str,
        ref: str = "HEAD",
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            place, point = point_of(store, place, ref)
            made = store.create_branch(place.session.id, name, point.message)
            return {"session": place.session.id, "branch": made.name, "message": made.message}

        return await self._desk.run(work)

    async def branch_rename(
        self, where: Where, old: str, new: str, session: str | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            store.rename_branch(place.session.id, old, new)
            return {"session": place.session.id, "old": old, "branch": new}

        return await self._desk.run(work)

    async def branch_delete(
        self, where: Where, name: str, session: str | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            store.delete_branch(place.session.id, name)
            return {"session": place.session.id, "deleted": name}

        return await self._desk.run(work)

    async def branch_label(
        self,
        where: Where,
        ref: str,
        text: str,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            target = target_of(store, place, ref)
            if target.message is None:
                raise UsageError(f"{ref} is before everything: there is no message to label")
            store.add_label(target.session, target.message, text)
            return {"session": target.session, "message": target.message, "label": text}

        return await self._desk.run(work)
