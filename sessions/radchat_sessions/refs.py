"""REF: how a user names a message (docs/cli.md). Tried in this order:

HEAD, HEAD~n · ``-`` · branch · label · thought of a search (``s1.1.2``) · turn number (1 to 3
digits, on the current path) · id prefix

``SESSION:REF`` looks in another session; ``#4`` and ``~2`` are the chat's words for ``4`` and
``HEAD~2``. Where one picks, a bare number is first that of a branch just made (picks.py). An open
chat holds its own HEAD and passes it as ``at``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from radchat_sessions.errors import Ambiguous, NotFound
from radchat_sessions.messages import Head
from radchat_sessions.names import SHORTEST_ID, is_hex, shortest
from radchat_sessions.picks import Picks
from radchat_sessions.scores import is_thought

Kind = Literal["head", "back", "previous", "branch", "label", "thought", "turn", "id"]

_BACK = re.compile(r"(?:HEAD)?~(\d{0,6})", re.IGNORECASE)
_TURN = re.compile(r"#(\d{1,6})|(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Target:
    """What a REF means. ``message`` None: before everything. ``branch``: the one it named."""

    session: str
    message: str | None
    kind: Kind
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """Where ``fork``, ``edit`` and ``switch`` go: after ``message``. ``text`` is a user message's,
    offered for editing, when the REF was that message and the point is the one before it.
    """

    session: str
    message: str | None
    branch: str | None
    text: str | None = None


def resolve(
    store: Picks, ref: str, session_id: str, *, at: Head | None = None, pick: bool = False
) -> Target:
    """Raises NotFound, or Ambiguous with all that fit. ``pick``: a bare number may be that of a
    branch just made.
    """
    ref = ref.strip()
    if ":" in ref:
        session_ref, _, ref = ref.partition(":")
        other = store.find_session(session_ref).id
        if other != session_id:
            session_id, at = other, None
    head = at or store.head(session_id)
    if ref in ("", "@") or ref.upper() == "HEAD":
        return Target(session_id, head.message, "head", head.branch)
    if back := _BACK.fullmatch(ref):
        turns = int(back[1] or 1)
        return Target(session_id, store.back(head.message, turns), "back")
    if ref == "-":
        before = store.previous(session_id, at)
        return Target(session_id, before.message, "previous", before.branch)
    branch = store.find_branch(session_id, ref)
    if branch is not None:
        return Target(session_id, branch.message, "branch", branch.name)
    labelled = sorted(
        {
            label.message
            for label in store.labels(session_id)
            if label.kind == "label" and label.value == ref
        }
    )
    if labelled:
        return Target(session_id, _only(store, ref, labelled, session_id), "label")
    if is_thought(ref):
        found = store.thoughts(session_id, ref)
        if not found:
            raise NotFound(f"no branch, label or thought {ref} in {_name(store, session_id)}")
        return Target(session_id, _only(store, ref, found, session_id), "thought")
    if turn := _TURN.fullmatch(ref):
        picked = store.numbered_branches(session_id, at).get(int(turn[2] or 0)) if pick else None
        if picked is not None:
            return Target(session_id, store.branch(session_id, picked).message, "branch", picked)
        return Target(session_id, _turn(store, int(turn[1] or turn[2]), head), "turn")
    return Target(session_id, _by_id(store, ref, session_id), "id")


def point(store: Picks, target: Target) -> Point:
    """The point ``fork``, ``edit`` and ``switch`` mean: a user message named as such means the
    point before it. A branch or HEAD that ends in one means its end.
    """
    if target.message is not None and target.kind in ("label", "thought", "turn", "id"):
        message = store.message(target.message)
        if message.role == "user":
            return Point(target.session, message.parent, None, message.text)
    return Point(target.session, target.message, target.branch)


def _turn(store: Picks, number: int, head: Head) -> str:
    asked = [m.id for m in store.path(head.message) if m.role == "user"]
    if not 1 <= number <= len(asked):
        raise NotFound(f"no turn {number}: this path has {len(asked)}")
    return asked[number - 1]


def _by_id(store: Picks, ref: str, session_id: str) -> str:
    prefix = ref.lower()
    if not is_hex(prefix):
        raise NotFound(f"no branch, label or message {ref} in {_name(store, session_id)}")
    if len(prefix) < SHORTEST_ID:
        raise NotFound(
            f"no branch or label {ref} in {_name(store, session_id)} "
            f"(a message needs {SHORTEST_ID} hex digits)"
        )
    fitting = [m for m in store.message_ids(session_id) if m.startswith(prefix)]
    if not fitting:
        raise NotFound(f"no branch, label or message {ref} in {_name(store, session_id)}")
    return _only(store, ref, fitting, session_id)


def _name(store: Picks, session_id: str) -> str:
    """Named, as which session is current differs from terminal to terminal."""
    return store.session(session_id).name or session_id[:8]


def _only(store: Picks, ref: str, fitting: list[str], session_id: str) -> str:
    if len(fitting) == 1:
        return fitting[0]
    short = shortest(store.message_ids(session_id))
    matches = []
    for message_id in fitting:
        message = store.message(message_id)
        words = " ".join(message.text.split())[:40]
        matches.append(f"{short[message_id]} {message.role} {words}")
    raise Ambiguous(f"{ref} fits {len(fitting)} messages: {'; '.join(matches)}", matches)
