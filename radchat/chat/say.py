"""A note or an error on stderr: broken at words where it is a terminal, else as it is."""

from __future__ import annotations

import sys

from radchat.chat.width import wrap


def say(text: str, columns: int, style: tuple[str, str] = ("", "")) -> None:
    """``text`` is cleaned; ``columns`` of the terminal; ``style`` opens and closes its colour.

    A terminal breaks a long line in mid-word. A pipe gets the line whole, for whoever reads it.
    """
    shown = "\n".join(wrap(text, columns)) if sys.stderr.isatty() else text
    print(f"{style[0]}{shown}{style[1]}", file=sys.stderr, flush=True)
