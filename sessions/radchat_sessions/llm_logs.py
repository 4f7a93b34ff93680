"""``logs.db`` of simonw/llm: read only, old and new tables, whatever columns a version has.

Up to 0.31 a conversation is a list of ``responses``, each with its prompt. From 0.32 on it is a
``thread``: a pointer into a tree of ``messages`` with ``parts``; a ``turn`` is one model call.
A file that was upgraded has both; a conversation in both is read from the new ones.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from radchat_sessions.content import Part, reasoning_part, text_part
from radchat_sessions.drafts import Draft, DraftMessage
from radchat_sessions.errors import Unreadable
from radchat_sessions.messages import ROLES, as_role

ATTACHMENTS = "attachments"
Row = dict[str, Any]


def read(path: Path) -> Iterator[Draft]:
    """Every conversation, the oldest first. Raises Unreadable."""
    try:
        with closing(_open(path)) as db:
            logs = _Logs(db)
            if not (logs.has("responses") or logs.has("threads")):
                raise Unreadable("this SQLite file has no conversations of llm in it")
            drafts = [*_threads(logs), *_conversations(logs)]
    except sqlite3.Error as error:
        raise Unreadable(f"this SQLite file can't be read: {error}") from error
    yield from sorted(drafts, key=lambda draft: draft.created or 0.0)


def _open(path: Path) -> sqlite3.Connection:
    """Without a trace beside the file: where a log of SQLite's can't be used, without it."""
    name = f"file:{quote(str(path))}?mode=ro"
    db = sqlite3.connect(name, uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        db = sqlite3.connect(f"{name}&immutable=1", uri=True)
    db.row_factory = sqlite3.Row
    return db


class _Logs:
    """Tables by name; those and the columns that a version has not are empty."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._tables = {
            row["name"] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    def has(self, table: str) -> bool:
        return table in self._tables

    def rows(self, table: str, *order: str) -> list[Row]:
        if table not in self._tables:
            return []
        found = [dict(row) for row in self._db.execute(f'SELECT * FROM "{table}"')]  # noqa: S608 - a name from here
        return sorted(found, key=lambda row: [_sortable(row.get(name)) for name in order])

    def grouped(self, table: str, by: str, *order: str) -> dict[Any, list[Row]]:
        groups: dict[Any, list[Row]] = {}
        for row in self.rows(table, *order):
            groups.setdefault(row.get(by), []).append(row)
        return groups


def _sortable(value: Any) -> tuple[bool, bool, Any]:
    return value is not None, isinstance(value, str), 0 if value is None else value


def _time(text: Any) -> float | None:
    """Theirs are UTC, with or without saying so."""
    with suppress(TypeError, ValueError, OverflowError):
        when = datetime.fromisoformat(str(text))
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return None


def _loads(text: Any) -> Any:
    with suppress(TypeError, ValueError, RecursionError):
        return json.loads(text)
    return None


@dataclass
class _Tree:
    """A draft as it grows; ``at`` finds a message again by what it is called there."""

    messages: list[DraftMessage] = field(default_factory=list)
    at: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        parent: int | None,
        role: str,
        parts: Sequence[Part],
        created: float | None,
        model: Any = None,
    ) -> int:
        model = model if role == "assistant" and isinstance(model, str) else None
        self.messages.append(DraftMessage(parent, as_role(role), tuple(parts), created, model))
        return len(self.messages) - 1

    def draft(self, name: Any, heads: dict[str, int], created: float | None) -> Draft:
        return Draft(str(name or ""), self.messages, heads, created, dict(+self.left_out))


# -- up to 0.31 ------------------------------------------------------------------------------------


