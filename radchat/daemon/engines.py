"""Which model is loaded, for whom, and until when.

One engine at a time: its weights, KV pool and tree. Another model or dtype waits until nobody uses
the one that is loaded, then takes its place. An engine nobody has used for ``keep_alive`` goes.
Loading runs on the engine's thread, which imports torch; the event loop goes on answering.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radchat.config import Config
from radchat.daemon.lifecycle import awake_time
from radchat.daemon.worker import Worker
from radchat.errors import Busy, ModelBroken, RadchatError
from radchat.models import registry
from radchat.models.registry import ModelEntry
from radchat.paths import Places
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.engine.engine import Engine
    from radchat.engine.model import LoadedModel
    from radchat.engine.template import Template
    from radchat.engine.tokenizer import Tokenizer

log = logging.getLogger(__name__)
Say = Callable[[Event], None]
POLL_S = 0.2  # between progress events while a model loads


@dataclass(eq=False)
class Loaded:
    """An engine and what turns messages into its ids. ``users`` keeps it from being replaced."""

    entry: ModelEntry
    dtype: str  # as loaded: fp32 or bf16
    model: LoadedModel
    engine: Engine
    users: int = 0
    last_used: float = 0.0

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def template(self) -> Template:
        return self.model.template

    @property
    def context_length(self) -> int:
        """What a request may hold: the model's context, the setting, the KV pool."""
        return self.engine.context_length


class Engines:
    def __init__(
        self,
        places: Places,
        config: Config,
        worker: Worker,
        clock: Callable[[], float] = awake_time,
    ) -> None:
        self._clock = clock
        self._places = places
        self._config = config
        self._worker = worker
        self._change = asyncio.Lock()  # held while the engine is replaced
        self._asking = 0  # who waits for an engine, or for it to be replaced
        self._released = asyncio.Event()  # set whenever a user has left
        self.loaded: Loaded | None = None
        self.loading: ModelEntry | None = None
        self.share_loaded = 0.0  # of the model being loaded
        self._loader: asyncio.Task[Loaded] | None = None  # who loads it
        self._left: set[asyncio.Task[Loaded]] = set()  # who asked for an engine and went

    async def choose(self, asked: str | None, sessions: str | None) -> ModelEntry:
        """The model a turn uses: asked for, the session's own, the setting, the default, the last.

        A session whose model was removed says so rather than going on with another.
        """
        wanted = asked or sessions or self._config.model
        return await asyncio.to_thread(registry.choose, self._places, wanted)

    @asynccontextmanager
    async def using(self, entry: ModelEntry, dtype: str | None, say: Say) -> AsyncGenerator[Loaded]:
        """The engine of this model and dtype, loaded if need be; not replaced while held."""
        wanted = dtype or self._config.dtype
        loaded = await self._acquire(entry, wanted, say)
        try:
            yield loaded
        finally:
            self._release(loaded)

    def _release(self, loaded: Loaded) -> None:
        loaded.users -= 1
        loaded.last_used = self._clock()
        self._released.set()

    async def _acquire(self, entry: ModelEntry, dtype: str, say: Say) -> Loaded:
        task = asyncio.create_task(self._ensure(entry, dtype, say))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if self.loading is not None:
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
        self._asking += 1
        try:
            async with self._change:
                if not self._has(entry, dtype):
                    await self._wait_for_users(say)
                    self._loader = asyncio.current_task()
                    try:
                        await self._load(entry, dtype, say)
                    finally:
                        self._loader = None
                loaded = self.loaded
                assert loaded is not None
                loaded.users += 1
                loaded.last_used = self._clock()
                return loaded
        finally:
            self._asking -= 1

    def _has(self, entry: ModelEntry, dtype: str) -> bool:
        if self.loaded is None:
            return False
        from radchat.engine.model import resolve_dtype  # imported already: a model is loaded

        same = self.loaded.entry.folder == entry.folder
        return same and resolve_dtype(dtype) == self.loaded.dtype

    async def _wait_for_users(self, say: Say) -> None:
        while self.loaded is not None and self.loaded.users:
            text = f"for {self.loaded.users} running"
            say(Event("progress", {"stage": "queue", "text": text}))
            self._released.clear()
            await self._released.wait()

    async def _load(self, entry: ModelEntry, dtype: str, say: Say) -> None:
        """Replace the engine. A model that can't be loaded leaves the old one, if both had room.

        Nothing here, nor who calls it, may hold on to the old one: its memory is for the new KV.
        """
        self.loading, self.share_loaded = entry, 0.0
        try:
            model = await self._load_model(entry, dtype, say)
            self._drop(entry, model.dtype, say)
            engine = await self._worker.install(lambda: self._build_engine(model))
        except ModelBroken as error:
            if entry.name in error.message:
                raise
            raise ModelBroken(f"{entry.name}: {error.message}", **error.data) from error
        except RadchatError:
            raise
        except Exception as error:
            log.exception("loading %s failed", entry.name)
            raise ModelBroken(f"{entry.name} could not be loaded: {error}") from error
        finally:
            self.loading = None
        self.loaded = Loaded(entry, model.dtype, model, engine)
        log.info(
            "loaded %s %s, %d KV tokens", entry.name, model.dtype, engine.stats()["tokens"]["total"]
        )
        try:
            await asyncio.to_thread(registry.note_used, self._places, entry.name)
        except OSError as error:
            log.warning("the last used model is not remembered: %s", error.strerror)

    async def _load_model(self, entry: ModelEntry, dtype: str, say: Say) -> LoadedModel:
        """Beside the engine that is there; in its place where memory does not hold both."""

        def hear(share: float) -> None:
            self.share_loaded = share

        def load() -> LoadedModel:
            from radchat.engine import model

            return model.load(entry.folder, dtype, progress=hear)

        try:
            return await self._worker.call(load)
        except ModelBroken as error:
            if self.loaded is None or "free_bytes" not in error.data:
                raise
        self._drop(entry, dtype, say)
        await self._worker.install(lambda: None)
        return await self._worker.call(load)

    def _build_engine(self, model: LoadedModel) -> Engine:
        from radchat.engine.model import build_engine

        return build_engine(
            model, kv_budget=self._config.kv_device, context_length=self._config.context_length
        )

    def _drop(self, entry: ModelEntry, dtype: str, say: Say) -> None:
        """Nobody gets the old engine any more; what goes with it is told."""
        old, self.loaded = self.loaded, None
        if old is not None:
            held = old.engine.stats()["tokens"]
            text = (
                f"{entry.name} {dtype} takes the place of {old.name} {old.dtype}: "
                f"{held['total'] - held['free']:,} cached tokens go"
            )
            say(Event("notice", {"text": text, "code": "model_swap"}))

    async def unload(self) -> bool:
        """Free weights and KV now; False: there are none. Raises Busy rather than wait."""
        if self.loading is not None:
            raise Busy(f"{self.loading.name} is loading: try again when it has")
        loaded = self.loaded
        if loaded is None:
            return False
        if loaded.users:
            raise Busy(f"{loaded.name} is answering: cancel that first, or wait")
        if self._asking:
            raise Busy(f"{loaded.name} is about to be used: try again")
        async with self._change:
            self.loaded = None
            await self._worker.install(lambda: None)
            log.info("unloaded %s", loaded.name)
            return True

    async def unload_if_idle(self) -> None:
        """Keep-alive, looked at every second."""
        loaded = self.loaded
        if loaded is None or loaded.users or self._asking:
            return
        if self._clock() - loaded.last_used >= self._config.keep_alive:
            await self.unload()
