"""What a task of the service says, event by event, to one reader who may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeAlias

from radchat.daemon.outgoing import unexpected
from radchat.errors import RadchatError
from radchat.protocol import Event

Work = Callable[[], Coroutine[Any, Any, None]]
Running: TypeAlias = "asyncio.Task[RadchatError | None]"  # gives what ended it
Stop = Callable[[Running], object]


class Stream:
    """The events of ``start``'s task. ``aclose``: nobody reads any more, the task is to end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pipe: asyncio.Queue[Event | RadchatError | None] = asyncio.Queue()
        self.say = self._pipe.put_nowait

    def start(
        self,
        work: Work,
        *,
        stop: Stop = asyncio.Task.cancel,
        has_begun: Callable[[], bool] = lambda: False,
    ) -> Running:
        """``has_begun``: something was done that must not be asked for a second time."""
        self._stop, self._has_begun = stop, has_begun
        self._task = asyncio.create_task(self._run(work))
        self._task.add_done_callback(self._ended)
        return self._task

    @property
    def has_begun(self) -> bool:
        return self._has_begun()

    async def _run(self, work: Work) -> RadchatError | None:
        try:
            await work()
        except RadchatError as error:
            return error
        except Exception as error:  # logged here: there may be no reader left
            return unexpected(self._what, error)
        return None

    def _ended(self, task: Running) -> None:
        error = None if task.cancelled() else task.result()
        if error is not None:
            self._pipe.put_nowait(error)
        self._pipe.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        item = await self._pipe.get()
        if item is None:
            self._pipe.put_nowait(None)  # the end stays the end
            raise StopAsyncIteration
        if isinstance(item, RadchatError):
            raise item
        return item

    async def ended(self) -> None:
        """Until its task is over, what it puts away included."""
        await asyncio.wait({self._task})

    async def aclose(self) -> None:
        if not self._task.done():
            self._stop(self._task)
