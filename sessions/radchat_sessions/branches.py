# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Branches, the names that move while the messages stay; and which names sessions have."""

from __future__ import annotations

from collections.abc import Callable

from radchat_sessions.database import Database
from radchat_sessions.errors import Refused, Taken
from radchat_sessions.messages import Branch, Placed
from radchat_sessions.names import check_name, free_name
from radchat_sessions.token_ids import TokenIds


class Branches(TokenIds):
    """A Reader that also moves names. Methods beginning with ``_`` run inside ``write()``."""

    beside: Branches | None = None  # a store whose sessions have names that none here may have

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        super().__init__(db)
        self._clock = clock

    def create_branch(self, session_id: str, name: str | None, message_id: str | None) -> Branch:
        """A new name for a message; HEAD stays. ``name`` None: after HEAD's branch, ``main-2``."""
        self._require(session_id, message_id)
        with self._db.write():
            if name is None:
                name = self.free_branch_name(session_id, self.head(session_id).last_branch)
            self._new_branch(session_id, check_name(name), message_id)
        return self.branch(session_id, name)

    def rename_branch(self, session_id: str, old: str, new: str) -> None:
        check_name(new)
        self.branch(session_id, old)
        if old == new:
            return
        with self._db.write():
            if self.find_branch(session_id, new) is not None:
                raise Taken(f"there is a branch {new} already")
            where = "WHERE session = ? AND {} = ?"
            for table, column in (
                ("branches", "name"),  # sessions.head_branch follows by itself
                ("running", "branch"),
                ("head_log", "from_branch"),
                ("head_log", "to_branch"),
            ):
                self._db.do(
                    f"UPDATE {table} SET {column} = ? {where.format(column)}", new, session_id, old
                )

    def delete_branch(self, session_id: str, name: str) -> None:
        """Only the name goes; its messages stay until pruned."""
        if self.branch(session_id, name).is_head:
            raise Refused(f"HEAD is on {name}: switch to another branch first")
        with self._db.write():
            self._db.do("DELETE FROM branches WHERE session = ? AND name = ?", session_id, name)

    def free_branch_name(self, session_id: str, base: str) -> str:
        """``base`` if no branch has it, else ``base-2``, ``base-3`` …"""
        return free_name(base, {branch.name for branch in self.branches(session_id)})

    # -- inside a transaction ----------------------------------------------------------------------

    def _place(
        self,
        session_id: str,
        wanted: str,
        expected: str | None,
        to: str | None,
        *,
        move: bool = True,
    ) -> Placed:
        """Compare and set: ``wanted`` goes to ``to`` if it points at ``expected``, else a branch
        of its own does. ``move`` False: a branch that points right stays where it is.
        """
        now = self.find_branch(session_id, wanted)
        if now is not None and now.message == expected:
            if move:
                self._point(session_id, wanted, to)
            return Placed(wanted, wanted, made=False, existed=True, found=now.message)
        name = self.free_branch_name(session_id, check_name(wanted))
        self._new_branch(session_id, name, to)
        if now is None:
            return Placed(name, wanted, made=True, existed=False)
        return Placed(name, wanted, made=True, existed=True, found=now.message)

    def _new_branch(self, session_id: str, name: str, message_id: str | None) -> None:
        if self.find_branch(session_id, name) is not None:
            raise Taken(f"there is a branch {name} already")
        self._db.do("INSERT INTO branches VALUES (?, ?, ?)", session_id, name, message_id)

    def _point(self, session_id: str, name: str, message_id: str | None) -> None:
        self._db.do(
            "UPDATE branches SET message = ? WHERE session = ? AND name = ?",
            message_id,
            session_id,
            name,
        )

    def _require(self, session_id: str, message_id: str | None) -> None:
        """Both exist, else NotFound."""
        self.session(session_id)
        if message_id is not None:
            self.message(message_id)

    # -- names of sessions -------------------------------------------------------------------------

    def _session_names(self, but: str | None = None) -> set[str]:
        """Names that are taken, in ``beside`` too; ``but``: not by this session."""
        taken = set() if self.beside is None else self.beside.own_session_names()
        return taken | self.own_session_names(but)

    def own_session_names(self, but: str | None = None) -> set[str]:
        rows = self._db.all("SELECT name FROM sessions WHERE id IS NOT ?", but)
        return {row["name"] for row in rows}

    def _free_session_name(self, base: str, but: str | None = None) -> str:
        return free_name(base, self._session_names(but))

    def check_session_name(self, name: str) -> str:
        """``name``, if a new session can have it. Raises Refused."""
        self._refuse_taken(check_name(name, "session"))
        return name

    def _refuse_taken(self, name: str, but: str | None = None) -> None:
        if name in self._session_names(but):
            raise Taken(f"there is a session {name} already")
