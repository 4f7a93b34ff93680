"""Where a chat completion is answered: a conversation in passing, or a session that is kept.

A client that tells all of a conversation each time is found to go on where it went on: at the last
answer that it tells as it was given. What is behind that is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radchat.daemon.arguments import Given
from radchat.daemon.service import Service
from radchat.daemon.v1.bodies import Radchat
from radchat.daemon.v1.caller import Caller
from radchat.daemon.v1.errors import Conflict
from radchat.daemon.v1.messages import digests
from radchat.daemon.v1.recall import Recall, Told
from radchat.errors import InvalidInput, NotFound
from radchat_sessions.errors import NotFound as StoreNotFound
from radchat_sessions.messages import Message, Session
from radchat_sessions.store import Store

ID_LEN = 32


@dataclass(frozen=True, slots=True)
class Placing:
    """``args`` of ``generate``. In passing, ``digest``: of the conversation up to the question;
    ``session``: that is gone on with.
    """

    args: dict[str, Any]
    digest: str = ""
    session: str | None = None


def in_passing(recall: Recall, caller: Caller, model: str, messages: Sequence[Given]) -> Placing:
    _require_question(messages)
    chain = digests(messages, f"{caller.key} {model}")
    found = recall.find(chain[:-1])
    common: dict[str, Any] = {"passing": True, "named": False, "key": caller.key, "all_told": True}
    if found is None:
        return Placing({**common, "new_session": True, "messages": [*messages]}, chain[-1])
    index, told = found
    rest = [*messages[index + 1 :]]
    args = {**common, "session": told.session, "at": told.message, "messages": rest}
    return Placing(args, chain[-1], told.session)


async def after_message(
    service: Service, recall: Recall, caller: Caller, wanted: Radchat, messages: Sequence[Given]
) -> Placing:
    """Behind the parent that is named."""
    parent = wanted.parent
    assert parent is not None
    _require_question(messages)
    told = recall.of_message(caller.key, parent)
    if told is not None and wanted.session is None and wanted.branch is None:
        return _on_from(caller, told, messages)

    def look() -> dict[str, Any]:
        store = service.desk.stored
        if wanted.session is not None:
            session = _session(store, caller, wanted.session)
            if session is None:
                raise NotFound(f"no session {wanted.session}")
        else:
            session = _session_of(store, caller, parent)
        ids = [each for each in store.message_ids(session.id) if each.startswith(parent.lower())]
        if len(ids) != 1:
            what = "no message" if not ids else f"{len(ids)} messages begin with"
            raise NotFound(f"{what} {parent} in session {session.name}")
        if store.message(ids[0]).role in ("user", "tool"):
            raise InvalidInput(
                f"radchat.parent: {parent} is a question or a result: name an answer, or tell the "
                "whole conversation to radchat.session",
                field="radchat.parent",
            )
        return _behind(store, session, ids[0], wanted.branch)

    args = await service.desk.run(look)
    return Placing({**args, "key": caller.key, "messages": [*messages]})


def _on_from(caller: Caller, told: Told, messages: Sequence[Given]) -> Placing:
    args = {"passing": True, "named": False, "key": caller.key, "session": told.session}
    chain = digests(messages, told.digest)
    return Placing({**args, "at": told.message, "messages": [*messages]}, chain[-1], told.session)


async def in_session(
    service: Service, caller: Caller, wanted: Radchat, messages: Sequence[Given]
) -> Placing:
    """Of a session that is kept, where its tree agrees longest with the conversation that is told;
    or of a new one.
    """
    _require_question(messages)

    def look() -> dict[str, Any]:
        store = service.desk.stored
        ref = wanted.session
        session = None if ref is None else _session(store, caller, ref)
        if session is None:
            if ref is not None and len(ref) == ID_LEN and _is_hex(ref):
                raise NotFound(f"no session {ref}")
            name = True if ref is None else _own_name(caller, ref)
            new = {"new_session": name, "messages": [*messages]}
            return new | ({"branch": wanted.branch} if wanted.branch else {})
        path = _agreed(store.messages(session.id), messages)
        is_there = len(path) == len(messages) and path[-1].role == "user"
        if is_there and wanted.branch is None:  # another answer to its last word
            head = {"branch": None, "message": path[-1].id}
            return {"session": session.id, "kind": "retry", "ref": path[-1].id, "head": head}
        while path and path[-1].role in ("user", "tool"):  # it may be being answered just now
            path.pop()
        at = path[-1].id if path else None
        place = _behind(store, session, at, wanted.branch)
        return {**place, "messages": [*messages[len(path) :]]}

    return Placing({**await service.desk.run(look), "key": caller.key, "all_told": True})


def _require_question(messages: Sequence[Given]) -> None:
    if messages[-1]["role"] not in ("user", "tool"):
        last = len(messages) - 1
        raise InvalidInput(
            f"messages[{last}]: the last message is to be a user's, or a tool's result: there is "
            "nothing to answer",
            field="messages",
        )


def _behind(
    store: Store, session: Session, message: str | None, branch: str | None
) -> dict[str, Any]:
    """Behind a message, or at the root: on the branch that ends there, or on a new one. HEAD comes
    along where it stood there.
    """
    ends = {each.name: each.message for each in store.branches(session.id)}
    here = [name for name, at in ends.items() if at == message]
    if branch is not None and branch in ends and branch not in here:
        raise Conflict(
            f"branch {branch} of {session.name} is at {_short(ends[branch])}, not at "
            f"{_short(message)}: name another branch, or that message as radchat.parent",
            field="radchat.branch",
        )
    if branch is None and here:
        head = store.head(session.id).branch
        branch = head if head in here else here[0]
    old = branch if branch in here else None
    new = {"branch": branch} if branch is not None and old is None else {}
    return {"session": session.id, "head": {"branch": old, "message": message}, **new}


def _short(message: str | None) -> str:
    return "its root" if message is None else message[:8]


def _agreed(stored: Sequence[Message], messages: Sequence[Given]) -> list[Message]:
    """The longest path of the tree that the messages begin with; of several the newest."""
    below: dict[str | None, list[Message]] = {}
    for each in stored:
        below.setdefault(each.parent, []).append(each)
    known = {each.id for each in stored}
    roots = [each for each in stored if each.parent is None or each.parent not in known]
    paths, best = [[each] for each in roots if _same(each, messages[0])], []
    for each_given in messages[1:]:
        if not paths:
            break
        best = paths[-1]
        paths = [
            [*path, each]
            for path in paths
            for each in below.get(path[-1].id, ())
            if _same(each, each_given)
        ]
    return paths[-1] if paths else best


def _same(message: Message, given: Given) -> bool:
    if message.role != given["role"]:
        return False
    return digests([{"role": message.role, "parts": message.parts}]) == digests([given])


# -- whose sessions --------------------------------------------------------------------------------


def _session(store: Store, caller: Caller, ref: str) -> Session | None:
    """By name or whole id, of this caller; the owner's are all. A name may be what another's id
    begins with.
    """
    for name in (_own_name(caller, ref), ref):
        try:
            found = store.find_session(name)
        except StoreNotFound:
            continue
        if name not in (found.name, found.id):
            continue
        if not caller.key or found.settings.get("key") == caller.key:
            return found
    return None


def _session_of(store: Store, caller: Caller, message: str) -> Session:
    """In which this message was written."""
    gone = NotFound(
        f"no message {message}: give its whole id, or its session as radchat.session too"
    )
    if len(message) != ID_LEN:
        raise gone
    try:
        origin = store.message(message).origin
        found = None if origin is None else store.session(origin)
    except StoreNotFound as error:
        raise gone from error
    if found is None or (caller.key and found.settings.get("key") != caller.key):
        raise gone
    return found


def _own_name(caller: Caller, name: str) -> str:
    """Another key's sessions are named apart, so that no name tells of the owner's or others'."""
    return f"{name}@{caller.key[:6]}" if caller.key else name


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text.lower())
