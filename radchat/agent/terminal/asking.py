"""Answers that somebody gives to a question that is there: one key, or a line.

What was typed before the question is not read as its answer: it waits for the next prompt, and the
question is put only once nothing has been typed for a moment.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Protocol

from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from radchat.chat import keyboard
from radchat.chat.text import clean, typed

CALM_S = 0.3  # in which nobody types
SETTLE_S = 0.05  # what follows a key so soon belongs to it: a sequence, a paste
PATIENCE = 200  # times that somebody goes on typing; a terminal that is gone does so for ever
STOP = "stop"  # Esc, Ctrl+C, Ctrl+D, or the terminal went away
NO_KEY = ""  # several at once, a paste, an arrow


class Typing(Protocol):
    """Of a prompt: what was typed until now is put aside for it."""

    @property
    def source(self) -> Input: ...
    def take(self) -> None: ...


def calm(typing: Typing) -> None:
    """Until nobody types."""
    typing.take()
    for _ in range(PATIENCE):
        if not _waits(CALM_S):
            break
        typing.take()


def read_key(typing: Typing) -> str:
    """A letter that came alone, STOP or NO_KEY. Raises KeyboardInterrupt."""
    source = typing.source
    keys: list[KeyPress] = []
    while not keys and not source.closed:  # of a paste that is not at its end there are none
        _waits(None)
        keys = source.read_keys()
        while not source.closed and _waits(SETTLE_S):
            keys += source.read_keys()
        keys += source.flush_keys()
    if source.closed:
        return STOP
    if len(keys) != 1:
        return NO_KEY
    (key,) = keys
    if key.key in (Keys.Escape, Keys.ControlC, Keys.ControlD):
        return STOP
    return key.data.lower() if not isinstance(key.key, Keys) else NO_KEY


def read_line(write: Callable[[str], None], mark: str) -> str | None:
    """In the terminal's own line editing; what was typed or pasted behind it waits for the prompt.
    None: Ctrl+C, Ctrl+D, or the terminal went away.
    """
    line = b""
    try:
        with keyboard.lent():
            write(mark)  # when Enter is Enter already: somebody may be quick
            while not line.endswith(b"\n"):
                piece = os.read(sys.stdin.fileno(), 1 << 16)
                if not piece:
                    break
                line += piece
    except (KeyboardInterrupt, OSError):
        line = b""
    if not line.endswith(b"\n"):
        write("\n")
        return None
    return clean(typed(line.decode("utf-8", "replace"))).strip()


def _waits(seconds: float | None) -> bool:
    return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])
