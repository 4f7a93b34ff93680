# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Whose ids are whose: the prompts of a session, the ids of a path, and each message's own."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from radchat_sessions.content import Ids, unpack_ids
from radchat_sessions.errors import NotFound
from radchat_sessions.messages import Prompt
from radchat_sessions.reader import Reader
from radchat_sessions.rows import prompt_of
from radchat_sessions.shown import SHOWN


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


class TokenIds(Reader):
    """A Reader that also gives ids."""

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
