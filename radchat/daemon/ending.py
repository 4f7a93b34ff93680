"""What becomes of an answer in the store, when it has ended. Everything here runs on the desk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.daemon.asked import Asked
from radchat.daemon.beginning import followed
from radchat.daemon.heard import Heard
from radchat.engine.request import FinishReason
from radchat_sessions import messages
from radchat_sessions.messages import Begun, Ended
from radchat_sessions.store import Store

STORED: dict[FinishReason, messages.FinishReason] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.DEAD_END: "length",  # the store knows an answer that was cut; its error says why
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
}


def end(
    store: Store, asked: Asked, begun: Begun, choice: Heard, reuse: dict[str, Any] | None
) -> Ended | None:
    """A message; or nothing, where nothing came of it. May be called again."""
    reason = choice.reason
    if len(choice.ids) == asked.request.said and reason in ("abort", "error"):
        if store.find_running(choice.id) is not None:
            store.abandon(choice.id)
        _take_back_branch(store, asked, begun, choice)
        return None
    return finish(store, asked, choice, reuse)


def finish(
    store: Store,
    asked: Asked,
    choice: Heard,
    reuse: dict[str, Any] | None,
    more: Mapping[str, Any] | None = None,
) -> Ended:
    """A message, whatever there is of it. ``more``: of its extra."""
    counts, cache = choice.counts
    usage = None if counts is None else {**counts, "cache": cache, "reuse": reuse}
    extra: dict[str, Any] = {"context": asked.limit, **(more or {})}
    return store.finish(
        choice.id,
        ids=choice.ids,
        parts=choice.parts,
        finish_reason=STORED[choice.reason],
        usage=usage,
        timing=choice.timing(asked.asked_at),
        stopped=choice.finished is not None and choice.finished.stopped,
        holds=choice.reasoning or None,
        extra=extra | ({"error": choice.error} if choice.error else {}),
    )


def _take_back_branch(store: Store, asked: Asked, begun: Begun, choice: Heard) -> None:
    """A branch made for an answer that never came, unless it is where the new message is."""
    placed, place = choice.begun.placed, asked.prepared.plan.place
    if placed is None or not placed.made or (choice.index == 0 and begun.messages):
        return
    session = begun.session
    branch = store.find_branch(session, placed.branch)
    if branch is None or branch.message != followed(asked, begun):
        return  # somebody went on from it
    if branch.is_head:
        before = None if place.branch is None else store.find_branch(session, place.branch)
        store.move_head(
            session,
            branch=None if before is None else before.name,
            message=place.message,
        )
    store.delete_branch(session, placed.branch)
