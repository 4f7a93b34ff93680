# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Which messages a session shows, as SQL: what its names reach and what was written in it."""

from __future__ import annotations

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
