"""Files of the answers being generated: what was shown is on disk before it is shown.

``<id>.ids`` holds the ids sampled so far, 4 bytes each, little-endian. ``<id>.text`` holds their
words, one JSON line ``[type, text]`` an append, since the store has no tokenizer to make them
again. Both are only ever appended to, at once, and fsynced at most once a second. A kill can leave
a torn last record; reading cuts it (PS-01).

A write that fails loses nothing: what is not yet on disk is kept and written with the next append.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from radchat_sessions.content import ID_BYTES, Ids, Part, clean, dumps, pack_ids, unpack_ids
from radchat_sessions.errors import SaveFailed

FSYNC_INTERVAL_S = 1.0


class RawFile(Protocol):
    """An unbuffered file open for appending; the seam for failing disks."""

    def write(self, data: bytes) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def is_there(self) -> bool: ...  # False: its name was deleted or given to another file
    def close(self) -> None: ...


class AppendFile:
    """A real one, mode 0600."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._path = path
        self._fd = os.open(path, flags, 0o600)

    def write(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._fd)


OpenFile = Callable[[Path], RawFile]


class Leftover(NamedTuple):
    ids: Ids
    parts: list[Part]
    cut_bytes: int  # of torn last records


class _Log:
    """One append-only file and a copy of all of it, so that it can be finished or made again."""

    def __init__(self, path: Path, open_file: OpenFile) -> None:
        self._path = path
        self._open_file = open_file
        self._file: RawFile | None = None
        self._content = bytearray()
        self._saved = 0  # bytes of content known to be in the file

    def append(self, data: bytes) -> None:
        """Raises OSError; then ``data`` is kept for the next append."""
        self._content += data
        if self._file is None:
            self._file = self._open_file(self._path)
            self._file.truncate(0)
            self._saved = 0
        try:
            while self._saved < len(self._content):
                with memoryview(self._content)[self._saved :] as rest:
                    self._saved += self._file.write(bytes(rest))
        except OSError:
            whole = self._saved
            with suppress(OSError):  # what a short write left is correct bytes: they may stay
                self._file.truncate(whole)
            raise

    def sync(self) -> None:
        if self._file is None:
            return
        if not self._file.is_there():  # the folder was deleted under us (PS-07)
            self.close()
            self.append(b"")
        self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Answer:
    def __init__(self, folder: Path, answer_id: str, open_file: OpenFile, now: float) -> None:
        self.ids = _Log(folder / f"{answer_id}.ids", open_file)
        self.text = _Log(folder / f"{answer_id}.text", open_file)
        self.synced_at = now

    def close(self) -> None:
        self.ids.close()
        self.text.close()


class RunningFiles:
    """All of them. ``folder`` None: nothing is written (an ephemeral store)."""

    def __init__(
        self,
        folder: Path | None,
        clock: Callable[[], float],
        open_file: OpenFile = AppendFile,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._open_file = open_file
        self._open: dict[str, _Answer] = {}

    def append(self, answer_id: str, ids: Sequence[int], text: str, kind: str) -> None:
        """Raises SaveFailed; what could not be written is tried again at the next append."""
        if self._folder is None:
            return
        now = self._clock()
        answer = self._open.get(answer_id)
        if answer is None:
            answer = self._open[answer_id] = _Answer(self._folder, answer_id, self._open_file, now)
        failure: OSError | None = None
        # ids first: a kill between the two loses words nobody has been shown yet
        writes = [(answer.ids, pack_ids(ids))]
        if text:
            writes.append((answer.text, dumps([kind, clean(text)]).encode() + b"\n"))
        for log, data in writes:
            try:
                log.append(data)
            except OSError as error:
                failure = error
        # a wall clock that was set back must not stop the syncing
        if failure is None and not 0 <= now - answer.synced_at < FSYNC_INTERVAL_S:
            answer.synced_at = now
            try:
                answer.ids.sync()
                answer.text.sync()
            except OSError as error:
                failure = error
        if failure is not None:
            raise SaveFailed(
                f"the running answer is not being saved to {self._folder}: {failure.strerror}"
            ) from failure

    def drop(self, answer_id: str) -> None:
        """After its message is in the database, or when nothing was generated."""
        answer = self._open.pop(answer_id, None)
        if answer is not None:
            answer.close()
        if self._folder is not None:
            for suffix in (".ids", ".text"):
                with suppress(OSError):  # swept at the next open
                    (self._folder / f"{answer_id}{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        for answer in self._open.values():
            answer.close()
        self._open.clear()

    # -- after a crash -----------------------------------------------------------------------------

    def read(self, answer_id: str) -> Leftover:
        """What is there of an answer, torn ends cut; empty where there is no file."""
        if self._folder is None:
            return Leftover(unpack_ids(b""), [], 0)
        raw = _read(self._folder / f"{answer_id}.ids")
        torn = len(raw) % ID_BYTES
        lines = _read(self._folder / f"{answer_id}.text")
        parts, whole = _parts(lines)
        return Leftover(unpack_ids(raw[: len(raw) - torn]), parts, torn + len(lines) - whole)

    def sweep(self) -> None:
        """Delete files of no running answer: finished, then killed before the unlink."""
        if self._folder is None or not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if path.suffix in (".ids", ".text") and path.stem not in self._open:
                path.unlink(missing_ok=True)


def _parts(lines: bytes) -> tuple[list[Part], int]:
    """The words up to the first line that is none, and the bytes they took.

    A torn last line is the work of a kill; a power cut may leave zeros in the middle as well.
    """
    parts: list[Part] = []
    whole = 0
    for line in lines.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            kind, text = json.loads(line)
        except (ValueError, TypeError):
            break
        if kind not in ("text", "reasoning") or not isinstance(text, str):
            break
        whole += len(line)
        if parts and parts[-1]["type"] == kind:
            parts[-1] = {"type": kind, "text": parts[-1]["text"] + text}
        else:
            parts.append({"type": kind, "text": text})
    return parts, whole


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
