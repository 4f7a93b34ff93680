"""Methods on names in a session's tree: branches and labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from radchat.daemon.arguments import ChatHead
from radchat.daemon.exchange_methods import ExchangeMethods
from radchat.daemon.finding import is_stored, moved
from radchat.daemon.turns import shown
from radchat.errors import NotFound, UsageError
from radchat.protocol import Where
from radchat_sessions.names import SHORTEST_ID
from radchat_sessions.store import Store


class BranchMethods(ExchangeMethods):
    async def branch_list(
        self, where: Where, session: str | None = None, head: ChatHead | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, head)
            spans = store.spans(place.session.id)
            picks = store.numbered_branches(place.session.id, place.head)
            numbers = {name: number for number, name in picks.items()}
            rows = []
            for branch in store.branches(place.session.id):
                message = None if branch.message is None else store.message(branch.message)
                span = None if message is None else spans.get(message.id)
                rows.append(
                    {
                        "name": branch.name,
                        "number": numbers.get(branch.name),
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
            store, place, point = self._point(where, session, head, ref)
            made = store.create_branch(place.session.id, name, point.message)
            return {"session": place.session.id, "branch": made.name, "message": made.message}

        return await self._desk.run(work)

    async def branch_rename(
        self, where: Where, old: str, new: str, session: str | None = None
    ) -> dict[str, Any]:
        def work() -> tuple[Store, dict[str, Any]]:
            store, place = self._place(where, session, None)
            store.rename_branch(place.session.id, old, new)
            return store, {"session": place.session.id, "old": old, "branch": new}

        store, done = await self._desk.run(work)
        await self._unkeep(done["session"], old)
        await self._keep_branches(store, done["session"])
        return done

    async def branch_delete(
        self, where: Where, name: str, session: str | None = None
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, place = self._place(where, session, None)
            store.delete_branch(place.session.id, name)
            return {"session": place.session.id, "deleted": name}

        done = await self._desk.run(work)
        await self._unkeep(done["session"], name)
        return done

    async def branch_advance(
        self,
        where: Where,
        message: str,
        session: str | None = None,
        head: ChatHead | None = None,
        expected: str | None = None,
    ) -> dict[str, Any]:
        """HEAD's branch, or a chat's, goes on to ``message``, which follows ``expected``, if it
        stands there still (null: before everything). Else a branch of its own does, named in
        ``made``, and HEAD is on that.
        """

        def work() -> tuple[Store, dict[str, Any]]:
            store, place = self._place(where, session, head)
            here = place.session.id
            if message not in store.message_ids(here):
                raise NotFound(f"no message {message[:SHORTEST_ID]} in {place.session.name}")
            follows = expected is None or expected in {each.id for each in store.path(message)}
            branch = place.branch if follows else None
            appended = store.append(
                here,
                parent=message,
                new=(),
                branch=branch or store.free_branch_name(here, place.last_branch),
                expected=expected,
                keep_head=not is_stored(store, place),
            )
            placed = appended.placed
            assert placed is not None
            at = replace(place, branch=placed.branch, message=message, last_branch=placed.branch)
            is_moved = not placed.made and message != expected
            made = placed.branch if placed.made else None
            return store, {**moved(store, at), "moved": is_moved, "made": made}

        store, done = await self._desk.run(work)
        await self._keep_branches(store, done["session"])
        return done

    async def branch_label(
        self,
        where: Where,
        ref: str,
        text: str,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            store, _, target = self._target(where, session, head, ref)
            if target.message is None:
                raise UsageError(f"{ref} is before everything: there is no message to label")
            store.add_label(target.session, target.message, text)
            return {"session": target.session, "message": target.message, "label": text}

        return await self._desk.run(work)
