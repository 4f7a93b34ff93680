"""A command's turns into the store: all of them at once, or none. Everything here runs on the desk.

Each gets its messages, its prompt and the ids of its answers to come; what-ifs and several answers
get numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from radchat.daemon import options, turns
from radchat.daemon.arguments import Generate
from radchat.daemon.asked import Asked
from radchat.daemon.what_if import branch_names
from radchat_sessions.messages import Begun, NewAnswer
from radchat_sessions.names import auto_name
from radchat_sessions.store import Store

log = logging.getLogger(__name__)


def begin(store: Store, ask: Generate, asked: Sequence[Asked]) -> list[Begun]:
    plans = [each.prepared.plan for each in asked]
    names: Sequence[Sequence[str | None]] = [[None] * ask.n]
    if ask.named:
        names = branch_names(store, plans, ask.n)
    with store.as_one():
        begun: list[Begun] = []
        for each, own in zip(asked, names, strict=True):
            begun.append(_begin_one(store, each, own, (asked[0], begun[0]) if begun else None))
        session = asked[0].prepared.plan.place.session
        if ask.tools and session.settings.get("tools") != list(ask.tools):
            store.set_settings(session.id, {**session.settings, "tools": list(ask.tools)})
        made = [
            (answer.placed.branch, followed(*each))
            for each in zip(asked, begun, strict=True)
            for answer in each[1].answers
            if answer.placed is not None
        ]
        if ask.kind == "what-if" or len(made) > 1:
            place = asked[0].prepared.plan.place
            store.number_branches(place.session.id, made, place.message)
    try:
        _after(store, ask, asked[0].prepared.plan, begun)
    except Exception:  # they have begun: none of this is worth losing their answers for
        request = asked[0].request.id
        log.warning("answer %s: its session was not named or used", request, exc_info=True)
    return begun


def followed(asked: Asked, begun: Begun) -> str:
    """The message that is answered."""
    last = begun.messages[-1] if begun.messages else asked.prepared.plan.parent
    assert last is not None
    return last


def _begin_one(
    store: Store, asked: Asked, names: Sequence[str | None], first: tuple[Asked, Begun] | None
) -> Begun:
    """``first``: of several. What all of them say anew before their texts, a system prompt say, it
    has said for all.
    """
    plan, params = asked.prepared.plan, asked.request.params
    parent, new = plan.parent, plan.new
    if first is not None and new[:-1] and new[:-1] == first[0].prepared.plan.new[:-1]:
        parent, new = first[1].messages[-2], new[-1:]
    return store.begin(
        plan.place.session.id,
        parent=parent,
        new=new,
        prompt=asked.prepared.prompt,
        answers=[
            NewAnswer(name, seed=params.seed, choice=index) for index, name in enumerate(names)
        ],
        expected=plan.expected,
        keep_head=plan.keep_head,
        model=asked.model,
        dtype=asked.dtype,
        sampling=options.sampling_json(asked.request),
    )


def _after(store: Store, ask: Generate, plan: turns.Plan, begun: Sequence[Begun]) -> None:
    """Name the session after its first words; make it the current one."""
    session, where = plan.place.session, ask.where
    is_first = plan.parent is None and bool(plan.new) and not session.named
    num = sum(len(each.messages) for each in begun)
    if is_first and num == len(store.message_ids(session.id)):
        words = turns.shown(store.message(begun[0].messages[-1]))
        store.suggest_name(session.id, auto_name(words))
    store.use(
        session.id,
        terminal=where["terminal"],
        folder=where["folder"],
        only_terminal=ask.only_terminal,
    )
