"""What the daemon's methods stand on: the desk, the engine's thread, and which session is meant."""

from __future__ import annotations

from typing import Any

from radchat.config import Config
from radchat.daemon import views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.desk import Desk
from radchat.daemon.engines import Engines
from radchat.daemon.finding import Place, find_session, stands
from radchat.daemon.worker import Worker
from radchat.paths import Places
from radchat.protocol import Where
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.messages import Session
from radchat_sessions.store import Store


class Base:
    """The service is one class in five files, each adding to the one before (see service.py)."""

    def __init__(self, places: Places, config: Config, worker: Worker) -> None:
        self._places, self._config = places, config
        self._desk = Desk(places)
        self._worker = worker
        self._engines = Engines(places, config, worker)

    def _place(
        self, where: Where, session: str | None, head: ChatHead | None
    ) -> tuple[Store, Place]:
        """The session meant, in the store that has it, and where in it one stands."""
        stored, ephemeral = self._desk.stored, self._desk.ephemeral
        if session is not None:
            try:
                return ephemeral, stands(ephemeral, ephemeral.find_session(session), head)
            except StoreNotFound:
                pass
        return stored, stands(stored, find_session(stored, session, where), head)

    def _use(self, store: Store, place: Place, where: Where) -> None:
        store.use(place.session.id, terminal=where["terminal"], folder=where["folder"])

    def _branch_at(self, store: Store, place: Place, message: str | None) -> str | None:
        ends = [b.name for b in store.branches(place.session.id) if b.message == message]
        if place.branch in ends:
            return place.branch
        return ends[0] if len(ends) == 1 else None

    def _stats(self) -> dict[str, Any] | None:
        loaded = self._engines.loaded
        return None if loaded is None else loaded.engine.stats()

    def _paths(self, store: Store, session: Session) -> list[views.Path]:
        loaded = self._engines.loaded
        if loaded is None:
            return []
        return views.paths_of(store, session.id, store.messages(session.id), loaded.tokenizer.hash)

    async def _probe(self, paths: list[views.Path]) -> dict[str, views.Held]:
        loaded = self._engines.loaded
        if loaded is None or not paths:
            return {}
        return await self._worker.call(lambda: views.probe(loaded.engine, paths))

    async def _forget(self, paths: list[views.Path], doomed: set[str]) -> int:
        """Evict the KV that only these messages use; tokens freed."""
        loaded = self._engines.loaded
        if loaded is None:
            return 0
        cuts = views.cuts(paths, doomed)
        return await self._worker.call(
            lambda: sum(loaded.engine.forget(ids, start) for ids, start in cuts)
        )


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "name": session.name,
        "model": session.model,
        "folder": session.folder,
        "created": session.created,
        "used": session.used,
    }
