"""HTTP on the socket: ``POST /rpc/<method>`` and ``GET /health``, turned into calls of the service.

Control methods are answered here at once, whatever the engine does. What a browser could send to a
daemon it should not reach is refused before anything is read. Every failure is a JSON object of one
shape; an unexpected one is logged with its traceback and the daemon lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from radchat.daemon.body import check_arguments, parse_body
from radchat.daemon.outgoing import (
    Events,
    EventWire,
    Reader,
    TooLarge,
    Wire,
    error_answer,
    json_answer,
    unexpected,
)
from radchat.errors import Busy, InvalidInput, NotFound, RadchatError
from radchat.paths import Places
from radchat.protocol import CONTROL, HEADER, MAX_BODY, METHODS, PROTOCOL, STOPPING, STREAMS, State

if TYPE_CHECKING:
    from radchat.daemon.tcp.listener import Listener

KEEP_ALIVE_S = 10.0  # a comment this often while nothing else is said
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
log = logging.getLogger("radchat.app")


class Service(Protocol):
    """What answers: one method an RPC, dots as underscores, arguments by keyword.

    Each is async, but for the streaming ones, which return ``Events``.
    """

    @property
    def state(self) -> State: ...  # "loading" or "ready"
    @property
    def busy(self) -> bool: ...  # work of its own that a stop would cut: keeps the daemon alive
    async def start(self) -> None: ...  # open the store, start the engine's thread
    async def close(self) -> None: ...  # after the last request
    async def status(self) -> dict[str, Any]: ...


class Stopper(Protocol):
    """What the app asks of the daemon around it (main.py)."""

    def about(self) -> dict[str, Any]: ...  # pid, build, socket …: the daemon's part of `status`
    def stop(self, *, force: bool) -> None: ...


class App:
    """The ASGI app, and the counts the daemon's life hangs on. One event loop, no locks."""

    def __init__(
        self,
        daemon: Stopper,
        *,
        clock: Callable[[], float],
        keep_alive_s: float = KEEP_ALIVE_S,
        places: Places | None = None,
    ) -> None:
        """``places``: where the API's key is; without, there is no listener but the socket."""
        self._daemon, self._places = daemon, places
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._service: Service | None = None
        self._failed: RadchatError | None = None
        self._settled = asyncio.Event()  # the service is up, or has failed
        self.cut = asyncio.Event()  # end the running streams now
        self.stop_begun = asyncio.Event()
        self.listeners: list[Listener] = []  # of the API, besides the socket
        self.active = 0  # requests in progress, control apart
        self._drained = asyncio.Event()
        self._drained.set()
        self.last_used = clock()
        self.api: ASGIApp = _later(self)
        own = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/rpc/{method}", self._rpc, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error},
        )
        own.router.default = self.api  # and not mounted: another verb of /rpc is no address of it
        self.asgi: ASGIApp = _guard(own)

    def ready(self, service: Service) -> None:
        self._service = service
        self._settled.set()

    def fail(self, error: RadchatError) -> None:
        """The service could not start: whoever waits for it is told why."""
        self._failed = error
        self._settled.set()

    @property
    def state(self) -> State:
        if self.stopping:
            return "stopping"
        return "starting" if self._service is None else self._service.state

    @property
    def stopping(self) -> bool:
        return self.stop_begun.is_set()

    @property
    def idle(self) -> bool:
        return self.active == 0 and not (self._service is not None and self._service.busy)

    # -- routes ------------------------------------------------------------------------------------

    async def _health(self, _request: Request) -> Response:
        return json_answer(self._health_body())

    def _health_body(self) -> dict[str, Any]:
        about = self._daemon.about()
        return {
            "state": self.state,
            **{k: about[k] for k in ("pid", "build", "protocol", "settings")},
        }

    async def _rpc(self, request: Request) -> Response:
        method = request.path_params["method"]
        try:
            self._admit(method, request)
            args = parse_body(await read_body(request))
            if method in CONTROL:
                return json_answer(await self._control(method, args))
            with self.counted():
                service = await self.up()
                handler = self._handler(service, method, args)
                if method not in STREAMS:
                    return json_answer(await handler(**args))
            return _EventResponse(self, method, handler(**args))
        except RadchatError as error:
            return error_answer(error)
        except Exception as error:
            return error_answer(unexpected(method, error))

    def _admit(self, method: str, request: Request) -> None:
        if method not in METHODS:
            raise NotFound(f"no method {method!r}")
        if method in CONTROL:
            return
        theirs = request.headers.get(HEADER, str(PROTOCOL))
        if theirs != str(PROTOCOL):
            raise InvalidInput(
                f"this daemon speaks protocol {PROTOCOL}, not {theirs}: radchat daemon restart"
            )
        if self.stopping:
            raise Busy(STOPPING, stopping=True)

    async def _control(self, method: str, args: dict[str, Any]) -> dict[str, Any]:
        """At once, whatever the engine does; not counted as use."""
        if method == "health":
            return self._health_body()
        if method == "status":
            listening = [each.url for each in self.listeners]
            own = {"state": self.state, **self._daemon.about(), "listening": listening}
            return own if self._service is None else {**await self._service.status(), **own}
        if method == "stop":
            check_arguments("stop", self.stop, args)
            return await self.stop(**args)
        if self._service is None:
            return {"cancelled": False}
        result: dict[str, Any] = await _handler(self._service, method, args)(**args)
        return result

    def _handler(self, service: Service, method: str, args: dict[str, Any]) -> Callable[..., Any]:
        """The service's method, or the one that is of the app itself; its arguments checked."""
        if method != "serve":
            return _handler(service, method, args)
        check_arguments(method, self.serve, args)
        return self.serve

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        keys: list[str] | None = None,
        hosts: list[str] | None = None,
        origins: list[str] | None = None,
    ) -> Events:
        """The API on TCP, until the stream is closed; what it is made of is imported for it."""
        from radchat.daemon.tcp.listener import serve

        assert self._places is not None
        return serve(self, self._places, host, port, keys or (), hosts or (), origins or ())

    async def stop(self, force: bool = False, only_idle: bool = False) -> dict[str, Any]:
        """Begin to stop and say so; ``only_idle``: not if a request is in progress."""
        if only_idle and not self.idle and not self.stopping:
            return {"stopped": False, "active": self.active}
        self._daemon.stop(force=force)
        return {"stopped": True}

    async def up(self) -> Service:
        """The service, once it has started; control methods don't wait for it."""
        await self._settled.wait()
        if self._failed is not None:
            raise self._failed
        assert self._service is not None
        return self._service

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """A request in progress: it keeps the daemon alive, and a stop waits for it a little."""
        self.active += 1
        self._drained.clear()
        try:
            yield
        finally:
            self.active -= 1
            self.last_used = self._clock()
            if self.active == 0:
                self._drained.set()

    async def drain(self, timeout_s: float, *, until_cut: bool) -> None:
        """Wait until no request is in progress, or for the time given, or for the cut."""
        waits = [asyncio.create_task(self._drained.wait())]
        if until_cut:
            waits.append(asyncio.create_task(self.cut.wait()))
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()

    # -- streams -----------------------------------------------------------------------------------

    async def stream(
        self,
        method: str,
        events: Events,
        receive: Receive,
        send: Send,
        wire: Wire | None = None,
    ) -> None:
        """Events to the client until the last, until it goes, or until the daemon stops; ``wire``:
        in which form, server-sent events as the protocol has them if none is given.
        """
        wire = wire or EventWire(send)
        reader = Reader(events)
        gone = reader.watch(_disconnected(receive))
        cut = reader.watch(self.cut.wait())
        with self.counted():
            try:
                while not gone.done():
                    batch = await reader.batch(self._keep_alive_s)
                    if cut.done():
                        await reader.close(method)
                        # a client asks again by itself for what was not begun, and for that only
                        begun = wire.started or getattr(events, "has_begun", False)
                        await wire.error(Busy(STOPPING, stopping=not begun))
                        return
                    if batch:
                        await wire.events(batch)
                    elif reader.ended:
                        reader.task.result()
                        await wire.end()
                        return
                    elif not gone.done():
                        await wire.comment()
            except RadchatError as error:
                await wire.error(error)
            except Exception as error:
                await wire.error(unexpected(method, error))
            finally:
                await reader.close(method, gone, cut)


