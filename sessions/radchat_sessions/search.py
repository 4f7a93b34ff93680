# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Where something was said: the text index asked, and its answer put into the tree."""

from __future__ import annotations

from radchat_sessions import words
from radchat_sessions.database import Database
from radchat_sessions.messages import Found, Hit
from radchat_sessions.shown import SHOWN, SHOWN_BY_ALL

SNIPPET_WORDS = 24

# The sessions and branches from which a message is seen: its own session first, then HEAD's branch.
_SEEN_FROM = """WITH RECURSIVE down (id) AS (
    SELECT ?1 UNION SELECT m.id FROM down JOIN messages m ON m.parent = down.id)
SELECT b.session, b.name FROM branches b JOIN down ON down.id = b.message
JOIN sessions s ON s.id = b.session
ORDER BY b.session IS NOT ?2, s.head_branch IS NOT b.name, b.name LIMIT 1"""


def search(db: Database, asked: str, session_id: str | None, limit: int) -> list[Hit]:
    """Messages that have every word, best first; none where nothing asked for is a word."""
    query = words.query(asked)
    if not query:
        return []
    rows = db.all(
        "SELECT m.seq, m.id, m.origin, m.role, m.created, message_text.rank AS rank "
        "FROM message_text JOIN messages m ON m.seq = message_text.rowid "
        "WHERE message_text MATCH ?2 AND (?1 IS NULL OR m.id IN "
        f"({SHOWN} SELECT id FROM reach)) ORDER BY rank, m.seq DESC LIMIT ?3",
        session_id,
        query,
        limit,
    )
    hits = []
    for row in rows:
        seen = db.one(_SEEN_FROM, row["id"], session_id or row["origin"])
        session = session_id or (row["origin"] if seen is None else seen["session"])
        branch = None if seen is None or seen["session"] != session else seen["name"]
        text, marks = words.shown(_snippet(db, query, row["seq"]))
        hits.append(
            Hit(row["id"], session, branch, row["role"], row["created"], row["rank"], text, marks)
        )
    return hits


def _snippet(db: Database, query: str, seq: int) -> str:
    row = db.one(
        "SELECT snippet(message_text, 0, ?3, ?4, '...', ?5) AS s FROM message_text "
        "WHERE message_text MATCH ?1 AND rowid = ?2",
        query,
        seq,
        words.MARK,
        words.UNMARK,
        SNIPPET_WORDS,
    )
    return "" if row is None else str(row["s"])


def sessions_with(db: Database, asked: str, session_id: str | None, limit: int) -> list[Found]:
    """Sessions that show such messages (or the one), and how many; the one with the best first."""
    query = words.query(asked)
    if not query:
        return []
    rows = db.all(
        f"{SHOWN_BY_ALL} SELECT r.session, count(*) AS n, min(h.rank) AS best FROM reach r "
        "JOIN messages m ON m.id = r.id JOIN (SELECT rowid, rank FROM message_text "
        "WHERE message_text MATCH ?1) h ON h.rowid = m.seq "
        "WHERE ?2 IS NULL OR r.session = ?2 GROUP BY r.session ORDER BY best, r.session LIMIT ?3",
        query,
        session_id,
        limit,
    )
    return [Found(row["session"], row["n"], row["best"]) for row in rows]
