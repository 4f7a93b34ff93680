"""Which session, which HEAD, which message a command means (docs/cli.md, "REF")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from radchat.daemon.arguments import ChatHead, Generate
from radchat.errors import NotFound
from radchat.protocol import Where
from radchat_sessions import refs
from radchat_sessions.messages import Head, Session
from radchat_sessions.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A session and where in it one stands: a branch, and the message it points at."""

    session: Session
    branch: str | None
    message: str | None
    last_branch: str  # what a new branch is named after

    def moved(self) -> dict[str, Any]:
        """What every command that moves tells its client."""
        return {
            "session": self.session.id,
            "name": self.session.name,
            "branch": self.branch,
            "head": self.message,
        }


def new_session(
    store: Store, where: Where, *, name: str | None = None, model: str | None = None
) -> Session:
    """A session of this folder. Its templates' clock stands still at its creation (CT-03)."""
    now = datetime.now().astimezone().replace(microsecond=0)
    return store.create_session(
        name=name, model=model, folder=where["folder"], settings={}, clock=now.isoformat()
    )


def find_session(store: Store, ref: str | None, where: Where) -> Session:
    """By name or id, else the current one of this terminal or folder."""
    if ref is not None:
        return store.find_session(ref)
    session = store.current_session(where["terminal"], where["folder"])
    if session is None:
        raise NotFound("there is no session yet: begin one with `radchat chat` or `radchat ask`")
    return session


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
        return stands(store, new_session(store, ask.where, name=ask.name, model=ask.model), None)
    return stands(store, find_session(store, ask.session, ask.where), ask.head)


def target_of(store: Store, place: Place, ref: str) -> refs.Target:
    """The message REF names, seen from this place."""
    head = Head(place.session.id, place.branch, place.message, place.last_branch)
    return refs.resolve(store, ref, place.session.id, at=head)


def point_of(store: Store, place: Place, ref: str) -> tuple[Place, refs.Point]:
    """Where ``fork``, ``switch`` and ``--at`` go; ``SESSION:REF`` leads to another session."""
    point = refs.point(store, target_of(store, place, ref))
    if point.session != place.session.id:
        place = stands(store, store.session(point.session), None)
    return place, point
