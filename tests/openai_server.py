"""A real HTTP server on this machine that speaks as an OpenAI-compatible one does, or badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Answer = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAIServer

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        if self.path != "/v1/models":
            self.whole(404, {"error": {"message": "no such page"}})
            return
        self.whole(self.server.models_status, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.path == "/v1/chat/completions":
            self.server.answer(self, body)
        else:
            self.whole(404, {})

    def whole(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send(self, event: dict[str, Any] | str) -> None:
        text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def say(self, text: str | None, finish: str | None = None) -> None:
        delta = {"role": "assistant"} if text is None else {"content": text}
        self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def log_message(self, *_args: Any) -> None:
        pass


class OpenAIServer(ThreadingHTTPServer):
    """``answer`` writes what a chat completion is answered with."""

    daemon_threads = True

    def __init__(self, answer: Answer, models: Any = None, models_status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.models_status = models_status
        self.models = models or {"data": [{"id": "their-model", "owned_by": "llamacpp"}]}
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.over = threading.Event()  # what a silent answer waits for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no failure of the test."""


def well(handler: Handler, body: dict[str, Any]) -> None:
    """As llama-server does: the role alone, the text, the end, the usage, [DONE]."""
    handler.begin()
    handler.send(": a comment\n\n")
    handler.say(None)
    for word in ("one ", "two ", "three"):
        handler.say(word)
    handler.say("", "length")
    usage = {"prompt_tokens": 50, "completion_tokens": 3}
    details = {"prompt_tokens_details": {"cached_tokens": 40}}
    handler.send({"choices": [], "usage": usage | details})
    handler.send("data: [DONE]\n\n")
    handler.send("")


def without_usage(handler: Handler, body: dict[str, Any]) -> None:
    """No counts, no space after the colon, no [DONE]; some thinking first."""
    handler.begin()
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    handler.send(f"data:{json.dumps(thought)}\r\n\r\n")
    handler.say("yes", "stop")
    handler.send("")
