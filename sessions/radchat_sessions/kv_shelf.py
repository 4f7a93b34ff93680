"""Where KV blocks lie: folder, lock, index and files together, and what happens when one fails.

A file is on disk under its name before its row is written, and gone before its row is deleted. So a
kill leaves files without a row, which the sweep adopts or deletes, and never a row whose file is
another's. Files are changed by one thread at a time, under ``_writing``. Questions don't wait for
it: an index that is busy, with a disk that is slow or hangs, is a miss.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from radchat_sessions.kv_blocks import ID_BYTES, Block, KeyOf, KVUnavailable, pieces
from radchat_sessions.kv_files import SUFFIX, Content, Damaged, Files, unpack, write_file
from radchat_sessions.kv_index import Index
from radchat_sessions.kv_lock import FolderLock
from radchat_sessions.kv_schema import Row
from radchat_sessions.kv_trouble import damage, is_broken, reason
from radchat_sessions.kv_written import Written

T = TypeVar("T")
log = logging.getLogger(__name__)

INDEX_BYTES = 4 << 20  # of free disk; what SQLite needs beside the index it has
PAUSE_S = 30.0  # after a write that failed, none is tried for so long
QUESTION_S = 0.02  # what a question waits for the index; whoever asks has an answer to compute
CLOSE_S = 2.0  # what is not closed by then is left to the end of the process


def free_bytes(folder: Path) -> int:
    """Of the disk that ``folder`` is on."""
    return shutil.disk_usage(folder).free


class Shelf:
    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float],
        free: Callable[[Path], int],
        files: Files,
        key_of: KeyOf,
        block_tokens: int,
    ) -> None:
        """Raises KVUnavailable."""
        self.folder = folder
        self.block_tokens = block_tokens
        self.trouble: str | None = None
        self.num_bad = 0
        self.files = files
        self.key_of = key_of
        self._clock = clock
        self._free = free
        self._writing = threading.RLock()
        self._lock: FolderLock | None = None
        self._index: Index | None = None
        self._index_broken = False
        self._closed = False
        self._failed_at: float | None = None
        self.late: set[tuple[str, str]] = set()  # (fingerprint, shard) to look through once more
        self.doomed: set[Path] = set()  # of these, those that must not be adopted
        self.stray_bytes: int | None = None  # files without a row; None: not counted yet
        self._told: set[str] = set()
        try:
            self._start()
        except KVUnavailable:
            self._close()
            raise

    # -- opening, and opening again ----------------------------------------------------------------

    def _start(self) -> None:
        """Folder, lock, an empty kv/tmp, index: what of it is not there. Raises KVUnavailable."""
        try:
            self.files.make_folder(self.folder)
            if self._lock is None or not self._lock.is_there():
                self._unlock()
                self._lock = FolderLock(self.folder / "lock")
                self.files.remove(self.folder / "tmp")
            self.files.make_folder(self.folder / "tmp")
            if self._index is not None and (self._index_broken or not self._index.is_there()):
                self._let_go()
            if self._index is None:
                self._index = self._open_index_on_a_full_disk()
                self._index_broken = False
                self.stray_bytes = None
                self.written = Written(self.files, self.folder / "written")
                self._begin_anew()
        except (OSError, sqlite3.Error) as error:
            raise KVUnavailable(self._reason(error)) from error

    def _open_index_on_a_full_disk(self) -> Index:
        """Where it can't be opened for want of space, the oldest files go, for KV goes before
        conversations. What follows them stays, as only the index would know; rows are missed later.
        """
        try:
            return self._open_index()
        except sqlite3.Error:
            if self._free(self.folder) >= INDEX_BYTES:
                raise
        old = sorted(self.folder.glob(f"*/??/*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in old:
            self.files.remove(path)
            if self._free(self.folder) >= INDEX_BYTES:
                break
        return self._open_index()

    def _open_index(self) -> Index:
        """One that is broken or of another format is deleted, not kept aside: it holds ids."""
        path = self.folder / "index.db"
        if not self._index_broken:
            try:
                return Index(path, self._clock())
            except sqlite3.Error as error:
                if not is_broken(error):
                    raise
                self._tell(f"index: {error}", f"{path} is made anew: {error}")
        for suffix in ("", "-wal", "-shm"):
            self.files.remove(path.with_name(path.name + suffix))
        return Index(path, self._clock())

    def _begin_anew(self) -> None:
        """The index was opened: what was known of files without a row is no longer."""

    def left_behind(self, fingerprint: str, key: str, error: OSError | None = None) -> None:
        """A file that could not be removed has no row: it counts, and is looked at when idle."""
        self.late.add((fingerprint, key[:2]))
        if error is not None:
            self._tell("stays", f"KV block {key} can't be deleted: {self._reason(error)}")
        self.stray_bytes = None

    def _ready(self) -> Index | None:
        """Under ``_writing``: the index, after what was removed under us is put back."""
        if self._closed:
            return None
        if not self._whole():
            if self._index is None and self._paused():
                return None
            try:
                self._start()
            except KVUnavailable as error:
                self._let_go()
                self._fail(error.message)
        return self._index

    def _whole(self) -> bool:
        """What we hold open is what lies in the folder."""
        index, lock = self._index, self._lock
        if index is None or lock is None or self._index_broken:
            return False
        return index.is_there() and lock.is_there()

    def _let_go(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def close(self) -> None:
        """What was used is remembered; everything after this is a miss. Where the disk hangs it
        returns after CLOSE_S, and the folder stays locked until the process ends.
        """
        self._closed = True
        closing = threading.Thread(target=self._close, name="kv-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            self._tell("close", f"the KV disk does not answer: {self.folder} is left as it is")

    def _close(self) -> None:
        with self._writing:
            self._closed = True
            if self._index is not None:
                with suppress(sqlite3.Error):
                    self._index.flush()
                    self._index.forget_removed()
            self._let_go()
            self._unlock()

    def no_stray(self, num_bytes: int) -> None:
        """A file of so many bytes is no longer one without a row."""
        if self.stray_bytes is not None:
            self.stray_bytes -= num_bytes

    # -- trouble -----------------------------------------------------------------------------------

    def ask(
        self, question: Callable[[Index], T], otherwise: T, *, patience: float = QUESTION_S
    ) -> T:
        """The index's answer; ``otherwise`` where none is to be had within so many seconds."""
        index = self._index
        if index is None or self._index_broken or self._closed:
            return otherwise
        if not index.lock.acquire(timeout=patience):
            return otherwise
        try:
            return question(index)
        except sqlite3.Error as error:
            self._index_failed(error)
            return otherwise
        finally:
            index.lock.release()

    def rows(self) -> list[Row]:
        """All of them; waits for the index, and lets questions in between."""
        index = self._index
        if index is not None and not self._index_broken:
            try:
                return index.rows()
            except sqlite3.Error as error:
                self._index_failed(error)
        return []

    @contextmanager
    def work(self) -> Iterator[Index | None]:
        """For changing files. What the disk refuses ends the block and becomes ``trouble``."""
        with self._writing:
            try:
                yield self._ready()
            except OSError as error:
                self._fail(self._reason(error))
            except sqlite3.Error as error:
                self._index_failed(error)
                if not self._index_broken:
                    self._fail(self._reason(error))

    def _index_failed(self, error: sqlite3.Error) -> None:
        if isinstance(error, sqlite3.ProgrammingError):
            return  # closed meanwhile by another thread
        if is_broken(error):
            self._index_broken = True  # the next work makes it anew
        self._tell(f"index: {error}", f"{self.folder / 'index.db'}: {error}")

    def _fail(self, reason: str) -> None:
        self.trouble = f"{reason}: KV is not written"
        self._failed_at = self._clock()
        self._tell(reason, self.trouble)

    def try_again(self) -> None:
        """No pause: somebody asks for it, or it is the last chance."""
        self._failed_at = None

    def _paused(self) -> bool:
        """A clock that was set back ends it."""
        return self._failed_at is not None and 0 <= self._clock() - self._failed_at < PAUSE_S

    def _reason(self, error: OSError | sqlite3.Error) -> str:
        return reason(error, self.folder)

    def _tell(self, kind: str, text: str) -> None:
        """Once each kind."""
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s", text)

    # -- blocks ------------------------------------------------------------------------------------

    def pieces(self, raw: bytes) -> Iterator[tuple[int, str, bytes]]:
        """(position, key of the block before, ids) for every block's worth of a path."""
        return pieces(raw, self.block_tokens, self.key_of)

    def place(self, fingerprint: str, key: str) -> Path:
        return self.folder / fingerprint / key[:2] / f"{key}{SUFFIX}"

    def read(self, fingerprint: str, block: Block) -> memoryview | None:
        try:
            data: memoryview | None = self._verified(fingerprint, block)
        except (OSError, Damaged, MemoryError):
            data = self._read_again(fingerprint, block)
        if data is not None:
            now = self._clock()
            self.ask(lambda index: index.touch(fingerprint, block.key, now), None)
        return data

    def _read_again(self, fingerprint: str, block: Block) -> memoryview | None:
        """Nobody writes now: it was replaced or evicted meanwhile, or it is damaged."""
        with self.work() as index:
            row = None if index is None else index.get(fingerprint, block.key)
            if index is None or row is None:
                return None
            try:
                return self._verified(fingerprint, block)
            except (OSError, Damaged) as error:
                if why := damage(error):
                    self.drop_bad(index, row, why)
            except MemoryError:
                pass
        return None

    def _verified(self, fingerprint: str, block: Block) -> memoryview:
        """Raises OSError, Damaged."""
        content = self.content(fingerprint, block.key, block.num_bytes)
        asked = block.end * ID_BYTES
        if (content.start, content.ids) != (block.start, block.ids) or (
            content.path[:asked] != block.path[:asked]
        ):
            raise Damaged("it holds other ids")
        return content.data

    def content(self, fingerprint: str, key: str, num_bytes: int) -> Content:
        """What the file of that name holds; raises OSError, Damaged."""
        content = unpack(self.files.read(self.place(fingerprint, key), num_bytes, num_bytes))
        if content.fingerprint != fingerprint:
            raise Damaged("it is of another model")
        return content

    def put(self, index: Index, row: Row, parts: tuple[bytes, memoryview, bytes]) -> None:
        """The file, then the row. Raises OSError, sqlite3.Error; then neither is there."""
        place, part = self.place(row.fingerprint, row.key), self.folder / "tmp" / row.key
        self.files.make_folder(part.parent)
        self.files.remove(part)
        write_file(self.files, part, parts)
        made = part
        try:
            if self.files.make_folder(place.parent):
                self.files.sync_folder(place.parent.parent)
                self.files.sync_folder(self.folder)
            if place.is_dir():
                self.files.remove(place)
            stray = 0 if index.get(row.fingerprint, row.key) else self.files.size(place)
            self.files.rename(part, place)
            made = place  # what was there before, without a row, is not ours to delete
            self.doomed.discard(place)
            self.no_stray(stray)
            self.files.sync_folder(place.parent)
            self.add(index, row)
        except BaseException:
            try:
                self.files.remove(made)
            except OSError as error:
                self.left_behind(row.fingerprint, row.key, error)
            raise

    def add(self, index: Index, row: Row) -> None:
        """The row of a file that is there. A shorter block that it begins with goes."""
        shorter = index.covered(row.fingerprint, row.parent, row.ids)
        if shorter is not None and shorter.key != row.key:
            self.files.remove(self.place(shorter.fingerprint, shorter.key))
        index.add(row, instead_of=shorter)

    def drop(self, index: Index, row: Row) -> None:
        self.files.remove(self.place(row.fingerprint, row.key))
        index.remove(row.fingerprint, row.key)

    def drop_bad(self, index: Index, row: Row, why: str) -> None:
        """What can't even be deleted is no longer listed, and left behind."""
        self.num_bad += 1
        self._tell(f"bad: {why}", f"KV block {row.key} was dropped: {why}")
        try:
            self.files.remove(self.place(row.fingerprint, row.key))
        except OSError as error:
            self.left_behind(row.fingerprint, row.key, error)
        try:
            index.remove(row.fingerprint, row.key)
        except sqlite3.Error as error:
            self._index_failed(error)

    def shrink(
        self, index: Index, num_bytes: int, spared: Collection[tuple[str, str]] = ()
    ) -> Iterator[Row]:
        """Drop least recently used leaves until ``num_bytes`` are freed; what has gone."""
        freed = 0
        while freed < num_bytes:
            row = index.next_to_go(spared)
            if row is None:
                return
            self.drop(index, row)
            freed += row.num_bytes
            yield row
