"""Which models are loaded, for whom, and until when.

An engine a model and dtype: its weights, KV pool and tree. As many stay as memory holds, so that a
session that goes back to a model finds its KV; where it doesn't hold one more, the engine that has
been idle longest makes room, and what goes with it is told first. Engines in use are waited for.
One that nobody has used for ``keep_alive`` goes. docs/adr/0012.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from radchat.config import FOREVER, Config
from radchat.daemon.awake import awake_time
from radchat.daemon.disk import Disk
from radchat.daemon.handing import beside
from radchat.daemon.loaded import Loaded, Memory, slow, swap
from radchat.daemon.opener import Opener
from radchat.daemon.options import REMOTE
from radchat.daemon.worker import Worker
from radchat.errors import Busy, ConfigInvalid, ModelBroken, NotFound, RadchatError, UsageError
from radchat.models import registry
from radchat.models.registry import ModelEntry
from radchat.paths import Places
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.engine.engine import Engine
    from radchat.engine.memory import Need
    from radchat.engine.model import LoadedModel

log = logging.getLogger(__name__)
Say = Callable[[Event], None]
LOADED = 0.8  # of a load's progress: the model's part; its engine's, where kernels are compiled
POLL_S = 0.2  # between progress events while a model loads
FLUSH_S = 4.0  # for what is not on disk yet of an engine that goes


class Engines:
    """``available`` and ``clock`` are this machine's unless a test gives its own."""

    def __init__(
        self,
        places: Places,
        config: Config,
        worker: Worker,
        *,
        available: Callable[[], int] | None = None,
        clock: Callable[[], float] = awake_time,
        disk: Disk | None = None,
        opener: Opener | None = None,
    ) -> None:
        self.disk = disk or Disk(places, config)
        self._places = places
        self._config = config
        self._worker = worker
        self._clock = clock
        self.on_loaded: Callable[[Loaded], Awaitable[None]] | None = None  # before it is used
        self.opener = opener or Opener(config)
        self._memory = Memory(config.memory, available or self.opener.free)
        self._change = asyncio.Lock()  # held while an engine comes or goes
        self._makes_room = False  # whoever holds it needs engines to go: nobody else takes one
        self._asking: list[ModelEntry] = []  # for whom somebody waits
        self._released = asyncio.Event()  # set whenever a user has left
        self.all: list[Loaded] = []  # the one last used is the last
        self.gone: Counter[str] = Counter()  # what engines had counted that were unloaded
        self.loading: ModelEntry | None = None
        self.share_loaded = 0.0  # of the model being loaded
        self._loader: asyncio.Task[Loaded] | None = None  # who loads it
        self._left: set[asyncio.Task[Loaded]] = set()  # who asked for an engine and went

    @property
    def loaded(self) -> Loaded | None:
        """The engine used last."""
        return self.all[-1] if self.all else None

    def of(self, model: str | None, dtype: str | None = None) -> Loaded | None:
        """The engine of this model: of this dtype if there is one, else the one used last.

        Without a model: the engine used last.
        """
        named = [each for each in self.all if model in (None, each.name)]
        exact = [each for each in named if each.dtype == dtype]
        return next(iter((exact or named)[-1:]), None)

    def until(self, loaded: Loaded) -> float | None:
        """Seconds until it is unloaded if nobody uses it; None: never, or not while it is used."""
        if loaded.users or self._config.keep_alive == FOREVER:
            return None
        return max(0.0, loaded.last_used + self._config.keep_alive - self._clock())

    def given(
        self, loaded: Loaded, asked: Mapping[str, Any], usual: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Options in force: what was asked for, else the settings, else the command's ``usual``
        ones, else the model's own.
        """
        return {**loaded.model.sampling, **(usual or {}), **self._config.sampling, **asked}

    async def choose(self, asked: str | None, sessions: str | None) -> ModelEntry:
        """The model a turn uses: asked for, the session's own, the setting, the default, the last.

        A session whose model was removed says so rather than going on with another.
        """
        wanted = asked or sessions or self._config.model
        return await asyncio.to_thread(registry.choose, self._places, wanted)

    # -- using -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def using(self, entry: ModelEntry, dtype: str | None, say: Say) -> AsyncGenerator[Loaded]:
        """The engine of this model and dtype, loaded if need be; not unloaded while held."""
        wanted = dtype or self._config.dtype
        if entry.engine is not None:
            wanted = REMOTE  # of what dtype it is there, its server knows
        try:
            loaded = await self._acquire(entry, wanted, say)
        except UsageError as error:  # of the dtype
            if dtype is not None:
                raise
            source = self._config.sources["dtype"]
            text = f"dtype = {wanted!r} (from {source}): {error.message}"
            raise ConfigInvalid(text, setting="dtype", asked=wanted) from error
        try:
            yield loaded
        finally:
            self._release(loaded)

    def _take(self, loaded: Loaded) -> Loaded:
        loaded.users += 1
        self._touch(loaded)
        return loaded

    def _release(self, loaded: Loaded) -> None:
        loaded.users -= 1
        self._touch(loaded)
        self._released.set()

    def _touch(self, loaded: Loaded) -> None:
        loaded.last_used = self._clock()
        self.all.remove(loaded)
        self.all.append(loaded)

    async def _acquire(self, entry: ModelEntry, dtype: str, say: Say) -> Loaded:
        task = asyncio.create_task(self._ensure(entry, dtype, say))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if self.loading is not None and not task.done():
                    done = round(100 * self.share_loaded)
                    text = self.loading.name
                    body = {"stage": "load", "text": text, "done": done, "total": 100}
                    say(Event("progress", body))
        except asyncio.CancelledError:
            if task is not self._loader:  # a load can't be ended half-way, and will be wanted
                task.cancel()
            self._left.add(task)
            task.add_done_callback(self._give_back)
            raise
        return task.result()

    def _give_back(self, task: asyncio.Task[Loaded]) -> None:
        """Whoever asked for this engine has gone before it came."""
        self._left.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._release(task.result())

    async def _ensure(self, entry: ModelEntry, dtype: str, say: Say) -> Loaded:
        """Where room must be made, in the order of asking; else whoever finds its engine has it."""
        found = self._find(entry, dtype)
        if found is not None and not self._makes_room:
            return self._take(found)
        self._asking.append(entry)
        try:
            async with self._change:
                found = self._find(entry, dtype)
                return self._take(found or await self._load(entry, dtype, say))
        finally:
            self._asking.remove(entry)

    def _find(self, entry: ModelEntry, dtype: str) -> Loaded | None:
        if not self.all:
            return None
        same = [each for each in self.all if each.entry.folder == entry.folder]
        if entry.engine is not None:
            return next(iter(same), None)
        wanted, is_auto = self.opener.dtype(dtype), dtype == "auto"
        fitting = (each for each in same if each.dtype == wanted or (is_auto and each.is_auto))
        return next(fitting, None)

    # -- loading -----------------------------------------------------------------------------------

    async def _load(self, entry: ModelEntry, dtype: str, say: Say) -> Loaded:
        """A new engine beside the others, or in the place of some.

        A model that can't be loaded leaves the others, if its weights had room beside them.
        """
        self._begin_load(entry)
        if entry.engine is not None:
            return await self._connect(entry)
        try:
            chosen, needed = await beside(lambda: self._choose(entry, dtype))
            loaded = self._find(entry, chosen)
            if loaded is None:
                available = await self._wait_for_room(needed, say)
                self._begin_load(entry)
                if chosen == "int4" and not self.opener.is_gpu:
                    say(slow(entry.name))
                loaded = await self._bring(entry, chosen, needed, available, say)
            loaded.is_auto |= dtype == "auto"
        except ModelBroken as error:
            if entry.name in error.message:
                raise
            raise ModelBroken(f"{entry.name}: {error.message}", **error.data) from error
        except RadchatError:
            raise
        except Exception as error:
            log.exception("loading %s failed", entry.name)
            if self.opener.is_lost(error):
                self._worker.on_broken(error)
            raise ModelBroken(f"{entry.name} could not be loaded: {error}") from error
        finally:
            self._loader = self.loading = None
            self._makes_room = False
        await self._remember(loaded)
        return loaded

    async def _connect(self, entry: ModelEntry) -> Loaded:
        """One that runs elsewhere takes no room, and makes none."""
        from radchat.daemon.remote.engine import RemoteEngine
        from radchat.daemon.remote.model import open_remote
        from radchat.daemon.remote.probe import dialect_of

        worker = self._worker
        try:
            model = await beside(lambda: open_remote(entry.folder))
            dialect = dialect_of(model.served.dialect)

            def build() -> RemoteEngine:
                return RemoteEngine(
                    model.served,
                    dialect,
                    model.tokenizer,
                    vocab_size=model.vocab_size,
                    context_length=model.context_length,
                    wake=lambda: worker.tell(_nothing),
                    key=self._config.engine_key,
                )

            engine = await worker.install(f"{entry.folder}:{REMOTE}", build)
        finally:
            self._loader = self.loading = None
        loaded = Loaded(entry, REMOTE, model, engine, last_used=self._clock())
        self.all.append(loaded)
        log.info("%s is at %s", loaded.name, model.served.url)
        await self._remember(loaded)
        return loaded

    def _choose(self, entry: ModelEntry, dtype: str) -> tuple[str, Need]:
        """What ``auto`` comes to for it where all others would go, and what it takes then."""
        opener = self.opener
        free = self._memory.free(self.all, self._memory.look())
        most = free + sum(each.num_bytes for each in self.all)
        chosen = opener.choose_dtype(entry, dtype, most)
        return chosen, opener.needs(entry, chosen)

    def _begin_load(self, entry: ModelEntry) -> None:
        """From here on it goes on, whoever asked for it."""
        self.loading, self.share_loaded = entry, 0.0
        self._loader = asyncio.current_task()

    async def _wait_for_room(self, needed: Need, say: Say) -> int:
        """Until what is idle would leave room enough; refused at once if all would not.

        Returns what is available then.
        """
        while True:
            available = await beside(self._memory.look)
            idle = [each for each in self.all if not each.users]
            free = self._memory.free(self.all, available)
            needed.require(free + sum(each.num_bytes for each in self.all))
            self._makes_room = free < needed.good
            enough = free + sum(each.num_bytes for each in idle) >= needed.good
            if enough or len(idle) == len(self.all):
                return available
            self._loader = self.loading = None
            users = sum(each.users for each in self.all)
            say(Event("progress", {"stage": "queue", "text": f"for {users} running"}))
            del idle  # nobody holds what may have to go
            self._released.clear()
            await self._released.wait()

    async def _bring(
        self, entry: ModelEntry, dtype: str, needed: Need, available: int, say: Say
    ) -> Loaded:
        """Load, those that make room gone first: as few as may be before it is known to load.

        Nothing here, nor who calls it, may hold on to one that goes: its memory is for the new KV.
        """
        await self._drop(self._memory.victims(self.all, needed, available), entry, dtype, say)
        free = self._memory.free(self.all, await beside(self._memory.look))

        def hear(share: float) -> None:
            self.share_loaded = LOADED * share

        def hear_more(share: float) -> None:
            self.share_loaded = LOADED + (1 - LOADED) * share

        model = await beside(lambda: self.opener.load(entry, dtype, hear, free))
        # counted again: while it loaded, some were unloaded, others taken, and memory came or went
        available = await beside(self._memory.look)
        keys = self._memory.victims(self.all, needed, available, model)
        await self._drop(keys, entry, dtype, say)
        free = self._memory.free(self.all, await beside(self._memory.look), model)
        key = f"{entry.folder}:{model.dtype}"
        engine = await self._worker.install(key, lambda: self._build_engine(model, free, hear_more))
        loaded = Loaded(entry, model.dtype, model, engine, last_used=self._clock())
        self.all.append(loaded)
        if self.on_loaded is not None:
            await self.on_loaded(loaded)
        log.info(
            "loaded %s %s, %d KV tokens, %d engines",
            *(loaded.name, loaded.dtype, engine.stats()["tokens"]["total"], len(self.all)),
        )
        return loaded

    def _build_engine(self, model: LoadedModel, free: int, hear: Callable[[float], None]) -> Engine:
        return self.opener.build(model, free, self.disk.blocks(model.fingerprint), hear)

    async def _drop(self, keys: list[str], entry: ModelEntry, dtype: str, say: Say) -> None:
        """Nobody gets these engines any more; what goes with them is told first, in one line."""
        if not keys:
            return
        gone = [each for each in self.all if each.key in keys]
        say(swap(f"{entry.name} {dtype}", gone))
        self._count(gone)
        self.all = [each for each in self.all if each.key not in keys]
        del gone
        await self._remove(keys)

    async def _remember(self, loaded: Loaded) -> None:
        try:
            await asyncio.to_thread(registry.note_used, self._places, loaded.name)
        except OSError as error:
            log.warning("the last used model is not remembered: %s", error.strerror)

    # -- unloading ---------------------------------------------------------------------------------

    async def unload(self, name: str | None = None) -> list[tuple[str, str]]:
        """Free weights and KV now, of one model or of all; the name and dtype of each.

        Raises Busy rather than wait, and then nothing is unloaded; NotFound for a name that is not
        loaded.
        """
        if self.loading is not None and name in (None, self.loading.name):
            raise Busy(f"{self.loading.name} is loading: try again when it has")
        doomed = [each for each in self.all if name in (None, each.name)]
        if name is not None and not doomed:
            raise NotFound(f"{name} is not loaded", model=name)
        for each in doomed:
            if each.users:
                raise Busy(f"{each.name} is answering: cancel that first, or wait")
            if any(asked.folder == each.entry.folder for asked in self._asking):
                raise Busy(f"{each.name} is about to be used: try again")
        gone = [(each.name, each.dtype) for each in doomed]
        keys = [each.key for each in doomed]
        del doomed
        await self._unload(keys)
        return gone

    async def unload_idle(self) -> None:
        """Keep-alive, looked at every second; on time awake, which no clock change moves."""
        if self._change.locked():
            return  # whoever brings a model decides what goes
        keys = [
            each.key
            for each in self.all
            if not each.users and self._clock() - each.last_used >= self._config.keep_alive
        ]
        await self._unload(keys)

    async def _unload(self, keys: list[str]) -> None:
        """At once gone for everybody; then from memory.

        Asked of the worker before anyone else can run, so that a model that is loaded again while
        it goes is installed after it went.
        """
        if not keys:
            return
        self._count([each for each in self.all if each.key in keys])
        self.all = [each for each in self.all if each.key not in keys]
        await self._remove(keys)
        log.info("unloaded %s", ", ".join(keys))

    def _count(self, going: Sequence[Loaded]) -> None:
        """No count of all engines there have been goes back."""
        for each in going:
            stats = each.engine.stats()
            self.gone.update({k: v for k, v in stats.items() if type(v) is int})

    async def _remove(self, keys: list[str]) -> None:
        if self.disk.store is not None:
            self.disk.store.try_again()
        for key in await self._worker.remove(keys, FLUSH_S):
            why = await self.disk.left()
            log.warning("%s: not all KV of its branches is on disk: %s", key, why)
        if keys and self.opener.is_gpu:
            await beside(self.opener.release)

    async def close(self) -> None:
        """Nobody uses an engine any more; the daemon ends."""
        keys, self.all = [each.key for each in self.all], []
        await self._remove(keys)


def _nothing() -> None:
    """That the engines' thread looks again is all that is wanted."""
