"""Which blocks there are: one SQLite database beside the files, for O(log n) questions.

Sorted by (fingerprint, parent, ids), ids as bytes, the block that shares most with a run of ids
stands right before or right after the place of that run: two steps into the tree, no scan. Among
siblings none begins with another, since a longer block replaces the shorter one. Totals and counts
of children are kept by triggers, so that opening costs the same with any number of rows.

One connection and a lock: any thread may call. Raises sqlite3.Error only; what it says is derived
from the files and may be made anew at any time, so it is never worth a sync of its own: SQLite
syncs where the log is emptied (``forget_removed``), and before the first change after that.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from radchat_sessions.kv_schema import FORMAT, SCRIPT, Row

_PAGE_SIZE = 8192  # a row with 256 ids fits four times into one
_MOST_REMEMBERED = 4096
_OTHERS_S = 5.0  # how long a change waits for another program that holds the database
_LOOK_S = 0.02
_PAGE_ROWS = 500

_FIELDS = ", ".join(Row._fields)
_ROWS = f"SELECT {_FIELDS} FROM blocks "  # noqa: S608 - names of ours
Neighbours = tuple[Row | None, Row | None]


class Index:
    def __init__(self, path: Path, now: float) -> None:
        """Opens or makes it. Raises sqlite3.Error: also for one that is broken, or too new."""
        self.path = path
        self.lock = threading.RLock()  # held by whoever asks more than one thing, or wants no wait
        self._touched: dict[tuple[str, str], tuple[int, float]] = {}
        self._remembered: dict[tuple[str, str, bytes], Neighbours] = {}
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # -wal takes the mode
        self._db = sqlite3.connect(
            path, isolation_level=None, timeout=_OTHERS_S, check_same_thread=False
        )
        try:
            self._prepare(now)
            self.made_at = float(self._one("SELECT made FROM meta")[0])
            self._tick = self._last_tick()
            self._totals = self._read_totals()
            self.forget_removed()  # which a kill can have left undone
            self._db.execute("PRAGMA busy_timeout = 0")  # from here on nobody is waited for in here
        except BaseException:
            self._db.close()
            raise
        self._inode = _inode(path)

    def close(self) -> None:
        with self.lock:
            self._db.close()

    def is_there(self) -> bool:
        """False: the file was removed, or another has its name."""
        return _inode(self.path) == self._inode

    # -- questions ---------------------------------------------------------------------------------

    def neighbours(self, fingerprint: str, parent: str, ids: bytes) -> Neighbours:
        """The siblings that would stand around ``ids``: (the last one not after, the next)."""
        asked = (fingerprint, parent, ids)
        with self.lock:
            found = self._remembered.get(asked)
            if found is None:
                where = "WHERE fingerprint = ? AND parent = ? AND ids "
                found = (
                    self._row(where + "<= ? ORDER BY ids DESC LIMIT 1", *asked),
                    self._row(where + "> ? ORDER BY ids LIMIT 1", *asked),
                )
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[asked] = found
            return found

    def covering(self, fingerprint: str, parent: str, ids: bytes) -> Row | None:
        """The sibling that begins with ``ids``, or is it."""
        before, after = self.neighbours(fingerprint, parent, ids)
        if before is not None and before.ids == ids:
            return before
        return after if after is not None and after.ids.startswith(ids) else None

    def covered(self, fingerprint: str, parent: str, ids: bytes) -> Row | None:
        """The sibling that ``ids`` begin with; there is one at most."""
        before, _ = self.neighbours(fingerprint, parent, ids)
        return before if before is not None and ids.startswith(before.ids) else None

    def siblings(self, fingerprint: str, parent: str, first: bytes) -> list[Row]:
        """All that begin with the id ``first``."""
        sql = "WHERE fingerprint = ? AND parent = ? AND substr(ids, 1, 4) = ? AND ids >= ?"
        with self.lock:
            return self._rows(sql, fingerprint, parent, first, first)

    def children(self, fingerprint: str, key: str) -> list[Row]:
        with self.lock:
            return self._rows("WHERE fingerprint = ? AND parent = ?", fingerprint, key)

    def get(self, fingerprint: str, key: str) -> Row | None:
        with self.lock:
            return self._row("WHERE fingerprint = ? AND key = ?", fingerprint, key)

    def rows(self) -> list[Row]:
        """All of them, in the order of last use. Others get their answers in between."""
        self.flush()
        found: list[Row] = []
        last = 0
        while True:
            with self.lock:
                page = self._db.execute(
                    f"SELECT rowid, {_FIELDS} FROM blocks WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608
                    (last, _PAGE_ROWS),
                ).fetchall()
            if not page:
                return sorted(found, key=lambda row: row.tick)
            last = page[-1][0]
            found += [Row._make(values[1:]) for values in page]

    def keys(self, fingerprint: str, shard: str) -> set[str]:
        """Those that begin with the two digits ``shard``."""
        sql = "SELECT key FROM blocks WHERE fingerprint = ? AND key >= ? AND key < ?"
        with self.lock:
            found = self._db.execute(sql, (fingerprint, shard, shard + "g")).fetchall()
        return {str(key) for (key,) in found}

    def shards(self) -> set[tuple[str, str]]:
        """(fingerprint, the first two digits of its keys); looks at every row."""
        sql = "SELECT DISTINCT fingerprint, substr(key, 1, 2) FROM blocks"
        with self.lock:
            return set(self._db.execute(sql).fetchall())

    def next_to_go(self, spared: Collection[tuple[str, str]]) -> Row | None:
        """The least recently used leaf that is not one of ``spared`` (fingerprint, key).

        A block with children only where there is no leaf at all, which keys that collide can do.
        """
        with suppress(sqlite3.OperationalError):  # a full disk: what goes now makes room
            self.flush()
        with self.lock:
            sql = _ROWS + "ORDER BY children > 0, tick LIMIT ?"
            for values in self._db.execute(sql, (len(spared) + 1,)):
                row = Row._make(values)
                if (row.fingerprint, row.key) not in spared:
                    return row
        return None

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """fingerprint: (blocks, tokens, bytes). Waits for nothing, nor does ``num_bytes``."""
        return dict(self._totals)

    def num_bytes(self) -> int:
        return sum(size for _, _, size in self._totals.values())

    # -- changes -----------------------------------------------------------------------------------

    def add(self, row: Row, *, instead_of: Row | None = None) -> None:
        """``row``, and no longer ``instead_of``, nor another with its key."""
        with self._change():
            for gone in (row, instead_of):
                if gone is not None:
                    self._delete(gone.fingerprint, gone.key)
            marks = ", ".join("?" * len(Row._fields))
            self._db.execute(
                f"INSERT INTO blocks ({_FIELDS}) VALUES ({marks})",  # noqa: S608
                row,
            )

    def remove(self, fingerprint: str, key: str) -> None:
        with self._change():
            self._delete(fingerprint, key)

    def clear(self, fingerprint: str | None) -> None:
        with self._change():
            if fingerprint is None:
                self._db.execute("DELETE FROM blocks")
            else:
                self._db.execute("DELETE FROM blocks WHERE fingerprint = ?", (fingerprint,))

    def tick(self) -> int:
        with self.lock:
            self._tick += 1
            return self._tick

    def touch(self, fingerprint: str, key: str, now: float) -> None:
        """It was used; told to the disk with many others, when something asks for their order."""
        with self.lock:
            self._touched[fingerprint, key] = (self.tick(), now)

    def flush(self) -> None:
        if not self._touched:
            return
        with self._transaction():
            self._db.executemany(
                "UPDATE blocks SET tick = ?, used = ? WHERE fingerprint = ? AND key = ?",
                [(*when, *which) for which, when in self._touched.items()],
            )
            self._touched.clear()

    def forget_removed(self) -> bool:
        """Empty the write-ahead log, which still holds pages from before a removal. False: another
        program is reading them.
        """
        with self.lock:
            return not self._one("PRAGMA wal_checkpoint(TRUNCATE)")[0]

    def _prepare(self, now: float) -> None:
        self._db.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint = 0")  # it syncs, and questions would wait
        self._db.execute("PRAGMA temp_store = MEMORY")
        self._db.execute("PRAGMA secure_delete = ON")  # ids are words
        found = self._one("PRAGMA user_version")[0]
        if found == 0:
            self._db.executescript(
                f"BEGIN IMMEDIATE;\n{SCRIPT}\nINSERT INTO meta VALUES ({float(now)!r});\n"
                f"PRAGMA user_version = {FORMAT};\nCOMMIT;"
            )
        elif found != FORMAT:
            raise sqlite3.DatabaseError(f"of format {found}, not {FORMAT}")

    # -- inside ------------------------------------------------------------------------------------

    def _delete(self, fingerprint: str, key: str) -> None:
        self._touched.pop((fingerprint, key), None)
        self._db.execute("DELETE FROM blocks WHERE fingerprint = ? AND key = ?", (fingerprint, key))

    def _last_tick(self) -> int:
        ends = [
            self._one("SELECT max(tick) FROM blocks WHERE (children > 0) = ?", inner)[0]
            for inner in (0, 1)
        ]
        return max(0, *(tick for tick in ends if tick is not None), 0)

    def _one(self, sql: str, *values: object) -> tuple[int, ...]:
        found: tuple[int, ...] | None = self._db.execute(sql, values).fetchone()
        if found is None:
            raise sqlite3.DatabaseError("a row that must be there is not")
        return found

    def _row(self, where: str, *values: object) -> Row | None:
        found = self._db.execute(_ROWS + where, values).fetchone()
        return None if found is None else Row._make(found)

    def _rows(self, where: str, *values: object) -> list[Row]:
        return [Row._make(found) for found in self._db.execute(_ROWS + where, values)]

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._transaction():
            self._remembered.clear()
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Where another program holds the database, waits without the lock."""
        until = time.monotonic() + _OTHERS_S
        while not self._begins(wait=time.monotonic() < until):
            time.sleep(_LOOK_S)
        try:
            yield
            totals = self._read_totals()
            self._db.execute("COMMIT")
            self._totals = totals
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            raise
        finally:
            self.lock.release()

    def _begins(self, *, wait: bool) -> bool:
        """With the lock held, if so. False: another program has the database."""
        self.lock.acquire()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self.lock.release()
            if wait and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                return False
            raise
        return True

    def _read_totals(self) -> dict[str, tuple[int, int, int]]:
        found = self._db.execute("SELECT fingerprint, blocks, tokens, num_bytes FROM totals")
        return {fingerprint: (blocks, tokens, size) for fingerprint, blocks, tokens, size in found}


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return (info.st_dev, info.st_ino)
