"""A note or an error on stderr: broken at words where it is a terminal, else as it is."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from radchat.chat.width import wrap

if TYPE_CHECKING:
    from typing import TextIO


def columns(stream: TextIO) -> int:
    """The terminal's width; COLUMNS wins, as in every tool that asks it."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def say(text: str, columns: int, style: tuple[str, str] = ("", "")) -> None:
    """``text`` is cleaned; ``columns`` of the terminal; ``style`` opens and closes its colour.

    A terminal breaks a long line in mid-word. A pipe gets the line whole, for whoever reads it.
    """
    shown = "\n".join(wrap(text, columns)) if sys.stderr.isatty() else text
    print(f"{style[0]}{shown}{style[1]}", file=sys.stderr, flush=True)
