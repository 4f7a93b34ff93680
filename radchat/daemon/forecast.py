"""What going on from a place would restore or compute again, before anybody does: a probe, and no
model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from radchat.daemon.reuse import WORTH_SAYING, Excuse, about, about_s
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
    created: float  # when, wall clock


def path_to(store: Store, message: str | None) -> Path | None:
    """To the last answer on the way to a message; None where nothing was read yet."""
    while message is not None:
        answer = store.message(message)
        if answer.prompt is not None:
            ids = store.ids(message)
            assert ids is not None
            tokenizer = store.prompt(answer.prompt).tokenizer
            return Path(ids, answer.model, answer.dtype, tokenizer, answer.created)
        message = answer.parent
    return None


def told(
    num: int, cached: int, on_disk: int, loaded: Loaded | None, excuse: Excuse
) -> dict[str, Any] | None:
    """The forecast as it is sent; None where it is not worth saying. ``excuse``: why what is not
    cached is not on disk.
    """
    again, code = num - cached - on_disk, "recompute"
    if again > WORTH_SAYING:
        cost = None if loaded is None else loaded.engine.prompt_cost
        seconds = None if cost is None else cost.of(again)
        text = (
            f"going on here recomputes {again:,} tokens{about_s(again, cost)}: "
            f"it is no longer cached{excuse.text}"
        )
    elif on_disk > WORTH_SAYING:
        code = "restore"
        seconds = None if loaded is None else loaded.engine.load_seconds(on_disk)
        text = f"going on here restores {on_disk:,} of {num:,} tokens from disk{about(seconds)}"
    else:
        return None
    return {"code": code, "tokens": again, "restores": on_disk, "seconds": seconds, "text": text}
