"""A daemon with everything real but what answers: ``python -P fake_daemon.py``.

Started through the same lifecycle as the true one. It notes each start in ``started`` beside the
lock, so that a test can count and end every process there was.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from radchat.config import Config
from radchat.daemon.main import start
from radchat.errors import ContextOverflow, NotFound, RadchatError
from radchat.paths import Places, private_folder
from radchat.protocol import Event, State, Where

SECRET = "the user's own words"


class FakeService:
    """Answers as the first word of the text says."""

    def __init__(self, places: Places, config: Config) -> None:
        self.places = places
        self.running = 0
        self.cancelled = 0
        self.closed_at = 0.0
        self.busy = False
        self.enough = threading.Event()

    @property
    def state(self) -> State:
        return "ready"

    async def start(self) -> None:
        how = os.environ.get("RADCHAT_FAKE_START", "")
        if how == "refuse":
            raise RadchatError("this database is newer than this radchat")
        if how == "slow":
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        (self.places.data / "closed").touch()

    async def status(self) -> dict[str, Any]:
        return {
            "model": None,
            "running": self.running,
            "waiting": 0,
            "cancelled": self.cancelled,
            "closed_at": self.closed_at,
        }

    async def cancel(self, *, request: str) -> dict[str, Any]:
        if request == "the computing":
            self.enough.set()
        return {"cancelled": request == "known"}

    async def sessions_list(self) -> dict[str, Any]:
        return {"sessions": [{"pid": os.getpid()}]}

    async def sessions_rename(self, *, name: str, where: Where, session: str | None = None) -> Any:
        return {"name": name}

    async def sessions_show(self, *, session: str) -> dict[str, Any]:
        raise NotFound(f"no session {session}")

    async def log(self) -> dict[str, Any]:
        raise ValueError(SECRET)

    async def tree(self) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return {"messages": []}

    async def undo(self, *, n: int = 1, head: dict[str, str | None] | None = None) -> Any:
        return {"n": n}

    async def generate(
        self,
        *,
        text: str,
        kind: Literal["turn", "retry"] = "turn",
        options: dict[str, float | list[str] | None] | None = None,
    ) -> AsyncGenerator[Event]:
        verb, _, number = text.partition(" ")
        self.running += 1
        finished = False
        try:
            if verb == "refuse":
                raise ContextOverflow("too long", tokens=12, limit=10)
            if verb == "late":
                await asyncio.sleep(3600)
            yield Event("init", {"request": "r1"})
            if verb == "hang":
                await asyncio.sleep(3600)
            if verb == "break":
                raise ValueError(SECRET)
            if verb == "compute":
                await asyncio.to_thread(self._compute)
            for i in range(int(number or 1)):
                if verb == "slow":
                    await asyncio.sleep(0.02)
                yield Event("delta", {"choice": 0, "text": f"{i} "})
            yield Event("done", {"text": text})
            finished = True
        finally:
            self.running -= 1
            if not finished:
                self.cancelled += 1
                self.closed_at = time.monotonic()

    def _compute(self) -> None:
        """A thread that wants the interpreter all the time, until somebody has had enough."""
        while not self.enough.is_set():
            sum(range(1000))


def main() -> int:
    places = Places.from_env()
    private_folder(places.data)
    with (places.data / "started").open("a") as file:
        file.write(f"{os.getpid()}\n")
    try:
        return start(places, FakeService)
    except RadchatError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
