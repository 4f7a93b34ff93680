"""A program that is open: its states, and what runs for them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from radchat.daemon.program_states import Frame, State
from radchat.errors import InvalidInput, NotFound, RadchatError

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded

T = TypeVar("T")
MAX_STATES = 1024  # of one program at a time
OVER = "the program has ended: its stream is closed"


@dataclass(eq=False)
class Held:
    """A state and what runs for it, one after the other."""

    state: State
    number: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)


class Program:
    """Everything of it is in memory, and gone when it ends."""

    def __init__(
        self,
        loaded: Loaded,
        frame: Frame,
        given: Mapping[str, Any],
        *,
        sampling: Mapping[str, Any],
        cache: bool,
        jump: bool,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.loaded, self.frame = loaded, frame
        self.options = dict(given)  # of a generation that says nothing else
        self.sampling = dict(sampling)  # the same, as an answer's are stored
        self.cache, self.jump = cache, jump
        self.is_over = False
        self.held: dict[int, Held] = {}
        self._next = 0
        self.add(State(frame))

    def namespace(self) -> str:
        """Of one request: without the cache, of its own."""
        return "" if self.cache else f"program {secrets.token_hex(8)}"

    def add(self, state: State) -> int:
        number = self._next
        self._next += 1
        self.held[number] = Held(state, number)
        return number

    def find(self, number: int) -> Held:
        found = self.held.get(number)
        if found is None:
            raise NotFound(f"this program has no state {number}: it was dropped, or never made")
        return found

    def room(self, num: int) -> None:
        if not 1 <= num <= MAX_STATES:
            raise InvalidInput(f"n: want 1 to {MAX_STATES} (got {num})", field="n")
        if len(self.held) + num > MAX_STATES:
            raise InvalidInput(
                f"{len(self.held)} states and {num} more are too many at a time (at most "
                f"{MAX_STATES}): drop those that are done with",
                field="n",
            )

    async def run(self, held: Held, work: Coroutine[Any, Any, T]) -> T:
        """``work`` on a state, when what was asked of it before is done; ends with the state."""

        async def in_turn() -> T:
            try:
                async with held.lock:
                    if self.held.get(held.number) is not held:
                        raise self._gone(held)
                    return await work
            finally:
                work.close()

        task = asyncio.create_task(in_turn())
        held.tasks.add(task)
        task.add_done_callback(held.tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self.held.get(held.number) is held:
                raise  # who asked has gone
            raise self._gone(held) from None

    def _gone(self, held: Held) -> RadchatError:
        return NotFound(OVER if self.is_over else f"state {held.number} was dropped meanwhile")

    async def drop(self, numbers: list[int]) -> None:
        """Forget states; what runs for them ends first."""
        gone = [self.find(number) for number in dict.fromkeys(numbers)]
        for held in gone:
            del self.held[held.number]
        tasks = [task for held in gone for task in held.tasks]
        for task in tasks:
            task.cancel()
        while pending := [task for task in tasks if not task.done()]:
            with contextlib.suppress(asyncio.CancelledError):  # it ends all the same
                await asyncio.wait(pending)

    async def end(self) -> None:
        self.is_over = True
        await self.drop(list(self.held))
