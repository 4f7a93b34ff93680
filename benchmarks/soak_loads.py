"""What the clients of a soak do: each call is one thing, and whatever comes of it is counted."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

WORDS = ("the sea", "a green book", "weather, and more of it", "the lamp at six", "a fox")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"enum": [1, 2]}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
SESSION = "soak-"
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


@dataclass
class Client:
    """One, in a thread of its own, with a conversation that it tells and one that is kept."""

    url: str
    key: str
    model: str
    number: int
    rest_s: float = 0.0  # between two things
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.number)
        self.http = httpx2.Client(
            base_url=self.url.removesuffix("/v1"),
            headers={"authorization": f"Bearer {self.key}"},
            timeout=120,
        )
        self.told: list[dict[str, Any]] = []
        self.kept: list[str] = []  # messages of a session
        self.session = f"{SESSION}{self.number}-0"
        self.sessions = 0

    def live(self, until: threading.Event) -> None:
        doing: dict[Callable[[], None], int] = {
            self.turn: 6,
            self.told_again: 4,
            self.fork: 3,
            self.streamed: 4,
            self.vanish: 3,
            self.vanish_rudely: 2,
            self.form: 2,
            self.call: 2,
            self.complete: 2,
            self.bad: 2,
            self.samples: 1,
        }
        while not until.is_set():
            (one,) = self.random.choices(list(doing), list(doing.values()))
            one()
            self.done[one.__name__] += 1
            until.wait(self.rest_s)
        self.http.close()

    # -- what is done ------------------------------------------------------------------------------

    def turn(self) -> None:
        """In a session that is kept; a long one is left for another."""
        if len(self.kept) > 8:
            self.sessions += 1
            self.kept, self.session = [], f"{SESSION}{self.number}-{self.sessions}"
        radchat = {"session": self.session, **({"parent": self.kept[-1]} if self.kept else {})}
        answer = self._chat([self._user()], radchat=radchat)
        self.kept.append(answer["radchat"]["message"])

    def told_again(self) -> None:
        """All of a conversation, each time."""
        if len(self.told) > 12:
            self.told = []
        self.told.append(self._user())
        answer = self._chat(self.told)
        self.told.append(answer["choices"][0]["message"])

    def fork(self) -> None:
        if not self.kept:
            return
        parent = self.random.choice(self.kept)
        self._chat([self._user()], radchat={"session": self.session, "parent": parent})

    def streamed(self) -> None:
        with self._stream(24) as answer:
            text = answer.read()
        assert text.endswith(b"data: [DONE]\n\n")

    def vanish(self) -> None:
        """In the midst of a stream."""
        with self._stream(2000) as answer:
            for _ in answer.iter_raw():
                if self.random.random() < 0.4:
                    break

    def vanish_rudely(self) -> None:
        """Before a word has come, and with a reset."""
        body = json.dumps(self._body([self._user()], 2000, stream=True)).encode()
        host, port = self.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n"
                f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            if self.random.random() < 0.5:
                connection.recv(64)

    def form(self) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
        self._chat([self._user()], most=80, response_format=wanted)

    def call(self) -> None:
        self._chat([self._user()], most=120, tools=[TOOL], tool_choice="required")

    def complete(self) -> None:
        ids = [self.random.randrange(5, 90) for _ in range(self.random.randrange(2, 200))]
        body = {"model": self.model, "prompt": ids, "max_tokens": 6, "logprobs": 2}
        self._post("/v1/completions", body)

    def samples(self) -> None:
        self._chat([self._user()], n=4, temperature=1)

    def bad(self) -> None:
        bodies = (b"{", b"[]", b'{"model": 1}', b'{"model": "x", "messages": []}')
        head = {"content-type": "application/json"}
        answer = self.http.post(
            "/v1/chat/completions", content=self.random.choice(bodies), headers=head
        )
        assert answer.status_code == 400, answer.status_code
        wrong = self.http.get("/v1/models", headers={"authorization": "Bearer nobody"})
        assert wrong.status_code == 401

    # -- how ---------------------------------------------------------------------------------------

    def _user(self) -> dict[str, Any]:
        text = " ".join(self.random.choices(WORDS, k=self.random.randrange(1, 12)))
        return {"role": "user", "content": text}

    def _body(self, messages: list[dict[str, Any]], most: int, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": messages, "max_tokens": most, **more}

    def _chat(self, messages: list[dict[str, Any]], most: int = 12, **more: Any) -> dict[str, Any]:
        return self._post("/v1/chat/completions", self._body(messages, most, **more))

    def _stream(self, most: int) -> Any:
        body = self._body([self._user()], most, stream=True)
        return self.http.stream("POST", "/v1/chat/completions", json=body)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}"
        found: dict[str, Any] = answer.json()
        return found
