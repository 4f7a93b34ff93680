"""An answer that takes its time, and what a chat has asked so far."""

from __future__ import annotations

import time
from typing import Any

from tests.chat.fake_server import FakeDaemon, answer_events


def slowly(pieces: list[str], pause: float = 0.02, **more: Any) -> Any:
    def words() -> Any:
        for piece in pieces:
            time.sleep(pause)
            yield piece

    return answer_events(words(), **more)


def sent(daemon: FakeDaemon, number: int, what: str = "generate") -> list[dict[str, Any]]:
    """The calls of a method, once there are so many."""
    deadline = time.monotonic() + 60
    while len(daemon.asked(what)) < number:
        assert time.monotonic() < deadline, daemon.calls
        time.sleep(0.01)
    return daemon.asked(what)
