"""Text that comes by a pipe or a file, and the prompt it makes with the words typed.

A command never answers without the input it was given, and never waits for a terminal or
/dev/null that it merely inherited (docs/cli.md, "Streams" 5).
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Sequence

from radchat.chat.files import MAX_BYTES, decode
from radchat.chat.text import join_surrogates
from radchat.errors import InvalidInput, UsageError

NOTE_AFTER_S = 2.0
TIMEOUT_S = 30.0
FORCE = "-"


def compose(
    words: Sequence[str],
    *,
    note: Callable[[str], None],
    timeout_s: float = TIMEOUT_S,
    no_stdin: bool = False,
    is_optional: bool = False,
    descriptor: int = 0,
) -> str:
    """The prompt: piped text, a blank line, the words. Raises if there is nothing to say, and
    something must be said.
    """
    forced = FORCE in words
    argument = join_surrogates(" ".join(word for word in words if word != FORCE)).strip()
    if forced and no_stdin:
        raise UsageError("`-` reads stdin and --no-stdin forbids it: give one of them")
    piped = None
    if forced or (not no_stdin and is_given(descriptor)):
        piped = read(descriptor, note=note, timeout_s=timeout_s)
        if not piped.strip() and argument:
            note("stdin was empty: only the words of the command line are sent")
    parts = [part for part in ((piped or "").rstrip("\n"), argument) if part.strip()]
    if parts:
        return "\n\n".join(parts)
    if is_optional:
        return ""
    if piped is not None:
        raise InvalidInput("nothing to ask: stdin was empty")
    raise UsageError("nothing to ask: give a prompt, or pipe text into it")


def is_given(descriptor: int) -> bool:
    """A pipe, a socket or a file; not a terminal, not /dev/null, not a closed stdin."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read(descriptor: int, *, note: Callable[[str], None], timeout_s: float) -> str:
    """All of it, as text. Silence is said after 2 s, and ends the command after the timeout."""
    may_wait = os.isatty(descriptor)  # `-` on a terminal: typed until Ctrl+D, at any pace
    chunks: list[bytes] = []
    size = 0
    while True:
        if not may_wait:
            _await(descriptor, note, timeout_s)
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return decode(b"".join(chunks), "stdin")
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise InvalidInput(f"stdin is longer than {MAX_BYTES // 2**20} MiB")


def _await(descriptor: int, note: Callable[[str], None], timeout_s: float) -> None:
    first = min(NOTE_AFTER_S, timeout_s)
    if select.select([descriptor], [], [], first)[0]:
        return
    if timeout_s > first:
        note(f"waiting for text on stdin, {timeout_s:g} s at most (--no-stdin: do not read it)")
        if select.select([descriptor], [], [], timeout_s - first)[0]:
            return
    raise InvalidInput(
        f"stdin is open but silent for {timeout_s:g} s: close it, or say --no-stdin "
        "(--stdin-timeout S waits longer)"
    )
