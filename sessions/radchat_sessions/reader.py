# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""What can be asked of the store: sessions, messages, paths, HEAD, and whose ids are whose.

Nothing here writes.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from radchat_sessions.content import Ids, unpack_ids
from radchat_sessions.database import Database
from radchat_sessions.errors import Ambiguous, NotFound
from radchat_sessions.messages import (
    Branch,
    Head,
    Label,
    Message,
    Prompt,
    Running,
    Session,
    SessionSummary,
)
from radchat_sessions.names import SHORTEST_ID, is_hex
from radchat_sessions.rows import MESSAGE, branch_of, message_of, prompt_of, running_of, session_of

# Where names point: what keeps messages from pruning. And what was written where.
_NAMED = """SELECT session, message AS id FROM branches WHERE message IS NOT NULL
    UNION ALL SELECT id, head_message FROM sessions WHERE head_message IS NOT NULL
    UNION ALL SELECT session, message FROM labels
    UNION ALL SELECT session, parent FROM running"""
_WRITTEN = "SELECT origin AS session, id FROM messages WHERE origin IS NOT NULL"
_UP = """SELECT r.session, m.parent FROM reach r JOIN messages m ON m.id = r.id
    WHERE m.parent IS NOT NULL"""

# Upwards closed sets of (session, message). ?1 is the session's id.
SHOWN = f"""WITH RECURSIVE reach (session, id) AS (
    SELECT session, id FROM ({_NAMED} UNION ALL {_WRITTEN}) WHERE session = ?1 UNION {_UP})"""
SHOWN_BY_OTHERS = f"""WITH RECURSIVE reach (session, id) AS (
    SELECT session, id FROM ({_NAMED} UNION ALL {_WRITTEN}) WHERE session <> ?1 UNION {_UP})"""
SHOWN_BY_ALL = f"""WITH RECURSIVE reach (session, id) AS (
    SELECT session, id FROM ({_NAMED} UNION ALL {_WRITTEN}) UNION {_UP})"""
# Where sessions leave what was written in them, and upwards from there: the walk up is short.
BORROWED = f"""WITH RECURSIVE borrowed (session, id) AS (
    SELECT n.session, m.id FROM ({_NAMED}) n JOIN messages m ON m.id = n.id
        WHERE m.origin IS NOT n.session
    UNION SELECT c.origin, p.id FROM messages c JOIN messages p ON p.id = c.parent
        WHERE c.origin IS NOT NULL AND p.origin IS NOT c.origin
    UNION SELECT b.session, m.parent FROM borrowed b JOIN messages m ON m.id = b.id
        WHERE m.parent IS NOT NULL)"""


class Span(NamedTuple):
    """``ids(prompt)`` or ``ids(prompt) + out``, from start to stop, are the message's own."""

    prompt: str
    start: int
    stop: int


