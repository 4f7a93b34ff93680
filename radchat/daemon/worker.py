"""The one thread that owns the engine: inbox → step → outbox.

Everything that touches an engine runs here, between two steps. The event loop never waits for a
step: it hands in a closure and awaits its result, or submits a request with a sink for its events.
Crash-only: when the engine breaks an invariant the thread reports it once and is gone; what was
shown is in the store already.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from radchat.engine.request import Event, Finished, Request

T = TypeVar("T")
E = TypeVar("E", bound="EngineLike | None")
Sink = Callable[[Event], None]
log = logging.getLogger(__name__)

IDLE_CHECK_AFTER_S = 5.0  # an engine idle this long recounts itself once


class EngineLike(Protocol):
    """What the thread asks of an engine (engine/engine.py; in tests around a scripted model)."""

    def has_work(self) -> bool: ...
    def submit(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> bool: ...
    def step(self) -> list[Event]: ...
    def check_idle(self) -> None: ...


class Worker:
    """Runs one engine at a time; ``on_broken`` is called from its thread if the engine breaks."""

    def __init__(self, on_broken: Callable[[BaseException], None]) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._sinks: dict[str, tuple[asyncio.AbstractEventLoop, Sink]] = {}
        self._engine: EngineLike | None = None
        self._on_broken = on_broken
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._checked = True
        self.steps = 0  # steps taken, read by anyone for a sign of life

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the step in progress; requests still running get no more events."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    @property
    def num_running(self) -> int:
        return len(self._sinks)

    async def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engine's thread between two steps, and await its result."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(run)
        return await asyncio.wrap_future(future)

    async def install(self, build: Callable[[], E]) -> E:
        """Replace the engine by what ``build`` returns, between two steps."""

        def swap() -> E:
            self._engine = None  # its memory is free before the new one's is counted
            gc.collect()  # an engine's parts know each other
            engine = build()
            self._engine = engine
            return engine

        return await self.call(swap)

    async def submit(self, request: Request, sink: Sink) -> None:
        """Hand a request to the engine; ``sink`` gets its events on the caller's event loop.

        Raises what the engine's validation raises; then no event will come.
        """
        loop = asyncio.get_running_loop()

        def enter() -> None:
            if self._engine is None:
                raise RuntimeError("no engine is loaded")
            self._engine.submit(request)
            self._sinks[request.id] = (loop, sink)

        await self.call(enter)

    def abort(self, request_id: str) -> None:
        """Ask for a request's end; its ``Finished`` comes as usual. Unknown ids are ignored."""

        def leave() -> None:
            if self._engine is not None and request_id in self._sinks:
                self._engine.abort(request_id)

        self._inbox.put(leave)

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._drain():
                if self._engine is not None and self._engine.has_work():
                    self._deliver(self._engine.step())
                    self.steps += 1
                    self._checked = False
        except BaseException as error:
            log.exception("the engine broke")
            self._on_broken(error)

    def _drain(self) -> bool:
        """Run what lies in the inbox; wait for it when there is nothing else to do."""
        while True:
            busy = self._engine is not None and self._engine.has_work()
            try:
                if busy:
                    entry = self._inbox.get_nowait()
                else:
                    entry = self._inbox.get(timeout=None if self._checked else IDLE_CHECK_AFTER_S)
            except Empty:
                if busy:
                    return True
                if self._engine is not None:
                    self._engine.check_idle()
                self._checked = True
                continue
            if entry is None:
                return False
            entry()

    def _deliver(self, events: list[Event]) -> None:
        """One hand-over to each event loop a step, in order."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = {}
        for event in events:
            target = self._sinks.get(event.request_id)
            if target is None:
                continue
            loop, sink = target
            by_loop.setdefault(loop, []).append((sink, event))
            if isinstance(event, Finished) and event.last:
                del self._sinks[event.request_id]
        for loop, pairs in by_loop.items():
            loop.call_soon_threadsafe(_hand_over, pairs)


def _hand_over(pairs: list[tuple[Sink, Event]]) -> None:
    for sink, event in pairs:
        sink(event)
