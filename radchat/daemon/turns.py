"""Where a session's message meets an engine request: the ids of a turn, and what is kept of it.

Everything here runs on the desk's thread and is plain bookkeeping: which message is answered, which
branch moves, what the template makes of the path. ``answering.py`` runs the request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from radchat.daemon.arguments import FileText, Generate
from radchat.daemon.finding import Place, is_stored, point_of, target_of
from radchat.daemon.fullness import EMPTY, Filled, filled_by
from radchat.daemon.past import Past, turn
from radchat.engine.conversation import Prompt, PromptRecord, Settings
from radchat.engine.request import Ids
from radchat.errors import InvalidInput, NotFound, UsageError
from radchat_sessions.content import Part, text_part
from radchat_sessions.messages import Message, NewMessage, NewPrompt
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command means: who is answered, what is new, which branch is meant to move."""

    place: Place
    parent: str | None  # the message the new ones follow
    new: tuple[NewMessage, ...]
    branch: str  # wanted; compared with ``expected`` when the turn begins
    expected: str | None
    is_fork: bool = False  # the branch is new: it begins at ``parent``
    keep_head: bool = False
    cut: Message | None = None  # continue: the answer that is gone on with
    rebuilt: str = ""  # why the whole path is said again (another system prompt)
    edits: bool = False  # what is new takes the place of another message
    says: str | None = None  # a what-if: its words; HEAD stays whatever comes of it


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


# -- what is meant ---------------------------------------------------------------------------------


def plan_turn(store: Store, place: Place, ask: Generate) -> Plan:
    """Resolve the REFs of a generating command, seen from ``place``."""
    plans = {
        "turn": _plan_turn,
        "retry": _plan_retry,
        "edit": _plan_edit,
        "continue": _plan_continue,
    }
    return plans[ask.kind](store, place, ask)


def _plan_turn(store: Store, place: Place, ask: Generate) -> Plan:
    message = _user_message(ask.text, ask.files)
    at = place.message
    keep_head = _keeps_head(store, place, ask)
    if ask.at is not None:
        place, point = point_of(store, place, ask.at)
        at = point.message
    if ask.branch is not None and store.find_branch(place.session.id, ask.branch) is not None:
        raise UsageError(f"there is a branch {ask.branch} already: choose another name")
    is_fork = ask.branch is not None or ask.at is not None or place.branch is None
    at = _before_unfinished(store, place.session.id, at)
    branch = ask.branch or (place.branch if not is_fork else None) or place.last_branch
    plan = Plan(
        place,
        at,
        (message,),
        branch,
        expected=at if not is_fork else None,
        is_fork=is_fork,
        keep_head=keep_head,
    )
    first = ask.default_system if at is None else None  # the model's own begins a path only
    return _with_system(store, plan, first if ask.system is None else ask.system)


def _keeps_head(store: Store, place: Place, ask: Generate) -> bool:
    """An open chat takes the stored HEAD along, unless somebody has moved it elsewhere."""
    return ask.head is not None and not is_stored(store, place)


def _before_unfinished(store: Store, session: str, at: str | None) -> str | None:
    """Nobody speaks into a turn that is being answered: the new turn goes beside it."""
    while at is not None and any(running.parent == at for running in store.running(session)):
        at = store.parent(at)
    return at


def _with_system(store: Store, plan: Plan, system: str | None) -> Plan:
    """The system prompt begins a path. A changed one begins another: the path is said again."""
    if system is None:
        return plan
    path = store.path(plan.parent)
    said = path[0].text if path and path[0].role == "system" else None
    if said == system or (not system and said is None):
        return plan
    copies = [NewMessage(m.role, m.parts) for m in path if m.role != "system"]
    first = [NewMessage.of("system", system)] if system else []
    why = "another system prompt" if path else ""
    return replace(
        plan, parent=None, new=(*first, *copies, *plan.new), expected=plan.expected, rebuilt=why
    )


def _plan_retry(store: Store, place: Place, ask: Generate) -> Plan:
    user = _asked(store, place, ask.ref)
    here = _stands_on(store, place, user)
    return Plan(
        place,
        user.id,
        (),
        here or place.last_branch,
        expected=place.message if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
    )


