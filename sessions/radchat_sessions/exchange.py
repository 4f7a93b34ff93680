# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Sessions out of the store and into it again, whole: every message with its ids, names, labels.

A document is a header and a list of message records; a record of a message that was answered holds
the prompts that end at it (docs: README.md, "Documents"). Written from one store and read into
another it is the same session to the last id. What other programs wrote is a ``Draft``: text only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from radchat_sessions.content import Json, dumps, pack_ids, searchable
from radchat_sessions.drafts import Draft, Imported
from radchat_sessions.errors import StoreError, Unreadable
from radchat_sessions.names import auto_name, check_name, free_name, made_up_name
from radchat_sessions.reading import Document
from radchat_sessions.removal import Removal

FORMAT: Final = "radchat-session"
VERSION: Final = 1
_PLAIN = ("id", "parent", "role", "created", "digest")
_ANSWER = ("prompt", "model", "dtype", "choice", "finish_reason", "stopped", "holds")
_ANSWER_JSON = ("sampling", "usage", "timing")


class Exchange(Removal):
    # -- out -------------------------------------------------------------------------------------

    def export(self, session_id: str, at: str | None = None) -> dict[str, Json]:
        """The session as a document; ``at``: only the path to this message."""
        session = self.session(session_id)
        shown = self.message_ids(session_id) if at is None else list(reversed(self._up(at)))
        inside = set(shown)
        place = {message: number for number, message in enumerate(shown)}
        branches = {b.name: b.message for b in self.branches(session_id)}
        head = self.head(session_id)
        branch, message = head.branch, None if head.branch else head.message
        if at is not None:
            branches = {name: end for name, end in branches.items() if end in inside}
            ends = [name for name, end in branches.items() if end == at]
            branch = head.branch if head.branch in ends else next(iter(ends), None)
            branch = branch or free_name(head.last_branch, branches)
            branches[branch], message = at, None
        return {
            "format": FORMAT,
            "version": VERSION,
            "session": {
                "id": session.id,
                "name": session.name,
                "named": session.named,
                "model": session.model,
                "folder": session.folder,
                "settings": dict(session.settings),
                "clock": session.clock,
                "created": session.created,
                "used": session.used,
            },
            "head": {"branch": branch, "message": message},
            "branches": branches,
            "labels": [
                {"message": label.message, "kind": label.kind, "value": label.value}
                for label in sorted(
                    (
                        label
                        for label in self.labels(session_id)
                        if label.message in inside and label.kind != "pin"  # of this cache
                    ),
                    key=lambda label: (place[label.message], label.kind, label.value),
                )
            ],
            "messages": self._records(shown, inside),
        }

    def _records(self, shown: Sequence[str], inside: set[str]) -> list[dict[str, Json]]:
        prompts = self._prompt_records(shown, inside)
        records = []
        for message_id in shown:
            row = self._db.one("SELECT * FROM messages WHERE id = ?", message_id)
            assert row is not None
            record = {name: row[name] for name in _PLAIN}
            record["parts"] = json.loads(row["parts"])
            extra = _extra(json.loads(row["extra"]), inside)
            if extra:
                record["extra"] = extra
            told = {name: row[name] for name in _ANSWER if row[name]}
            told |= {name: json.loads(row[name]) for name in _ANSWER_JSON if row[name]}
            if row["seed"] is not None:
                told["seed"] = int(row["seed"])
            if row["choice"] is not None:
                told["choice"] = row["choice"]
            if row["stopped"]:
                told["stopped"] = True
            if row["out"] is not None:
                told["out"] = list(self.out(message_id) or ())
            record |= told
            if message_id in prompts:
                record["prompts"] = prompts[message_id]
            records.append(record)
        return records

    def _prompt_records(
        self, shown: Sequence[str], inside: set[str]
    ) -> dict[str, list[dict[str, Json]]]:
        """By the message they end at: those that answers here have, and what they stand on."""
        wanted: dict[str, dict[str, Json]] = {}
        queue = [
            row["prompt"]
            for message_id in shown
            for row in self._db.all(
                "SELECT prompt FROM messages WHERE id = ? AND prompt IS NOT NULL", message_id
            )
        ]
        while queue:
            prompt_id = queue.pop()
            if prompt_id in wanted:
                continue
            prompt = self.prompt(prompt_id)
            base_message, base_prompt = prompt.base_message, prompt.base_prompt
            kept, tail = prompt.kept, prompt.tail
            if base_prompt is not None and self.prompt(base_prompt).message not in inside:
                base_prompt = None
            if base_message not in inside:
                base_message = None
            if kept and base_message is None and base_prompt is None:  # it stood on what stays here
                kept, tail = 0, self.prompt_ids(prompt_id)
            queue += [] if base_prompt is None else [base_prompt]
            wanted[prompt_id] = {
                "id": prompt_id,
                "message": prompt.message,
                "base_message": base_message,
                "base_prompt": base_prompt,
                "kept": kept,
                "tail": list(tail),
                "tokenizer": prompt.tokenizer,
                "settings": prompt.settings,
                "points": prompt.points,
                "extra": dict(prompt.extra),
                "created": prompt.created,
                "shares": [
                    [row["message"], row["start"], row["stop"]]
                    for row in self._db.all(
                        "SELECT * FROM shares WHERE prompt = ? ORDER BY start, message", prompt_id
                    )
                    if row["message"] in inside
                ],
            }
        order = {
            row["id"]: number
            for number, row in enumerate(self._db.all("SELECT id FROM prompts ORDER BY seq"))
        }
        found: dict[str, list[dict[str, Json]]] = {}
        for number, prompt_id in enumerate(sorted(wanted, key=order.__getitem__)):
            record = {**wanted[prompt_id], "order": number}
            found.setdefault(record.pop("message"), []).append(record)
        return found

    # -- in --------------------------------------------------------------------------------------

    def take_in(self, incoming: Iterable[Document | Draft]) -> list[Imported]:
        """All of them, or none. A document keeps its ids unless one of them is in use here; then
        all of its are new. A name that is taken gets a number. Raises Unreadable.
        """
        try:
            with self._db.write():
                return [
                    self._take_document(each)
                    if isinstance(each, Document)
                    else self._take_draft(each)
                    for each in incoming
                ]
        except sqlite3.IntegrityError as error:  # what reading.py did not think of
            raise Unreadable(f"the import does not hold together: {error}") from error

    def _take_document(self, document: Document) -> Imported:
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
        self._add_session(session, document.head["branch"], document.head["message"])
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
        self, session: Mapping[str, Any], branch: str | None, message: str | None
    ) -> None:
        self._db.do(
            "INSERT INTO sessions (id, name, named, head_branch, head_message, model, folder, "
            "settings, clock, created, used) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            session["id"],
            self._free_session_name(_checked(session["name"], "session")),
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
        values: dict[str, object] = {name: record[name] for name in _PLAIN}
        values |= {name: record.get(name) for name in _ANSWER}
        for name in _ANSWER_JSON:
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

    def _take_draft(self, draft: Draft) -> Imported:
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
        self._add_session(session, branch, None)
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


def _extra(extra: dict[str, Json], inside: set[str]) -> dict[str, Json]:
    """Without the place that a compaction led away from, where that stays here."""
    came = extra.get("compacted")
    if came is None or came["message"] in inside:
        return extra
    return {name: value for name, value in extra.items() if name != "compacted"}


def _clock_of(created: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(created, UTC).replace(microsecond=0).isoformat()


def _checked(name: str, what: str) -> str:
    try:
        return check_name(name, what)
    except StoreError as error:
        raise Unreadable(error.message) from error
