"""What stands before the API on TCP: who may ask, from where, and how much at once.

A page in a browser can send requests to this machine's addresses, and have a name of its own point
at them: so a foreign ``Host`` or ``Origin`` is refused before anything is read. All but `/health`
needs a key.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radchat.daemon.app import host_name, is_loopback
from radchat.daemon.tcp.keys import Keys
from radchat.daemon.tcp.limits import (
    MAX_CONNECTIONS,
    MAX_HEAD,
    MAX_HEADERS,
    RETRY_AFTER_S,
    Full,
    Limits,
    TooManyHeaders,
)
from radchat.daemon.v1 import errors
from radchat.daemon.v1.caller import SCOPE, NotAllowed
from radchat.errors import RadchatError

OPEN = frozenset(("/health",))
CORS_S = 600


class Forbidden(RadchatError):
    code = "forbidden"
    http_status = 403


@dataclass(frozen=True, slots=True)
class Allowed:
    """``host``: what is bound. Besides this machine's own names only what was named is allowed."""

    host: str
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def is_host(self, header: str) -> bool:
        if is_loopback(header):
            return True
        name = host_name(header)
        if name in self.hosts:
            return True
        if is_loopback(self.host):
            return False
        return name in (self.host.lower(), socket.gethostname().lower()) or _is_address(name)


def _is_address(name: str) -> bool:
    """Of a number no name server can say that it is somebody else's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    def __init__(
        self,
        inner: ASGIApp,
        keys: Keys,
        allowed: Allowed,
        limits: Limits,
        num_connections: Callable[[], int],
    ) -> None:
        self._inner, self._keys, self._allowed = inner, keys, allowed
        self._limits, self._num_connections = limits, num_connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        origin: str | None = None
        try:
            headers = self._headers(scope)
            origin = self._require_origin(headers)
            if scope["method"] == "OPTIONS" and origin is not None:
                await _preflight(origin, send)
                return
            told = send if origin is None else _with_cors(origin, send)
            if scope["path"] in OPEN and scope["method"] in ("GET", "HEAD"):
                await self._inner(scope, receive, told)
                return
            caller = self._keys.caller(headers.get(b"authorization"))
            if caller is None:
                raise NotAllowed("no such API key: send Authorization: Bearer KEY")
            scope[SCOPE] = caller
            if scope["method"] != "POST":
                await self._inner(scope, receive, told)
                return
            with self._limits.request(caller.key):
                await self._inner(scope, receive, told)
        except RadchatError as error:
            await _refuse(
                error, scope, receive, send if origin is None else _with_cors(origin, send)
            )

    def _headers(self, scope: Scope) -> dict[bytes, bytes]:
        """By name; raises what is wrong with them, or with how many are connected."""
        given: list[tuple[bytes, bytes]] = scope["headers"]
        if len(given) > MAX_HEADERS:
            raise TooManyHeaders(f"{len(given)} headers: at most {MAX_HEADERS} are read")
        size = sum(len(name) + len(value) for name, value in given)
        if size > MAX_HEAD:
            raise TooManyHeaders(f"{size:,} bytes of headers: at most {MAX_HEAD:,} are read")
        hosts = [
            value.decode("latin-1").strip().lower() for name, value in given if name == b"host"
        ]
        if len(hosts) != 1 or not self._allowed.is_host(hosts[0]):
            raise Forbidden("foreign Host: name it to `radchat serve` with --allow-host")
        if self._num_connections() > MAX_CONNECTIONS:
            raise Full(
                f"more than {MAX_CONNECTIONS} connections: try again later",
                retry_after_s=RETRY_AFTER_S,
            )
        return dict(given)

    def _require_origin(self, headers: dict[bytes, bytes]) -> str | None:
        """Of a page in a browser, where one asks. Raises Forbidden for one that nobody named."""
        raw = headers.get(b"origin")
        if raw is None:
            return None
        origin = raw.decode("latin-1").strip().lower()
        if origin not in self._allowed.origins:
            raise Forbidden("foreign Origin: name it to `radchat serve` with --allow-origin")
        return origin


async def _refuse(error: RadchatError, scope: Scope, receive: Receive, send: Send) -> None:
    """What was not read of the body is not the next request: the connection ends."""
    response = errors.answer(error)
    response.headers["connection"] = "close"
    if "retry_after_s" in error.data:
        response.headers["retry-after"] = str(error.data["retry_after_s"])
    await response(scope, receive, send)


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def _with_cors(origin: str, send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_cors(origin)]}
        await send(message)

    return sending


async def _preflight(origin: str, send: Send) -> None:
    headers = [
        *_cors(origin),
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-max-age", str(CORS_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
