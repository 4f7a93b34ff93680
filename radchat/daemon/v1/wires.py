"""What every answer of the API has in common on the wire: one JSON document, or OpenAI's chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response

from radchat.daemon.outgoing import json_answer
from radchat.daemon.v1.errors import answer, error_json
from radchat.errors import RadchatError
from radchat.protocol import Event

if TYPE_CHECKING:
    from starlette.types import Message, Send


async def respond(response: Response, send: Send) -> None:
    """Outside of a route."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await response({"type": "http", "method": "POST"}, receive, send)


class Collecting(Protocol):
    """Hears the events of one answer, and is the whole of it in the end."""

    def hear(self, event: Event) -> None: ...
    def whole(self) -> dict[str, Any]: ...


class WholeWire:
    """One JSON answer, when all has come."""

    def __init__(self, send: Send, answer: Collecting) -> None:
        self._send, self._answer = send, answer
        self.started = False

    async def events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._answer.hear(event)

    async def comment(self) -> None:
        """Nothing can be said before the status."""

    async def end(self) -> None:
        await self._respond(json_answer(self._answer.whole()))

    async def error(self, error: RadchatError) -> None:
        await self._respond(answer(error))

    async def _respond(self, response: Response) -> None:
        self.started = True
        await respond(response, self._send)


class ChunkWire:
    """Server-sent events; what fails before the first is an answer with a status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    def chunks(self, event: Event) -> Iterator[Mapping[str, Any]]:
        """Of one event."""
        raise NotImplementedError

    @property
    def has_begun(self) -> bool:
        """It was taken: what fails now is no fault of the request, and can be told late."""
        return self.started

    def last(self) -> Iterator[Mapping[str, Any]]:
        """After all events."""
        return iter(())

    async def events(self, events: Sequence[Event]) -> None:
        body = b"".join(line(chunk) for event in events for chunk in self.chunks(event))
        if body:
            await self._write(body)

    async def comment(self) -> None:
        if self.has_begun:
            await self._write(b": still here\n\n")

    async def end(self) -> None:
        body = b"".join(line(chunk) for chunk in self.last())
        await self._write(body + b"data: [DONE]\n\n", more=False)

    async def error(self, error: RadchatError) -> None:
        if self.started:
            await self._write(line(error_json(error)), more=False)
            return
        self.started = True
        await respond(answer(error), self._send)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def line(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
