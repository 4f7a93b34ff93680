"""Whoever sits there: what is said to them, and how much of it they see at a time."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from prompt_toolkit.input import Input, create_input

from radchat.chat import typed_ahead
from radchat.chat.say import columns


def stream() -> TextIO:
    """The log may go to a file; what somebody is to answer must be seen."""
    return sys.stderr if sys.stderr.isatty() else sys.stdout


def tell(text: str) -> None:
    """Text that is clean."""
    shown = stream()
    shown.write(text)
    shown.flush()


def size() -> tuple[int, int]:
    """Columns and rows."""
    shown = stream()
    try:
        rows = os.get_terminal_size(shown.fileno()).lines or 24
    except (OSError, ValueError):
        rows = 24
    return columns(shown), rows


class Keyboard:
    """Where there is no prompt: what is typed before a question is for nobody."""

    def __init__(self) -> None:
        self._source = create_input()

    @property
    def source(self) -> Input:
        return self._source

    def take(self) -> None:
        typed_ahead.take(self._source)
        typed_ahead.held(self._source)
