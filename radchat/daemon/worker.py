"""The one thread that owns the engines: inbox → step → outbox.

Everything that touches an engine runs here, between two steps; engines that have work take turns,
a step each. The event loop never waits for a step: it hands in a closure and awaits its result, or
submits a request with a sink for its events. Crash-only: when an engine breaks an invariant the
thread reports it once and is gone; what was shown is in the store already.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from radchat.daemon.engine_like import EngineLike
from radchat.daemon.leaving import Leaving
from radchat.engine.request import Event, Finished, Ids, Request

T = TypeVar("T")
E = TypeVar("E", bound="EngineLike")
Sink = Callable[[Event], None]
log = logging.getLogger(__name__)

IDLE_CHECK_AFTER_S = 5.0  # engines idle this long recount themselves once
SAVE_AFTER_S = 2.0  # and this long: they copy what is to be kept, for the disk …
SAVE_EVERY_S = 0.01  # … a block at a time


class Worker:
    """Runs engines, each under a key; ``on_broken`` is called from its thread if one breaks.

    Keys, not engines, are handed about: whoever holds an engine holds its memory.
    """

    def __init__(
        self,
        on_broken: Callable[[BaseException], None],
        *,
        check_after_s: float = IDLE_CHECK_AFTER_S,
        save_after_s: float = SAVE_AFTER_S,
    ) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._sinks: dict[str, tuple[str, asyncio.AbstractEventLoop, Sink]] = {}
        self._engines: dict[str, EngineLike] = {}
        self._leaving: list[Leaving] = []
        self.on_broken = on_broken
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._check_after_s, self._save_after_s = check_after_s, save_after_s
        # keys of engines to which something has happened since they were checked, or all was saved:
        # these with the time at which they want to be asked
        self._unchecked: set[str] = set()
        self._unsaved: dict[str, float] = {}
        self._idle_since = 0.0
        self.steps = 0  # steps taken, read by anyone for a sign of life

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the step in progress; requests still running get no more events."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    async def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engines' thread between two steps, and await its result."""
        future: Future[T] = Future()
        self._inbox.put(lambda: _settle(future, function))
        return await asyncio.wrap_future(future)

    async def install(self, key: str, build: Callable[[], E]) -> E:
        """Add what ``build`` returns, between two steps."""

        def add() -> E:
            engine = build()
            self._engines[key] = engine
            return engine

        return await self.call(add)

    async def remove(self, keys: Iterable[str], within_s: float) -> list[str]:
        """Let go of engines; their memory is free when this returns, if nobody else holds them.

        What is asked for happens, also if whoever asked is cancelled, and at once: an engine that
        is installed under one of these keys afterwards stays. Keys without an engine are ignored.
        Kept paths are written first, for no longer than ``within_s``, and other engines go on
        meanwhile. Returns the keys of those that had not all of them on disk by then.
        """
        gone: dict[str, Future[bool]] = {key: Future() for key in keys}

        def drop() -> None:
            for key, future in gone.items():
                engine = self._engines.pop(key, None)
                self._unchecked.discard(key)
                if engine is None:
                    future.set_result(True)
                else:
                    self._leaving.append(Leaving(engine, within_s, future))

        self._inbox.put(drop)
        ends = asyncio.gather(*(asyncio.wrap_future(each) for each in gone.values()))
        return [
            key
            for key, is_written in zip(gone, await asyncio.shield(ends), strict=True)
            if not is_written
        ]

    def keep(self, key: str, paths: Sequence[tuple[str, Ids]]) -> None:
        """Have named paths of an engine on disk, when it is idle."""

        def tell() -> None:
            for name, ids in paths:
                if key in self._engines:
                    self._engines[key].keep(name, ids)

        self._inbox.put(tell)

    async def unkeep(self, prefixes: Sequence[str], of: str = "") -> None:
        """Have no engine write paths whose names begin so, those on their way out included; ``of``:
        of the others only those whose keys begin so.
        """

        def tell() -> None:
            mine = [engine for key, engine in self._engines.items() if key.startswith(of)]
            for engine in (*mine, *self._going()):
                for prefix in prefixes:
                    engine.unkeep(prefix)

        await self.call(tell)

    async def has_written(self, within_s: float) -> bool:
        """Wait for what is copied, of any engine. False: the disk hangs."""
        for engine in await self.call(self._all):
            if not await beside(partial(engine.drain, within_s)):
                return False
        return True

    async def submit(self, key: str, request: Request, sink: Sink) -> None:
        """Hand a request to an engine; ``sink`` gets its events on the caller's event loop.

        Raises what the engine's validation raises; then no event will come.
        """
        loop = asyncio.get_running_loop()

        def enter() -> None:
            self._engines[key].submit(request)
            self._sinks[request.id] = (key, loop, sink)

        await self.call(enter)

    def abort(self, request_id: str) -> None:
        """Ask for a request's end; its ``Finished`` comes as usual. Unknown ids are ignored."""

        def leave() -> None:
            found = self._sinks.get(request_id)
            if found is not None:
                self._engines[found[0]].abort(request_id)

        self._inbox.put(leave)

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._drain():
                for key in list(self._engines):
                    self._step(key)
                self._let_go()
        except BaseException as error:
            log.exception("the engine broke")
            self.on_broken(error)
        left = self._leaving + [Leaving(engine, 0.0, Future()) for engine in self._engines.values()]
        self._engines = {}
        for thread in [each.end(is_written=False) for each in left]:
            thread.join()

    def _all(self) -> list[EngineLike]:
        return [*self._engines.values(), *self._going()]

    def _going(self) -> list[EngineLike]:
        return [each.engine for each in self._leaving if each.engine is not None]

    def _let_go(self) -> None:
        """Go on with engines that leave, where it is time."""
        now = time.monotonic()
        self._leaving = [each for each in self._leaving if now < each.at or each.go_on()]

    def _step(self, key: str) -> None:
        engine = self._engines[key]  # held for the step only
        if engine.has_work():
            self._deliver(engine.step())
            self.steps += 1
            self._unchecked.add(key)
            self._idle_since = time.monotonic()

    def _drain(self) -> bool:
        """Run what lies in the inbox; wait for it when there is nothing else to do."""
        while True:
            busy = any(engine.has_work() for engine in self._engines.values())
            try:
                if busy:
                    entry = self._inbox.get_nowait()
                else:
                    entry = self._inbox.get(timeout=self._idle_work())
            except Empty:
                if busy:
                    return True
                continue
            if entry is None:
                return False
            entry()
            self._unsaved = dict.fromkeys(self._engines, 0.0)  # a path to be kept, perhaps

    def _idle_work(self) -> float | None:
        """What is due now that nothing runs; returns when to come again, if nothing happens."""
        now = time.monotonic()
        check_at, save_at = (
            self._idle_since + s for s in (self._check_after_s, self._save_after_s)
        )
        if self._unchecked and now >= check_at:
            for key in self._unchecked:
                self._engines[key].check_idle()
            self._unchecked.clear()
        if now >= save_at:
            for key in [key for key, at in self._unsaved.items() if now >= at]:
                self._save(key, now)
        self._let_go()
        due = [each.at for each in self._leaving]
        due += [check_at] if self._unchecked else []
        due += [max(save_at, at) for at in self._unsaved.values()]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _save(self, key: str, now: float) -> None:
        seconds = self._engines[key].save()
        if seconds is None:
            del self._unsaved[key]
        else:
            self._unsaved[key] = now + max(seconds, SAVE_EVERY_S)

    def _deliver(self, events: list[Event]) -> None:
        """One hand-over to each event loop a step, in order."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = {}
        for event in events:
            target = self._sinks.get(event.request_id)
            if target is None:
                continue
            _, loop, sink = target
            by_loop.setdefault(loop, []).append((sink, event))
            if isinstance(event, Finished) and event.last:
                del self._sinks[event.request_id]
        for loop, pairs in by_loop.items():
            loop.call_soon_threadsafe(_hand_over, pairs)


async def beside(function: Callable[[], T]) -> T:
    """Run ``function`` on a thread of its own, that the end of the process does not wait for."""
    future: Future[T] = Future()
    threading.Thread(target=_settle, args=(future, function), name="beside", daemon=True).start()
    return await asyncio.wrap_future(future)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def _hand_over(pairs: list[tuple[Sink, Event]]) -> None:
    for sink, event in pairs:
        sink(event)
