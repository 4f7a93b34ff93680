"""Servers of other makes, on real sockets, that speak as their documentation says (its names stand
with each dialect in radchat/daemon/remote). A model of theirs goes on with a text of its own.

What they have cached is kept by ids, as their prefix caches do: so what is told can be checked.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from radchat.engine.tokenizer import Tokenizer

SAYS = "the fox is quick, and so is the hen; they run all day."


@dataclass
class Faults:
    """What goes wrong, once each: taken from the front."""

    refuse: list[int] = field(default_factory=list)  # statuses, before anything is said
    cut_after: list[int] = field(default_factory=list)  # pieces: then the connection is closed
    garbage: bool = False
    tells_cached: bool = True
    stall: threading.Event | None = None  # after the first piece, until it is set
    stall_at: int = 1
    adds_to_ids: int = 0


class Fake:
    """One server. ``make``: sglang, vllm, llamacpp or openai."""

    def __init__(
        self, make: str, folder: Path, *, increments: bool = False, says: str = SAYS
    ) -> None:
        self.make, self.increments, self.says = make, increments, says
        self.tokenizer = Tokenizer(folder)
        self.faults = Faults()
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.seen: list[list[int]] = []  # prompts with their answers
        self.running = self.most = self.gone = 0
        self.lock = threading.Lock()
        fake = self

        class Handler(_Handler):
            server_is = fake

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def cached(self, ids: Sequence[int]) -> int:
        best = 0
        for old in self.seen:
            num = 0
            for a, b in zip(old, ids, strict=False):
                if a != b:
                    break
                num += 1
            best = max(best, num)
        return min(best, len(ids) - 1)


class _Handler(BaseHTTPRequestHandler):
    server_is: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def _json(self, body: Any, status: int = 200, **headers: str) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        make = self.server_is.make
        model = {"id": "fox", "object": "model", "owned_by": make, "root": "org/fox"}
        told: dict[tuple[str, str], Any] = {
            ("sglang", "/get_model_info"): {"model_path": "org/fox", "tokenizer_path": "org/fox"},
            ("sglang", "/get_server_info"): {"context_length": 2048, "served_model_name": "fox"},
            ("vllm", "/v1/models"): {"data": [{**model, "max_model_len": 2048}]},
            ("llamacpp", "/props"): {"default_generation_settings": {"n_ctx": 2048}},
            ("llamacpp", "/v1/models"): {"data": [{**model, "owned_by": "llamacpp"}]},
            ("openai", "/v1/models"): {"data": [{**model, "owned_by": "somebody"}]},
        }
        body = told.get((make, self.path))
        self._json(body if body is not None else {"error": "no"}, 200 if body else 404)

    def do_POST(self) -> None:
        fake = self.server_is
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with fake.lock:
            fake.asked.append(body)
            fake.paths.append(self.path)
        if fake.faults.refuse:
            status = fake.faults.refuse.pop(0)
            self._json({"error": {"message": "not now"}}, status, retry_after="0")
            return
        with fake.lock:
            fake.running += 1
            fake.most = max(fake.most, fake.running)
        try:
            self._stream(body)
        except OSError:
            with fake.lock:
                fake.gone += 1
        finally:
            with fake.lock:
                fake.running -= 1
        self.close_connection = True

    def _stream(self, body: dict[str, Any]) -> None:
        fake = self.server_is
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        prompt = body.get("input_ids") or body.get("prompt") or json.dumps(body.get("messages"))
        ids = prompt if isinstance(prompt, list) else list(fake.tokenizer.encode_text(prompt))
        cached = fake.cached(ids)
        sampling = body.get("sampling_params") or body
        named = ("max_new_tokens", "n_predict", "max_tokens")
        most = next((sampling[k] for k in named if k in sampling), 1000)
        whole = list(fake.tokenizer.encode_text(fake.says))
        said = whole[:most]
        fake.seen.append([*ids, *said])
        cut = fake.faults.cut_after.pop(0) if fake.faults.cut_after else None
        for place, token in enumerate(said):
            if cut is not None and place == cut:
                return
            if place == fake.faults.stall_at and fake.faults.stall is not None:
                while not fake.faults.stall.wait(0.05):
                    self.wfile.write(b": waiting\n\n")  # a client that is gone is seen by this
                    self.wfile.flush()
            if fake.faults.garbage and place == 1:
                self._say(b"data: {half\n\n")
            self._event(said, place, token, None, len(ids), cached)
        reason = "length" if len(said) < len(whole) else "stop"
        self._event(said, len(said), None, reason, len(ids), cached)
        if fake.make != "llamacpp":
            self._say(b"data: [DONE]\n\n")

    def _say(self, raw: bytes) -> None:
        """In two pieces: no client may count on whole events."""
        middle = len(raw) // 2
        self.wfile.write(raw[:middle])
        self.wfile.flush()
        self.wfile.write(raw[middle:])
        self.wfile.flush()

    def _event(
        self, said: list[int], num: int, token: int | None, reason: str | None, n: int, cached: int
    ) -> None:
        fake = self.server_is
        new = [] if token is None else [token + fake.faults.adds_to_ids]
        told = cached if fake.faults.tells_cached else None
        before = fake.tokenizer.decode(said[:num]).rstrip("\ufffd")
        text = fake.tokenizer.decode(said[: num + 1])[len(before) :]
        is_within = text.endswith("\ufffd")  # of a character: text can't be told yet
        if fake.make == "sglang":
            count = num + len(new)
            about = {
                "finish_reason": None if reason is None else {"type": reason},
                "prompt_tokens": n,
                "completion_tokens": count,
                **({} if told is None else {"cached_tokens": told}),
            }
            ids = new if fake.increments else said[:count]
            self._data({"text": text, "output_ids": ids, "meta_info": about})
        elif fake.make == "llamacpp":
            body: dict[str, Any] = {"content": text, "tokens": new, "stop": reason is not None}
            body["timings"] = {"predicted_n": num + len(new)}
            if told is not None:
                body["timings"]["cache_n"] = told
            if is_within:  # nor are its first ids, ever
                return
            if reason is not None:
                body["stop_type"] = "limit" if reason == "length" else "eos"
            self._data(body)
        else:
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
            text = "" if is_within else text
            if self.path.endswith("/chat/completions"):
                choice["delta"] = {"content": text}
            else:
                choice["text"] = text
            if fake.make == "vllm":
                choice["token_ids"] = new
            self._data({"choices": [choice], "usage": None})
            if reason is not None:
                details = None if told is None else {"cached_tokens": told}
                usage = {"prompt_tokens": n, "prompt_tokens_details": details}
                self._data({"choices": [], "usage": usage})

    def _data(self, body: dict[str, Any]) -> None:
        self._say(b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n")


@contextlib.contextmanager
def serving(make: str, folder: Path, **named: Any) -> Iterator[Fake]:
    fake = Fake(make, folder, **named)
    try:
        yield fake
    finally:
        fake.close()


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
