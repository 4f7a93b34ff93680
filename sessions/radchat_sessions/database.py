"""One SQLite connection, one thread, one writer.

``write()`` is one ``BEGIN IMMEDIATE`` transaction: all of it or nothing, whatever is raised
inside. SQLite's errors leave as the store's own. If the file was deleted under the open connection,
the next write first puts back all that the connection still sees, in a new file of the same name.

SQLite before 3.51.3 can damage a WAL database when two connections checkpoint at one moment:
another reason for one connection (docs/adr/0002-one-writer.md).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from radchat_sessions import schema
from radchat_sessions.errors import Broken, SaveFailed

Row: TypeAlias = Any  # sqlite3.Row: columns by name, values as SQLite has them
Synchronous = Literal["FULL", "NORMAL", "OFF"]

_DISK_TROUBLE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk gave an error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_PERM: "it is not ours to write",
    sqlite3.SQLITE_BUSY: "another program holds it locked",
    sqlite3.SQLITE_LOCKED: "another program holds it locked",
}


class Database:
    def __init__(self, path: Path | None, *, synchronous: Synchronous = "FULL") -> None:
        """``path`` None: in memory. Migrates; raises TooNew, Broken, SaveFailed."""
        self.path = path
        self.recreated = 0  # times the file had to be put back
        self._synchronous = synchronous
        if path is not None:
            _make_private(path)
        self._connection = self._connect()
        try:
            with self._translated():
                schema.migrate(self._connection, path)
            self.forget_removed()  # which a kill can have left undone
        except BaseException:
            self._connection.close()
            raise
        self._inode = self._inode_now()

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:" if self.path is None else str(self.path)
        with self._translated():
            db = sqlite3.connect(name, isolation_level=None, timeout=5.0)
            try:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA busy_timeout = 5000")
                db.execute("PRAGMA foreign_keys = ON")
                db.execute("PRAGMA temp_store = MEMORY")  # no words in temporary files
                db.execute("PRAGMA secure_delete = ON")  # removed words are overwritten
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(f"PRAGMA synchronous = {self._synchronous}")
            except BaseException:
                db.close()
                raise
        return db

    def close(self) -> None:
        self._connection.close()

    # -- reading -----------------------------------------------------------------------------------

    def all(self, sql: str, *values: object) -> Sequence[Row]:
        with self._translated():
            return self._connection.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> Row | None:
        with self._translated():
            return self._connection.execute(sql, values).fetchone()

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def write(self) -> Iterator[None]:
        """One transaction. Raises SaveFailed if it could not be committed; then nothing changed.

        Inside another it is a part of that one, which must not go on after an error here.
        """
        if self._connection.in_transaction:
            yield
            return
        self._still_there()
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it by itself after some errors
                    self._connection.rollback()
                raise

    def do(self, sql: str, *values: object) -> int:
        """One statement inside ``write()``; the number of rows it changed."""
        assert self._connection.in_transaction, "a write outside write()"
        return self._connection.execute(sql, values).rowcount

    def forget_removed(self) -> None:
        """Empty the write-ahead log, which still holds pages from before a removal."""
        with self._translated():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def complaints(self) -> list[str]:
        """What SQLite itself finds wrong: pages, rows, references, the text index."""
        try:
            found = [str(row[0]) for row in self.all("PRAGMA integrity_check") if row[0] != "ok"]
            found += [
                f"a row of {row[0]} refers to a row of {row[2]} that is not there"
                for row in self.all("PRAGMA foreign_key_check")
            ]
        except Broken as error:
            return [error.message]
        try:
            self._connection.execute(
                "INSERT INTO message_text (message_text, rank) VALUES ('integrity-check', 1)"
            )
        except sqlite3.DatabaseError as error:
            found.append(f"the text index does not agree with the messages: {error}")
        return found

    # -- trouble -----------------------------------------------------------------------------------

    def _inode_now(self) -> tuple[int, int] | None:
        """None: in memory, or deleted."""
        if self.path is None:
            return None
        try:
            info = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (info.st_dev, info.st_ino)

    def _still_there(self) -> None:
        now = self._inode_now()
        if now == self._inode:
            return
        if now is not None:
            raise SaveFailed(
                f"{self.path} is another file than the one that was opened: "
                "run `radchat daemon restart`"
            )
        self._put_back()

    def _put_back(self) -> None:
        """The connection still reads the deleted file: copy it, then open the copy in its place.

        The old connection is closed before the copy gets the name, because closing deletes
        ``-wal`` and ``-shm`` by name.
        """
        path = self.path
        assert path is not None
        part = path.with_name(path.name + ".part")
        try:
            _make_private(part)
            copy = sqlite3.connect(part, isolation_level=None)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()
        except (SaveFailed, OSError, sqlite3.Error) as error:
            raise SaveFailed(f"{path} was deleted and can't be put back: {error}") from error
        self._connection.close()
        try:
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            part.replace(path)
        except OSError as error:
            self._connection = sqlite3.connect(part, isolation_level=None)  # still readable
            self._connection.row_factory = sqlite3.Row
            raise SaveFailed(f"{path} was deleted; all of it is in {part}: {error}") from error
        self._connection = self._connect()
        self._inode = self._inode_now()
        self.recreated += 1

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a rule of ours broken by our own code: loud
        except sqlite3.DatabaseError as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: sqlite3.DatabaseError) -> Exception:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return error
        primary = code & 0xFF  # extended codes keep the primary one in the low byte
        if primary in _DISK_TROUBLE:
            return SaveFailed(f"{self.path or 'the session store'}: {_DISK_TROUBLE[primary]}")
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Broken(
                f"{self.path or 'the session store'} is damaged or no database ({error}): "
                "move it away, or restore a backup"
            )
        return error


def _make_private(path: Path) -> None:
    """The file, mode 0600, in a folder that is made 0700 if it is not there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)  # -wal and -shm take it over
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SaveFailed(f"{path} can't be opened: {error.strerror}") from error
