"""What goes out of the socket: JSON bodies, errors, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Send

from radchat.errors import InvalidInput, RadchatError
from radchat.protocol import MAX_BODY, Event

READ_AHEAD = 64  # events; a client that reads slowly holds up its stream, not our memory
log = logging.getLogger("radchat.app")


# -- answers ---------------------------------------------------------------------------------------


class TooLarge(InvalidInput):
    http_status = 413

    def __init__(self, size: int) -> None:
        super().__init__(f"the body is over the limit of {MAX_BODY:,} bytes", limit=MAX_BODY)
        self.size = size


def json_answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, media_type="application/json")


def error_answer(error: RadchatError) -> Response:
    # What is left of a body that was refused unread is not the next request.
    headers = {"connection": "close"} if isinstance(error, TooLarge) else None
    return json_answer({"error": error.to_json()}, error.http_status, headers)


async def send_error(error: RadchatError, send: Send) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await error_answer(error)({"type": "http", "method": "POST"}, receive, send)


def unexpected(method: str, error: Exception) -> RadchatError:
    log.error("%s failed", method, exc_info=error)
    kind = type(error).__name__
    return RadchatError(f"{method} failed inside the daemon ({kind}): see `radchat daemon logs`")


# -- streams ---------------------------------------------------------------------------------------


class Events(Protocol):
    """A stream of events: an async generator, or the like with an attribute ``has_begun`` (whether
    something was done that must not be asked for a second time; without it, nothing ever is).

    When its client goes away it meets CancelledError where it waits, then ``aclose``, which cancels
    the request, quickly.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...
    async def aclose(self) -> None: ...


class Reader:
    """Reads a stream ahead in one task, so that what comes together is sent together."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._read: list[Event] = []
        self._wake = asyncio.Event()  # something was read, or has ended
        self._room = asyncio.Event()  # what was read has been taken
        self.task = self.watch(self._read_on())

    def watch(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """A task whose end is a reason to look up."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _task: self._wake.set())
        return task

    async def _read_on(self) -> None:
        async for event in self._events:
            self._read.append(event)
            self._wake.set()
            if len(self._read) >= READ_AHEAD:
                self._room.clear()
                await self._room.wait()

    @property
    def ended(self) -> bool:
        return self.task.done() and not self._read

    async def batch(self, patience_s: float) -> list[Event]:
        """What has been read; empty at the stream's end, or after a time without any."""
        if not self._read and not self.task.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._wake.wait()
        self._wake.clear()
        self._room.set()
        batch, self._read = self._read, []
        return batch

    async def close(self, method: str, *watched: asyncio.Task[object]) -> None:
        """End what is pending, then the stream: its ``finally`` has run when this returns."""
        pending = [self.task, *watched]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        try:
            await self._events.aclose()
        except Exception as error:
            unexpected(method, error)


class Wire(Protocol):
    """How events become an answer. What fails before ``started`` is one with a status."""

    started: bool

    async def events(self, events: Sequence[Event]) -> None: ...
    async def comment(self) -> None: ...
    async def end(self) -> None: ...
    async def error(self, error: RadchatError) -> None: ...


class EventWire:
    """Writes server-sent events; what fails before the first is an answer with a status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def events(self, events: Sequence[Event]) -> None:
        await self._write(b"".join(event.encode() for event in events))

    async def comment(self) -> None:
        await self._write(b": still here\n\n")

    async def end(self) -> None:
        await self._write(b"", more=False)

    async def error(self, error: RadchatError) -> None:
        if self.started:
            await self._write(Event("error", error.to_json()).encode(), more=False)
            return
        self.started = True
        await send_error(error, self._send)
