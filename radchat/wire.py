"""HTTP/1.1 to our own daemon over a Unix socket: one request a connection, standard library only.

``http.client`` costs every command 25 ms of CPU, and a Ctrl+C in the middle of its chunked reader
leaves the stream unreadable; here an interrupted read loses nothing and can be taken up again, so a
chat may cancel and still read how the answer ended (docs/adr/0010-own-wire.md).
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from radchat.errors import InvalidInput, Unreachable, from_json
from radchat.protocol import HEADER, MAX_BODY, PROTOCOL, Event, decode_events

CONNECT_TIMEOUT = 5.0  # seconds; a daemon that lives accepts at once, its kernel does it for it
TICK = 0.25  # seconds between calls of ``on_wait``


class Chunks:
    """The chunked transfer coding, fed as bytes arrive. ``done`` after the closing chunk."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes that are whole now. Raises ValueError for what is no chunk."""
        self._raw += data
        out = bytearray()
        while not self.done:
            line_end = self._raw.find(b"\r\n")
            if line_end < 0:
                break
            size = int(self._raw[:line_end], 16)
            end = line_end + 2 + size
            if len(self._raw) < end + 2:
                break
            out += self._raw[line_end + 2 : end]
            del self._raw[: end + 2]
            self.done = size == 0
        return bytes(out)


class Exchange:
    """One request and its answer. ``close`` may be called at any time, from any thread."""

    def __init__(self, path: str) -> None:
        """Connect; raises OSError (FileNotFoundError, ConnectionRefusedError: nobody there)."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_TIMEOUT)
        self.closed = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self._arrived: list[bytes] = []  # read, and not taken apart yet
        self._body = bytearray()  # decoded, not yet taken
        self._chunks: Chunks | None = None
        self._left: int | None = None  # of content-length
        self.complete = False
        try:
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def send(self, verb: str, target: str, body: dict[str, Any] | None = None) -> None:
        """Raises InvalidInput for a body the daemon would refuse unread."""
        data = b"" if body is None else json.dumps(body).encode()
        if len(data) > MAX_BODY:
            raise InvalidInput(
                f"the request is {len(data):,} bytes, the daemon takes {MAX_BODY:,}",
                bytes=len(data),
                limit=MAX_BODY,
            )
        head = [
            f"{verb} {target} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            f"{HEADER}: {PROTOCOL}",
        ]
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        # A daemon that refuses early closes while we still send: its answer is there to be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall("\r\n".join([*head, "", ""]).encode() + data)

    def receive_head(
        self, *, timeout: float | None = None, on_wait: Callable[[], None] | None = None
    ) -> None:
        """Read status and headers.

        Raises TimeoutError after ``timeout`` seconds without them, ConnectionError when the other
        side ends first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        raw = bytearray()
        while b"\r\n\r\n" not in raw:
            if timeout is not None or on_wait is not None:
                self._wait_readable(deadline, on_wait)
            data = self._receive()
            if not data:
                raise ConnectionResetError("the connection was closed before an answer")
            raw += data
        head, _, rest = bytes(raw).partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunks = Chunks()
        else:
            self._left = int(self.headers.get("content-length", "0"))
            self.complete = self._left == 0
        self._feed(rest)

    def _wait_readable(self, deadline: float | None, on_wait: Callable[[], None] | None) -> None:
        while not select.select([self._socket], [], [], TICK)[0]:
            if on_wait is not None:
                on_wait()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("no answer")

    def _receive(self) -> bytes:
        if not self._arrived:
            self._wait_for_data()
        return self._arrived.pop()

    def _wait_for_data(self) -> None:
        """Into ``_arrived`` in one call: no KeyboardInterrupt comes in between, and loses some."""
        try:
            self._arrived.extend(map(self._socket.recv, (65536,)))
        except OSError:
            if not self.closed:
                raise
            self._arrived.append(b"")

    def _feed(self, data: bytes) -> None:
        if self._chunks is not None:
            self._body += self._chunks.feed(data)
            self.complete = self._chunks.done
        elif self._left is not None:
            self._body += data
            self._left -= len(data)
            self.complete = self._left <= 0

    def read_more(self) -> bool:
        """Wait for more of the body; False when no more will come.

        Safe to call again after a KeyboardInterrupt.
        """
        if self.complete or self.closed:
            return False
        data = self._receive()
        self._feed(data)
        return bool(data)

    def take(self, end: int | None = None) -> bytes:
        """Up to ``end`` bytes of the body that have arrived, taken out."""
        piece = bytes(self._body[:end])
        del self._body[:end]
        return piece

    def find(self, mark: bytes) -> int:
        return self._body.find(mark)

    def read_all(self) -> bytes:
        """The whole body; ConnectionError when the other side ends in the middle of it."""
        while self.read_more():
            pass
        if not self.complete:
            raise ConnectionResetError("the connection was closed in the middle of an answer")
        return self.take()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a read in another thread
        self._socket.close()


def result(exchange: Exchange) -> dict[str, Any]:
    """The JSON object of an answer, or its error raised."""
    raw = exchange.read_all()
    try:
        body = json.loads(raw)
    except ValueError:
        body = {"error": {"message": raw.decode(errors="replace")[:200]}}
    if exchange.status == 200 and isinstance(body, dict):
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": f"the daemon answered with status {exchange.status}"}
    raise from_json(error)


class EventStream(Iterator[Event]):
    """The events of a streamed answer, up to ``done``. Use it in a ``with``.

    Raises the error the daemon sent, or Unreachable when it ended without a last word. ``close`` at
    any time, from any thread, cancels the request: iteration then just ends. After a
    KeyboardInterrupt in ``next`` one may go on reading.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._ended = False

    def __next__(self) -> Event:
        while not self._ended:
            end = self._exchange.find(b"\n\n")
            if end < 0:
                if not self._more():
                    break
                continue
            block = self._exchange.take(end + 2)
            for event in decode_events(block.split(b"\n")[:-1]):  # one, or none: a comment
                if event.name == "error":
                    self.close()
                    raise from_json(event.data)
                self._ended = event.name == "done"
                return event
        self.close()
        raise StopIteration

    def _more(self) -> bool:
        try:
            more = self._exchange.read_more()
        except OSError:
            more = False
        if more or self._exchange.closed:
            return more
        self.close()
        raise Unreachable("the daemon ended in the middle of the answer: see `radchat daemon logs`")

    def close(self) -> None:
        self._ended = True
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
