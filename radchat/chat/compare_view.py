"""Paths beside each other for people: what is the same told once, then what each says after it.

In columns where the terminal has room for them, else one after the other, labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from radchat.chat.columns import GAP, fit, fold, room
from radchat.chat.footer import counted
from radchat.chat.paths import Beside, Message, Side, in_tokens
from radchat.chat.text import one_line
from radchat.chat.transcript import text_lines
from radchat.chat.tree_view import Paint, unpainted
from radchat.chat.width import cut, visible_width


def room_for(sides: int, columns: int | None) -> int | None:
    """Columns for each of so many paths side by side; None where they have no room."""
    return None if columns is None or fit(columns) < sides else room(columns, sides)


def lines(
    what: Beside,
    *,
    columns: int | None,
    side_by_side: bool,
    renders: bool = False,
    paint: Paint = unpainted,
) -> list[str]:
    """``side_by_side``: if there is room for it. ``renders``: answers as Markdown."""
    each = room_for(len(what.sides), columns) if side_by_side else None
    head = what.same()
    told = [paint(head if columns is None else cut(head, columns), "bold"), ""]
    if each is not None:
        return [*told, *_columns(what, each, renders, paint)]
    for number, side in enumerate(what.sides):
        title = f"=== {_title(side)}"
        told += ["", ""] if number else []
        told.append(paint(title if columns is None else cut(title, columns), "bold"))
        for message in side.below:
            told += ["", paint(_heading(what, message), "dim")]
            told += text_lines(message, columns, renders=renders)
    return told


def _title(side: Side) -> str:
    if not side.below:
        return f"{side.label}: nothing after it"
    return f"{side.label}: {counted(len(side.below), 'message')}{in_tokens(side.tokens)}"


def _heading(what: Beside, message: Message) -> str:
    return f"{one_line(str(message['role']))} {what.short[str(message['id'])]}"


def _columns(what: Beside, room: int, renders: bool, paint: Paint) -> list[str]:
    """Each message begins on a line of its own in every column."""
    titles = [[paint(line, "bold") for line in fold(_title(side), room)] for side in what.sides]
    told = [_row(row, room) for row in zip_longest(*titles, fillvalue="")]
    for messages in zip_longest(*(side.below for side in what.sides)):
        cells: list[list[str]] = []
        for message in messages:
            cell = []
            if message is not None:
                cell = [paint(cut(_heading(what, message), room), "dim")]
                cell += text_lines(message, room, renders=renders)
            cells.append(cell)
        told.append(_row([""] * len(cells), room))
        told += [_row(row, room) for row in zip_longest(*cells, fillvalue="")]
    return told


def _row(cells: Sequence[str], room: int) -> str:
    padded = [cell + " " * (room - visible_width(cell)) for cell in cells]
    return GAP.join(padded).rstrip()