class _EventResponse(Response):
    """A stream as a response: Starlette calls it with the connection."""

    def __init__(self, app: App, method: str, events: Events) -> None:
        super().__init__()
        self._app, self._method, self._events = app, method, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self._app.stream(self._method, self._events, receive, send)


def _handler(service: Service, method: str, args: dict[str, Any]) -> Callable[..., Any]:
    """The service's method, its arguments checked."""
    handler: Callable[..., Any] | None = getattr(service, method.replace(".", "_"), None)
    if handler is None:
        raise NotFound(f"no method {method!r}")
    check_arguments(method, handler, args)
    return handler


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _later(app: App) -> ASGIApp:
    """The OpenAI-compatible API: what it is made of is imported with its first request."""
    made: ASGIApp | None = None

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal made
        if made is None:
            from radchat.daemon.v1.api import make_api

            made = make_api(app)
        await made(scope, receive, send)

    return asked


# -- bodies and answers ----------------------------------------------------------------------------


async def read_body(request: Request) -> bytes:
    """The body, refused by its announced size before a byte of it is read."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > MAX_BODY:
        raise TooLarge(int(announced))
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidInput("the content type must be application/json")
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY:
            raise TooLarge(size)
        pieces.append(piece)
    return b"".join(pieces)


async def _http_error(_request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, another verb."""
    assert isinstance(error, HTTPException)
    failure = NotFound(f"no such address: {error.detail}")
    return json_answer({"error": failure.to_json()}, error.status_code)


# -- who may ask -----------------------------------------------------------------------------------


def _guard(inner: ASGIApp) -> ASGIApp:
    """Refuse, on every route, what a page in a browser could send: a foreign Host or Origin."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [(k, v.decode("latin-1").strip().lower()) for k, v in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        if len(hosts) != 1 or not is_loopback(hosts[0]):
            problem = "Host"
        elif any(origin != f"http://{hosts[0]}" for origin in origins):
            problem = "Origin"
        else:
            await inner(scope, receive, send)
            return
        body = {"error": {"code": "forbidden", "message": f"foreign {problem}", "exit_code": 1}}
        refusal = json_answer(body, 403, {"connection": "close"})
        await refusal(scope, receive, send)

    return guarded


def host_name(header: str) -> str:
    """Of a Host header, without port and brackets; "" for what is none."""
    name, _, port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
    if not name or (":" in name and not name.startswith("[")):  # no port; a bare IPv6 address
        name, port = header, ""
    name = name.removeprefix("[").removesuffix("]")
    return name if not port or port.isdecimal() else ""


def is_loopback(host: str) -> bool:
    return host_name(host) in LOOPBACK
