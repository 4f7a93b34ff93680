"""What going on from a place would compute again, before anybody does: a probe, and no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from radchat.daemon.reuse import WORTH_SAYING, about_s
from radchat.engine.request import Ids
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded


class Path(NamedTuple):
    """What the next turn there stands on."""

    ids: Ids  # as the model saw them
    model: str | None  # that read them last
    dtype: str | None
    tokenizer: str  # whose ids they are


def path_to(store: Store, message: str | None) -> Path | None:
    """To the last answer on the way to a message; None where nothing was read yet."""
    while message is not None:
        answer = store.message(message)
        if answer.prompt is not None:
            ids = store.ids(message)
            assert ids is not None
            return Path(ids, answer.model, answer.dtype, store.prompt(answer.prompt).tokenizer)
        message = answer.parent
    return None


def told(num: int, cached: int, loaded: Loaded | None) -> dict[str, Any] | None:
    """The forecast as it is sent; None where it is not worth saying."""
    again = num - cached
    if again <= WORTH_SAYING:
        return None
    cost = None if loaded is None else loaded.engine.prompt_cost
    return {
        "tokens": again,
        "seconds": None if cost is None else cost.of(again),
        "text": f"going on here recomputes {again:,} tokens{about_s(again, cost)}: "
        "it is no longer cached",
    }
