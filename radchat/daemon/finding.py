"""Which store, session, HEAD and message a command means (docs/cli.md, "REF").

Everything here runs on the desk's thread; the stores' own NotFound and Ambiguous come out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from radchat.daemon.arguments import ChatHead, Generate
from radchat.daemon.desk import Desk, EphemeralStore
from radchat.daemon.fullness import told_of
from radchat.errors import InvalidInput, NotFound
from radchat.protocol import Where
from radchat_sessions import refs
from radchat_sessions.errors import Ambiguous
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.messages import Head, Session
from radchat_sessions.names import SHORTEST_ID, shortest
from radchat_sessions.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A session and where in it one stands: a branch, and the message it points at."""

    session: Session
    branch: str | None
    message: str | None
    last_branch: str  # what a new branch is named after

    @property
    def head(self) -> Head:
        return Head(self.session.id, self.branch, self.message, self.last_branch)


def moved(store: Store, place: Place) -> dict[str, Any]:
    """What every command that moves tells its client; ``short``: a REF that is enough here;
    ``answered``: of the answer one then stands at.
    """
    at = place.message
    short = None
    if at is not None:
        short = shortest(store.message_ids(place.session.id)).get(at, at[:SHORTEST_ID])
    return {
        "session": place.session.id,
        "name": place.session.name,
        "branch": place.branch,
        "head": at,
        "short": short,
        "answered": told_of(store, at),
    }


# -- sessions --------------------------------------------------------------------------------------


def new_session(
    store: Store,
    where: Where,
    *,
    name: str | None = None,
    model: str | None = None,
    key: str = "",
) -> Session:
    """A session of this folder, or of a key. Its templates' clock stands still at its creation."""
    now = datetime.now().astimezone().replace(microsecond=0)
    settings = {"key": key} if key else {}
    return store.create_session(
        name=name, model=model, folder=where["folder"], settings=settings, clock=now.isoformat()
    )


def require_key(session: Session, ask: Generate) -> None:
    """NotFound, as of one that is not there, where it is another key's. All are the owner's."""
    if ask.key and session.settings.get("key") != ask.key:
        raise NotFound(f"no session {ask.session}")


def find_store(desk: Desk, ref: str | None, *, ephemeral: bool = False) -> Store:
    """The store whose session ``ref`` names; without a name, the one of the kind asked for.

    A name goes before the beginning of an id, in both stores alike. Raises Ambiguous where both
    have such a session, InvalidInput where an ephemeral one is asked for and this is not one.
    """
    if ref is None:
        return desk.ephemeral if ephemeral else desk.stored
    found: list[tuple[Store, Session]] = []
    errors: list[StoreNotFound] = []
    for store in (desk.stored, desk.ephemeral):
        try:
            found.append((store, store.find_session(ref)))
        except StoreNotFound as error:
            errors.append(error)
    named = [(store, session) for store, session in found if session.name == ref]
    unclear = [error for error in errors if isinstance(error, Ambiguous)]
    if not named and (unclear or not found):
        raise (unclear or errors)[0]
    fitting = named or found
    if len(fitting) > 1:
        matches = [
            f"{session.id[:8]} {session.name}{' (ephemeral)' if store is desk.ephemeral else ''}"
            for store, session in fitting
        ]
        raise Ambiguous(f"{ref} fits {len(fitting)} sessions: {', '.join(matches)}", matches)
    store, session = fitting[0]
    if ephemeral and store is not desk.ephemeral:
        raise InvalidInput(
            f"{session.name} is kept on disk: leave out --ephemeral, or begin a chat with it",
            field="ephemeral",
        )
    return store


def find_session(store: Store, ref: str | None, where: Where) -> Session:
    """By name or id, else the current one of this terminal or folder."""
    if ref is not None:
        return store.find_session(ref)
    session = store.current_session(where["terminal"], where["folder"])
    if session is None and isinstance(store, EphemeralStore):
        raise NotFound(
            "this terminal has no ephemeral session yet: begin one with `radchat chat --ephemeral`"
        )
    if session is None and store.sessions():
        raise NotFound(
            "no session was talked in from this terminal or folder: `radchat sessions ls` lists "
            "all, --session NAME names one"
        )
    if session is None:
        raise NotFound("there is no session yet: begin one with `radchat chat` or `radchat ask`")
    return session


