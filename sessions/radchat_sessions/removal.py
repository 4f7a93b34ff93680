# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""What deletes: a session, or the messages of one that no name reaches. Nothing else does.

Deleted words are overwritten where they were: in the tables and the text index (``secure_delete``,
and an optimised index keeps no deleted entry) and in the write-ahead log, which is cut, after a
kill at the next open; the copies that migrations made go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from radchat_sessions.content import pack_ids
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import LabelKind, Removed
from radchat_sessions.names import SHORTEST_ID
from radchat_sessions.schema import backups
from radchat_sessions.shown import SHOWN, SHOWN_BY_OTHERS
from radchat_sessions.turns import Turns

_MARKS: Final[frozenset[LabelKind]] = frozenset(("label", "pin"))  # that keep a message


class Removal(Turns):
    deepest_index = 2048  # bytes of the text index's record of its levels: about half of the limit

    def remove(self, session_id: str, *, dry_run: bool = False) -> Removed:
        """The session, its names, and all its messages that no other session shows.

        Their words are overwritten, also in the text index, the log and backups. ``dry_run`` tells
        what would go, so that the caller can first ask for the ids whose KV goes with it.
        """
        self.session(session_id)
        if self.running(session_id):
            raise Refused("an answer is running in this session: cancel it first")
        shown = self.message_ids(session_id)
        others = self._set(f"{SHOWN_BY_OTHERS} SELECT DISTINCT id FROM reach", session_id)
        doomed = [m for m in shown if m not in others]
        shared = [m for m in shown if m in others]
        if dry_run:
            return Removed(session_id, tuple(doomed), 0, len(shared))
        self._drop_backups()
        with self._db.write():
            self._db.do("DELETE FROM sessions WHERE id = ?", session_id)
            prompts = self._delete_messages(doomed)
            self._hand_over(shared)
        self._db.forget_removed()
        return Removed(session_id, tuple(doomed), prompts, len(shared))

    def prune(
        self,
        session_id: str,
        *,
        unlabeled: bool = False,
        marked: Sequence[str] = (),
        head: str | None = None,
        dry_run: bool = False,
    ) -> Removed:
        """Delete the session's messages that no branch, label, HEAD or running answer reaches; a
        score alone keeps nothing.

        ``unlabeled``: and the branches beside HEAD's path on which no label stands, with what only
        they reach. ``marked``: instead, these messages and all that follow them, with the branches
        and labels there; refused where HEAD, or ``head``, an open chat's, or a running answer is
        among them. Messages written here that another session still shows stay, and are then its
        own.
        """
        self.session(session_id)
        shown = self.message_ids(session_id)
        others = self._set(f"{SHOWN_BY_OTHERS} SELECT DISTINCT id FROM reach", session_id)
        if marked:
            going = self._marked(session_id, marked, set(shown), head)
            branches = tuple(b.name for b in self.branches(session_id) if b.message in going)
            unnamed = [m for m in shown if m in going]
        else:
            branches = self._unlabeled_branches(session_id) if unlabeled else ()
            kept = self._kept(session_id, branches)
            unnamed = [m for m in shown if m not in kept]
        doomed = [m for m in unnamed if m not in others]
        shared = [m for m in unnamed if m in others]
        gone = set(unnamed)
        kinds = [label.kind for label in self.labels(session_id) if label.message in gone]
        noted = kinds.count("label"), kinds.count("score")
        if dry_run or not (unnamed or branches):
            return Removed(session_id, tuple(doomed), 0, len(shared), branches, *noted)
        self._drop_backups()
        with self._db.write():
            for name in branches:
                self._db.do("DELETE FROM branches WHERE session = ? AND name = ?", session_id, name)
            for message_id in unnamed:  # their scores
                self._db.do(
                    "DELETE FROM labels WHERE session = ? AND message = ?", session_id, message_id
                )
            prompts = self._delete_messages(doomed)
            self._hand_over(shared, away_from=session_id)
        self._db.forget_removed()
        return Removed(session_id, tuple(doomed), prompts, len(shared), branches, *noted)

    def _marked(
        self, session_id: str, marked: Sequence[str], shown: set[str], head: str | None
    ) -> set[str]:
        """These and what follows them in the session."""
        stays = {self.head(session_id).message: "HEAD is", head: "this chat is"}
        stays |= {running.parent: "an answer runs" for running in self.running(session_id)}
        going: set[str] = set()
        for message in marked:
            if message not in shown:
                raise NotFound(f"no message {message[:SHORTEST_ID]} in this session")
            below = self._down(message) & shown
            for end, why in stays.items():
                if end in below:
                    raise Refused(f"{why} at or after {message[:SHORTEST_ID]}: it is not deleted")
            going |= below
        return going

    def _down(self, message_id: str) -> set[str]:
        """The message and all that follows it, in whichever session."""
        rows = self._db.all(
            "WITH RECURSIVE down (id) AS (SELECT ? UNION SELECT m.id FROM down "
            "JOIN messages m ON m.parent = down.id) SELECT id FROM down",
            message_id,
        )
        return {row["id"] for row in rows}

    def _kept(self, session_id: str, without: Sequence[str]) -> set[str]:
        """What the session's names reach, without these branches."""
        branches = [b.message for b in self.branches(session_id) if b.name not in without]
        ends = {
            self.head(session_id).message,
            *branches,
            *(m.message for m in self.labels(session_id) if m.kind in _MARKS),
            *(running.parent for running in self.running(session_id)),
        }
        return {message for end in ends for message in self._up(end)}

    def _unlabeled_branches(self, session_id: str) -> tuple[str, ...]:
        """Those that leave HEAD's path and have no label or pin on what they do not share with
        it. A branch on which an answer runs stays.
        """
        path = set(self._up(self.head(session_id).message))
        marked = {m.message for m in self.labels(session_id) if m.kind in _MARKS}
        marked |= {running.parent for running in self.running(session_id)}
        found = []
        for branch in self.branches(session_id):
            own = set(self._up(branch.message)) - path
            if own and not own & marked:
                found.append(branch.name)
        return tuple(found)

    def _up(self, message_id: str | None) -> list[str]:
        """The message and all above it."""
        rows = self._db.all(
            "WITH RECURSIVE up (id) AS (SELECT ? UNION SELECT m.parent FROM up "
            "JOIN messages m ON m.id = up.id) SELECT id FROM up WHERE id IS NOT NULL",
            message_id,
        )
        return [row["id"] for row in rows]

    def _set(self, sql: str, session_id: str) -> set[str]:
        return {row["id"] for row in self._db.all(sql, session_id)}

    def _delete_messages(self, doomed: Iterable[str]) -> int:
        """Messages, their prompts and marks; the number of prompts. What stays keeps its ids."""
        self._db.do("PRAGMA defer_foreign_keys = ON")  # children and parents in any order
        doomed = list(doomed)
        going = set(doomed)
        for message_id in doomed:
            self._detach_prompts(message_id, going)
        before = self._count_prompts()
        for message_id in reversed(doomed):
            self._db.do("DELETE FROM messages WHERE id = ?", message_id)
        self._drop_unused_prompts()
        self._forget_words()
        return before - self._count_prompts()

    def _forget_words(self) -> None:
        """No segment of the text index has removed words any more.

        Each ``optimize`` adds levels to the index's own record of itself, and with about 2,000 of
        them SQLite (3.40) takes it for damaged: so it is built anew in time.
        """
        row = self._db.one("SELECT length(block) AS n FROM message_text_data WHERE id = 10")
        is_deep = row is not None and int(row["n"]) > self.deepest_index
        how = "rebuild" if is_deep else "optimize"
        self._db.do("INSERT INTO message_text (message_text) VALUES (?)", how)

    def _detach_prompts(self, message_id: str, going: set[str]) -> None:
        """Prompts of messages that stay may stand on ids that go: give them those ids."""
        rows = self._db.all(
            "SELECT p.id, p.message FROM prompts p WHERE p.base_message = ?1 "
            "OR p.base_prompt IN (SELECT id FROM prompts WHERE message = ?1)",
            message_id,
        )
        for row in (row for row in rows if row["message"] not in going):
            self._db.do(
                "UPDATE prompts SET base_message = NULL, base_prompt = NULL, kept = 0, tail = ? "
                "WHERE id = ?",
                pack_ids(self.prompt_ids(row["id"])),
                row["id"],
            )

    def _count_prompts(self) -> int:
        row = self._db.one("SELECT count(*) AS n FROM prompts")
        return 0 if row is None else int(row["n"])

    def _hand_over(self, shared: Iterable[str], away_from: str | None = None) -> None:
        """Messages whose session forgets them belong to one that shows them."""
        wanted = set(shared)
        if not wanted:
            return
        for row in self._db.all(
            "SELECT id FROM sessions WHERE id IS NOT ? ORDER BY seq", away_from
        ):
            shown = self._set(f"{SHOWN} SELECT id FROM reach", row["id"])
            for message_id in wanted & shown:
                self._db.do(
                    "UPDATE messages SET origin = ?1 WHERE id = ?2 "
                    "AND (origin IS NULL OR origin IS ?3)",
                    row["id"],
                    message_id,
                    away_from,
                )
                wanted.discard(message_id)

    def _drop_backups(self) -> None:
        """First of all: what follows is whole again after a kill, and they would be left."""
        if self._db.path is not None:
            for copy in backups(self._db.path):
                copy.unlink(missing_ok=True)
