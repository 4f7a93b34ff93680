"""The tables of the byte store's index: derived from the files, so there are no migrations."""

from __future__ import annotations

from typing import NamedTuple

from radchat_sessions.kv_blocks import ID_BYTES

FORMAT = 2

SCRIPT = """
CREATE TABLE meta (made REAL NOT NULL) STRICT;
-- tick: order of last use, over restarts; used: the same in wall time, for display.
CREATE TABLE blocks (
  fingerprint TEXT NOT NULL,
  parent      TEXT NOT NULL,
  ids         BLOB NOT NULL CHECK (length(ids) > 0 AND length(ids) % 4 = 0),
  key         TEXT NOT NULL,
  start       INTEGER NOT NULL,
  num_bytes   INTEGER NOT NULL,
  tick        INTEGER NOT NULL,
  used        REAL NOT NULL,
  children    INTEGER NOT NULL DEFAULT 0,
  UNIQUE (fingerprint, parent, ids),
  UNIQUE (fingerprint, key)
) STRICT;
CREATE INDEX blocks_order ON blocks (children > 0, tick);
CREATE TABLE totals (
  fingerprint TEXT PRIMARY KEY,
  blocks      INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  num_bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER block_added AFTER INSERT ON blocks BEGIN
  INSERT INTO totals VALUES (new.fingerprint, 1, length(new.ids) / 4, new.num_bytes)
    ON CONFLICT (fingerprint) DO UPDATE SET
      blocks = blocks + 1, tokens = tokens + excluded.tokens,
      num_bytes = num_bytes + excluded.num_bytes;
  UPDATE blocks SET children = children + 1
    WHERE fingerprint = new.fingerprint AND key = new.parent;
  UPDATE blocks SET children =
      (SELECT count(*) FROM blocks WHERE fingerprint = new.fingerprint AND parent = new.key)
    WHERE rowid = new.rowid;
END;
CREATE TRIGGER block_removed AFTER DELETE ON blocks BEGIN
  UPDATE totals SET blocks = blocks - 1, tokens = tokens - length(old.ids) / 4,
      num_bytes = num_bytes - old.num_bytes
    WHERE fingerprint = old.fingerprint;
  DELETE FROM totals WHERE fingerprint = old.fingerprint AND blocks = 0;
  UPDATE blocks SET children = children - 1
    WHERE fingerprint = old.fingerprint AND key = old.parent;
END;
"""


class Row(NamedTuple):
    fingerprint: str
    parent: str
    ids: bytes
    key: str
    start: int
    num_bytes: int
    tick: int
    used: float
    children: int

    @property
    def num_tokens(self) -> int:
        return len(self.ids) // ID_BYTES
