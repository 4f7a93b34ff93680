"""`/vote` in a chat: many answers from where it stands, and on from the first of those that most
give.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radchat.chat.generating import generate, how_shown
from radchat.chat.many import shows_columns
from radchat.chat.view import Answer
from radchat.errors import UsageError
from radchat.programs.extracting import extraction
from radchat.programs.vote_view import VoteView

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

USAGE = (
    "/vote [-N K] [--extract REGEX|json:PATH|last-number|last-line] [--early-stop] [--show-all] "
    "TEXT: a value with spaces is quoted"
)
_VALUE = re.compile(r"(-N|--extract)(?:\s+|=)('[^']*'|\"[^\"]*\"|\S+)\s*")
_FLAG = re.compile(r"(--early-stop|--show-all)(?:\s+|$)")


@dataclass(slots=True)
class Asked:
    text: str
    number: int = 16
    extract: str | None = None
    early_stop: bool = False
    show_all: bool = False


def parse(rest: str) -> Asked:
    asked = Asked(rest)
    while found := _VALUE.match(rest) or _FLAG.match(rest):
        rest = rest[found.end() :]
        if found[1] == "--early-stop":
            asked.early_stop = True
        elif found[1] == "--show-all":
            asked.show_all = True
        elif found[1] == "--extract":
            is_quoted = found[2][0] in "'\"" and found[2][-1] == found[2][0]
            asked.extract = found[2][1:-1] if is_quoted else found[2]
        elif found[2].isdecimal() and int(found[2]):
            asked.number = int(found[2])
        else:
            raise UsageError(USAGE)
    asked.text = rest.strip()
    if not asked.text or rest.startswith("--"):
        raise UsageError(USAGE)
    return asked


def vote(chat: Chat, rest: str) -> None:
    asked = parse(rest)
    view = _view(chat, asked)
    generate(
        chat,
        typed=f"/vote {rest}",
        view=view,
        kind="turn",
        text=asked.text,
        n=asked.number,
        named=False,
    )
    if view.is_cancelled:
        return
    first = view.first(view.winner())
    _show(chat, first.text)
    if first.message is None:
        chat.host.note("it is not saved: you stay where you are")
        return
    expected = view.answer.init["head"]["message"]
    chat.moved(chat.call("branch.advance", message=first.message, expected=expected))


def _view(chat: Chat, asked: Asked) -> VoteView:
    host = chat.host
    return VoteView(
        **{**how_shown(chat), "out": sys.stderr, "shows_text": asked.show_all},
        answer=Answer(stays=True),
        extraction=extraction(asked.extract),
        stops_early=asked.early_stop,
        shows_table=not host.quiet,
        shows_screen=not host.quiet and shows_columns(host),
        cancel=lambda **which: chat.ready().call("cancel", **which),
        width=lambda: host.columns,
        paints_out=host.paints(sys.stdout),
        command="/",
    )


def _show(chat: Chat, text: str) -> None:
    """All that the one who won says: the conversation goes on from it."""
    lines, columns = text.strip("\n").split("\n"), chat.host.columns
    if chat.renders and columns is not None:
        from radchat.chat.markdown import rendered

        lines = rendered(text.strip("\n"), columns)
    for line in lines:
        chat.host.out(line)
