"""A state of a program as a branch of a session: its messages, with the ids the model saw.

Everything here runs on the desk's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from radchat.daemon.ending import STORED
from radchat.daemon.finding import find_store
from radchat.daemon.prepared import new_prompt
from radchat.daemon.program_states import Said, State
from radchat.engine.request import Ids
from radchat.errors import InvalidInput, UsageError
from radchat.protocol import Where
from radchat_sessions.content import reasoning_part, text_part
from radchat_sessions.messages import Message, NewAnswer, NewMessage, Session, as_role
from radchat_sessions.names import auto_name, free_name
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.desk import Desk
    from radchat.daemon.programs import Program

BRANCH = "program"


class Asked(NamedTuple):
    where: Where
    session: str | None
    name: str | None
    branch: str | None
    ephemeral: bool


class Saved(NamedTuple):
    store: Store
    session: Session
    branch: str
    message: str
    ids: Ids

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session.id,
            "name": self.session.name,
            "branch": self.branch,
            "message": self.message,
        }


def save(desk: Desk, program: Program, state: State, asked: Asked) -> Saved:
    """All of it, or nothing."""
    whole = state.closed()
    if whole.raw is not None or not whole.said:
        what = "raw text" if whole.raw is not None else "nothing yet"
        raise InvalidInput(
            f"a state of {what} has no messages to save: say some with system(...), user(...) and "
            "assistant(...)"
        )
    if asked.session is not None and asked.name is not None:
        raise UsageError("a session that is there has a name: give a session, or a name for one")
    store = find_store(desk, asked.session, ephemeral=asked.ephemeral)
    with store.as_one():
        session, branch = _place(store, program, asked)
        path = _write(store, program, session.id, branch, whole.said, is_new=asked.session is None)
    if asked.session is None:
        if asked.name is None:
            first = next((said.turn.text for said in whole.said if said.turn.role == "user"), "")
            store.suggest_name(session.id, auto_name(first))
        store.use(
            session.id,
            terminal=asked.where["terminal"],
            folder=asked.where["folder"],
            only_terminal=True,
        )
    return Saved(store, store.session(session.id), branch, path[-1].id, whole.ids)


def _place(store: Store, program: Program, asked: Asked) -> tuple[Session, str]:
    if asked.session is not None:
        session = store.find_session(asked.session)
        taken = {branch.name for branch in store.branches(session.id)}
        if asked.branch in taken:
            raise UsageError(f"there is a branch {asked.branch} already: choose another name")
        return session, asked.branch or free_name(BRANCH, taken)
    session = store.create_session(
        name=asked.name,
        model=program.loaded.name,
        folder=asked.where["folder"],
        settings={},
        clock=program.frame.settings.clock.isoformat(),
    )
    if asked.branch is not None:
        store.rename_branch(session.id, "main", asked.branch)
    return session, asked.branch or "main"


def _write(
    store: Store, program: Program, session: str, branch: str, said: Sequence[Said], *, is_new: bool
) -> list[Message]:
    path: list[Message] = []
    fresh: list[NewMessage] = []
    for each in said:
        if each.how is None:
            fresh.append(NewMessage.of(as_role(each.turn.role), each.turn.text))
            continue
        _answer(store, program, session, branch, path, fresh, each, is_new=is_new)
        fresh = []
    if fresh:
        parent = path[-1].id if path else None
        added = store.append(session, parent=parent, new=fresh, branch=branch, keep_head=not is_new)
        path.extend(store.message(each) for each in added.messages)
    return path


def _answer(
    store: Store,
    program: Program,
    session: str,
    branch: str,
    path: list[Message],
    fresh: Sequence[NewMessage],
    said: Said,
    *,
    is_new: bool,
) -> None:
    assert said.how is not None
    assert said.turn.out is not None
    prompt = new_prompt(path, said.how, program.frame.tokenizer.hash)
    if not fresh:  # it goes on after an answer: nothing new has a share
        prompt = replace(prompt, shares=())
    begun = store.begin(
        session,
        parent=path[-1].id if path else None,
        new=fresh,
        prompt=prompt,
        answers=[NewAnswer(branch, seed=said.seed)],
        keep_head=not is_new,
        model=program.loaded.name,
        dtype=program.loaded.dtype,
        sampling=program.sampling,
    )
    path.extend(store.message(each) for each in begun.messages)
    thought = [reasoning_part(said.turn.reasoning)] if said.turn.reasoning else []
    ended = store.finish(
        begun.answers[0].id,
        ids=said.turn.out,
        parts=[*thought, text_part(said.turn.text)],
        finish_reason=STORED[said.reason],
        stopped=said.turn.stopped,
        holds=said.turn.holds,
        extra={"context": program.frame.limit},
    )
    path.append(ended.message)
