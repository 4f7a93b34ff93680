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
from radchat.daemon.finding import Place, find_place, is_stored, point_of, target_of
from radchat.engine.conversation import Point, Prompt, PromptRecord, Settings, Turn
from radchat.engine.request import Ids
from radchat.errors import InvalidInput, NotFound
from radchat_sessions.messages import Message, NewMessage, NewPrompt, Part, text_part
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.engines import Loaded


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command means: who is answered, what is new, which branch is meant to move."""

    place: Place
    parent: str | None  # the message the new ones follow
    new: tuple[NewMessage, ...]
    branch: str | None  # wanted; compared with ``expected`` when the turn begins
    expected: str | None
    is_fork: bool = False  # the branch is new: it begins at ``parent``
    keep_head: bool = False
    cut: Message | None = None  # continue: the answer that is gone on with
    rebuilt: str = ""  # why the whole path is said again (another system prompt)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan with its ids: ready to be begun in the store and submitted to the engine."""

    plan: Plan
    ids: Ids  # the request's prompt
    prompt: NewPrompt | str  # to be stored, or the id of the one that is asked again
    said: Ids  # continue: ids of the answer so far, at the end of ``ids``
    how: Prompt | None  # None where a stored prompt is used as it is
    opens_reasoning: bool


# -- what is meant ---------------------------------------------------------------------------------


def plan_turn(store: Store, ask: Generate) -> Plan:
    """Resolve session, HEAD and REFs of a generating command; creates a session if it needs one."""
    place = find_place(store, ask)
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
    return _with_system(store, plan, ask.system)


def _keeps_head(store: Store, place: Place, ask: Generate) -> bool:
    """An open chat takes the stored HEAD along, unless somebody has moved it elsewhere."""
    return ask.head is not None and not is_stored(store, place)


def _before_unfinished(store: Store, session: str, at: str | None) -> str | None:
    """Nobody speaks into a turn that is being answered: the new turn goes beside it (CO-01)."""
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
        place.branch if here else place.last_branch,
        expected=place.message if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
    )


def _plan_edit(store: Store, place: Place, ask: Generate) -> Plan:
    user = _asked(store, place, ask.ref)
    here = any(m.id == user.id for m in store.path(place.message)) and place.branch is not None
    plan = Plan(
        place,
        user.parent,
        (_user_message(ask.text, ask.files),),
        place.branch if here else place.last_branch,
        expected=place.message if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
    )
    return _with_system(store, plan, ask.system)


def _plan_continue(store: Store, place: Place, ask: Generate) -> Plan:
    ref = ask.ref or ask.at
    target = place.message if ref is None else target_of(store, place, ref).message
    if target is None:
        raise NotFound("there is no answer to continue yet")
    answer = store.message(target)
    if answer.role != "assistant" or answer.prompt is None:
        raise InvalidInput("continue goes on with an answer of the model: name one")
    if answer.finish_reason == "stop":
        raise InvalidInput("this answer is complete: it ended by itself")
    here = place.message == answer.id and place.branch is not None
    return Plan(
        place,
        answer.parent,
        (),
        place.branch if here else place.last_branch,
        expected=answer.id if here else None,
        is_fork=not here,
        keep_head=_keeps_head(store, place, ask),
        cut=answer,
    )


def _asked(store: Store, place: Place, ref: str | None) -> Message:
    """The user message that REF, or the last turn, is about: itself, or the one it answers."""
    at = place.message if ref is None else target_of(store, place, ref).message
    for message in reversed(store.path(at)):
        if message.role == "user":
            return message
    raise NotFound("there is no user message yet")


def _stands_on(store: Store, place: Place, user: Message) -> bool:
    """Is HEAD at the user message or at one of its answers? Then its branch goes to the new one."""
    if place.branch is None or place.message is None:
        return False
    return place.message == user.id or store.message(place.message).parent == user.id


def _user_message(text: str, files: Sequence[FileText]) -> NewMessage:
    parts: list[Part] = [{"type": "file", "name": f["name"], "text": f["text"]} for f in files]
    if text or not parts:
        parts.append(text_part(text))
    return NewMessage("user", tuple(parts))


# -- its ids ---------------------------------------------------------------------------------------


