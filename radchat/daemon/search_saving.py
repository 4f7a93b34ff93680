"""An ask that has its answers, in the store: all of it in one transaction, or nothing.

Everything here runs on the desk's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from radchat.daemon import options
from radchat.daemon.ending import finish
from radchat_sessions.errors import StoreError
from radchat_sessions.messages import NewAnswer

if TYPE_CHECKING:
    from radchat.daemon.asked import Asked
    from radchat.daemon.heard import Heard
    from radchat.daemon.searches import Search

log = logging.getLogger(__name__)


def save(
    search: Search,
    asked: Asked,
    choices: Sequence[Heard],
    names: Sequence[str] | None,
    reuse: dict[str, Any] | None,
    *,
    is_said: bool,
) -> str:
    """The user's message; ``choices`` are its answers from now on. On no branch: HEAD stays.

    ``is_said``: the answers were given as text, and nothing was drawn for them.
    """
    store, plan, request = search.store, asked.prepared.plan, asked.request
    parent, new = plan.parent, plan.new
    before = search.at if parent is None else search.answered.get(parent)
    if len(new) > 1 and before is not None:
        parent, new = before, new[-1:]  # what is said first has been said meanwhile
    with store.as_one():
        begun = store.begin(
            search.session,
            parent=parent,
            new=new,
            prompt=asked.prepared.prompt,
            answers=[
                NewAnswer(None, None if is_said else request.params.seed, index)
                for index in range(len(choices))
            ],
            model=asked.model,
            dtype=asked.dtype,
            sampling=None if is_said else options.sampling_json(request),
        )
        for index, (choice, answer) in enumerate(zip(choices, begun.answers, strict=True)):
            choice.begun = answer
            finish(store, asked, choice, reuse, logprob_of(choice, asked))
            if names is not None:
                store.add_label(search.session, choice.id, names[index], kind="score")
    if len(begun.messages) > 1:
        if plan.parent is None:
            search.at = begun.messages[-2]
        else:
            search.answered[plan.parent] = begun.messages[-2]
    try:
        search.used(new[-1].extra)
    except StoreError:  # it is stored: its session may be without a name
        log.warning("search %s: its session was not named or used", search.id, exc_info=True)
    return begun.messages[-1]


def logprob_of(choice: Heard, asked: Asked) -> dict[str, float]:
    """Of all its tokens together, where log probabilities were asked for."""
    if asked.request.params.logprobs is None or not choice.logprobs:
        return {}
    return {"logprob": sum(each.logprob for each in choice.logprobs[: len(choice.ids)])}
