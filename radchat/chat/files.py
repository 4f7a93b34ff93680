"""Files and piped bytes as text to send along."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

from radchat.errors import InvalidInput
from radchat.mentions import mentioned

MAX_BYTES = 32 * 1024 * 1024


def decode(data: bytes, name: str) -> str:
    """UTF-8, with or without a mark; anything else is refused by name, not guessed at."""
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name} is not UTF-8 text (byte 0x{data[error.start]:02x} at {error.start:,})"
        ) from error


def load(path: str) -> dict[str, str]:
    """A file to send along: its name and its text."""
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"{path} is longer than {MAX_BYTES // 2**20} MiB")
    return {"name": Path(path).name, "text": decode(data, path)}


def named_files(text: str) -> list[dict[str, str]]:
    """Files named in a message as @PATH, or @"PATH" where it has spaces; an @word that is no file
    is a word.
    """
    found = []
    for paths in mentioned(text):
        for name in paths:
            if _is_file(name):
                found.append(load(name))
                break
    return found


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no such user's home
        return False


def files_of(texts: Sequence[str]) -> list[dict[str, str]]:
    """The files that a message names; of several asked at once, those that each of them does."""
    named = [named_files(text) for text in texts]
    if any(files != named[0] for files in named):
        raise InvalidInput(
            "what-ifs that name different files: name the same @PATH in each, or /file PATH, which "
            "goes with all"
        )
    return named[0]
