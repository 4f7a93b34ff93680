"""An open program without a daemon: it says what it is told to, when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radchat.errors import InvalidInput, RadchatError

USAGE = {"input_tokens": 10, "cached_input_tokens": 8, "output_tokens": 2, "forced_tokens": 1}
CACHE = {"device": 8, "host": 0, "disk": 0, "computed": 2}


class FakeRemote:
    """``answer(text so far)`` is what a gen says; an exception is what it fails with."""

    def __init__(self, answer: Callable[[str], str | Exception] = lambda _text: "ok") -> None:
        self.opened: dict[str, Any] = {"program": 1, "model": "fake", "dtype": "fp32"}
        self.texts = {0: ""}
        self.asked: list[dict[str, Any]] = []
        self.dropped: list[int] = []
        self.is_closed = False
        self.gone = threading.Event()  # set by giving up
        self.output: dict[str, Any] = {}  # on top of what an output is
        self.pieces: Callable[[Callable[[str], None]], None] = lambda _say: None
        self._answer = answer
        self._lock = threading.Lock()

    def say(self, state: int, role: str, text: str) -> None:
        if "refuse" in text:
            raise InvalidInput("the template refuses it")
        mark = "" if role in ("raw", "assistant") else f"<{role}>"
        self.texts[state] += mark + text

    def gen(
        self,
        state: int,
        asked: Mapping[str, Any],
        on_text: Callable[[str], None],
        on_stream: Callable[[Callable[[], None]], None],
    ) -> Mapping[str, Any]:
        self.asked.append(dict(asked))
        on_stream(self.gone.set)
        self.pieces(on_text)
        said = self._answer(self.texts[state])
        if isinstance(said, Exception):
            raise said
        self.texts[state] += said
        outputs = [
            {"text": said, "finish_reason": "stop", "tokens": 2, "forced_tokens": 1, **self.output}
            for _ in range(asked["n"])
        ]
        return {"outputs": outputs, "seed": 7, "usage": USAGE, "cache": CACHE}

    def select(self, state: int, choices: Sequence[str]) -> Mapping[str, Any]:
        self.texts[state] += choices[-1]
        scores = [float(-i) for i in range(len(choices), 0, -1)]
        body = {"choice": len(choices) - 1, "scores": scores, "tokens": [1] * len(choices)}
        return {**body, "usage": USAGE, "cache": CACHE}

    def fork(self, state: int, n: int) -> Mapping[str, Any]:
        with self._lock:
            numbers = list(range(len(self.texts), len(self.texts) + n))
            self.texts |= dict.fromkeys(numbers, self.texts[state])
        return {"states": numbers}

    def drop(self, states: Sequence[int]) -> None:
        self.dropped += states

    def show(self, state: int) -> Mapping[str, Any]:
        return {"text": self.texts[state]}

    def save(self, state: int, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.texts[state]:
            raise RadchatError("nothing to save")
        return {"session": "s1", **asked}

    def close(self) -> None:
        self.is_closed = True
        self.gone.set()
