"""The life of an answer in the store: begin, append, finish or abandon; and after a crash, recover.

    begin    one transaction: the new messages, the prompt, a ``running`` row an answer, the branch
    append   ids and words go to the running files before they are sent
    finish   one transaction: the message in, the running row out, the branch on; then the files go
    abandon  nothing was generated: the running row goes, and the prompt if nobody else has it

At every point a kill leaves something ``recover`` can finish: the files say what was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from radchat_sessions.adding import Adding
from radchat_sessions.content import Ids, Json, Part, clean, dumps, pack_ids
from radchat_sessions.database import Database
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import (
    Appended,
    Begun,
    BegunAnswer,
    Ended,
    FinishReason,
    NewAnswer,
    NewMessage,
    NewPrompt,
    Placed,
    Recovered,
    Running,
)
from radchat_sessions.names import check_name
from radchat_sessions.running import RunningFiles


class Parent(Enum):
    """``expected=PARENT``: the branch must point at the turn's parent (the usual case)."""

    PARENT = "parent"


PARENT: Final = Parent.PARENT


class Turns(Adding):
    def __init__(
        self,
        db: Database,
        clock: Callable[[], float],
        files: RunningFiles,
        new_id: Callable[[], str],
    ) -> None:
        super().__init__(db, clock, new_id)
        self._files = files

    def append(
        self,
        session_id: str,
        *,
        parent: str | None,
        new: Sequence[NewMessage],
        branch: str | None,
        expected: str | Parent | None = PARENT,
        keep_head: bool = False,
        label: tuple[str, str] | None = None,
    ) -> Appended:
        """Messages given as text, with no answer to follow: an edited or imported answer, a note.

        ``branch`` goes to the last of them, or a branch of its own does; None: unnamed. ``label``:
        a message that was there and what it is called from now on, in the same transaction.
        """
        self._require(session_id, parent)
        if label is not None:
            self._require(session_id, label[0])
            check_name(label[1], "label")
        with self._db.write():
            ids = self._add_messages(session_id, parent, new)
            last = ids[-1] if ids else parent
            placed = None
            if branch is not None:
                at = parent if expected is PARENT else expected
                before = self.head(session_id)
                placed = self._place(session_id, branch, at, last)
                self._head_after_turn(session_id, before.branch, placed, keep_head)
            if label is not None:
                self._add_label(session_id, label[0], "label", label[1])
            self._touch(session_id)
        return Appended(ids, placed)

    def begin(
        self,
        session_id: str,
        *,
        parent: str | None,
        new: Sequence[NewMessage] = (),
        prompt: NewPrompt | str,
        answers: Sequence[NewAnswer],
        expected: str | Parent | None = PARENT,
        keep_head: bool = False,
        model: str | None = None,
        dtype: str | None = None,
        sampling: Mapping[str, Json] | None = None,
    ) -> Begun:
        """A turn: its messages, one prompt, and an id for every answer to come.

        ``new`` follow ``parent``; the answers follow the last of them. ``prompt`` is new, or the id
        of one that ends at ``parent`` (a retry; then ``new`` is empty and ``expected`` is usually
        the answer the branch stands on). Each answer's branch is compared with ``expected`` and
        set to the last new message; in a retry it stays until ``finish``. One that points
        elsewhere is left alone and the answer gets a branch of its own (``Placed.made``); a name
        that is new is made. HEAD goes on the first answer's branch, unless ``keep_head``.
        """
        self._require(session_id, parent)
        with self._db.write():
            ids = self._add_messages(session_id, parent, new)
            last = ids[-1] if ids else parent
            if last is None:
                raise Refused("an answer needs a message before it")
            prompt_id = self._prompt_for(last, prompt, is_retry=not ids)
            at = parent if expected is PARENT else expected
            before = self.head(session_id)
            begun = [
                BegunAnswer(
                    answer.id or self._new_id(),
                    None
                    if answer.branch is None
                    else self._place(session_id, answer.branch, at, last, move=bool(ids)),
                )
                for answer in answers
            ]
            for answer, started in zip(answers, begun, strict=True):
                placed = started.placed
                # where finish must find the branch
                stands = None if placed is None else last if ids or placed.made else at
                self._db.do(
                    "INSERT INTO running VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    started.id,
                    session_id,
                    last,
                    prompt_id,
                    None if placed is None else placed.branch,
                    stands,
                    model,
                    dtype,
                    None if sampling is None else dumps(clean(sampling)),
                    None if answer.seed is None else str(answer.seed),
                    answer.choice,
                    self._clock(),
                )
            first = next((a.placed for a in begun if a.placed is not None), None)
            if first is not None:
                self._head_after_turn(session_id, before.branch, first, keep_head)
            self._touch(session_id, model)
        return Begun(session_id, prompt_id, ids, tuple(begun))

    def append_ids(
        self, answer_id: str, ids: Sequence[int], text: str = "", kind: str = "text"
    ) -> None:
        """Before they are sent: the ids of a step and the text that became whole (``kind``: the
        type of the part it belongs to). Raises SaveFailed; the answer can go on, the next append
        or ``finish`` saves what is missing.
        """
        self._files.append(answer_id, ids, text, kind)

    def finish(
        self,
        answer_id: str,
        *,
        ids: Ids,
        parts: Sequence[Part],
        finish_reason: FinishReason,
        usage: Mapping[str, Json] | None = None,
        timing: Mapping[str, Json] | None = None,
        stopped: bool = False,
        holds: str | None = None,
        extra: Mapping[str, Json] | None = None,
    ) -> Ended:
        """The answer becomes a message. Raises SaveFailed; then call it again when there is room.

        A second call after a success changes nothing and returns the same message.
        """
        running = self.find_running(answer_id)
        if running is None:
            return Ended(self.message(answer_id), None)  # NotFound: never begun, or abandoned
        with self._db.write():
            self._insert(
                running.session,
                running.id,
                running.parent,
                "assistant",
                parts,
                created=running.started,
                extra=extra or {},
                ids=pack_ids(ids),
                answer={
                    "prompt": running.prompt,
                    "model": running.model,
                    "dtype": running.dtype,
                    "sampling": None if running.sampling is None else dumps(running.sampling),
                    "seed": None if running.seed is None else str(running.seed),
                    "choice": running.choice,
                    "usage": None if usage is None else dumps(clean(usage)),
                    "timing": None if timing is None else dumps(clean(timing)),
                    "finish_reason": finish_reason,
                    "stopped": int(stopped),
                    "holds": clean(holds),
                },
            )
            self._db.do("DELETE FROM running WHERE id = ?", answer_id)
            placed = self._branch_to_answer(running)
        self._files.drop(answer_id)
        return Ended(self.message(answer_id), placed)

    def abandon(self, answer_id: str) -> None:
        """Nothing was generated: no message. The user's message stays, without ids."""
        running = self.find_running(answer_id)
        if running is None:
            raise NotFound(f"no running answer {answer_id[:8]}")
        with self._db.write():
            self._db.do("DELETE FROM running WHERE id = ?", answer_id)
            self._drop_unused_prompts(running.prompt)
        self._files.drop(answer_id)

    def recover(self) -> list[Recovered]:
        """At open: what was running becomes messages with finish reason ``abort``."""
        recovered = []
        for running in self.running():
            left = self._files.read(running.id)
            message = None
            if len(left.ids):
                message = self.finish(
                    running.id,
                    ids=left.ids,
                    parts=left.parts,
                    finish_reason="abort",
                    extra={"recovered": True},
                ).message
            else:
                self.abandon(running.id)
            recovered.append(Recovered(running.id, running.session, message, left.cut_bytes))
        self._files.sweep()
        return recovered

    # -- inside a transaction ----------------------------------------------------------------------

    def _branch_to_answer(self, running: Running) -> Placed | None:
        if running.branch is None:
            return None
        return self._place(running.session, running.branch, running.expected, running.id)

    def _head_after_turn(
        self, session_id: str, was_on: str | None, placed: Placed, keep_head: bool
    ) -> None:
        """HEAD goes to the turn's branch; a HEAD that is on it has followed it already. Both end
        what redo could take back.
        """
        if not keep_head or was_on == placed.branch:
            self._move_head(session_id, placed.branch, None, "turn")

    def _touch(self, session_id: str, model: str | None = None) -> None:
        self._db.do(
            "UPDATE sessions SET used = ?, model = coalesce(?, model) WHERE id = ?",
            self._clock(),
            model,
            session_id,
        )
