# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Sessions into the store: documents of ours, whole, and what other programs wrote.

Written from one store (exports.py) and read into another, a document is the same session to the
last id. What other programs wrote is a ``Draft``: text only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from radchat_sessions.content import dumps, pack_ids, searchable
from radchat_sessions.drafts import Draft, Imported
from radchat_sessions.errors import StoreError, Unreadable
from radchat_sessions.exports import ANSWER, ANSWER_JSON, PLAIN, Exports
from radchat_sessions.names import Names, auto_name, check_name, made_up_name
from radchat_sessions.reading import Document


class Exchange(Exports):
    def take_in(self, incoming: Iterable[Document | Draft]) -> list[Imported]:
        """All of them, or none. A document keeps its ids unless one of them is in use here; then
        all of its are new. A name that is taken gets a number. Raises Unreadable.
        """
        try:
            with self._db.write():
                names = Names(self._session_names())
                return [
                    self._take_document(each, names)
                    if isinstance(each, Document)
                    else self._take_draft(each, names)
                    for each in incoming
                ]
        except sqlite3.IntegrityError as error:  # what reading.py did not think of
            raise Unreadable(f"the import does not hold together: {error}") from error

    def _take_document(self, document: Document, names: Names) -> Imported:
        known = self._db.all(
            "SELECT 1 FROM sessions WHERE id IN (SELECT value FROM json_each(?1)) UNION ALL "
            "SELECT 1 FROM messages WHERE id IN (SELECT value FROM json_each(?1)) UNION ALL "
            "SELECT 1 FROM running WHERE id IN (SELECT value FROM json_each(?1)) UNION ALL "
            "SELECT 1 FROM prompts WHERE id IN (SELECT value FROM json_each(?1)) LIMIT 1",
            dumps(sorted(document.ids)),
        )
        if known:
            document = document.renamed({old: self._new_id() for old in sorted(document.ids)})
        self._db.do("PRAGMA defer_foreign_keys = ON")  # prompts and answers name one another
        session = document.session
        self._add_session(session, names, document.head["branch"], document.head["message"])
        for prompt in document.prompts:
            self._add_known_prompt(prompt)
        for record in document.messages:
            self._add_known_message(session["id"], record)
        for name, message_id in document.branches.items():
            self._new_branch(session["id"], _checked(name, "branch"), message_id)
        for label in document.labels:
            self._db.do(
                "INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)",
                session["id"],
                label["message"],
                label["kind"],
                label["value"],
            )
        return Imported(session["id"], len(document.messages), bool(known))

    def _add_session(
        self,
        session: Mapping[str, Any],
        names: Names,
        branch: str | None,
        message: str | None,
    ) -> None:
        self._db.do(
            "INSERT INTO sessions (id, name, named, head_branch, head_message, model, folder, "
            "settings, clock, created, used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            session["id"],
            names.take(_checked(session["name"], "session")),
            int(session["named"]),
            branch,
            message,
            session["model"],
            session["folder"],
            dumps(session["settings"]),
            session["clock"],
            session["created"],
            session["used"],
        )

    def _add_known_prompt(self, prompt: Mapping[str, Any]) -> None:
        self._db.do(
            "INSERT INTO prompts (id, message, base_message, base_prompt, kept, tail, length, "
            "tokenizer, settings, points, extra, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(prompt[name] for name in ("id", "message", "base_message", "base_prompt", "kept")),
            pack_ids(prompt["tail"]),
            prompt["kept"] + len(prompt["tail"]),
            prompt["tokenizer"],
            prompt["settings"],
            dumps(prompt["points"]),
            dumps(prompt["extra"]),
            prompt["created"],
        )
        for message_id, start, stop in prompt["shares"]:
            self._db.do(
                "INSERT INTO shares VALUES (?, ?, ?, ?)", message_id, prompt["id"], start, stop
            )

    def _add_known_message(self, session_id: str, record: Mapping[str, Any]) -> None:
        parts, out = record["parts"], record.get("out")
        values: dict[str, object] = {name: record[name] for name in PLAIN}
        values |= {name: record.get(name) for name in ANSWER}
        for name in ANSWER_JSON:
            values[name] = None if record.get(name) is None else dumps(record[name])
        values |= {
            "origin": session_id,
            "parts": dumps(parts),
            "text": searchable(parts),
            "extra": dumps(record.get("extra") or {}),
            "out": None if out is None else pack_ids(out),
            "seed": None if record.get("seed") is None else str(record["seed"]),
            "stopped": int(bool(record.get("stopped"))),
        }
        marks = ", ".join("?" * len(values))
        self._db.do(
            f"INSERT INTO messages ({', '.join(values)}) VALUES ({marks})", *values.values()
        )

    def _take_draft(self, draft: Draft, names: Names) -> Imported:
        session_id = self._new_id()
        now = self._clock()
        created = now if draft.created is None else draft.created
        branch = next(iter(draft.heads), "main")
        session = {
            "id": session_id,
            "name": auto_name(draft.name) or made_up_name(session_id),
            "named": False,
            "model": None,  # theirs are not ours: the next turn chooses
            "folder": None,
            "settings": {},
            "clock": _clock_of(created),
            "created": created,
            "used": max((m.created or created for m in draft.messages), default=created),
        }
        self._db.do("PRAGMA defer_foreign_keys = ON")
        self._add_session(session, names, branch, None)
        ids: list[str] = []
        for message in draft.messages:
            ids.append(self._new_id())
            self._insert(
                session_id,
                ids[-1],
                None if message.parent is None else ids[message.parent],
                message.role,
                message.parts,
                created=message.created or created,
                extra={"imported": True},
                answer={"model": message.model} if message.role == "assistant" else None,
            )
        for name, index in draft.heads.items():
            self._new_branch(session_id, check_name(name), ids[index])
        if not draft.heads:
            self._new_branch(session_id, "main", None)
        return Imported(session_id, len(ids), renewed=False)


def _clock_of(created: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(created, UTC).replace(microsecond=0).isoformat()


def _checked(name: str, what: str) -> str:
    try:
        return check_name(name, what)
    except StoreError as error:
        raise Unreadable(error.message) from error
