"""A program over the real service, as a client sees it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from radchat.daemon.program_states import State
from radchat.daemon.streams import Stream
from radchat.protocol import Event
from tests.daemon.services import WHERE, House, named


class Open:
    """A program that is open."""

    def __init__(self, home: House, stream: Stream, init: dict[str, Any]) -> None:
        self.home, self.stream, self.init = home, stream, init
        self.id = str(init["program"])

    async def say(self, role: Any, text: str, state: int = 0, **more: Any) -> dict[str, Any]:
        return await self.home.service.program_say(self.id, state, role, text, **more)

    async def events(self, state: int = 0, **more: Any) -> list[Event]:
        return [event async for event in self.home.service.program_gen(self.id, state, **more)]

    async def gen(self, state: int = 0, **more: Any) -> dict[str, Any]:
        return named(await self.events(state, **more), "done")[0]

    async def select(self, choices: list[str], state: int = 0) -> dict[str, Any]:
        return await self.home.service.program_select(self.id, state, choices)

    async def fork(self, n: int, state: int = 0, **more: Any) -> list[int]:
        return list((await self.home.service.program_fork(self.id, state, n, **more))["states"])

    async def ids(self, state: int = 0) -> list[int]:
        return list((await self.home.service.program_show(self.id, state))["ids"])

    async def messages(self, state: int = 0) -> list[tuple[str, str]]:
        shown = await self.home.service.program_show(self.id, state)
        return [(row["role"], row["text"]) for row in shown["messages"]]

    def inside(self, state: int = 0) -> State:
        return self.home.service._programs[self.id].held[state].state

    def computed(self) -> int:
        """Tokens the model has run, by its own count."""
        loaded = self.home.service._programs[self.id].loaded
        return int(loaded.model.decoder.tokens_computed)  # type: ignore[union-attr]


@contextlib.asynccontextmanager
async def program(home: House, **args: Any) -> AsyncIterator[Open]:
    args = {"exact": True, "options": {"temperature": 0, "max_tokens": 5}, **args}
    stream = home.service.program_open(WHERE, **args)
    try:
        async for event in stream:
            if event.name == "init":
                break
        yield Open(home, stream, event.data)
    finally:
        await stream.aclose()
        async for _ in stream:
            pass