def _plan_edit(store: Store, place: Place, ask: Generate) -> Plan:
    user = _asked(store, place, ask.ref)
    on_path = any(m.id == user.id for m in store.path(place.message))
    here = place.branch if on_path else None
    plan = Plan(
        place,
        user.parent,
        (_user_message(ask.text, ask.files or _files(user)),),
        here or place.last_branch,
        expected=place.message if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
        edits=True,
    )
    return _with_system(store, plan, ask.system)


def _plan_continue(store: Store, place: Place, ask: Generate) -> Plan:
    target = _named(store, place, ask.ref or ask.at)
    if target is None:
        raise NotFound("there is no answer to continue yet")
    answer = store.message(target)
    if answer.role != "assistant" or answer.prompt is None:
        raise InvalidInput("continue goes on with an answer of the model: name one")
    if answer.finish_reason == "stop" and answer.stopped:
        raise InvalidInput("this answer is complete: it ended by itself")
    here = place.branch if place.message == answer.id else None
    return Plan(
        place,
        answer.parent,
        (),
        here or place.last_branch,
        expected=answer.id if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
        cut=answer,
    )


def _named(store: Store, place: Place, ref: str | None) -> str | None:
    """The message that REF names, or HEAD."""
    return place.message if ref is None else target_of(store, place, ref).message


def _asked(store: Store, place: Place, ref: str | None) -> Message:
    """The user message that REF, or the last turn, is about: itself, or the one it answers."""
    for message in reversed(store.path(_named(store, place, ref))):
        if message.role == "user":
            return message
    raise NotFound("there is no user message yet")


def _stands_on(store: Store, place: Place, user: Message) -> str | None:
    """HEAD's branch, if it is at the user message or one of its answers: it goes to the new one."""
    if place.message is None:
        return None
    here = place.message == user.id or store.message(place.message).parent == user.id
    return place.branch if here else None


def _files(message: Message) -> list[FileText]:
    """The files said with a message: they stay in another wording of it."""
    return [
        {"name": str(part["name"]), "text": str(part["text"])}
        for part in message.parts
        if part.get("type") == "file"
    ]


def _user_message(text: str, files: Sequence[FileText]) -> NewMessage:
    parts = file_parts(files)
    if text or not parts:
        parts.append(text_part(text))
    return NewMessage("user", tuple(parts))


def file_parts(files: Sequence[FileText]) -> list[Part]:
    return [{"type": "file", "name": f["name"], "text": f["text"]} for f in files]


# -- its ids ---------------------------------------------------------------------------------------


def prepare(
    store: Store, plan: Plan, loaded: Loaded, switches: dict[str, Any], limit: int
) -> Prepared:
    """The ids of the turn's request; InvalidInput where the template refuses the messages.

    ``limit``: tokens that the context holds; what can't fit is refused before it is tokenized.
    """
    if plan.cut is not None:
        return _prepare_continue(store, plan, plan.cut, loaded, limit)
    past = Past(store, store.path(plan.parent))
    fresh = [turn(message.role, message.parts) for message in plan.new]
    settings = Settings(clock=datetime.fromisoformat(plan.place.session.clock), switches=switches)
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
        again or _new_prompt(past, how, loaded),
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


def _new_prompt(past: Past, how: Prompt, loaded: Loaded) -> NewPrompt:
    base = None if how.base is None else past.path[how.base]
    is_prompt = how.base_is_prompt and base is not None
    stop = len(how.ids)
    shares: list[tuple[int, int]] = []
    for num in reversed(how.shares):
        shares.append((stop - num, stop))
        stop -= num
    return NewPrompt(
        how.tail,
        loaded.tokenizer.hash,
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
            "cleared": sorted(past.path[index].id for index in how.cleared_holds),
        },
    )


def shown(message: Message) -> str:
    """What a person reads of a message in one line: ``@report.md summarise``."""
    names = [f"@{p['name']}" for p in message.parts if p.get("type") == "file"]
    return " ".join([*names, message.text] if message.text or not names else names)