def split_ref(ref: str) -> tuple[str | None, str]:
    """``SESSION:REF`` in two; no session in a plain REF."""
    session, colon, rest = ref.partition(":")
    return (session, rest or "HEAD") if colon else (None, ref)


def located(desk: Desk, ask: Generate) -> tuple[Store, Generate]:
    """The store of a generating command and the command as one that names its session.

    ``SESSION:REF`` is the REF, said in that session: nothing after this looks at a colon.
    """
    if ask.passing:
        return desk.passing, ask
    ref = ask.at if ask.at is not None else ask.ref
    if ask.new_session and (ref is not None or ask.kind not in ("turn", "what-if")):
        raise InvalidInput("a new session has nothing to go back to: leave out the REF", field="at")
    session, rest = (None, ref) if ref is None else split_ref(ref)
    if session is None:
        return find_store(desk, ask.session, ephemeral=ask.ephemeral), ask
    store = find_store(desk, session, ephemeral=ask.ephemeral)
    other = store.find_session(session).id
    head = ask.head if is_of(desk, ask.session, other) else None
    if ask.at is not None:
        return store, replace(ask, session=other, head=head, at=rest)
    return store, replace(ask, session=other, head=head, ref=rest)


def is_of(desk: Desk, ref: str | None, session: str) -> bool:
    """Does ``ref`` name the session of this id?"""
    if ref is None:
        return False
    return ref == session or find_store(desk, ref).find_session(ref).id == session


# -- places ----------------------------------------------------------------------------------------


def stands(store: Store, session: Session, head: ChatHead | Mapping[str, Any] | None) -> Place:
    """The stored HEAD, or the one an open chat holds; a branch that is gone leaves its message."""
    stored = store.head(session.id)
    if head is None:
        return Place(session, stored.branch, stored.message, stored.last_branch)
    branch = head["branch"]
    if branch is not None and store.find_branch(session.id, branch) is None:
        return Place(session, None, head["message"], branch)
    return Place(session, branch, head["message"], branch or stored.last_branch)


def is_stored(store: Store, place: Place) -> bool:
    """Is this where the stored HEAD is?"""
    stored = store.head(place.session.id)
    return (stored.branch, stored.message) == (place.branch, place.message)


def find_place(store: Store, ask: Generate) -> Place:
    """The session a generating command is about, made if it asks for a new one."""
    if ask.new_session:
        made = new_session(store, ask.where, name=ask.name, model=ask.model, key=ask.key)
        return stands(store, made, None)
    place = stands(store, find_session(store, ask.session, ask.where), ask.head)
    require_key(place.session, ask)
    if ask.key and place.message not in (None, *store.message_ids(place.session.id)):
        raise NotFound(f"no message {place.message} in {place.session.name}")
    if ask.head is not None and place.message is not None:
        try:
            store.parent(place.message)
        except StoreNotFound as error:
            raise NotFound(
                f"message {place.message[:SHORTEST_ID]}, where this chat stands, was pruned: "
                "/branches lists where one can go on, /switch goes there"
            ) from error
    return place


def target_of(store: Store, place: Place, ref: str, *, pick: bool = False) -> refs.Target:
    """The message REF names, seen from this place; ``pick``: by number, also a branch just made."""
    return refs.resolve(store, ref, place.session.id, at=place.head, pick=pick)


def point_of(
    store: Store, place: Place, ref: str, *, pick: bool = False
) -> tuple[Place, refs.Point]:
    """Where ``fork``, ``switch`` and ``--at`` go; ``SESSION:REF`` leads to another session."""
    point = refs.point(store, target_of(store, place, ref, pick=pick))
    if point.session != place.session.id:
        place = stands(store, store.session(point.session), None)
    return place, point
