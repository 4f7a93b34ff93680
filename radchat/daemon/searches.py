"""A search that is open: its place in a session, and what all it asks has in common.

The search itself runs in its client; here are the messages it makes. Each is in the session before
it is told, and belongs to no branch: what is left when a search ends, however it ends, is a tree of
messages that says itself which search it is of (``extra``), and that the next one can go on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from radchat.daemon.desk import Desk
from radchat.daemon.finding import (
    Place,
    find_session,
    find_store,
    is_of,
    new_session,
    point_of,
    split_ref,
    stands,
)
from radchat.daemon.past import Past
from radchat.daemon.search_found import found_json, last_number, numbered, of_search
from radchat.daemon.turns import before_unfinished
from radchat.errors import Busy, InvalidInput, NotFound, UsageError
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.messages import Message, NewMessage, Session
from radchat_sessions.names import auto_name
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.arguments import ChatHead
    from radchat.daemon.loaded import Loaded
    from radchat.protocol import Where

T = TypeVar("T")
MOST_GOING = 1024  # requests of one search at a time
MOST_PASTS = 64  # paths that are not read again
OVER = "the search has ended: its stream is closed"


@dataclass(frozen=True, slots=True)
class Opening:
    """Which session, where in it, and which search: a new one, or one to go on with."""

    where: Where
    session: str | None = None
    new_session: bool = False
    name: str | None = None  # of the new session
    ephemeral: bool = False
    at: str | None = None  # REF; default HEAD
    head: ChatHead | None = None
    resume: Literal[True] | str | None = None
    system: str | None = None
    only_terminal: bool = False

    def __post_init__(self) -> None:
        if self.resume is not None and (self.new_session or self.at is not None):
            what = "a new session" if self.new_session else "a REF"
            raise UsageError(
                f"a search that is gone on with has its place: leave out {what}, or --resume"
            )
        if self.new_session and (self.session is not None or self.at is not None):
            what = "session" if self.session is not None else "at"
            raise InvalidInput("a new session has no other place: name one of the two", field=what)
        if self.system is not None and not self.new_session:
            raise InvalidInput("a system prompt begins a new session", field="system")
        if isinstance(self.resume, str) and numbered(self.resume) is None:
            raise InvalidInput(
                f"resume: want the name of a search, s1 say (got {self.resume!r})", field="resume"
            )

    # On the desk:

    def place(self, desk: Desk) -> tuple[Store, Place, str | None]:
        """The session that is there, where HEAD is, and the message the search would follow."""
        named, ref = (None, None) if self.at is None else split_ref(self.at)
        store = find_store(desk, named or self.session, ephemeral=self.ephemeral)
        session = find_session(store, named or self.session, self.where)
        own = named is None or is_of(desk, self.session, session.id)
        place = stands(store, session, self.head if own else None)
        at = place.message
        if ref is not None:
            place, point = point_of(store, place, ref)
            at = point.message
        return store, place, before_unfinished(store, place.session.id, at)

    def found(self, store: Store, session: Session) -> list[Message]:
        """The messages of the search that is gone on with, parents first."""
        assert self.resume is not None
        messages = store.messages(session.id)
        number = last_number(messages) if self.resume is True else numbered(self.resume)
        found = of_search(messages, number) if number else []
        if not found:
            what = "no search" if self.resume is True else f"no search {self.resume}"
            raise NotFound(
                f'{what} in {session.name} to go on with: radchat think "PROBLEM" begins one'
            )
        return found

    def wanted(self, desk: Desk) -> tuple[str | None, str | None]:
        """The model it goes on with, and its dtype, where nobody asks for others."""
        if self.new_session:
            return None, None
        store, place, _ = self.place(desk)
        if self.resume is None:
            return place.session.model, None
        answers = [each for each in self.found(store, place.session) if each.model]
        if not answers:
            return place.session.model, None
        return answers[-1].model, answers[-1].dtype


class Search:
    """``begin`` gives it its place; whatever happens then, ``forget`` ends it. Both on the desk."""

    store: Store
    place: Place
    number: int
    at: str | None = None  # the message its first words follow
    system: str | None = None  # said before them, where they follow none
    found: Sequence[Message] | None = None  # of the search that is gone on with

    def __init__(
        self,
        loaded: Loaded,
        opening: Opening,
        given: Mapping[str, Any],
        switches: Mapping[str, Any],
        limit: int,
        *,
        thinks: bool,
        cache: bool,
        jump: bool,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.loaded, self.limit = loaded, limit
        self.options, self.switches = dict(given), dict(switches)
        self.thinks = thinks  # the model may reason before an answer
        self.cache, self.jump = cache, jump
        self.going = 0  # requests
        self._opening = opening
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_over = False
        self.gone = asyncio.Event()  # nothing of it runs any more
        self._made: str | None = None  # the session made for it
        self._is_used = False
        self._pasts: OrderedDict[str, Past] = OrderedDict()
        self._known: set[str] = set()  # messages of the session
        self.answered: dict[str, str] = {}  # of messages with open calls: the last result after it

    @property
    def session(self) -> str:
        return self.place.session.id

    def namespace(self) -> str:
        """Of one request: without the cache, of its own."""
        return "" if self.cache else f"search {secrets.token_hex(8)}"

    def begin(self, desk: Desk, others: Sequence[Search]) -> None:
        """``others``: that are open; none of them has this one's number."""
        asked = self._opening
        if asked.new_session:
            self.store = desk.ephemeral if asked.ephemeral else desk.stored
            made = new_session(self.store, asked.where, name=asked.name, model=self.loaded.name)
            self._made = made.id
            self.place = stands(self.store, made, None)
        else:
            self.store, self.place, self.at = asked.place(desk)
        here = {each.number for each in others if each.is_of(self.store, self.session)}
        if asked.resume is None:
            messages = () if self._made else self.store.messages(self.session)
            self.number = 1 + max(last_number(messages), *here, 0)
        else:
            self._go_on(asked.found(self.store, self.place.session), here)
        if self.at is None:
            said = self.loaded.model.system if asked.system is None else asked.system
            self.system = said or None

    def _go_on(self, found: Sequence[Message], here: set[int]) -> None:
        number = numbered(found[0])
        assert number is not None
        if number in here:
            name = self.place.session.name
            raise Busy(f"search s{number} of {name} is running: wait for it, or stop it first")
        self.number, self.at, self.found = number, found[0].parent, found

    def is_of(self, store: Store, session: str) -> bool:
        return hasattr(self, "number") and self.store is store and self.session == session

    def shown(self) -> dict[str, Any]:
        """Of ``init``."""
        session = self.store.session(self.session)
        found = None
        if self.found is not None:
            labels = self.store.labels(self.session)
            found = {"at": self.at, "messages": found_json(self.found, labels)}
        return {
            "search": self.id,
            "session": session.id,
            "name": session.name,
            "model": self.loaded.name,
            "dtype": self.loaded.dtype,
            "context": self.limit,
            "at": self.at,
            "branch": self.place.branch,
            "number": self.number,
            "found": found,
        }

    # -- what runs for it ------------------------------------------------------------------------

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Until it is done, or whoever asked goes, or the search ends."""
        if self.is_over:
            work.close()
            raise NotFound(OVER)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if not self.is_over:
                raise
            raise NotFound(OVER) from None

    async def end(self) -> None:
        self.is_over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        while pending := [task for task in tasks if not task.done()]:
            with contextlib.suppress(asyncio.CancelledError):  # it ends all the same
                await asyncio.wait(pending)

    # -- on the desk -----------------------------------------------------------------------------

    def require(self, at: str | None) -> None:
        """NotFound where it is no message of this session."""
        if at is None or at in self._known:
            return
        self._known = set(self.store.message_ids(self.session))
        if at not in self._known:
            raise NotFound(f"no message {at[:8]} in {self.place.session.name}")

    def past(self, at: str | None) -> Past:
        """The path to a message; messages never change, so it is read once."""
        if at is None:
            return Past(self.store, ())
        found = self._pasts.pop(at, None) or Past(self.store, self.store.path(at))
        self._pasts[at] = found
        if len(self._pasts) > MOST_PASTS:
            self._pasts.popitem(last=False)
        return found

    def first_words(self) -> tuple[NewMessage, ...]:
        """What is said before the first message of a search that follows none."""
        if self.at is not None or self.system is None:
            return ()
        return (NewMessage.of("system", self.system),)

    def used(self, extra: Mapping[str, Any]) -> None:
        """Something of it is stored: its session is named, and is the current one from now on."""
        problem = dict(extra.get("search") or {}).get("problem")
        if self._made is not None and isinstance(problem, str):
            self.store.suggest_name(self.session, auto_name(problem))
        if self._is_used:
            return
        where = self._opening.where
        self.store.use(
            self.session,
            terminal=where["terminal"],
            folder=where["folder"],
            only_terminal=self._opening.only_terminal,
        )
        self._is_used = True

    def forget(self) -> None:
        """A search that says nothing in the session made for it leaves none behind."""
        if self._made is not None and not self.store.message_ids(self._made):
            with contextlib.suppress(StoreNotFound):  # somebody has removed it
                self.store.remove(self._made)
