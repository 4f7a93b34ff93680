"""All requests of one command, side by side: handed over together, ended together or one by one.

Nothing that happens to one of them ends another. The command fails where all of them have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from radchat.daemon import whole
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import Disk
from radchat.daemon.fullness import Filled, crossing
from radchat.daemon.heard import Heard
from radchat.daemon.listening import Listening
from radchat.daemon.loaded import Loaded
from radchat.daemon.outgoing import unexpected
from radchat.daemon.worker import Worker
from radchat.errors import RadchatError
from radchat.protocol import Event
from radchat_sessions.messages import Begun, Session
from radchat_sessions.store import Store


class Together:
    """``hear`` needs the engine, ``put_away`` does not."""

    def __init__(
        self,
        request: str,
        asked: Sequence[Asked],
        begun: Sequence[Begun],
        loaded: Loaded,
        store: Store,
        desk: Desk,
        worker: Worker,
        disk: Disk,
        say: Callable[[Event], None],
    ) -> None:
        told: set[str] = set()
        self.requests = [
            Listening(*each, loaded, store, desk, worker, disk, say, told)
            for each in zip(asked, begun, strict=True)
        ]
        self._request = request
        self._store, self._desk, self._worker, self._say = store, desk, worker, say
        self.last_chance = asyncio.Event()  # what can't be saved after it is left to the file

    @property
    def session(self) -> str:
        return self.requests[0].begun.session

    @property
    def answers(self) -> list[Heard]:
        return [choice for each in self.requests for choice in each.choices]

    def cancel(self, choice: int | None = None) -> bool:
        """End all, or the one of this number. False: there is no such one, or it has ended."""
        for each in self.requests:
            index = None if choice is None else choice - each.asked.first
            if index is None:
                each.cancel()
            elif 0 <= index < len(each.choices):
                each.cancel(index)
                return each.choices[index].finished is None
        return choice is None

    async def hear(self, loaded: Loaded) -> None:
        """All events of all requests. Never raises: an error waits until all is put away."""
        try:
            await self._submit(loaded)
        except BaseException as error:
            for each in self.requests:
                await each.fail(error)
        with contextlib.suppress(asyncio.CancelledError):  # each has heard of it
            await asyncio.gather(*(each.hear(loaded) for each in self.requests))

    async def _submit(self, loaded: Loaded) -> None:
        for each in self.requests:
            await each.open(loaded)
        session = await self._session()
        self._say(whole.init(self._request, session, self.requests, loaded.context_length))
        for each in self.requests:
            each.say_branch(each.begun.answers[0].placed)
        try:
            given = [each.submitting() for each in self.requests]
            entering = self._worker.submit_all(loaded.key, given)
            for each in self.requests:
                each.submitted()
            await entering
        except Exception:
            for each in self.requests:
                each.refused()
            raise

    async def _session(self) -> Session:
        return await self._desk.run(lambda: self._store.session(self.session))

    async def put_away(self) -> None:
        """Every answer becomes a message, however long the disk takes; then the end is told."""
        await asyncio.gather(*(each.put_away(self.last_chance) for each in self.requests))
        self._tell_trouble()
        done = whole.done(await self._session(), self.requests)
        now = Filled(**done["context"])
        longest = max(len(each.asked.request.ids) for each in self.requests)
        for event in crossing(Filled(longest, now.limit), now):
            self._say(event)
        self._say(Event("done", done))

    def _tell_trouble(self) -> None:
        """Raises what ended the first answer where none came to a good end."""
        troubles = [choice.trouble for choice in self.answers]
        found = [trouble for trouble in troubles if trouble is not None]
        if len(found) == len(troubles):
            raise found[0]
        for number, trouble in enumerate(troubles):
            if trouble is not None:
                text = f"answer {number + 1} of {len(troubles)}: {_why(trouble)}"
                self._say(Event("notice", {"text": text, "code": "failed", "choice": number}))


def _why(trouble: BaseException) -> str:
    if isinstance(trouble, Exception) and not isinstance(trouble, RadchatError):
        return unexpected("generate", trouble).message
    return trouble.message if isinstance(trouble, RadchatError) else type(trouble).__name__
