"""What a generating command means: which message is answered, what is new, which branch moves.

Everything here runs on the desk's thread and is plain bookkeeping. ``prepared.py`` makes the ids of
it, ``answering.py`` runs the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from radchat.daemon.arguments import FileText, Generate
from radchat.daemon.finding import Place, is_stored, point_of, target_of
from radchat.daemon.tools import Answered, answered_by, results_after, shown_calls
from radchat.errors import InvalidInput, NotFound, UsageError
from radchat.mentions import mentioned
from radchat_sessions.content import Part, text_of, text_part
from radchat_sessions.messages import Message, NewMessage
from radchat_sessions.store import Store


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
    made_up: tuple[str, ...] = ()  # tools whose calls had no result: they count as interrupted


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
    at = place.message
    keep_head = _keeps_head(store, place, ask)
    if ask.at is not None:
        place, point = point_of(store, place, ask.at)
        at = point.message
    if ask.branch is not None and store.find_branch(place.session.id, ask.branch) is not None:
        text = f"there is a branch {ask.branch} already: choose another name"
        raise UsageError(text, taken=True)
    is_fork = ask.branch is not None or ask.at is not None or place.branch is None
    at = before_unfinished(store, place.session.id, at)
    branch = ask.branch or (place.branch if not is_fork else None) or place.last_branch
    before = _results(store, at, ask)
    says = bool(ask.text.strip() or ask.files)
    message = (_user_message(ask.text, ask.files, ask.facts),) if says else ()
    if ask.messages:
        before = _given(store, at, ask)
    plan = Plan(
        place,
        at,
        (*before.messages, *message),
        branch,
        expected=at if not is_fork else None,
        is_fork=is_fork,
        keep_head=keep_head,
        made_up=before.made_up,
    )
    if ask.messages:
        return plan  # all of it is told, the system prompt too
    first = ask.default_system if at is None else None  # the model's own begins a path only
    return _with_system(store, plan, first if ask.system is None else ask.system)


def _results(store: Store, at: str | None, ask: Generate) -> Answered:
    path = [] if at is None else store.path(at)
    return results_after(path, ask.results)


def _given(store: Store, at: str | None, ask: Generate) -> Answered:
    messages = [NewMessage(given["role"], tuple(given["parts"])) for given in ask.messages]
    if messages[0].role == "system" and at is not None:
        raise InvalidInput(
            "messages[0]: a system message begins a conversation, and this one has begun",
            field="messages",
        )
    return answered_by([] if at is None else store.path(at), messages)


def _keeps_head(store: Store, place: Place, ask: Generate) -> bool:
    """An open chat takes the stored HEAD along, unless somebody has moved it elsewhere."""
    return ask.head is not None and not is_stored(store, place)


def before_unfinished(store: Store, session: str, at: str | None) -> str | None:
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
        (_user_message(ask.text, ask.files or _files(user), ask.facts or _facts(user)),),
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


def _facts(message: Message) -> str:
    """What held when it was said."""
    return text_of(message.parts, "facts")


def _user_message(text: str, files: Sequence[FileText], facts: str = "") -> NewMessage:
    parts = file_parts(files)
    if facts:
        parts.insert(0, {"type": "facts", "text": facts})
    if text or not parts:
        parts.append(text_part(text))
    return NewMessage("user", tuple(parts))


def file_parts(files: Sequence[FileText]) -> list[Part]:
    return [{"type": "file", "name": f["name"], "text": f["text"]} for f in files]


def shown(message: Message) -> str:
    """What a person reads of a message in one line: ``@report.md summarise``. A file that it names
    itself stands where it does.
    """
    names = [str(part["name"]) for part in message.parts if part.get("type") == "file"]
    if not names:
        return shown_calls(message.text, message.parts)
    said = {path.rpartition("/")[2] for paths in mentioned(message.text) for path in paths}
    marked = [f"@{name}" for name in names if name not in said]
    return " ".join([*marked, message.text] if message.text else marked)