def _conversations(logs: _Logs) -> Iterator[Draft]:
    names = {row["id"]: row.get("name") for row in logs.rows("conversations")}
    taken = {row["id"] for row in logs.rows("threads")}
    fragments = {row["id"]: row.get("content") for row in logs.rows("fragments")}
    of_prompt = logs.grouped("prompt_fragments", "response_id", "order")
    of_system = logs.grouped("system_fragments", "response_id", "order")
    attached = logs.grouped("prompt_attachments", "response_id")
    calls = logs.grouped("tool_calls", "response_id", "id")
    results = logs.grouped("tool_results", "response_id", "id")

    def whole(row: Row, column: str, used: dict[Any, list[Row]]) -> str:
        pieces = [fragments.get(each.get("fragment_id")) for each in used.get(row["id"], ())]
        return "\n".join(str(piece) for piece in [*pieces, row.get(column)] if piece)

    talks: dict[Any, list[Row]] = {}
    for row in logs.rows("responses", "datetime_utc", "id"):
        talks.setdefault(row.get("conversation_id") or row["id"], []).append(row)
    for key, responses in talks.items():
        if key in taken:
            continue
        tree, last, system = _Tree(), None, ""
        for row in responses:
            when, said = _time(row.get("datetime_utc")), whole(row, "system", of_system)
            if said and said != system:
                last = tree.add(last, "system", [text_part(said)], when)
                system = said
            for result in results.get(row["id"], ()):
                last = tree.add(last, "tool", [_result_part(result)], when)
            prompt = whole(row, "prompt", of_prompt)
            if prompt or row["id"] not in results:
                last = tree.add(last, "user", [text_part(prompt)], when)
            tree.left_out[ATTACHMENTS] += len(attached.get(row["id"], ()))
            parts = [reasoning_part(row["reasoning"])] if row.get("reasoning") else []
            parts.append(text_part(str(row.get("response") or "")))
            parts += [_call_part(call) for call in calls.get(row["id"], ())]
            last = tree.add(last, "assistant", parts, when, row.get("model"))
        if last is not None:
            first = responses[0]
            title = names.get(key) or first.get("prompt")
            yield tree.draft(title, {"main": last}, _time(first.get("datetime_utc")))


def _call_part(row: Row) -> Part:
    arguments = row.get("arguments")
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    call = {"name": row.get("name"), "arguments": arguments, "id": row.get("tool_call_id")}
    return {"type": "tool_call", "call": call}


def _result_part(row: Row) -> Part:
    part = {"type": "text", "text": str(row.get("output") or row.get("exception") or "")}
    return {**part, "tool": row.get("name"), "call": row.get("tool_call_id")}


# -- from 0.32 on ----------------------------------------------------------------------------------


def _threads(logs: _Logs) -> Iterator[Draft]:
    messages = {row["hash"]: row for row in logs.rows("messages")}
    parts = logs.grouped("parts", "message_hash", "position")
    fragments = {row["id"]: row.get("content") for row in logs.rows("fragments")}
    turns = logs.grouped("turns", "thread_id", "datetime_utc", "id")

    def chain(tip: Any) -> list[str]:
        found: dict[str, None] = {}
        while tip in messages and tip not in found:
            found[tip] = None
            tip = messages[tip].get("parent_hash")
        return list(reversed(found))

    for thread in logs.rows("threads", "datetime_utc", "id"):
        tree = _Tree()
        own = turns.get(thread["id"], [])
        for turn in [*own, {**thread, "model": None}]:
            when = _time(turn.get("datetime_utc"))
            above: int | None = None
            for name in chain(turn.get("tip_message_hash")):
                if name not in tree.at:
                    role = messages[name].get("role")
                    said = [_part(row, fragments, tree.left_out) for row in parts.get(name, ())]
                    known = role if role in ROLES else "user"
                    kept = [part for part in said if part is not None]
                    tree.at[name] = tree.add(above, str(known), kept, when, turn.get("model"))
                above = tree.at[name]
        tips = [thread.get("tip_message_hash"), *(turn.get("tip_message_hash") for turn in own)]
        ends = [tree.at[tip] for tip in tips if tip in tree.at]
        if ends:
            heads = {"main": ends[0]} | _other_ends(tree, ends[0])
            yield tree.draft(thread.get("name"), heads, _time(thread.get("datetime_utc")))


def _other_ends(tree: _Tree, main: int) -> dict[str, int]:
    """Branches for what the thread has left behind: a name for every end."""
    inner = {message.parent for message in tree.messages}
    ends = [n for n in range(len(tree.messages)) if n not in inner and n != main]
    return {f"main-{number}": end for number, end in enumerate(ends, 2)}


def _part(row: Row, fragments: dict[Any, Any], left_out: Counter[str]) -> Part | None:
    told = _loads(row.get("payload"))
    payload = told if isinstance(told, dict) else {}
    text = row.get("text")
    if text is None and isinstance(payload.get("text_ref"), list):
        pieces = [piece for piece in payload["text_ref"] if isinstance(piece, dict)]
        text = "".join(
            str(piece.get("literal", fragments.get(piece.get("fragment")) or ""))
            for piece in pieces
        )
    text = str(payload.get("text") or "") if text is None else str(text)
    kind = row.get("type")
    if kind == "text":
        return text_part(text)
    if kind == "reasoning":
        return reasoning_part(text) if text else None
    if kind == "tool_call":
        return _call_part(payload)
    if kind == "tool_result":
        left_out[ATTACHMENTS] += len(payload.get("attachments") or ())
        return _result_part(payload)
    left_out[ATTACHMENTS if kind == "attachment" else str(kind)] += 1
    return None
