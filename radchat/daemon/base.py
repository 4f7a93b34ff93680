"""What the daemon's methods stand on: the desk, the engine's thread, and which session is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radchat.config import Config
from radchat.daemon.arguments import ChatHead
from radchat.daemon.desk import Desk
from radchat.daemon.disk import Disk
from radchat.daemon.disk_paths import Ranges, num_in
from radchat.daemon.engines import Engines
from radchat.daemon.finding import (
    Place,
    find_session,
    find_store,
    is_of,
    point_of,
    split_ref,
    stands,
    target_of,
)
from radchat.daemon.forecast import Path, path_to, told
from radchat.daemon.handing import beside
from radchat.daemon.held import Held, Snapshot, cuts
from radchat.daemon.loaded import Loaded
from radchat.daemon.pin_book import Entry, PinBook, is_written
from radchat.daemon.reuse import TOO_SLOW, WORTH_SAYING, Excuse
from radchat.daemon.worker import Worker
from radchat.errors import Busy, InvalidInput, RadchatError
from radchat.models import registry
from radchat.paths import Places
from radchat.protocol import Where
from radchat_sessions import refs
from radchat_sessions.errors import StoreError
from radchat_sessions.kv_store import KVFolder
from radchat_sessions.messages import Session
from radchat_sessions.store import Store


class Base:
    """The service is one class in several files, each adding to the one before (see service.py)."""

    def __init__(
        self, places: Places, config: Config, worker: Worker, engines: Engines | None = None
    ) -> None:
        self._places, self._config = places, config
        self._desk = Desk(places)
        self._worker = worker
        self._engines = engines or Engines(places, config, worker)
        self._pins = PinBook()

    @property
    def places(self) -> Places:
        return self._places

    @property
    def desk(self) -> Desk:
        return self._desk

    @property
    def engines(self) -> Engines:
        return self._engines

    @property
    def worker(self) -> Worker:
        return self._worker

    @property
    def _disk(self) -> Disk:
        return self._engines.disk

    def _place(
        self, where: Where, session: str | None, head: ChatHead | None
    ) -> tuple[Store, Place]:
        """The session meant, in the store that has it, and where in it one stands."""
        store = find_store(self._desk, session)
        return store, stands(store, find_session(store, session, where), head)

    def _at(
        self, where: Where, session: str | None, head: ChatHead | None, ref: str
    ) -> tuple[Store, Place, str]:
        """The place a REF is seen from, and the REF there: ``SESSION:REF`` is seen from that
        session's HEAD, in whichever store it is; from a chat's own where it names the chat's.
        """
        named, rest = split_ref(ref)
        if named is None:
            return *self._place(where, session, head), ref
        store = find_store(self._desk, named)
        other = store.find_session(named)
        own = head if is_of(self._desk, session, other.id) else None
        return store, stands(store, other, own), rest

    def _target(
        self,
        where: Where,
        session: str | None,
        head: ChatHead | None,
        ref: str,
        *,
        pick: bool = False,
    ) -> tuple[Store, Place, refs.Target]:
        """The message a REF names, and where one stands in its session."""
        store, place, ref = self._at(where, session, head, ref)
        return store, place, target_of(store, place, ref, pick=pick)

    def _point(
        self,
        where: Where,
        session: str | None,
        head: ChatHead | None,
        ref: str,
        *,
        pick: bool = False,
    ) -> tuple[Store, Place, refs.Point]:
        """Where ``fork`` and ``switch`` go, and where one stands in that session."""
        store, place, ref = self._at(where, session, head, ref)
        return store, *point_of(store, place, ref, pick=pick)

    def _use(self, store: Store, place: Place, where: Where) -> None:
        store.use(place.session.id, terminal=where["terminal"], folder=where["folder"])

    def _branch_at(self, store: Store, place: Place, message: str | None) -> str | None:
        ends = [b.name for b in store.branches(place.session.id) if b.message == message]
        if place.branch in ends:
            return place.branch
        return ends[0] if len(ends) == 1 else None

    async def _engine_of(self, find: Callable[[], tuple[Store, Place]]) -> Loaded | None:
        """The engine that a session talks with: its model's, in the dtype of its last answer.

        None where that is not loaded: then nothing of the session is cached. ``find`` runs on the
        desk.
        """

        def look() -> tuple[str | None, str | None]:
            store, place = find()
            answers = (m.dtype for m in reversed(store.path(place.message)) if m.dtype)
            return place.session.model, next(answers, None)

        return self._engines.of(*await self._desk.run(look))

    async def _engine_here(self, where: Where | None, session: str | None) -> Loaded | None:
        """The engine of the session meant, else the one used last."""
        if where is None:
            return self._engines.loaded
        try:
            own = await self._engine_of(lambda: self._place(where, session, None))
        except (RadchatError, StoreError):
            if session is not None:
                raise
            own = None
        return own or self._engines.loaded

    async def _stats(self, loaded: Loaded | None) -> dict[str, Any] | None:
        """An engine's numbers between two steps; None without one."""
        return None if loaded is None else await self._worker.look(loaded.engine.stats)

    async def _snapshot(self, loaded: Loaded | None) -> Snapshot | None:
        """What an engine's cache holds now; None without one."""
        if loaded is None:
            return None
        cache, tokenizer, key = loaded.engine.cache, loaded.tokenizer.hash, loaded.key
        return await self._worker.look(lambda: Snapshot(cache, tokenizer, key))

    async def _forecast(
        self, store: Store, message: str | None, model: str | None = None
    ) -> dict[str, Any] | None:
        """What a turn that follows this message would restore or compute again, where it is worth
        saying. ``model``: the one it will be asked of, where that is not the last one's.
        """
        path = await self._desk.run(lambda: path_to(store, message))
        if path is None or (model is not None and model != path.model):
            return None  # ids of another model are not known before it reads the words

        def look() -> tuple[Ranges, Excuse]:
            is_ephemeral = store is self._desk.ephemeral
            excuse = self._disk.excuse(path.created, is_ephemeral=is_ephemeral)
            return self._path_on_disk(store, path), excuse

        loaded = self._engines.of(path.model, path.dtype)
        if loaded is None or loaded.tokenizer.hash != path.tokenizer:
            kept, excuse = await beside(look)
            return told(len(path.ids), 0, num_in(kept, 0, len(path.ids)), None, excuse)
        engine = loaded.engine
        try:
            tiers = await self._worker.look(lambda: engine.probe_tiers(path.ids))
        except Busy:  # not known now: the turn itself will tell
            return None
        kept, excuse = await beside(look)
        if num_in(kept, tiers.device, len(path.ids)) - tiers.disk > WORTH_SAYING:
            excuse = TOO_SLOW
        return told(len(path.ids), *tiers, loaded, excuse)

    def _blocks_of(self, model: str | None, dtype: str | None) -> KVFolder | None:
        """A model's blocks, whether it is loaded or not. On any thread; reads small files."""
        if self._disk.store is None or model is None:
            return None
        loaded = self._engines.of(model, dtype)
        if loaded is not None and dtype in (None, loaded.dtype):
            return self._disk.blocks(loaded.model.fingerprint)
        try:
            folder = registry.find(self._places, model).folder
        except RadchatError:  # it was removed
            return None
        return self._disk.of_model(folder, dtype)

    def _path_on_disk(self, store: Store, path: Path) -> Ranges:
        """Where a path that was read is on disk. On any thread."""
        blocks = None if store is self._desk.ephemeral else self._blocks_of(path.model, path.dtype)
        return [] if blocks is None else blocks.spans(path.ids.tobytes())

    async def _snapshots(self) -> list[Snapshot]:
        """Of every engine that is loaded."""
        made = [await self._snapshot(loaded) for loaded in list(self._engines.all)]
        return [snapshot for snapshot in made if snapshot is not None]

    async def _forget(
        self,
        snapshot: Snapshot,
        held: Mapping[str, Held],
        doomed: set[str],
        *,
        dry_run: bool = False,
    ) -> int:
        """Evict the KV that only these messages use from the snapshot's engine; tokens freed, or,
        on a dry run, that would be. What is pinned stays.
        """
        await self._drop_lost_pins()
        found = [each for each in self._engines.all if each.key == snapshot.key]
        if not found:
            return 0
        engine, paths = found[0].engine, cuts(snapshot, held, doomed)
        if dry_run:
            return await self._worker.call(lambda: engine.forgettable(paths))
        return await self._worker.call(
            lambda: sum(engine.forget(ids, start) for ids, start in paths)
        )

    # -- pins ------------------------------------------------------------------------------------

    async def _drop_lost_pins(self) -> None:
        """End those whose session or message has been removed."""

        def look() -> list[Entry]:
            stores = {True: self._desk.ephemeral, False: self._desk.stored}
            return [e for e in entries if not is_written(stores[e.is_ephemeral], e)]

        entries = list(self._pins)
        if entries and (lost := await self._desk.run(look)):
            await self._unpin(lost)

    async def _unpin(self, entries: Sequence[Entry]) -> None:
        """End pins: in the engines, as labels, in the book."""

        def unlabel() -> None:
            for entry in entries:
                store = self._desk.ephemeral if entry.is_ephemeral else self._desk.stored
                store.remove_label(entry.session, entry.message, kind="pin")

        for entry in entries:
            self._pins.remove(entry)
        await self._desk.run(unlabel)
        caches = [loaded.engine.cache for loaded in self._engines.all]
        names = [entry.name for entry in entries]

        def unpin() -> None:
            for cache in caches:
                for name in names:
                    cache.unpin(name)

        self._worker.tell(unpin)


def at_least(least: int, **numbers: int | None) -> None:
    """Raises InvalidInput that names the argument which is less; None is not given."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise InvalidInput(f"{name}: want {least} or more (got {number})", field=name)


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "name": session.name,
        "model": session.model,
        "folder": session.folder,
        "created": session.created,
        "used": session.used,
        "parent": session.parent,
        "fork_message": session.fork_message,
    }
