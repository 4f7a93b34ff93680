"""What goes wrong with a disk, in words; what of it says that a file or the index is damaged."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from radchat_sessions.kv_files import Damaged

GONE = "its file is gone"
_OF_CALLS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "{folder} is read-only",
    errno.EACCES: "{folder} may not be written",
    errno.EPERM: "{folder} may not be written",
}
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "{folder} is read-only",
    sqlite3.SQLITE_CANTOPEN: "{folder} can't be opened",
    sqlite3.SQLITE_BUSY: "another program holds {folder}/index.db locked",
}
# Says nothing about the file: what was asked is a miss, and no more.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def reason(error: OSError | sqlite3.Error, folder: Path) -> str:
    """One line for the user; ``folder`` is the KV folder."""
    if isinstance(error, OSError):
        known = _OF_CALLS.get(error.errno or 0)
        text = f"{{folder}}: {error.strerror or error}"
    else:
        known = _OF_SQLITE.get(_primary(error))
        text = f"{{folder}}/index.db: {error}"
    return (known or text).replace("{folder}", str(folder))


def damage(error: OSError | Damaged) -> str | None:
    """Why a block can't be read; None where that says nothing about the block."""
    if isinstance(error, Damaged):
        return str(error)
    if error.errno in _PASSING:
        return None
    return GONE if error.errno == errno.ENOENT else f"{error.strerror or error}"


def _primary(error: sqlite3.Error) -> int:
    """Extended codes keep the primary one in the low byte; -1: SQLite gave none."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def is_broken(error: sqlite3.Error) -> bool:
    """Not the disk's doing but what stands in the index, or its format."""
    return _primary(error) in (
        -1,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_SCHEMA,
    )
