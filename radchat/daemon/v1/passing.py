"""The events of an answer in passing: its conversation is kept while it runs, and found again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from radchat.daemon.streams import Stream
from radchat.daemon.v1.placing import Placing
from radchat.daemon.v1.recall import Recall, Told
from radchat.protocol import Event


class Passing:
    def __init__(self, events: Stream, recall: Recall, place: Placing, key: str) -> None:
        self._events, self._recall, self._key = events, recall, key
        self._session = place.session
        if place.session is not None:
            recall.begin(place.session)

    @property
    def has_begun(self) -> bool:
        return self._events.has_begun

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._events:
            if event.name == "init" and self._session is None:
                self._session = str(event.data["session"])
                self._recall.begin(self._session)
            yield event

    def remember(self, digest: str, message: Mapping[str, Any]) -> None:
        told = Told(str(message["session"]), str(message["message"]), digest)
        self._recall.add(self._key, told)

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._events.ended()
        if self._session is not None:
            session, self._session = self._session, None
            await self._recall.end(session)
