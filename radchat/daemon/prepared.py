"""A turn's ids: what the template makes of its path, and what the store is to keep of that.

Everything here runs on the desk's thread. ``answering.py`` runs the request.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.daemon.fullness import EMPTY, Filled, filled_by
from radchat.daemon.past import Past, turn
from radchat.daemon.tools import settings_of
from radchat.daemon.turns import Plan
from radchat.engine.conversation import Prompt, PromptRecord
from radchat.engine.request import Ids
from radchat.errors import InvalidInput
from radchat_sessions.messages import Message, NewPrompt
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan with its ids: ready to be begun in the store and submitted to the engine."""

    plan: Plan
    ids: Ids  # the request's prompt
    prompt: NewPrompt | str  # to be stored, or the id of the one that is asked again
    said: Ids  # continue: ids of the answer so far, at the end of ``ids``
    how: Prompt | None  # None where a stored prompt is used as it is
    opens_reasoning: bool
    last_answer: Message | None  # of the path: what was read before, and by whom
    retold: str = ""  # why no ids of the path stand, though there are answers in it
    before: Filled = EMPTY  # the context, at the end of the last answer


def prepare(
    store: Store,
    plan: Plan,
    loaded: Loaded,
    switches: dict[str, Any],
    limit: int,
    past: Past | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Prepared:
    """The ids of the turn's request; InvalidInput where the template refuses the messages.

    ``limit``: tokens that the context holds; what can't fit is refused before it is tokenized.
    ``past``: the path so far, where it has been read already.
    """
    if plan.cut is not None:
        return _prepare_continue(store, plan, plan.cut, loaded, limit)
    past = past or Past(store, store.path(plan.parent))
    fresh = [turn(message.role, message.parts) for message in plan.new]
    settings = settings_of(plan.place.session, loaded.template, switches, tools)
    try:
        known = past.turns(loaded.tokenizer.hash)
        how = loaded.template.prompt(known, fresh, settings, limit=limit)
    except InvalidInput as error:
        unanswered = bool(plan.new and past.path) and past.path[-1].role == plan.new[0].role
        if not unanswered:
            raise
        hint = "the message before it has no answer: `radchat retry` answers it, `undo` drops it"
        raise InvalidInput(f"{error.message} ({hint})", **error.data) from error
    again = None if plan.new else _same_prompt(past, plan.parent, how, loaded)
    answers = [message for message in past.path if message.role == "assistant"]
    last = answers[-1] if answers else None
    return Prepared(
        plan,
        how.ids,
        again or new_prompt(past.path, how, loaded.tokenizer.hash),
        array("I"),
        how,
        how.opens_reasoning,
        last,
        _retold(last, loaded) if last is not None and how.how == "first" else "",
        filled_by(store, last, limit),
    )


def _prepare_continue(
    store: Store, plan: Plan, cut: Message, loaded: Loaded, limit: int
) -> Prepared:
    """The ids of the answer so far, without any template; only the model that wrote them."""
    assert cut.prompt is not None
    stored = store.prompt(cut.prompt)
    if stored.tokenizer != loaded.tokenizer.hash:
        raise InvalidInput(
            f"this answer was written by {cut.model}: only that model can go on with it token by "
            f"token (-m {cut.model})"
        )
    record = PromptRecord(store.prompt_ids(cut.prompt), stored.settings)
    so_far = turn(cut.role, cut.parts, prompt=record, out=store.out(cut.id), stopped=cut.stopped)
    ids = so_far.continue_ids()
    opens = bool(stored.extra.get("opens_reasoning"))
    said, before = ids[stored.length :], filled_by(store, cut, limit)
    return Prepared(plan, ids, cut.prompt, said, None, opens, cut, before=before)


def _retold(last: Message, loaded: Loaded) -> str:
    if last.prompt is None:
        return "what was said so far came as text"
    return f"{last.model} wrote this in ids of its own, and {loaded.name} has others"


def _same_prompt(past: Past, parent: str | None, how: Prompt, loaded: Loaded) -> str | None:
    """A stored prompt with these very ids, for a retry to share; None if settings changed."""
    for prompt in past.prompts_at(parent):
        same = prompt.settings == how.settings_hash and prompt.length == len(how.ids)
        if same and prompt.tokenizer == loaded.tokenizer.hash and past.ids(prompt.id) == how.ids:
            return prompt.id
    return None


def new_prompt(path: Sequence[Message], how: Prompt, tokenizer: str) -> NewPrompt:
    """``path``: what the prompt was made of, as it is stored, from its first message on."""
    base = None if how.base is None else path[how.base]
    is_prompt = how.base_is_prompt and base is not None
    stop = len(how.ids)
    shares: list[tuple[int, int]] = []
    for num in reversed(how.shares):
        shares.append((stop - num, stop))
        stop -= num
    return NewPrompt(
        how.tail,
        tokenizer,
        how.settings_hash,
        base_message=None if base is None or is_prompt else base.id,
        base_prompt=base.prompt if is_prompt and base is not None else None,
        kept=how.kept,
        points=[[p.chars, p.digest, p.num_ids] for p in how.points],
        shares=tuple(reversed(shares)),
        extra={
            "how": how.how,
            "reason": how.reason,
            "opens_reasoning": how.opens_reasoning,
            "cleared": sorted(path[index].id for index in how.cleared_holds),
        },
    )