def prepare(store: Store, plan: Plan, loaded: Loaded, switches: dict[str, Any]) -> Prepared:
    """The ids of the turn's request; InvalidInput where the template refuses the messages."""
    if plan.cut is not None:
        return _prepare_continue(store, plan, loaded)
    path = store.path(plan.parent)
    turns = turns_of(store, path, loaded)
    fresh = [_turn(message.role, message.parts) for message in plan.new]
    settings = Settings(clock=datetime.fromisoformat(plan.place.session.clock), switches=switches)
    how = loaded.template.prompt(turns, fresh, settings, limit=loaded.context_length)
    again = None if plan.new else _same_prompt(store, plan.parent, how, loaded)
    if again is not None:
        return Prepared(plan, how.ids, again, array("I"), how, how.opens_reasoning)
    prompt = _new_prompt(store, path, plan, how, loaded)
    return Prepared(plan, how.ids, prompt, array("I"), how, how.opens_reasoning)


def _prepare_continue(store: Store, plan: Plan, loaded: Loaded) -> Prepared:
    """CT-08: the ids of the answer so far, without any template; same model only."""
    cut = plan.cut
    assert cut is not None
    assert cut.prompt is not None
    stored = store.prompt(cut.prompt)
    if stored.tokenizer != loaded.tokenizer.hash:
        raise InvalidInput(
            f"this answer was written by {cut.model}: only that model can go on with it token by "
            f"token (-m {cut.model})"
        )
    said = store.out(cut.id) or array("I")
    if cut.stopped:
        said = said[:-1]
    ids = store.prompt_ids(cut.prompt)
    ids.extend(said)
    opens = bool(stored.extra.get("opens_reasoning"))
    return Prepared(plan, ids, cut.prompt, said, None, opens)


def _same_prompt(store: Store, parent: str | None, how: Prompt, loaded: Loaded) -> str | None:
    """A stored prompt with these very ids, for a retry to share; None if settings changed."""
    for prompt in store.prompts_on(parent):
        if prompt.message == parent and prompt.tokenizer == loaded.tokenizer.hash:
            same = prompt.settings == how.settings_hash and prompt.length == len(how.ids)
            if same and store.prompt_ids(prompt.id) == how.ids:
                return prompt.id
    return None


def _new_prompt(
    store: Store, path: Sequence[Message], plan: Plan, how: Prompt, loaded: Loaded
) -> NewPrompt:
    base = None if how.base is None else path[how.base]
    is_prompt = how.base_is_prompt and base is not None
    stop = len(how.ids)
    shares: list[tuple[int, int]] = []
    for num in reversed(how.shares):
        shares.append((stop - num, stop))
        stop -= num
    known = store.prompts_on(plan.parent)
    cleared = {message for prompt in known for message in prompt.extra.get("cleared", ())}
    cleared.update(path[index].id for index in how.cleared_holds)
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
            "cleared": sorted(cleared),
        },
    )


def turns_of(store: Store, path: Sequence[Message], loaded: Loaded) -> list[Turn]:
    """The path as the template sees it; answers of another tokenizer are text to this one."""
    cleared: set[str] = set()
    if path:
        for prompt in store.prompts_on(path[-1].id):
            cleared.update(prompt.extra.get("cleared", ()))
    turns = []
    for message in path:
        turn = _turn(message.role, message.parts)
        if message.prompt is not None:
            prompt = store.prompt(message.prompt)
            if prompt.tokenizer == loaded.tokenizer.hash:
                turn = replace(
                    turn,
                    prompt=PromptRecord(
                        store.prompt_ids(prompt.id),
                        prompt.settings,
                        tuple(Point(*point) for point in prompt.points),
                    ),
                    out=store.out(message.id),
                    stopped=message.stopped,
                    holds=None if message.id in cleared else message.holds,
                )
        turns.append(turn)
    return turns


def _turn(role: str, parts: Sequence[Part]) -> Turn:
    reasoning = "".join(str(p["text"]) for p in parts if p.get("type") == "reasoning")
    return Turn(role=role, text=spoken(parts), reasoning=reasoning or None)


def spoken(parts: Sequence[Part]) -> str:
    """What the model reads of a message: loaded files first, each under its name, then the text."""
    files = [p for p in parts if p.get("type") == "file"]
    text = "".join(str(p.get("text", "")) for p in parts if p.get("type") == "text")
    blocks = [f"{p['name']}:\n\n{str(p['text']).rstrip()}" for p in files]
    return "\n\n".join([*blocks, text] if text or not blocks else blocks)


def shown(message: Message) -> str:
    """What a person reads of a message in one line: ``@report.md summarise``."""
    names = [f"@{p['name']}" for p in message.parts if p.get("type") == "file"]
    return " ".join([*names, message.text] if message.text or not names else names)
