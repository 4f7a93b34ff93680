"""Methods on what is kept of all sessions: search it, prune it, verify it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from radchat.daemon.arguments import ChatHead
from radchat.daemon.base import at_least
from radchat.daemon.finding import target_of
from radchat.daemon.held import Held, held_of
from radchat.daemon.session_methods import SessionMethods
from radchat.errors import Busy, InvalidInput, UsageError
from radchat.protocol import Where
from radchat_sessions.messages import Hit, Removed, Session
from radchat_sessions.names import shortest
from radchat_sessions.store import Store
from radchat_sessions.words import query as words_of

CHANGED = "what would be deleted is no longer what was asked about: look again"


class KeepingMethods(SessionMethods):
    async def sessions_search(
        self,
        query: str,
        limit: int = 20,
        session: str | None = None,
        only_sessions: bool = False,
    ) -> dict[str, Any]:
        """Messages with every word of ``query``, best first, from all sessions or from one;
        ``only_sessions``: those of them that show such messages.
        """
        at_least(1, limit=limit)
        if not words_of(query):
            raise InvalidInput("there is no word to search for", field="query")

        def work() -> dict[str, Any]:
            stores: list[tuple[Store, str | None]] = [
                (self._desk.stored, None),
                (self._desk.ephemeral, None),
            ]
            if session is not None:
                store, place = self._place({"terminal": None, "folder": "/"}, session, None)
                stores = [(store, place.session.id)]
            if only_sessions:
                return _sessions_with(query, stores, limit)
            found = [
                (hit, store) for store, one in stores for hit in store.search(query, one, limit + 1)
            ]
            found.sort(key=lambda each: each[0].rank)
            return {
                "query": query,
                "hits": [
                    {**hit, "ephemeral": store is self._desk.ephemeral}
                    for hit, (_, store) in zip(
                        _hits_json(found[:limit]), found[:limit], strict=True
                    )
                ],
                "more": len(found) > limit,
            }

        return await self._desk.run(work)

    async def sessions_prune(
        self,
        where: Where,
        session: str | None = None,
        unlabeled: bool = False,
        dry_run: bool = False,
        marked: list[str] | None = None,
        head: ChatHead | None = None,
        digest: str | None = None,
    ) -> dict[str, Any]:
        """Delete what no branch, label or HEAD reaches, and forget the KV only that used, on disk
        too.

        ``unlabeled``: and the side branches without a label. ``marked``: instead, these messages
        (REFs) and what follows them. ``dry_run``: only say what would go. ``digest``, as a dry run
        told it: refused, with ``changed``, where something else would go by now.
        """
        if marked is not None and (unlabeled or not marked):
            raise UsageError("marked: at least one message, and not with unlabeled")

        def meant() -> tuple[Store, str, list[str]]:
            store, place = self._place(where, session, head)
            if not dry_run:
                self._require_no_search(store, place.session)
            refs = [target_of(store, place, ref) for ref in marked or ()]
            if any(each.session != place.session.id or each.message is None for each in refs):
                raise UsageError("marked: messages of one session")
            return store, place.session.id, [each.message or "" for each in refs]

        in_store, named, doomed_ends = await self._desk.run(meant)
        at = None if head is None else head["message"]

        def pruned(*, dry_run: bool) -> Removed:
            return in_store.prune(
                named, unlabeled=unlabeled, marked=doomed_ends, head=at, dry_run=dry_run
            )

        def counted() -> Removed:
            what = pruned(dry_run=True)
            if digest not in (None, _digest(what)):
                raise Busy(CHANGED, changed=True)
            return what

        snapshots = await self._snapshots()
        bytes_of = {each.key: each.bytes_per_token for each in self._engines.all}

        def work() -> tuple[Session, list[dict[str, Held]], int, Removed]:
            store, own = in_store, in_store.session(named)
            held = [held_of(store, own.id, each) for each in snapshots]
            spans = store.spans(own.id)
            what = counted()
            if not dry_run:
                what = pruned(dry_run=False)
            gone = [spans[message] for message in what.messages if message in spans]
            return own, held, sum(span.stop - span.start for span in gone), what

        def going() -> set[str]:
            return set(counted().messages)

        kv_left = None
        if dry_run:
            own, held, tokens, what = await self._desk.run(work)
        else:
            done, kv_left = await self._remove(in_store, named, going, work)
            own, held, tokens, what = done
        doomed = set(what.messages)
        kv_tokens = kv_bytes = 0
        for snapshot, mine in zip(snapshots, held, strict=True):
            kv = await self._forget(snapshot, mine, doomed, dry_run=dry_run)
            kv_tokens += kv
            kv_bytes += kv * bytes_of.get(snapshot.key, 0)
        if not dry_run:
            await self._keep_branches(in_store, own.id)
        return {
            "session": own.id,
            "name": own.name,
            "messages": len(what.messages),
            "tokens": tokens,
            "kv_tokens": kv_tokens,
            "kv_bytes": kv_bytes,
            "branches": list(what.branches),
            "labels": what.labels,
            "thoughts": what.thoughts,
            "shared": what.shared,
            "dry_run": dry_run,
            "kv_left": kv_left,
            "digest": _digest(what),
        }

    async def sessions_verify(self, where: Where, session: str | None = None) -> dict[str, Any]:
        """All that is wrong with the store, or with what one session shows and the whole file."""

        def work() -> dict[str, Any]:
            store, shown = self._desk.stored, None
            if session is not None:
                store, place = self._place(where, session, None)
                shown = place.session.id
            problems = store.verify(shown)
            checked = store.num_messages() if shown is None else len(store.message_ids(shown))
            rows = [
                {"kind": p.kind, "id": p.id or None, "session": p.session, "text": p.text}
                for p in problems
            ]
            return {"ok": not rows, "messages": checked, "problems": rows}

        return await self._desk.run(work)


def _digest(what: Removed) -> str:
    """Of all that goes: to know it again."""
    told = json.dumps([what.messages, what.branches, what.labels, what.shared])
    return blake2b(told.encode(), digest_size=8).hexdigest()


def _sessions_with(
    query: str, stores: Sequence[tuple[Store, str | None]], limit: int
) -> dict[str, Any]:
    found = [
        (each, store)
        for store, one in stores
        for each in store.sessions_with(query, one, limit + 1)
    ]
    found.sort(key=lambda each: each[0].rank)
    rows = [
        {
            "id": each.session,
            "name": store.session(each.session).name,
            "matches": each.matches,
        }
        for each, store in found[:limit]
    ]
    return {"query": query, "sessions": rows, "more": len(found) > limit}


def _hits_json(found: list[tuple[Hit, Store]]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    short: dict[str, str] = {}
    for hit, store in found:
        if hit.session is not None and hit.session not in names:
            names[hit.session] = store.session(hit.session).name
            short |= shortest(store.message_ids(hit.session))
    return [
        {
            "session": hit.session,
            "name": None if hit.session is None else names[hit.session],
            "message": hit.message,
            "short": short.get(hit.message, hit.message[:4]),
            "branch": hit.branch,
            "role": hit.role,
            "created": hit.created,
            "snippet": hit.snippet,
            "marks": [list(mark) for mark in hit.marks],
            "rank": hit.rank,
        }
        for hit, _ in found
    ]
