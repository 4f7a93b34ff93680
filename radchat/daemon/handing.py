"""What is handed over between the engines' thread and an event loop: calls, and events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from radchat.engine.request import Event, Finished
from radchat.errors import Busy
from radchat.protocol import STOPPING

T = TypeVar("T")
Sink = Callable[[Event], None]


class Sinks:
    """Where the events of each request go, and whose they are: the key of its engine."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, asyncio.AbstractEventLoop, Sink]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, request: str, key: str, loop: asyncio.AbstractEventLoop, sink: Sink) -> None:
        self._of[request] = (key, loop, sink)

    def key_of(self, request: str) -> str | None:
        found = self._of.get(request)
        return None if found is None else found[0]

    def deliver(self, events: list[Event]) -> None:
        """One hand-over to each event loop a step, in order."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = {}
        for event in events:
            target = self._of.get(event.request_id)
            if target is None:
                continue
            _, loop, sink = target
            by_loop.setdefault(loop, []).append((sink, event))
            if isinstance(event, Finished) and event.last:
                del self._of[event.request_id]
        for loop, pairs in by_loop.items():
            loop.call_soon_threadsafe(_hand_over, pairs)


class Inbox:
    """A request's events, until ``get`` raises Busy: the engines were let go of."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self.put_nowait: Sink = self._queue.put_nowait

    def lose(self) -> None:
        """After what has come, nothing more will."""
        self._queue.put_nowait(None)

    async def get(self) -> Event:
        event = await self._queue.get()
        if event is None:
            self.lose()  # the end stays the end
            raise Busy(STOPPING)
        return event

    async def batch(self) -> list[Event]:
        """All that has come; waits for the first."""
        events = [await self.get()]
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if event is None:
                self.lose()
                break
            events.append(event)
        return events


class Call(Generic[T]):
    """What somebody awaits the result of."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._function = function

    def __call__(self) -> None:
        _settle(self.future, self._function)

    def refuse(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


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
