"""The history file of the prompt: what was typed, and in which session, so that it can go with it.

An entry is a comment ``# TIME SESSION`` and ``+TEXT`` for each line of the text, as prompt_toolkit
has it. Whoever writes holds the file's lock; nobody replaces the file under another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path

MOST_BYTES = 1 << 20  # that are looked through for what was typed before
_ENTRY = re.compile(rb"^# [^\n]*$", re.MULTILINE)
_LINES = re.compile(rb"(?:^\+[^\n]*\n)+", re.MULTILINE)


def add(path: Path, text: str, session: str) -> None:
    """An entry more; ``session`` is the id of the one it was typed in. Raises OSError."""
    lines = "".join(f"+{line}\n" for line in text.split("\n"))
    entry = f"\n# {datetime.now().astimezone().isoformat()} {session}\n{lines}"
    with _locked(path, os.O_APPEND) as file:
        os.write(file, entry.encode("utf-8", "replace"))


def latest(path: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """The texts at the end of the file, the newest first; a chat of years begins as quickly as a
    new one. Raises OSError.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - most_bytes)
        file.seek(start)
        data = file.read()
    if start:
        begin = _ENTRY.search(data)
        data = data[begin.start() :] if begin else b""
    texts = ("\n" + found[0].decode("utf-8", "replace")[:-1] for found in _LINES.finditer(data))
    return [text.replace("\n+", "\n")[1:] for text in texts][::-1]


def forget(path: Path, sessions: Collection[str]) -> int:
    """Take out what was typed in these sessions; how many entries. Raises OSError."""
    if not path.exists():
        return 0
    named = {session.encode() for session in sessions}
    with _locked(path, 0) as file, open(file, "r+b", closefd=False) as whole:
        data = whole.read()
        kept, gone = b"", 0
        starts = [found.start() for found in _ENTRY.finditer(data)]
        for start, stop in zip([0, *starts], [*starts, len(data)], strict=True):
            entry = data[start:stop]
            heading = entry.split(b"\n", 1)[0].split(b" ")
            if len(heading) == 3 and heading[2] in named:
                gone += 1
            else:
                kept += entry
        if gone:
            whole.seek(0)
            whole.write(kept)
            whole.truncate()
            whole.flush()
            os.fsync(file)
    return gone


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    """Open for reading and writing, 0600, made if need be; locked until the end."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)
