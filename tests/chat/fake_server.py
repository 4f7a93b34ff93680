"""A scripted daemon: a real HTTP server on a real Unix socket that speaks the protocol.

Given to the CLI by ``--daemon SOCK``. A script maps a method to its answer: a dict, an error to
raise, or a function of the arguments; a streaming method's answer is a list or generator of
events. Every call is kept in ``calls``; a stream whose reader went away is in ``cancelled``.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, Self

from radchat.daemon.body import check_arguments
from radchat.daemon.service import Service
from radchat.errors import NotFound, RadchatError
from radchat.protocol import PROTOCOL, STREAMS, Event, build_id

Answer = dict[str, Any] | RadchatError | Iterable[Event]
Script = dict[str, Answer | Callable[[dict[str, Any]], Answer]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeDaemon

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._answer("health", {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(self.path.removeprefix("/rpc/"), json.loads(body or b"{}"))

    def _answer(self, method: str, args: dict[str, Any]) -> None:
        answer = self.server.answer(method, args)
        if isinstance(answer, RadchatError):
            self._json({"error": answer.to_json()}, answer.http_status)
        elif isinstance(answer, dict):
            self._json(answer, 200)
        else:
            self._stream(answer, args)

    def _json(self, value: dict[str, Any], status: int) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: Iterable[Event], args: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                self._chunk(event.encode())
            self._chunk(b"")
        except (BrokenPipeError, ConnectionResetError):
            self.server.cancelled.append(args)
            self.server.noticed_cancel.set()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class FakeDaemon(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = dict(script or {})
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[dict[str, Any]] = []
        self.refused: list[RadchatError] = []  # calls the real service would not take
        self.noticed_cancel = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="rc-"))  # short: sun_path
        self.path = self._folder / "d.sock"
        super().__init__(str(self.path), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = super().get_request()
        return connection, ("unix", 0)

    def answer(self, method: str, args: dict[str, Any]) -> Answer:
        if method == "health":
            health = {"state": "ready", "pid": 1, "build": build_id(), "protocol": PROTOCOL}
            return self.script.get("health", health)  # type: ignore[return-value]
        self.calls.append((method, args))
        if method not in ("status", "stop"):  # the rest take what the real service takes, no more
            try:
                check_arguments(method, getattr(Service, method.replace(".", "_")), args)
            except RadchatError as error:
                self.refused.append(error)
                return error
        answer = self.script.get(method, NotFound(f"no such method in this script: {method}"))
        if callable(answer):
            answer = answer(args)
        assert isinstance(answer, dict | RadchatError) or method in STREAMS
        return answer

    def asked(self, method: str) -> list[dict[str, Any]]:
        return [args for name, args in self.calls if name == method]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()
        shutil.rmtree(self._folder)
        assert self.refused == []


def usage(input_tokens: int = 1211, cached: int = 1180, output: int = 62) -> dict[str, int]:
    return {
        "input_tokens": input_tokens,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "forced_tokens": 0,
    }


def answer_events(
    pieces: Iterable[str],
    *,
    message: str = "d9f1" + "0" * 28,
    branch: str = "main",
    finish_reason: str = "stop",
    session: str = "e7f2" + "0" * 28,
    before: Iterable[Event] = (),
) -> Iterable[Event]:
    """The events of one whole answer, made of these pieces of text."""
    yield Event(
        "init",
        {
            "request": "r1",
            "session": session,
            "name": "report-q3",
            "branch": branch,
            "parent": "c2aa" + "0" * 28,
            "user": "c2aa" + "0" * 28,
            "messages": [message],
            "model": "smollm2-135m",
            "dtype": "bf16",
            "context": 8192,
            "seed": 7,
        },
    )
    yield from before
    yield Event(
        "start",
        {"input_tokens": 1211, "cached": {"device": 1180, "host": 0, "disk": 0}, "computed": 31},
    )
    text = []
    for piece in pieces:
        text.append(piece)
        yield Event("delta", {"choice": 0, "text": piece})
    ask = {
        "session": session,
        "message": message,
        "parent": "c2aa" + "0" * 28,
        "branch": branch,
        "model": "smollm2-135m",
        "dtype": "bf16",
        "text": "".join(text),
        "finish_reason": finish_reason,
        "usage": usage(),
        "cache": {"device": 1180, "host": 0, "disk": 0, "computed": 31},
        "timing": {"first_token_s": 0.0412, "total_s": 1.0, "tokens_per_s": 62.3},
    }
    yield Event("message", ask)
    yield Event(
        "done",
        {
            "session": ask["session"],
            "name": "report-q3",
            "parent": ask["parent"],
            "branches": [ask],
            "usage": ask["usage"],
            "cache": ask["cache"],
            "timing": ask["timing"],
            "head": {"branch": branch, "message": message},
            "context": {"used": 1229, "limit": 8192},
            "saved_s": 0.5,
        },
    )
