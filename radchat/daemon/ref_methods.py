"""What can be typed as a REF here, for the shell's completion. Reads; loads no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from radchat.daemon.arguments import ChatHead
from radchat.daemon.finding import Place, find_store, stands
from radchat.daemon.tree_methods import TreeMethods
from radchat.daemon.turns import shown
from radchat.protocol import Where
from radchat_sessions import scores
from radchat_sessions.errors import NotFound
from radchat_sessions.names import shortest
from radchat_sessions.scores import Score
from radchat_sessions.store import Store

MOST = 200  # of a kind; nobody reads more of them, and a shell has to list them
TEXT = 160  # characters of a message


class RefMethods(TreeMethods):
    async def refs(
        self,
        where: Where,
        session: str | None = None,
        prefix: str = "",
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """REFs that begin with ``prefix``, in the order in which a REF is looked up; ``NAME:``
        looks in another session.
        """

        def work() -> dict[str, Any]:
            named, colon, rest = prefix.rpartition(":")
            if colon:
                store = find_store(self._desk, named)
                place = stands(store, store.find_session(named), None)
            else:
                store, place = self._place(where, session, head)
            scored = scores.by_message(store.labels(place.session.id))
            found: list[dict[str, Any]] = []
            for kind, rows in (
                ("head", _heads(store, place)),
                ("branch", _branches(store, place)),
                ("label", _labels(store, place)),
                ("thought", _thoughts(scored)),
                ("turn", _turns(store, place)),
                ("id", _ids(store, place, rest.lower()) if rest else iter(())),
            ):
                fitting = ((ref, at) for ref, at in rows if ref.startswith(rest))
                for _, (ref, at) in zip(range(MOST), fitting, strict=False):
                    text = _text(store, at, scored.get(at or "", scores.NO_SCORE))
                    found.append({"ref": ref, "kind": kind, "text": text})
            return {"session": place.session.id, "name": place.session.name, "refs": found}

        return await self._desk.run(work)


Rows = Iterator[tuple[str, str | None]]  # a REF, and the message it names


def _heads(store: Store, place: Place) -> Rows:
    yield "HEAD", place.message
    try:
        yield "-", store.previous(place.session.id).message
    except NotFound:
        return


def _branches(store: Store, place: Place) -> Rows:
    for branch in store.branches(place.session.id):
        yield branch.name, branch.message


def _labels(store: Store, place: Place) -> Rows:
    for label in store.labels(place.session.id):
        if label.kind == "label":
            yield label.value, label.message


def _thoughts(scored: Mapping[str, Score]) -> Rows:
    """As they stand in their search."""
    names = {score.name: at for at, score in scored.items() if score.name is not None}
    for name in sorted(names, key=scores.in_order):
        yield name, names[name]


def _turns(store: Store, place: Place) -> Rows:
    """The newest first."""
    asked = [m.id for m in store.path(place.message) if m.role == "user"][:999]
    for number in range(len(asked), 0, -1):
        yield str(number), asked[number - 1]


def _ids(store: Store, place: Place, prefix: str) -> Rows:
    """Messages whose id begins so, the newest first, each as short as it may be said."""
    ids = store.message_ids(place.session.id)
    short = shortest(ids)
    for message_id in reversed(ids):
        if message_id.startswith(prefix):
            yield message_id[: max(len(short[message_id]), len(prefix))], message_id


def _text(store: Store, message_id: str | None, score: Score) -> str:
    if message_id is None:
        return "(before everything)"
    message = store.message(message_id)
    number = "" if score.number is None else f" {score.number:.3g}"
    return f"{message.role}{number}: {' '.join(shown(message).split())[:TEXT]}"