class Stand(NamedTuple):
    """What a prompt stands on: the first ``kept`` ids of ``base``, a prompt, or with the ids of
    ``answer`` after it; ``length`` ids in all.
    """

    base: str | None
    answer: str | None
    kept: int
    length: int
    tokenizer: str


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
            raise NotFound(f"only {len(asked)} turns back from here, not {turns}")
        return message_id if turns == 0 else asked[-turns].parent

    # -- names -------------------------------------------------------------------------------------

    def branches(self, session_id: str) -> list[Branch]:
        rows = self._db.all(
            "SELECT b.*, s.head_branch IS b.name AS is_head FROM branches b "
            "JOIN sessions s ON s.id = b.session WHERE b.session = ? ORDER BY b.name",
            session_id,
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

    def pins(self) -> list[Label]:
        """Those of all sessions."""
        rows = self._db.all("SELECT * FROM labels WHERE kind = 'pin' ORDER BY session, message")
        return [Label(row["session"], row["message"], row["kind"], row["value"]) for row in rows]

    def meta(self, key: str) -> str | None:
        row = self._db.one("SELECT value FROM meta WHERE key = ?", key)
        return None if row is None else str(row["value"])

    # -- ids ---------------------------------------------------------------------------------------

    def prompt(self, prompt_id: str) -> Prompt:
        row = self._db.one("SELECT * FROM prompts WHERE id = ?", prompt_id)
        if row is None:
            raise NotFound(f"no prompt {prompt_id[:8]}")
        return prompt_of(row)

    def prompts_on(self, message_id: str | None) -> list[Prompt]:
        """All prompts whose last message is on the path of ``message_id``, newest first."""
        rows = self._db.all(
            "WITH RECURSIVE up (id) AS (SELECT ? UNION ALL SELECT m.parent FROM up "
            "JOIN messages m ON m.id = up.id WHERE m.parent IS NOT NULL) "
            "SELECT p.* FROM prompts p JOIN up ON up.id = p.message ORDER BY p.seq DESC",
            message_id,
        )
        return [prompt_of(row) for row in rows]

    def prompt_ids(self, prompt_id: str) -> Ids:
        """``ids(base)[:kept] + tail``, through all the bases."""
        pieces: list[Ids] = []  # back to front
        wanted: int | None = None  # how many of this prompt's ids the next one keeps; None: all
        current: str | None = prompt_id
        while current is not None and wanted != 0:
            row = self._db.one(
                "SELECT p.kept, p.tail, p.base_prompt, b.prompt AS answered, b.out, q.length "
                "FROM prompts p LEFT JOIN messages b ON b.id = p.base_message "
                "LEFT JOIN prompts q ON q.id = b.prompt WHERE p.id = ?",
                current,
            )
            if row is None:
                raise NotFound(f"no prompt {current[:8]}")
            kept = int(row["kept"])
            tail = unpack_ids(row["tail"])
            if wanted is not None:
                tail = tail[: max(0, wanted - kept)]
                kept = min(kept, wanted)
            pieces.append(tail)
            current, wanted = row["base_prompt"], kept
            if row["answered"] is not None:
                pieces.append(unpack_ids(row["out"])[: max(0, kept - row["length"])])
                current, wanted = row["answered"], min(kept, row["length"])
        ids = array("I")
        for piece in reversed(pieces):
            ids.extend(piece)
        return ids

    def out(self, message_id: str) -> Ids | None:
        """The ids sampled for an answer; None for any other message."""
        row = self._db.one("SELECT out FROM messages WHERE id = ?", message_id)
        if row is None:
            raise NotFound(f"no message {message_id[:8]}")
        return None if row["out"] is None else unpack_ids(row["out"])

    def span(self, message_id: str) -> Span | None:
        """Which of ``ids(message_id)`` are the message's own; None while it has none."""
        row = self._db.one(
            "SELECT p.id, p.length, length(m.out) / 4 AS out_len FROM messages m "
            "JOIN prompts p ON p.id = m.prompt WHERE m.id = ?",
            message_id,
        )
        if row is not None:
            return Span(row["id"], row["length"], row["length"] + row["out_len"])
        row = self._db.one(
            "SELECT s.prompt, s.start, s.stop FROM shares s JOIN prompts p ON p.id = s.prompt "
            "WHERE s.message = ? ORDER BY p.seq LIMIT 1",
            message_id,
        )
        return None if row is None else Span(row["prompt"], row["start"], row["stop"])

    def spans(self, session_id: str | None) -> dict[str, Span]:
        """``span`` of every message of the session (None: of all) that has one, in two queries."""
        shown = f"IN ({SHOWN} SELECT id FROM reach)" if session_id else "IS NOT NULL"
        args = (session_id,) if session_id else ()
        found = {
            row["message"]: Span(row["prompt"], row["start"], row["stop"])
            for row in self._db.all(
                "SELECT s.* FROM shares s JOIN prompts p ON p.id = s.prompt "
                f"WHERE s.message {shown} ORDER BY p.seq DESC",  # the first prompt wins
                *args,
            )
        }
        for row in self._db.all(
            "SELECT m.id, p.id AS prompt, p.length, length(m.out) / 4 AS out_len FROM messages m "
            f"JOIN prompts p ON p.id = m.prompt WHERE m.id {shown}",
            *args,
        ):
            found[row["id"]] = Span(row["prompt"], row["length"], row["length"] + row["out_len"])
        return found

    def stands(self, session_id: str | None) -> dict[str, Stand]:
        """Every prompt of the session's messages (None: of all), after what it stands on; without
        reading any ids.
        """
        wanted = (
            f"""{SHOWN}, wanted (id) AS (
            SELECT m.prompt FROM messages m JOIN reach USING (id) WHERE m.prompt IS NOT NULL
            UNION SELECT s.prompt FROM shares s JOIN reach r ON r.id = s.message
            UNION SELECT coalesce(p.base_prompt, b.prompt) FROM wanted w JOIN prompts p USING (id)
            LEFT JOIN messages b ON b.id = p.base_message
            WHERE coalesce(p.base_prompt, b.prompt) IS NOT NULL)"""
            if session_id
            else "WITH wanted (id) AS (SELECT id FROM prompts)"
        )
        rows = self._db.all(
            f"{wanted} SELECT p.id, p.kept, p.length, p.tokenizer, p.base_message, "
            "coalesce(p.base_prompt, b.prompt) AS base FROM wanted JOIN prompts p USING (id) "
            "LEFT JOIN messages b ON b.id = p.base_message ORDER BY p.seq",
            *((session_id,) if session_id else ()),
        )
        return {
            row["id"]: Stand(
                row["base"], row["base_message"], row["kept"], row["length"], row["tokenizer"]
            )
            for row in rows
        }

    def ids(self, message_id: str) -> Ids | None:
        """The path's ids up to the end of this message, as the engine saw them; None where it has
        not seen the message. They end where ``span`` ends.
        """
        span = self.span(message_id)
        if span is None:
            return None
        ids = self.prompt_ids(span.prompt)
        ids.extend(self.out(message_id) or ())
        return ids[: span.stop]

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
