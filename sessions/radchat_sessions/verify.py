# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Does the store still say what was said? Nothing else would notice one changed word.

Recomputes every digest from the root down, checks that ids can be put together and that everything
stored is reached from a session, and asks SQLite about its own pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from radchat_sessions.database import Database
from radchat_sessions.messages import digest
from radchat_sessions.reader import SHOWN_BY_ALL, Reader


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str  # database, digest, ids, orphan, head
    id: str
    text: str


def verify(db: Database) -> list[Problem]:
    """All that is wrong; empty is good."""
    problems = [Problem("database", "", complaint) for complaint in db.complaints()]
    return problems + _digests(db) + _prompts(db) + _orphans(db)


def _digests(db: Database) -> list[Problem]:
    """Each message against what is stored above it: one fault is told once, not for a subtree."""
    reader = Reader(db)
    problems = []
    for row in db.all(
        "SELECT m.id, m.out, p.digest AS above, m.digest FROM messages m "
        "LEFT JOIN messages p ON p.id = m.parent ORDER BY m.seq"
    ):
        message = reader.message(row["id"])
        if digest(row["above"], message.role, message.parts, row["out"]) != row["digest"]:
            problems.append(Problem("digest", row["id"], "its words or ids are not what they were"))
    return problems


def _prompts(db: Database) -> list[Problem]:
    """Each prompt against its base, which is checked itself: so none is put together twice."""
    rows = db.all(
        "SELECT p.id FROM prompts p LEFT JOIN messages b ON b.id = p.base_message "
        "LEFT JOIN prompts q ON q.id = coalesce(b.prompt, p.base_prompt) "
        "WHERE p.kept > coalesce(q.length, 0) + coalesce(length(b.out) / 4, 0)"
    )
    problems = [Problem("ids", row["id"], "it keeps more ids than its base has") for row in rows]
    rows = db.all(
        "SELECT s.message FROM shares s JOIN prompts p ON p.id = s.prompt WHERE s.stop > p.length"
    )
    outside = "its share lies outside its prompt"
    return problems + [Problem("ids", row["message"], outside) for row in rows]


def _orphans(db: Database) -> list[Problem]:
    rows = db.all(f"{SHOWN_BY_ALL} SELECT id FROM messages WHERE id NOT IN (SELECT id FROM reach)")
    problems = [Problem("orphan", row["id"], "no session shows this message") for row in rows]
    rows = db.all(
        "SELECT id FROM prompts p WHERE NOT EXISTS (SELECT 1 FROM messages WHERE prompt = p.id) "
        "AND NOT EXISTS (SELECT 1 FROM running WHERE prompt = p.id) "
        "AND NOT EXISTS (SELECT 1 FROM prompts q WHERE q.base_prompt = p.id)"
    )
    problems += [Problem("orphan", row["id"], "nothing uses this prompt") for row in rows]
    rows = db.all(
        "SELECT m.id FROM messages m JOIN prompts p ON p.id = m.prompt "
        "WHERE p.message IS NOT m.parent"
    )
    problems += [Problem("ids", row["id"], "its prompt ends elsewhere") for row in rows]
    return problems
