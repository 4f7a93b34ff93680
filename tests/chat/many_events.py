"""The events of several answers at once, said when a test says so."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator, Sequence
from typing import Any

from radchat.errors import RadchatError
from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, usage
from tests.chat.trees import long
from tests.e2e.harness import Terminal

TEXTS = ("price -10 %", "cost -5 %", "volume +20 %", "hire two")
NAMES = [text.split()[0] for text in TEXTS]
SHARED = {"tokens": 8371, "cached": 0, "computed": 8371, "new": 212}


class Speakers:
    """``generate`` of the scripted daemon goes on as this is told; ``cancel`` is obeyed."""

    def __init__(
        self,
        daemon: FakeDaemon,
        texts: Sequence[str],
        *,
        samples: int = 0,
        named: bool = True,
    ) -> None:
        """``samples``: so many answers to the one text, or to one that was there; ``named``: each
        on a branch.
        """
        self.names = [text.split()[0] for text in texts] or ["main"]
        if samples:
            self.names = [f"{self.names[0]}-{i + 1}" for i in range(samples)]
        self._texts = list(texts) * (samples or 1) if texts else [None] * samples
        self._is_one = bool(samples)
        self._branches = self.names if named else [None for _ in self.names]
        self.said = ["" for _ in self.names]
        self.head = {"branch": "main", "message": long("d9f1")}  # stays
        self.limit = 8192  # of the context
        self._left = set(range(len(self.names)))
        self._bodies: dict[int, dict[str, Any]] = {}
        self._queue: queue.SimpleQueue[Event | RadchatError | None] = queue.SimpleQueue()
        daemon.script |= {"generate": lambda _args: self._events(), "cancel": self._cancel}

    def _events(self) -> Iterator[Event]:
        yield self._init()
        while (event := self._queue.get()) is not None:
            if isinstance(event, RadchatError):
                yield Event("error", event.to_json())
                return
            yield event

    def _init(self) -> Event:
        rows = [
            {"choice": i, "branch": name, "message": self._message(i), "user": self._user(i),
             "text": self._texts[i]}
            for i, name in enumerate(self._branches)
        ]  # fmt: skip
        return Event(
            "init",
            {"request": "r1", "session": long("e7f2"), "name": "report-q3", "branch": "main",
             "parent": long("d9f1"), "user": self._user(0),
             "messages": [row["message"] for row in rows], "branches": rows,
             "model": "tiny", "dtype": "fp32", "context": 8192, "head": self.head},
        )  # fmt: skip

    def _message(self, choice: int) -> str:
        return long(f"a{choice}a0")

    def _user(self, choice: int) -> str:
        return long("c0c0" if self._is_one else f"c{choice}c0")

    def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        choice = args.get("choice")
        for each in sorted(self._left) if choice is None else [choice]:
            self.end(each, "abort")
        return {"cancelled": True}

    # --- what is said ---

    def event(self, name: str, /, **data: Any) -> None:
        self._queue.put(Event(name, data))

    def fail(self, error: RadchatError) -> None:
        self._queue.put(error)

    def say(self, choice: int, text: str) -> None:
        self.said[choice] += text
        self.event("delta", choice=choice, text=text)

    def say_all(self, text: str) -> None:
        for choice in range(len(self.names)):
            self.say(choice, f"{self.names[choice]} {text}")

    def end(self, choice: int, reason: str = "stop", **more: Any) -> None:
        """The last of them ends it all."""
        self._left.discard(choice)
        is_none = reason in ("abort", "error") and not self.said[choice]
        body = {
            "session": long("e7f2"), "message": None if is_none else self._message(choice),
            "parent": self._user(choice), "branch": self._branches[choice], "choice": choice,
            "model": "tiny", "dtype": "fp32", "text": self.said[choice],
            "finish_reason": reason, "usage": usage(output=12),
            "cache": {"device": 1180, "host": 0, "disk": 0, "computed": 31},
            "timing": {"first_token_s": 0.04, "total_s": 1.0, "tokens_per_s": 20.0},
            **more,
        }  # fmt: skip
        self._bodies[choice] = body
        self.event("message", **body)
        if not self._left:
            self._done()

    def end_all(self) -> None:
        for choice in sorted(self._left):
            self.end(choice)

    def _done(self) -> None:
        self.event(
            "done", session=long("e7f2"), name="report-q3", parent=long("d9f1"),
            branches=[self._bodies[i] for i in sorted(self._bodies)], usage=usage(output=48),
            cache={"device": 1180, "host": 0, "disk": 0, "computed": 31}, shared=SHARED,
            head=self.head,
            context={"used": 1229, "limit": self.limit},
        )  # fmt: skip
        self._queue.put(None)


def left(terminal: Terminal) -> str:
    """What stays in the scrollback: all that was written after the screen had gone."""
    after = terminal.raw.rpartition(b"\x1b[?1049l")[2].decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", after)
