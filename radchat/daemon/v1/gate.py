"""From a connection to a route: bodies read with care, answers that can be given up."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radchat.daemon.app import App, read_body
from radchat.daemon.body import parse_body
from radchat.daemon.outgoing import Events, Wire
from radchat.daemon.service import Service
from radchat.errors import Busy
from radchat.protocol import STOPPING


class CarefulRequest(Request):
    """Its body is refused by its size before it is read, and read as everywhere in the daemon."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await read_body(self)
        return self._body

    async def json(self) -> Any:
        return parse_body(await self.body())


class CarefulRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await inner(CarefulRequest(request.scope, request.receive))

        return handle


class MakeWire(Protocol):
    def __call__(self, send: Send) -> Wire: ...


class Answering(Response):
    """An answer that is made while its client waits, and ended when it goes."""

    def __init__(self, app: App, method: str, events: Events, make_wire: MakeWire) -> None:
        super().__init__()
        self._app, self._method, self._events, self._make = app, method, events, make_wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self._app.stream(self._method, self._events, receive, send, self._make(send))


async def service_of(app: App) -> Service:
    """Raises Busy while the daemon stops."""
    if app.stopping:
        raise Busy(STOPPING)
    service = await app.up()
    assert isinstance(service, Service)
    return service
