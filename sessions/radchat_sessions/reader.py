# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""What can be asked of the store: sessions, messages, paths, branches, HEAD, running answers.

Nothing here writes.
"""

from __future__ import annotations

from radchat_sessions.database import Database
from radchat_sessions.errors import Ambiguous, NotFound
from radchat_sessions.messages import (
    Branch,
    Head,
    Label,
    Link,
    Message,
    Running,
    Session,
    SessionSummary,
)
from radchat_sessions.names import SHORTEST_ID, is_hex
from radchat_sessions.rows import MESSAGE, branch_of, message_of, running_of, session_of
from radchat_sessions.shown import BORROWED, SHOWN


class Reader:
    def __init__(self, db: Database) -> None:
        self._db = db

    # -- sessions ----------------------------------------------------------------------------------

    def session(self, session_id: str) -> Session:
        row = self._db.one("SELECT * FROM sessions WHERE id = ?", session_id)
        if row is None:
            raise NotFound(f"no session {session_id}")
        return session_of(row)

    def find_session(self, ref: str) -> Session:
        """By its name, else by the beginning of its id. Raises NotFound, Ambiguous."""
        row = self._db.one("SELECT * FROM sessions WHERE name = ?", ref)
        if row is not None:
            return session_of(row)
        prefix = ref.lower()
        if len(prefix) >= SHORTEST_ID and is_hex(prefix):
            rows = self._db.all(
                "SELECT * FROM sessions WHERE id >= ? AND id < ? ORDER BY seq", prefix, prefix + "g"
            )
            if len(rows) == 1:
                return session_of(rows[0])
            if rows:
                names = [f"{row['id'][:8]} {row['name']}" for row in rows]
                raise Ambiguous(f"{ref} fits {len(rows)} sessions: {', '.join(names)}", names)
        raise NotFound(f"no session {ref}")

    def sessions(self, *, folder: str | None = None) -> list[SessionSummary]:
        """All, or those of a folder; the last used first."""
        rows = self._db.all(
            "SELECT s.*, b.message, (SELECT count(*) FROM branches c WHERE c.session = s.id) AS n "
            "FROM sessions s LEFT JOIN branches b ON b.session = s.id AND b.name = s.head_branch "
            "WHERE ?1 IS NULL OR s.folder = ?1 ORDER BY s.used DESC, s.seq DESC",
            folder,
        )
        counts = self._message_counts()
        return [
            SessionSummary(
                session=session_of(row),
                messages=counts.get(row["id"], 0),
                branches=row["n"],
                head=Head(row["id"], row["head_branch"], row["message"], row["head_branch"])
                if row["head_branch"] is not None
                else self.head(row["id"]),
            )
            for row in rows
        ]

    def _message_counts(self) -> dict[str, int]:
        """How many messages each session shows: those written in it, and those of others that its
        names and its own messages stand on.
        """
        rows = [
            *self._db.all("SELECT origin AS session, count(*) AS n FROM messages GROUP BY origin"),
            *self._db.all(
                f"{BORROWED} SELECT b.session, count(*) AS n FROM borrowed b "
                "JOIN messages m ON m.id = b.id WHERE m.origin IS NOT b.session GROUP BY b.session"
            ),
        ]
        counts: dict[str, int] = {}
        for row in rows:
            counts[row["session"]] = counts.get(row["session"], 0) + row["n"]
        return counts

    def current_session(self, terminal: str | None, folder: str | None) -> Session | None:
        """Last used from this terminal, else in this folder, else at all."""
        for place, name in (("terminal", terminal), ("folder", folder), ("any", "")):
            if name is None:
                continue
            row = self._db.one(
                "SELECT s.* FROM uses u JOIN sessions s ON s.id = u.session "
                "WHERE u.place = ? AND u.name = ? ORDER BY u.seq DESC LIMIT 1",
                place,
                name,
            )
            if row is not None:
                return session_of(row)
        return None

    # -- messages ----------------------------------------------------------------------------------

    def message(self, message_id: str) -> Message:
        row = self._db.one(f"SELECT {MESSAGE} FROM messages m WHERE m.id = ?", message_id)
        if row is None:
            raise NotFound(f"no message {message_id[:8]}")
        return message_of(row)

    def parent(self, message_id: str) -> str | None:
        row = self._db.one("SELECT parent FROM messages WHERE id = ?", message_id)
        if row is None:
            raise NotFound(f"no message {message_id[:8]}")
        return None if row["parent"] is None else str(row["parent"])

    def path(self, message_id: str | None) -> list[Message]:
        """From the root to ``message_id``; empty for None, the point before everything."""
        if message_id is None:
            return []
        rows = self._db.all(
            "WITH RECURSIVE up (id, depth) AS (SELECT ?, 0 UNION ALL SELECT m.parent, depth + 1 "
            "FROM up JOIN messages m ON m.id = up.id WHERE m.parent IS NOT NULL) "
            f"SELECT {MESSAGE} FROM up JOIN messages m ON m.id = up.id ORDER BY depth DESC",
            message_id,
        )
        if not rows:
            raise NotFound(f"no message {message_id[:8]}")
        return [message_of(row) for row in rows]

    def messages(self, session_id: str) -> list[Message]:
        """All a session shows, parents before children: what its branches, labels and HEAD reach,
        and what was written in it and has no name (retried, undone, a vote's rest) until pruned.
        """
        rows = self._db.all(
            f"{SHOWN} SELECT {MESSAGE} FROM reach JOIN messages m ON m.id = reach.id "
            "ORDER BY m.seq",
            session_id,
        )
        return [message_of(row) for row in rows]

    def message_ids(self, session_id: str) -> list[str]:
        """The ids of ``messages``, without reading their texts."""
        rows = self._db.all(
            f"{SHOWN} SELECT m.id FROM reach JOIN messages m ON m.id = reach.id ORDER BY m.seq",
            session_id,
        )
        return [row["id"] for row in rows]

    def links(self) -> dict[str, Link]:
        """Of every message of all sessions, parents before children."""
        rows = self._db.all("SELECT id, parent, origin FROM messages ORDER BY seq")
        return {row["id"]: Link(row["parent"], row["origin"]) for row in rows}

    def num_messages(self) -> int:
        """Of all sessions; what several share counts once."""
        row = self._db.one("SELECT count(*) AS n FROM messages")
        return 0 if row is None else int(row["n"])

    def children(self, message_id: str | None, session_id: str) -> list[Message]:
        """The session's messages that follow ``message_id`` (None: its roots), oldest first."""
        return [m for m in self.messages(session_id) if m.parent == message_id]

    def back(self, message_id: str | None, turns: int) -> str | None:
        """The point ``turns`` user turns before: what HEAD~n means. None: before everything.

        Raises NotFound where the path has fewer user messages.
        """
        asked = [m for m in self.path(message_id) if m.role == "user"]
        if turns > len(asked):
            num = f"{len(asked)} turn{'' if len(asked) == 1 else 's'}"
            raise NotFound(f"only {num} back from here, not {turns}")
        return message_id if turns == 0 else asked[-turns].parent

    # -- names -------------------------------------------------------------------------------------

    def branches(self, session_id: str | None) -> list[Branch]:
        """Of a session, or of all."""
        rows = self._db.all(
            "SELECT b.*, s.head_branch IS b.name AS is_head FROM branches b "
            f"JOIN sessions s ON s.id = b.session {'WHERE b.session = ?' if session_id else ''} "
            "ORDER BY b.name",
            *((session_id,) if session_id else ()),
        )
        return [branch_of(row) for row in rows]

    def branch(self, session_id: str, name: str) -> Branch:
        found = self.find_branch(session_id, name)
        if found is None:
            raise NotFound(f"no branch {name}")
        return found

    def find_branch(self, session_id: str, name: str) -> Branch | None:
        row = self._db.one(
            "SELECT b.*, s.head_branch IS b.name AS is_head FROM branches b "
            "JOIN sessions s ON s.id = b.session WHERE b.session = ? AND b.name = ?",
            session_id,
            name,
        )
        return None if row is None else branch_of(row)

    def head(self, session_id: str) -> Head:
        row = self._db.one(
            "SELECT s.head_branch, s.head_message, b.message FROM sessions s LEFT JOIN branches b "
            "ON b.session = s.id AND b.name = s.head_branch WHERE s.id = ?",
            session_id,
        )
        if row is None:
            raise NotFound(f"no session {session_id}")
        if row["head_branch"] is not None:
            return Head(session_id, row["head_branch"], row["message"], row["head_branch"])
        last = self._db.one(
            "SELECT from_branch FROM head_log WHERE session = ? AND from_branch IS NOT NULL "
            "AND from_branch IS NOT to_branch ORDER BY seq DESC LIMIT 1",
            session_id,
        )
        name = "main" if last is None else last["from_branch"]
        return Head(session_id, None, row["head_message"], name)

    def labels(self, session_id: str) -> list[Label]:
        rows = self._db.all(
            "SELECT * FROM labels WHERE session = ? ORDER BY message, kind, value", session_id
        )
        return [Label(row["session"], row["message"], row["kind"], row["value"]) for row in rows]

    def thoughts(self, session_id: str, name: str) -> list[str]:
        """The messages that a score calls so: one, but for what was imported."""
        rows = self._db.all(
            "SELECT message FROM labels WHERE session = ?1 AND kind = 'score' "
            "AND (value = ?2 OR substr(value, 1, length(?2) + 1) = ?2 || '=') ORDER BY message",
            session_id,
            name,
        )
        return [row["message"] for row in rows]

    def pins(self) -> list[Label]:
        """Those of all sessions."""
        rows = self._db.all("SELECT * FROM labels WHERE kind = 'pin' ORDER BY session, message")
        return [Label(row["session"], row["message"], row["kind"], row["value"]) for row in rows]

    # -- running -----------------------------------------------------------------------------------

    def running(self, session_id: str | None = None) -> list[Running]:
        rows = self._db.all(
            "SELECT * FROM running WHERE ? IS NULL OR session = ? ORDER BY rowid",
            session_id,
            session_id,
        )
        return [running_of(row) for row in rows]

    def find_running(self, answer_id: str) -> Running | None:
        row = self._db.one("SELECT * FROM running WHERE id = ?", answer_id)
        return None if row is None else running_of(row)
