"""Keys typed while there was no prompt: they act at the next one as if they were typed there.

Enter sends, `/tree` is a command, a paste is a paste. Where something went wrong in between, they
are held: their text is offered, and nothing of it is sent.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from radchat.chat.keyboard import NEXT_PIECE_S, is_quiet
from radchat.chat.text import unsent

TAKEN_S = 2.0  # what somebody types without end is left to the prompt
_ENTER = frozenset({Keys.ControlM, Keys.ControlJ})
_NEWLINE = KeyPress(Keys.ControlJ, "\n")
# of keys that are no letters, what only edits a text
_EDITS = frozenset(
    {Keys.BracketedPaste, Keys.ControlH, Keys.ControlW, Keys.ControlU, Keys.ControlA, Keys.ControlE}
    | {Keys.Left, Keys.Right, Keys.Home, Keys.End, Keys.Delete}
)


def take(source: Input) -> None:
    """Keep what was typed until now; later keys are another matter."""
    keys: list[KeyPress] = []
    deadline = time.monotonic() + TAKEN_S
    while _has_more(source, NEXT_PIECE_S if keys else 0) and time.monotonic() < deadline:
        keys += source.read_keys()
        if source.closed:
            break
    store_typeahead(source, keys + source.flush_keys())


@contextlib.contextmanager
def aside(source: Input) -> Iterator[None]:
    """For a view that has keys of its own, and was not seen yet by who typed these: in a chat they
    wait until it has ended, for the prompt.
    """
    if is_quiet():
        take(source)
    keys = get_typeahead(source) if is_quiet() else []
    try:
        yield
    finally:
        store_typeahead(source, [*keys, *get_typeahead(source)])


def held(source: Input) -> list[KeyPress]:
    """Of what was kept, the keys that make its text: Enter is a newline, and sends nothing."""
    keys: list[KeyPress] = []
    is_meta = False  # Alt and a letter come as Escape and the letter
    for key in get_typeahead(source):
        if key.key in _ENTER:
            keys.append(_NEWLINE)
        elif _is_text(key) and not is_meta:
            keys.append(key)
        is_meta = key.key == Keys.Escape
    while keys and keys[-1] is _NEWLINE:
        keys.pop()
    while keys and keys[0] is _NEWLINE:
        del keys[0]
    return keys


def below(text: object, keys: list[KeyPress]) -> list[KeyPress]:
    """These keys behind a text, if there is one: on a line of their own."""
    return [_NEWLINE, *keys] if text and keys else keys


def early(text: str) -> list[KeyPress]:
    """Typed into the terminal's own line editing, where an Enter and a newline look the same: the
    end of a single line is Enter, several lines are a paste that came too early.
    """
    keys: list[KeyPress] = []
    line, end, more = text.partition("\n")
    if more.strip("\n"):
        keys.append(KeyPress(Keys.BracketedPaste, unsent(text)))
        return keys
    parser = Vt100Parser(keys.append)
    parser.feed_and_flush(line + ("\r" if end else ""))
    return keys


def _is_text(key: KeyPress) -> bool:
    return key.key in _EDITS or (not isinstance(key.key, Keys) and key.data.isprintable())


def _has_more(source: Input, wait_s: float) -> bool:
    return bool(select.select([source.fileno()], [], [], wait_s)[0])
