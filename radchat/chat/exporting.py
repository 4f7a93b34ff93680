"""An exported session into a file: whole or not at all, and for its owner's eyes only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from radchat.errors import InvalidInput, UsageError

FORMATS: Final = ("md", "json", "jsonl", "openai")
_SUFFIXES: Final = {".md": "md", ".markdown": "md", ".json": "json", ".jsonl": "jsonl"}


def format_of(path: str | None, given: str | None = None) -> str:
    """The format named, else the one the file's name says, else Markdown."""
    if given is not None:
        if given not in FORMATS:
            raise UsageError(f"--format {given}: want {', '.join(FORMATS)}")
        return given
    return _SUFFIXES.get(Path(path or "").suffix.lower(), "md")


def write(path: str, text: str) -> tuple[Path, bool]:
    """The file, and whether it replaced one. Raises InvalidInput; what was there before stays until
    all of the new is.
    """
    target = Path(path).expanduser()
    part: str | None = None
    try:
        if target.exists() and not target.is_file():  # a pipe, /dev/stdout, a folder
            target.write_text(text, encoding="utf-8")
            return target, False
        was_there = target.exists()
        descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=".radchat-")  # 0600
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(target.resolve())
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                Path(part).unlink()
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error
    return target, was_there
