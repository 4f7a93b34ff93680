"""The tables, as an ordered list of scripts: script n brings ``user_version`` n - 1 to n.

Each runs in one IMMEDIATE transaction together with its version number, so a kill leaves a whole
older or a whole newer database. Before the first one on a database with content, a copy is written
beside it (``VACUUM INTO``). Never change a script that has shipped; append one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from radchat_sessions.errors import SaveFailed, TooNew
from radchat_sessions.words import indexed

TREE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- head_branch set: HEAD is that branch. Else HEAD stands at head_message (NULL: before everything).
CREATE TABLE sessions (
  seq          INTEGER PRIMARY KEY,
  id           TEXT NOT NULL UNIQUE,
  name         TEXT NOT NULL UNIQUE,
  named        INTEGER NOT NULL CHECK (named IN (0, 1)),
  head_branch  TEXT,
  head_message TEXT REFERENCES messages (id),
  model        TEXT,
  folder       TEXT,
  settings     TEXT NOT NULL CHECK (json_valid(settings)),
  clock        TEXT NOT NULL,
  parent       TEXT REFERENCES sessions (id) ON DELETE SET NULL,
  fork_message TEXT REFERENCES messages (id) ON DELETE SET NULL,
  created      REAL NOT NULL,
  used         REAL NOT NULL,
  CHECK (head_branch IS NULL OR head_message IS NULL),
  FOREIGN KEY (id, head_branch) REFERENCES branches (session, name)
    ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED
) STRICT;
CREATE INDEX sessions_head ON sessions (head_message);
CREATE INDEX sessions_fork ON sessions (fork_message);
CREATE INDEX sessions_parent ON sessions (parent);

CREATE TABLE branches (
  session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  name    TEXT NOT NULL,
  message TEXT REFERENCES messages (id),
  PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX branches_message ON branches (message);

-- Immutable but for origin. A parent's seq is always below its children's.
CREATE TABLE messages (
  seq           INTEGER PRIMARY KEY,
  id            TEXT NOT NULL UNIQUE,
  parent        TEXT REFERENCES messages (id),
  origin        TEXT REFERENCES sessions (id) ON DELETE SET NULL,
  role          TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  parts         TEXT NOT NULL CHECK (json_valid(parts)),
  text          TEXT NOT NULL,
  created       REAL NOT NULL,
  digest        TEXT NOT NULL,
  prompt        TEXT REFERENCES prompts (id),
  out           BLOB CHECK (length(out) % 4 = 0),
  model         TEXT,
  dtype         TEXT,
  sampling      TEXT CHECK (sampling IS NULL OR json_valid(sampling)),
  seed          TEXT,
  choice        INTEGER,
  usage         TEXT CHECK (usage IS NULL OR json_valid(usage)),
  timing        TEXT CHECK (timing IS NULL OR json_valid(timing)),
  finish_reason TEXT CHECK (finish_reason IN ('stop', 'length', 'abort', 'error')),
  stopped       INTEGER NOT NULL DEFAULT 0 CHECK (stopped IN (0, 1)),
  holds         TEXT,
  extra         TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(extra)),
  CHECK ((prompt IS NULL) = (out IS NULL))
) STRICT;
CREATE INDEX messages_parent ON messages (parent);
CREATE INDEX messages_origin ON messages (origin);
CREATE INDEX messages_prompt ON messages (prompt);

CREATE TABLE prompts (
  seq          INTEGER PRIMARY KEY,
  id           TEXT NOT NULL UNIQUE,
  message      TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  base_message TEXT REFERENCES messages (id),
  base_prompt  TEXT REFERENCES prompts (id),
  kept         INTEGER NOT NULL CHECK (kept >= 0),
  tail         BLOB NOT NULL CHECK (length(tail) % 4 = 0),
  length       INTEGER NOT NULL,
  tokenizer    TEXT NOT NULL,
  settings     TEXT NOT NULL,
  points       TEXT NOT NULL CHECK (json_valid(points)),
  extra        TEXT NOT NULL CHECK (json_valid(extra)),
  created      REAL NOT NULL,
  CHECK (base_message IS NULL OR base_prompt IS NULL),
  CHECK (kept = 0 OR base_message IS NOT NULL OR base_prompt IS NOT NULL),
  CHECK (length = kept + length(tail) / 4)
) STRICT;
CREATE INDEX prompts_message ON prompts (message);
CREATE INDEX prompts_base_message ON prompts (base_message);
CREATE INDEX prompts_base_prompt ON prompts (base_prompt);

-- Which of a prompt's own ids are a message's: only for messages that stand in its tail.
CREATE TABLE shares (
  message TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  prompt  TEXT NOT NULL REFERENCES prompts (id) ON DELETE CASCADE,
  start   INTEGER NOT NULL CHECK (start >= 0),
  stop    INTEGER NOT NULL CHECK (stop >= start),
  PRIMARY KEY (message, prompt)
) STRICT, WITHOUT ROWID;
CREATE INDEX shares_prompt ON shares (prompt);

CREATE TABLE running (
  id       TEXT PRIMARY KEY,
  session  TEXT NOT NULL REFERENCES sessions (id),
  parent   TEXT NOT NULL REFERENCES messages (id),
  prompt   TEXT NOT NULL REFERENCES prompts (id),
  branch   TEXT,
  expected TEXT,
  model    TEXT,
  dtype    TEXT,
  sampling TEXT CHECK (sampling IS NULL OR json_valid(sampling)),
  seed     TEXT,
  choice   INTEGER NOT NULL,
  started  REAL NOT NULL
) STRICT;
CREATE INDEX running_parent ON running (parent);
CREATE INDEX running_prompt ON running (prompt);
CREATE INDEX running_session ON running (session);

-- Every move of HEAD, newest last: for undo, redo and `-`.
CREATE TABLE head_log (
  seq          INTEGER PRIMARY KEY,
  session      TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  action       TEXT NOT NULL CHECK (action IN ('turn', 'switch', 'undo', 'redo')),
  from_branch  TEXT,
  from_message TEXT REFERENCES messages (id) ON DELETE CASCADE,
  to_branch    TEXT,
  to_message   TEXT REFERENCES messages (id) ON DELETE CASCADE,
  at           REAL NOT NULL
) STRICT;
CREATE INDEX head_log_session ON head_log (session, seq);
CREATE INDEX head_log_from ON head_log (from_message);
CREATE INDEX head_log_to ON head_log (to_message);

CREATE TABLE labels (
  session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  message TEXT NOT NULL REFERENCES messages (id),
  kind    TEXT NOT NULL CHECK (kind IN ('label', 'score', 'pin')),
  value   TEXT NOT NULL,
  PRIMARY KEY (session, message, kind, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_message ON labels (message);

-- Which session was used where: place 'terminal', 'folder' or 'any'.
CREATE TABLE uses (
  seq     INTEGER PRIMARY KEY AUTOINCREMENT,
  place   TEXT NOT NULL CHECK (place IN ('terminal', 'folder', 'any')),
  name    TEXT NOT NULL,
  session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  UNIQUE (place, name, session)
) STRICT;
CREATE INDEX uses_session ON uses (session);
"""

