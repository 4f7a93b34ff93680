"""A second listener of the daemon's app, on TCP, for as long as the command that asked for it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.server import ServerState

from radchat.daemon.app import is_loopback
from radchat.daemon.tcp.guard import Allowed, Guard
from radchat.daemon.tcp.keys import Keys, home_key, key_file
from radchat.daemon.tcp.limits import MAX_HEAD, Limits
from radchat.daemon.tcp.protocol import TimedProtocol
from radchat.daemon.unix_socket import BACKLOG
from radchat.errors import Busy, InvalidInput, Unreachable
from radchat.paths import Places
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.daemon.app import App

CLOSE_S = 2.0  # for what is being answered when the listener goes
log = logging.getLogger("radchat.daemon")


class Listener:
    def __init__(
        self, app: App, keys: Keys, allowed: Allowed, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._state = ServerState()
        guard = Guard(app.api, keys, allowed, self.limits, lambda: len(self._state.connections))
        self._http = uvicorn.Config(
            guard,
            http=TimedProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEAD,
        )
        self._http.load()
        self._host = allowed.host
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/v1"

    @property
    def num_connections(self) -> int:
        return len(self._state.connections)

    async def open(self, port: int) -> None:
        """Raises Busy where the port is taken, InvalidInput for an address that is none here."""
        listener = await asyncio.to_thread(_bind, self._host, port)
        self.port = listener.getsockname()[1]

        def protocol() -> asyncio.Protocol:
            return TimedProtocol(self._http, self._state, {})

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(protocol, sock=listener, backlog=BACKLOG)

    async def close(self) -> None:
        """Nobody new; who is being answered is cut off, and what was said to them is put away."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=CLOSE_S)
        for task in list(self._state.tasks):
            task.cancel()


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InvalidInput(f"--host {host}: no address of this machine", field="host") from error
    family, kind, proto, _, address = found[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if port:
            raise Busy(
                f"{host}:{port} can't be listened at ({error.strerror}): --port 0 takes a free "
                "port and prints it",
                port=port,
            ) from error
        raise InvalidInput(
            f"--host {host} can't be listened at: {error.strerror}", field="host"
        ) from error
    listener.setblocking(False)
    return listener


async def serve(
    app: App,
    places: Places,
    host: str = "127.0.0.1",
    port: int = 0,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> AsyncGenerator[Event]:
    """``listening``, then nothing, until its reader goes or the daemon stops."""
    if not 0 <= port <= 65535:
        raise InvalidInput(f"--port {port}: want 0 to 65535", field="port")
    known = Keys(await asyncio.to_thread(home_key, places), keys)
    allowed = Allowed(host, [h.lower() for h in hosts], [o.lower().rstrip("/") for o in origins])
    listener = Listener(app, known, allowed)
    await listener.open(port)
    app.listeners.append(listener)
    log.info("the API listens at %s, %d keys besides the home's own", listener.url, len(keys))
    try:
        body = {
            "url": listener.url,
            "host": host,
            "port": listener.port,
            "key_file": str(key_file(places)),
            "is_local": is_loopback(host),
        }
        yield Event("listening", body)
        await app.stop_begun.wait()
    finally:
        app.listeners.remove(listener)
        await listener.close()
        log.info("the API at %s is closed", listener.url)
    raise Unreachable("the daemon has stopped, and the API with it: radchat serve starts both")
