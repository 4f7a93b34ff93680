"""The one thread that owns the engines: inbox → step → outbox.

Everything that touches an engine runs here, between two steps; engines that have work take turns,
a step each. The event loop never waits for a step: it hands in a closure and awaits its result, or
submits a request with a sink for its events. A step may be long: who only looks gives up after a
little (``look``), and the daemon's end goes on without it (``let_go``). Crash-only: when an engine
breaks an invariant the thread reports it once and is gone; what was shown is in the store already.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from radchat.daemon.engine_like import EngineLike
from radchat.daemon.handing import Call, Inbox, Sink, Sinks, beside
from radchat.daemon.idle import CHECK_AFTER_S, SAVE_AFTER_S, Idle
from radchat.daemon.leaving import Leaving
from radchat.engine.request import Event, Ids, Request
from radchat.errors import Busy
from radchat.protocol import STOPPING

T = TypeVar("T")
E = TypeVar("E", bound="EngineLike")
log = logging.getLogger(__name__)

LOOK_S = 1.0  # who only looks waits so long for a step to end


class Worker:
    """Runs engines, each under a key; ``on_broken`` is called from its thread if one breaks.

    Keys, not engines, are handed about: whoever holds an engine holds its memory.
    """

    def __init__(
        self,
        on_broken: Callable[[BaseException], None],
        *,
        check_after_s: float = CHECK_AFTER_S,
        save_after_s: float = SAVE_AFTER_S,
    ) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._listeners: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._since: float | None = None  # when what the thread is at now began
        self.has_let_go = False
        self._sinks = Sinks()
        self._engines: dict[str, EngineLike] = {}
        self._leaving: list[Leaving] = []
        self.on_broken = on_broken
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._idle = Idle(check_after_s, save_after_s)
        self.steps = 0  # steps taken, read by anyone for a sign of life

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the step in progress; requests still running get no more events."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    async def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engines' thread between two steps, and await its result."""
        return await asyncio.wrap_future(self._hand_in(function))

    async def look(self, function: Callable[[], T]) -> T:
        """``call``, for who would rather try again than wait: raises Busy, and then nothing has
        been done, where the step in progress does not end soon.
        """
        future = self._hand_in(function)
        result = asyncio.wrap_future(future)
        await asyncio.wait({result}, timeout=LOOK_S)
        if not result.done() and future.cancel():
            raise Busy(f"the engine has been in one step for {self.step_s:.0f} s: try again later")
        return await result

    def tell(self, function: Callable[[], None]) -> None:
        """Have ``function`` run between two steps, soon; it must not fail."""
        self._inbox.put(function)

    def _hand_in(self, function: Callable[[], T]) -> Future[T]:
        if self.has_let_go:
            raise Busy(STOPPING)
        entry = Call(function)
        self._inbox.put(entry)
        return entry.future

    @property
    def step_s(self) -> float:
        """How long the thread has been at what it does now, a step as a rule. From any thread."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def inbox(self) -> Inbox:
        """For the events of one request: its ``put_nowait`` is the sink."""
        made = Inbox()
        self._listeners.add(made)
        return made

    def let_go(self) -> None:
        """Go on without the step in progress: the process ends. On the event loop.

        Whoever waits for the engines is told so, with Busy; what the thread may still say is heard
        by nobody. No word is lost: each was in its running file before it was shown.
        """
        self.has_let_go = True
        loop = asyncio.get_running_loop()
        for listener in list(self._listeners):
            loop.call_soon(listener.lose)  # behind what has been said already
        while True:
            try:
                entry = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(entry, Call):
                entry.refuse(Busy(STOPPING))
        self._inbox.put(None)

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
                self._idle.forget(key)
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
        """Hand a request to an engine; ``sink`` gets its events on the caller's event loop. Raises
        what the engine's validation raises; then no event will come.
        """
        await self.submit_all(key, [(request, sink)])

    def submit_all(
        self, key: str, requests: Sequence[tuple[Request, Sink]]
    ) -> asyncio.Future[None]:
        """Several between the same two steps, or, where one is refused, none. They are handed in
        when this returns: an ``abort`` that is asked for now comes before any of their words.
        """
        loop = asyncio.get_running_loop()

        def enter() -> None:
            engine, entered = self._engines[key], []
            try:
                for request, _ in requests:
                    engine.submit(request)
                    entered.append(request.id)
            except BaseException:
                for each in entered:
                    engine.abort(each)
                raise
            for request, sink in requests:
                self._sinks.add(request.id, key, loop, sink)

        return asyncio.wrap_future(self._hand_in(enter))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ask for the end of a request, or of one choice; its ``Finished`` comes as usual. Unknown
        ids are ignored.
        """

        def leave() -> None:
            if (key := self._sinks.key_of(request_id)) is not None:
                self._engines[key].abort(request_id, choice)

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
        left = [Leaving(engine, 0.0, Future()) for engine in self._engines.values()]
        self._engines = {}
        for thread in [each.end(is_written=False) for each in (*self._leaving, *left)]:
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
            self._since = time.monotonic()
            self._deliver(engine.step())
            self._since = None
            self.steps += 1
            self._idle.ran(key)

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
            self._since = time.monotonic()
            entry()
            self._since = None
            self._idle.heard(self._engines)

    def _idle_work(self) -> float | None:
        """What is due now that nothing runs; returns when to come again, if nothing happens."""
        self._idle.work(self._engines)
        self._let_go()
        due = [*self._idle.due(), *(each.at for each in self._leaving)]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _deliver(self, events: list[Event]) -> None:
        if not self.has_let_go:  # else there is no loop any more, perhaps
            self._sinks.deliver(events)