SEARCH = """
CREATE VIRTUAL TABLE message_text USING fts5 (text, content = 'messages', content_rowid = 'seq');
CREATE TRIGGER message_text_added AFTER INSERT ON messages BEGIN
  INSERT INTO message_text (rowid, text) VALUES (new.seq, new.text);
END;
CREATE TRIGGER message_text_removed AFTER DELETE ON messages BEGIN
  INSERT INTO message_text (message_text, rowid, text) VALUES ('delete', old.seq, old.text);
END;
INSERT INTO message_text (message_text) VALUES ('rebuild');
"""

# Accents of every kind fold, and what is written without spaces is cut (words.py).
SEARCH_ALL_SCRIPTS = """
DROP TRIGGER message_text_added;
DROP TRIGGER message_text_removed;
DROP TABLE message_text;
UPDATE messages SET text = indexed(text) WHERE text <> indexed(text);
CREATE VIRTUAL TABLE message_text USING fts5 (
  text, content = 'messages', content_rowid = 'seq', tokenize = 'unicode61 remove_diacritics 2');
CREATE TRIGGER message_text_added AFTER INSERT ON messages BEGIN
  INSERT INTO message_text (rowid, text) VALUES (new.seq, new.text);
END;
CREATE TRIGGER message_text_removed AFTER DELETE ON messages BEGIN
  INSERT INTO message_text (message_text, rowid, text) VALUES ('delete', old.seq, old.text);
END;
INSERT INTO message_text (message_text) VALUES ('rebuild');
"""

# The branches that a session's last command of several answers made: what 1, 2 … mean to one who
# stands at the message it was given at, or at an answer to what it asked (picks.py).
PICKS = """
CREATE TABLE picks (
  session TEXT NOT NULL,
  number  INTEGER NOT NULL CHECK (number > 0),
  branch  TEXT NOT NULL,
  asked   TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  at      TEXT REFERENCES messages (id) ON DELETE SET NULL,
  PRIMARY KEY (session, number),
  FOREIGN KEY (session, branch) REFERENCES branches (session, name)
    ON UPDATE CASCADE ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX picks_branch ON picks (session, branch);
CREATE INDEX picks_asked ON picks (asked);
CREATE INDEX picks_at ON picks (at);
"""

SCRIPTS: Sequence[str] = (TREE, SEARCH, SEARCH_ALL_SCRIPTS, PICKS)


def version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def backup_path(path: Path, old: int) -> Path:
    return path.with_name(f"{path.name}.v{old}.backup")


def backups(path: Path) -> list[Path]:
    """All copies that migrations of this database have left."""
    return sorted(path.parent.glob(f"{path.name}.v*.backup"))


def migrate(db: sqlite3.Connection, path: Path | None, scripts: Sequence[str] = SCRIPTS) -> None:
    """Bring ``db`` to ``len(scripts)``. ``path`` None: in memory, no backup.

    Raises TooNew before touching anything; SaveFailed when the backup can't be written.
    """
    old = version(db)
    if old > len(scripts):
        raise TooNew(
            f"{path or 'the database'} was written by a newer radchat (format {old}, here "
            f"{len(scripts)}): get the newer radchat, or set RADCHAT_DATA_DIR to another folder"
        )
    if 0 < old < len(scripts) and path is not None:
        _back_up(db, backup_path(path, old))
    db.create_function("indexed", 1, indexed, deterministic=True)
    for number in range(old, len(scripts)):
        # executescript commits what is open before it starts, so the transaction is in the script
        try:
            db.executescript(
                f"BEGIN IMMEDIATE;\n{scripts[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;"
            )
        except sqlite3.Error:
            if db.in_transaction:
                db.rollback()
            raise


def _back_up(db: sqlite3.Connection, target: Path) -> None:
    """A whole copy under its final name, or none; an older copy of the same version is replaced."""
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    old_mask = os.umask(0o077)
    try:
        db.execute("VACUUM INTO ?", (str(part),))
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        raise SaveFailed(f"no backup could be written to {target}: {error}") from error
    finally:
        os.umask(old_mask)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
