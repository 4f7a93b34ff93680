"""A search as the scripted daemon has it: stored messages, answers by their names, one step at a
time where a test says so.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events, usage
from tests.chat.trees import long

CACHE = {"device": 1180, "host": 0, "disk": 0, "computed": 31}
SESSION = {"session": long("e7f2"), "name": "report-q3", "model": "tiny", "dtype": "fp32"}


class FakeSearch:
    """Thoughts are called after themselves and rated by their last number, 9 for the first: the
    best is always s1.1.1…. ``held``: an ask says its first words, and ends when ``step`` is called.
    """

    def __init__(self, daemon: FakeDaemon, *, held: bool = False) -> None:
        self.stored: list[dict[str, Any]] = []
        self.asked: list[str] = []  # texts
        self.text = "the idea {name}"
        self.pieces = ["The answer", " is 42."]
        self.number = 1
        self._held = held
        self._steps = threading.Semaphore(0)
        self._over = threading.Event()
        self._ids = itertools.count(1)
        self._daemon = daemon
        daemon.script |= {
            "search.open": self._open,
            "search.ask": self._ask,
            "search.mark": self._mark,
            "search.release": {"freed_tokens": 212, "freed_bytes": 4096, "kept_tokens": 0},
            "branch.advance": self._advance,
            "generate": self._generate,
        }

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._steps.release()

    def end(self) -> None:
        """All that waits goes on."""
        self._held = False
        self.step(99)
        self._over.set()

    # --- the daemon's side ---

    def _open(self, args: Mapping[str, Any]) -> Iterator[Event]:
        found = {"at": None, "messages": self.stored} if args.get("resume") else None
        yield Event("progress", {"stage": "load", "text": "tiny"})
        yield Event(
            "init",
            {"search": "f" * 16, **SESSION, "context": 8192, "at": None, "branch": "main",
             "number": self.number, "found": found},
        )  # fmt: skip
        self._over.wait(60)

    def _ask(self, args: Mapping[str, Any]) -> Iterator[Event]:
        for number, ask in enumerate(args["asks"]):
            self.asked.append(ask["text"])
            for choice in range(ask.get("n", 1)):
                piece = self._said(ask, choice)[:9]
                yield Event("delta", {"ask": number, "choice": choice, "text": piece})
        while self._held and not self._steps.acquire(timeout=0.05):
            yield Event("progress", {})  # who has gone is noticed
        for number, ask in enumerate(args["asks"]):
            yield Event("answer", {"ask": number, **self._answer(ask)})
        yield Event("done", {**SESSION, "usage": usage(), "cache": CACHE})

    def _said(self, ask: Mapping[str, Any], choice: int) -> str:
        if ask.get("names"):
            return self.text.format(name=ask["names"][choice])
        above = next(m for m in self.stored if m["id"] == ask["at"])
        return str(10 - int(str(above["name"]).rpartition(".")[2]))

    def _answer(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        user = self._store(ask.get("at"), "user", ask["text"], extra=ask["extra"])
        outputs = []
        for choice in range(ask.get("n", 1)):
            name = (ask.get("names") or [None] * (choice + 1))[choice]
            text = self._said(ask, choice)
            message = self._store(user, "assistant", text, name=name, choice=choice, tokens=5)
            outputs.append({"message": message, "text": text, "tokens": 5, "logprob": None})
        used = usage(output=5 * len(outputs))
        return {"user": user, "outputs": outputs, "usage": used, "cache": CACHE, "seed": 7}

    def _store(self, parent: str | None, role: str, text: str, **more: Any) -> str:
        key = long(f"{next(self._ids):04x}")
        known: dict[str, Any] = {"extra": {}, "name": None, "score": None, "choice": 0, "tokens": 0}
        known |= {"finish_reason": "stop", "logprob": None, **more}
        self.stored.append({"id": key, "parent": parent, "role": role, "text": text, **known})
        return key

    def _mark(self, args: Mapping[str, Any]) -> dict[str, Any]:
        for message in self.stored:
            if mark := args["marks"].get(message["id"]):
                name, _, score = mark.partition("=")
                message |= {"name": name, "score": float(score) if score else None}
        return {}

    def _advance(self, args: Mapping[str, Any]) -> dict[str, Any]:
        moved = {"branch": "main", "head": args["message"], "short": args["message"][:4]}
        return {"session": long("e7f2"), "name": "report-q3", **moved, "moved": True, "made": None}

    def _generate(self, args: Mapping[str, Any]) -> Iterator[Event]:
        best = max((m for m in self.stored if m["name"]), key=lambda m: m["name"].count("."))
        user = self._store(best["id"], "user", args["text"])
        answer = self._store(user, "assistant", "".join(self.pieces), tokens=62)
        return iter(answer_events(self.pieces, message=answer))
