"""HEAD and labels: where a session talks, and how it went there and back."""

from __future__ import annotations

from radchat_sessions.branches import Branches
from radchat_sessions.content import clean
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import Head, LabelKind
from radchat_sessions.names import SHORTEST_ID, check_name
from radchat_sessions.scores import read


class Heads(Branches):
    def move_head(
        self, session_id: str, *, branch: str | None = None, message: str | None = None
    ) -> Head:
        """To a branch, or to a message (neither: before everything).

        At a message that is the end of the branch HEAD is on, or of exactly one branch, HEAD goes
        on that branch: whoever says ``switch d9f1`` means the conversation that ends there.
        """
        if branch is not None:
            self.branch(session_id, branch)
        else:
            self._require(session_id, message)
            branch = self._branch_ending_at(session_id, message)
        with self._db.write():
            self._move_head(session_id, branch, message, "switch")
        return self.head(session_id)

    def previous(self, session_id: str, at: Head | None = None) -> Head:
        """Where ``-`` leads: the branch HEAD was on before this one (``at``). Raises NotFound."""
        now = at or self.head(session_id)
        rows = self._db.all(
            "SELECT from_branch AS name FROM head_log WHERE session = ? "
            "AND from_branch IS NOT NULL AND from_branch IS NOT to_branch "
            "GROUP BY from_branch ORDER BY max(seq) DESC",
            session_id,
        )
        for row in rows:
            branch = self.find_branch(session_id, row["name"])
            if branch is not None and branch.name != now.branch:
                return Head(session_id, branch.name, branch.message, branch.name)
        raise NotFound("no previous branch")

    def undo(self, session_id: str, turns: int = 1, at: Head | None = None) -> Head:
        """HEAD and its branch go back ``turns`` user turns; what was said stays, without a name.

        One step back from where a compaction led is the place before it, on its own branch.
        ``at``: the HEAD an open chat holds goes back, and its branch if it still points there; the
        result is without a branch if somebody else has moved that on.
        """
        if turns < 1:
            raise Refused(f"undo {turns}: want 1 or more")
        now, is_chats = at or self.head(session_id), at is not None
        came = self._compacted(now.message) if turns == 1 else None
        if came is not None:
            return self._step(session_id, now, *came, "undo", is_chats=is_chats)
        target = self.back(now.message, turns)
        return self._step(session_id, now, now.branch, target, "undo", is_chats=is_chats)

    def redo(self, session_id: str, at: Head | None = None) -> Head:
        """Take back the undo that led here. Raises NotFound where none did, or it is taken back."""
        now = at or self.head(session_id)
        row = self._undone(session_id, now)
        if row is None:
            raise NotFound("nothing to redo")
        branch, message = row["from_branch"], row["from_message"]
        return self._step(session_id, now, branch, message, "redo", is_chats=at is not None)

    def _step(
        self,
        session_id: str,
        now: Head,
        branch: str | None,
        message: str | None,
        action: str,
        *,
        is_chats: bool,
    ) -> Head:
        """From ``now`` to ``message``, and ``branch`` with it if it stands at either."""
        with self._db.write():
            there = None if branch is None else self.find_branch(session_id, branch)
            if there is None or there.message not in (now.message, message):
                branch = None
            if branch is not None:
                self._point(session_id, branch, message)
            if is_chats or (branch is not None and branch == now.branch):  # HEAD follows its branch
                self._log(session_id, now, (branch, message), action)
            else:
                self._move_head(session_id, branch, message, action)
        if not is_chats:
            return self.head(session_id)
        return Head(session_id, branch, message, branch or now.last_branch)

    def _compacted(self, message_id: str | None) -> tuple[str | None, str] | None:
        """The branch and message that a compaction led away from, if it led right here."""
        came = None if message_id is None else self.message(message_id).extra.get("compacted")
        if not came or self._db.one("SELECT 1 FROM messages WHERE id = ?", came["message"]) is None:
            return None
        return came["branch"], came["message"]

    def _undone(self, session_id: str, now: Head) -> dict[str, str | None] | None:
        """The entry of the log to take back: undos to here and redos from here pair up like
        brackets.
        """
        here = (now.branch, now.message)
        redone = 0
        for row in self._db.all(
            "SELECT * FROM head_log WHERE session = ? AND action IN ('undo', 'redo') "
            "ORDER BY seq DESC",
            session_id,
        ):
            if row["action"] == "redo":
                redone += (row["from_branch"], row["from_message"]) == here
            elif (row["to_branch"], row["to_message"]) == here:
                if not redone:
                    return dict(row)
                redone -= 1
        return None

    # -- labels ------------------------------------------------------------------------------------

    def add_label(
        self, session_id: str, message_id: str, value: str, kind: LabelKind = "label"
    ) -> None:
        """A label can be used as a REF; it keeps its message from pruning. A message has one score
        and one pin, and as many labels as one likes. Raises Refused where a score has the name of
        another message's.
        """
        if kind == "label":
            check_name(value, "label")
        self._require(session_id, message_id)
        with self._db.write():
            if kind == "score":
                self._refuse_named(session_id, message_id, read(value).name)
            if kind != "label":
                self._drop_label(session_id, message_id, kind, None)
            self._add_label(session_id, message_id, kind, clean(value))

    def remove_label(
        self,
        session_id: str,
        message_id: str,
        value: str | None = None,
        kind: LabelKind = "label",
    ) -> bool:
        """One, or all of that kind; False where there was none."""
        with self._db.write():
            return self._drop_label(session_id, message_id, kind, value) > 0

    # -- inside a transaction ----------------------------------------------------------------------

    def _move_head(
        self, session_id: str, branch: str | None, message: str | None, action: str
    ) -> None:
        to = message if branch is None else self.branch(session_id, branch).message
        self._log(session_id, self.head(session_id), (branch, to), action)
        self._db.do(
            "UPDATE sessions SET head_branch = ?, head_message = ? WHERE id = ?",
            branch,
            message if branch is None else None,
            session_id,
        )

    def _log(
        self, session_id: str, now: Head, to: tuple[str | None, str | None], action: str
    ) -> None:
        if action == "switch" and (now.branch, now.message) == to:
            return
        self._db.do(
            "INSERT INTO head_log (session, action, from_branch, from_message, to_branch, "
            "to_message, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            session_id,
            action,
            now.branch,
            now.message,
            *to,
            self._clock(),
        )

    def _branch_ending_at(self, session_id: str, message: str | None) -> str | None:
        ending = [b for b in self.branches(session_id) if b.message == message]
        here = [b.name for b in ending if b.is_head]
        if here:
            return here[0]
        return ending[0].name if len(ending) == 1 else None

    def _refuse_named(self, session_id: str, message_id: str, name: str | None) -> None:
        others = set(self.thoughts(session_id, name) if name else ()) - {message_id}
        if others:
            raise Refused(f"{name} is the thought {min(others)[:SHORTEST_ID]} of this session")

    def _add_label(self, session_id: str, message_id: str, kind: LabelKind, value: str) -> None:
        self._db.do(
            "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", session_id, message_id, kind, value
        )

    def _drop_label(
        self, session_id: str, message_id: str, kind: LabelKind, value: str | None
    ) -> int:
        return self._db.do(
            "DELETE FROM labels WHERE session = ? AND message = ? AND kind = ? "
            "AND (?4 IS NULL OR value = ?4)",
            session_id,
            message_id,
            kind,
            value,
        )
