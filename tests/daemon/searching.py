"""A search over the real service, as a client sees it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from radchat.daemon.search_asks import Ask
from radchat.daemon.streams import Stream
from radchat.protocol import Event
from radchat_sessions.messages import Message
from radchat_sessions.store import Store
from tests.daemon.services import WHERE, House, named


class Open:
    """A search that is open."""

    def __init__(self, home: House, stream: Stream, init: dict[str, Any]) -> None:
        self.home, self.stream, self.init = home, stream, init
        self.id, self.session = str(init["search"]), str(init["session"])
        self.inside = home.service._searches[self.id]
        self.engine = self.inside.loaded.engine

    def extra(self, **more: Any) -> dict[str, Any]:
        return {"search": {"number": self.init["number"], **more}}

    def asked(self, text: str, at: str | None = None, **more: Any) -> Ask:
        return {"at": at, "text": text, "extra": self.extra(), "max_tokens": 5, **more}  # type: ignore[typeddict-item]

    async def events(self, *asks: Ask, **more: Any) -> list[Event]:
        return [event async for event in self.home.service.search_ask(self.id, [*asks], **more)]

    async def ask(self, text: str, at: str | None = None, **more: Any) -> dict[str, Any]:
        """The answer to one, with the outputs' ids as ``messages``."""
        events = await self.events(self.asked(text, at, **more))
        assert named(events, "failed") == []
        (answer,) = named(events, "answer")
        return {**answer, "messages": [each["message"] for each in answer["outputs"]]}

    async def on_desk(self, work: Any) -> Any:
        return await self.home.service._desk.run(lambda: work(self.inside.store))

    async def ids(self, message: str) -> list[int]:
        return list(await self.on_desk(lambda store: store.ids(message)))

    async def message(self, message: str) -> Message:
        found: Message = await self.on_desk(lambda store: store.message(message))
        return found

    async def stored(self) -> list[Message]:
        def look(store: Store) -> list[Message]:
            return store.messages(self.session)

        found: list[Message] = await self.on_desk(look)
        return found

    def computed(self) -> int:
        """Tokens the model has run, by its own count."""
        return int(self.inside.loaded.model.decoder.tokens_computed)  # type: ignore[union-attr]


@contextlib.asynccontextmanager
async def search(home: House, **args: Any) -> AsyncIterator[Open]:
    args = {"exact": True, "new_session": True, "options": {"temperature": 0}, **args}
    stream = home.service.search_open(WHERE, **args)
    try:
        async for event in stream:
            if event.name == "init":
                break
        yield Open(home, stream, event.data)
    finally:
        await stream.aclose()
        async for _ in stream:
            pass
