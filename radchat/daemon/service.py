"""The daemon's methods, one for each name in protocol.METHODS. The signature is the contract.

The one place where sessions meet the engine. One class in five files, each adding to the one
before: ``base``, ``session_methods``, ``tree_methods``, ``cache_methods``, and here: the service's
life, control, models, answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from radchat.config import FOREVER, SETTINGS, Config
from radchat.daemon import views
from radchat.daemon.answering import Answer
from radchat.daemon.arguments import ChatHead, FileText, Generate, Kind, Options
from radchat.daemon.cache_methods import CacheMethods
from radchat.daemon.finding import find_session
from radchat.daemon.worker import Worker
from radchat.errors import Busy, RadchatError
from radchat.models import registry
from radchat.paths import Places
from radchat.protocol import Event, State, Where

log = logging.getLogger(__name__)

TICK_S = 1.0
EXIT_BROKEN = 70


class Service(CacheMethods):
    def __init__(self, places: Places, config: Config) -> None:
        super().__init__(places, config, Worker(_engine_broke))
        self._answers: dict[str, tuple[Answer, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._desk.open()
        for left in self._desk.stored.recovered:
            kept = "kept as it was" if left.message is not None else "nothing had been said"
            log.info(
                "answer %s was cut off by the end of the last daemon: %s", left.answer[:8], kept
            )
        self._worker.start()
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        self._ticker.cancel()
        for answer, task in list(self._answers.values()):
            _end(answer, task)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._worker.stop)
        await self._desk.close()

    @property
    def state(self) -> State:
        return "loading" if self._engines.loading is not None else "ready"

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._engines.unload_if_idle()
            except Exception:
                log.exception("the service's look at itself failed")

    # -- control ---------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        loaded, loading = self._engines.loaded, self._engines.loading
        stats = None if loaded is None else loaded.engine.stats()
        return {
            "model": None if loaded is None else loaded.name,
            "dtype": None if loaded is None else loaded.dtype,
            "device": "cpu",
            "executor": "torch",
            "kv": views.tiers_json(stats),
            "running": 0 if stats is None else stats["running"],
            "waiting": 0 if stats is None else stats["waiting"],
            "answers": len(self._answers),
            "loading": None
            if loading is None
            else {
                "model": loading.name,
                "done": round(100 * self._engines.share_loaded),
                "total": 100,
            },
            "models": self._models(),
            "locations": _locations(),
            "home": self._home(),
        }

    def _home(self) -> dict[str, str]:
        places = self._places
        return {
            "config": str(places.config_file),
            "database": str(places.database),
            "models": str(places.models),
            "kv": str(places.kv),
            "log": str(places.log),
        }

    def _models(self) -> list[dict[str, Any]]:
        loaded = self._engines.loaded
        if loaded is None:
            return []
        stats = loaded.engine.stats()
        return [
            {
                "name": loaded.name,
                "dtype": loaded.dtype,
                "context": loaded.context_length,
                "users": loaded.users,
                "bytes": loaded.model.num_bytes,
                "kv_bytes": stats["bytes"]["total"],
            }
        ]

    async def cancel(self, request: str) -> dict[str, Any]:
        found = self._answers.get(request)
        if found is not None:
            _end(*found)
        return {"cancelled": found is not None}

    async def defaults(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """The settings in force and where each comes from."""
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            value = getattr(self._config, setting.name)
            if value == FOREVER:
                value = "for ever"
            elif hasattr(value, "tokens"):
                value = {"bytes": value.bytes, "tokens": value.tokens}
            values[setting.name] = {"value": value, "from": self._config.sources[setting.name]}
        return {
            "settings": values,
            "device": "cpu",
            "default_model": registry.get_default(self._places),
        }

    # -- answers ---------------------------------------------------------------------------------

    async def generate(
        self,
        where: Where,
        kind: Kind = "turn",
        text: str = "",
        files: list[FileText] | None = None,
        system: str | None = None,
        session: str | None = None,
        new_session: bool | str | None = None,
        ephemeral: bool = False,
        at: str | None = None,
        ref: str | None = None,
        branch: str | None = None,
        head: ChatHead | None = None,
        n: int = 1,
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        think: str | None = None,
        options: Options | None = None,
        only_terminal: bool = False,
    ) -> AsyncGenerator[Event]:
        """One answer, or n of them, as events; closing the stream cancels it."""
        ask = Generate(
            where=where,
            kind=kind,
            text=text,
            files=tuple(files or ()),
            system=system,
            session=session,
            new_session=bool(new_session),
            name=new_session if isinstance(new_session, str) else None,
            ephemeral=ephemeral,
            at=at,
            ref=ref,
            branch=branch,
            head=head,
            n=n,
            model=model,
            dtype="fp32" if exact else dtype,
            think=think,
            options={k: v for k, v in (options or {}).items() if v is not None},
            only_terminal=only_terminal,
        )
        pipe: asyncio.Queue[Event | RadchatError | Exception | None] = asyncio.Queue()
        answer = Answer(ask, self._desk, self._engines, self._worker, pipe.put_nowait)
        task = asyncio.create_task(self._run(answer, pipe))
        self._answers[answer.id] = answer, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (item := await pipe.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not task.done():
                _end(answer, task)

    async def _run(
        self, answer: Answer, pipe: asyncio.Queue[Event | RadchatError | Exception | None]
    ) -> None:
        try:
            await answer.run()
        except asyncio.CancelledError:
            log.debug("answer %s was cancelled before it began", answer.id)
        except Exception as error:
            pipe.put_nowait(error)
        finally:
            self._answers.pop(answer.id, None)
            pipe.put_nowait(None)

    async def models_load(
        self,
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        session: str | None = None,
        where: Where | None = None,
    ) -> AsyncGenerator[Event]:
        """Have a model ready: asked for, the session's, or the default."""
        own = None
        if where is not None:
            with contextlib.suppress(RadchatError):
                own = (
                    await self._desk.run(lambda: find_session(self._desk.stored, session, where))
                ).model
        entry = self._engines.choose(model, own)
        pipe: asyncio.Queue[Event] = asyncio.Queue()

        async def load() -> dict[str, Any]:
            async with self._engines.using(
                entry, "fp32" if exact else dtype, pipe.put_nowait
            ) as loaded:
                return {
                    "model": loaded.name,
                    "dtype": loaded.dtype,
                    "context": loaded.context_length,
                }

        task = asyncio.create_task(load())
        try:
            while not task.done() or not pipe.empty():
                getting = asyncio.create_task(pipe.get())
                await asyncio.wait({task, getting}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
                else:
                    getting.cancel()
            yield Event("done", task.result())
        finally:
            task.cancel()

    async def models_unload(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        if await self._engines.unload():
            return {"unloaded": True}
        loaded = self._engines.loaded
        if loaded is not None:
            raise Busy(f"{loaded.name} is answering: cancel that first, or wait")
        return {"unloaded": False}

    async def models_ps(
        self, where: Where | None = None, session: str | None = None
    ) -> dict[str, Any]:
        return {"models": self._models()}


def _end(answer: Answer, task: asyncio.Task[None]) -> None:
    if not answer.cancel():
        task.cancel()


def _engine_broke(error: BaseException) -> None:
    """Crash-only: the transcript is whole, the next command starts another daemon."""
    log.critical("the engine is broken, the daemon ends: %s", error)
    logging.shutdown()
    os._exit(EXIT_BROKEN)


def _locations() -> list[str]:
    """Where our packages are loaded from; found, not imported: radchat_kernels brings torch."""
    specs = (find_spec(name) for name in ("radchat", "radchat_kernels", "radchat_sessions"))
    return [str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin]
