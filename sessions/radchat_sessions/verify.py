# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Does the store still say what was said? Nothing else would notice one changed word.

Recomputes every digest from the root down, checks that each message hangs where it should, that ids
can be put together, that the text index has the words of the messages and that everything stored is
reached from a session, and asks SQLite about its own pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from radchat_sessions.content import digest, searchable
from radchat_sessions.database import Database, Row
from radchat_sessions.errors import Broken
from radchat_sessions.shown import SHOWN_BY_ALL


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str  # database, digest, parent, ids, index, orphan, head
    id: str  # of a message, a prompt or a session; "" for the file
    text: str
    session: str | None = None  # a session that shows it


def verify(db: Database, session_id: str | None = None) -> list[Problem]:
    """All that is wrong with everything, or with what one session shows and the file itself; empty
    is good.
    """
    problems = [Problem("database", "", complaint) for complaint in db.complaints()]
    try:
        found = [*_messages(db), *_prompts(db), *_orphans(db), *_heads(db)]
        shown = _shown(db)
    except Broken as error:
        return [*problems, Problem("database", "", error.message)]
    for problem in found:
        sessions = shown.get(problem.id, {problem.id} if problem.kind == "head" else set())
        if session_id is None or session_id in sessions:
            of = session_id or min(sessions, default=None)
            problems.append(replace(problem, session=of))
    return problems


def _messages(db: Database) -> list[Problem]:
    """Each message against what is stored above it: one fault is told once, not for a subtree."""
    rows = db.all(
        "SELECT m.id, m.seq, m.role, m.parts, m.text, m.out, m.parent, p.seq AS above_seq, "
        "p.digest AS above, m.digest FROM messages m LEFT JOIN messages p ON p.id = m.parent "
        "ORDER BY m.seq"
    )
    return [Problem(kind, row["id"], text) for row in rows for kind, text in _wrong(row)]


def _wrong(row: Row) -> list[tuple[str, str]]:
    if row["parent"] is not None and row["above_seq"] is None:
        return [("parent", f"the message before it, {row['parent'][:8]}, is not there")]
    if row["parent"] is not None and row["above_seq"] >= row["seq"]:
        return [("parent", "the message before it came after it")]
    try:
        parts = json.loads(row["parts"])
        right = digest(row["above"], row["role"], parts, row["out"])
        indexed = searchable(parts)
    except (ValueError, TypeError, KeyError, AttributeError):
        return [("digest", "its parts can't be read")]
    wrong = []
    if right != row["digest"]:
        wrong.append(("digest", "its words or ids are not what they were"))
    elif indexed != row["text"]:  # one change is one fault
        wrong.append(("index", "the text index has other words for it"))
    return wrong


def _prompts(db: Database) -> list[Problem]:
    """Each prompt against its base, which is checked itself: so none is put together twice."""
    rows = db.all(
        "SELECT p.message, p.id FROM prompts p LEFT JOIN messages b ON b.id = p.base_message "
        "LEFT JOIN prompts q ON q.id = coalesce(b.prompt, p.base_prompt) "
        "WHERE p.kept > coalesce(q.length, 0) + coalesce(length(b.out) / 4, 0)"
    )
    keeps = "its prompt {} keeps more ids than its base has"
    problems = [Problem("ids", row["message"], keeps.format(row["id"][:8])) for row in rows]
    rows = db.all(
        "SELECT s.message FROM shares s JOIN prompts p ON p.id = s.prompt WHERE s.stop > p.length"
    )
    problems += [
        Problem("ids", row["message"], "its share lies outside its prompt") for row in rows
    ]
    rows = db.all(
        "SELECT m.id FROM messages m LEFT JOIN prompts p ON p.id = m.prompt "
        "WHERE m.prompt IS NOT NULL AND p.message IS NOT m.parent"
    )
    return problems + [Problem("ids", row["id"], "its prompt ends elsewhere") for row in rows]


def _orphans(db: Database) -> list[Problem]:
    rows = db.all(f"{SHOWN_BY_ALL} SELECT id FROM messages WHERE id NOT IN (SELECT id FROM reach)")
    problems = [Problem("orphan", row["id"], "no session shows this message") for row in rows]
    rows = db.all(
        "SELECT message, id FROM prompts p "
        "WHERE NOT EXISTS (SELECT 1 FROM messages WHERE prompt = p.id) "
        "AND NOT EXISTS (SELECT 1 FROM running WHERE prompt = p.id) "
        "AND NOT EXISTS (SELECT 1 FROM prompts q WHERE q.base_prompt = p.id)"
    )
    unused = "nothing uses its prompt {}"
    return problems + [
        Problem("orphan", row["message"], unused.format(row["id"][:8])) for row in rows
    ]


def _heads(db: Database) -> list[Problem]:
    """HEAD on a branch there is, or at a message; names that point at messages there are."""
    rows = db.all(
        "SELECT s.id, s.head_branch FROM sessions s WHERE s.head_branch IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM branches b WHERE b.session = s.id AND b.name = s.head_branch)"
    )
    problems = [
        Problem("head", row["id"], f"HEAD is on {row['head_branch']}: there is no such branch")
        for row in rows
    ]
    rows = db.all(
        "SELECT session, name, message FROM (SELECT session, 'branch ' || name AS name, message "
        "FROM branches UNION ALL SELECT session, kind || ' ' || value, message FROM labels "
        "UNION ALL SELECT id, 'HEAD', head_message FROM sessions) "
        "WHERE message IS NOT NULL AND message NOT IN (SELECT id FROM messages)"
    )
    gone = "{} names a message that is not there: {}"
    return problems + [
        Problem("head", row["session"], gone.format(row["name"], row["message"][:8]))
        for row in rows
    ]


def _shown(db: Database) -> dict[str, set[str]]:
    """The sessions that show each message."""
    shown: dict[str, set[str]] = {}
    for row in db.all(f"{SHOWN_BY_ALL} SELECT id, session FROM reach"):
        shown.setdefault(row["id"], set()).add(row["session"])
    return shown
