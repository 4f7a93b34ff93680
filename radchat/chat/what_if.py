"""`/what-if` in a chat: its texts, out of what was typed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.chat import commands
from radchat.chat.generating import generate
from radchat.errors import UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

USAGE = '/what-if "TEXT" "TEXT"..., or one TEXT a line (Ctrl+J); -N K "TEXT": K answers to one'


@dataclass(frozen=True, slots=True)
class Asked:
    texts: list[str]
    n: int = 1
    at: str | None = None


def parse(rest: str) -> Asked:
    """The texts are the lines, where there are several; quoted as in a shell, where a line begins
    with a quote; else the line is one text.
    """
    given = {"-N": "1", "--at": ""}
    while rest.split(maxsplit=1)[:1] in (["-N"], ["--at"]):
        name, value, rest = [*rest.split(maxsplit=2), "", ""][:3]
        given[name] = value
    if not (given["-N"].isdigit() and int(given["-N"]) > 0):
        raise UsageError(USAGE)
    at = commands.ref(given["--at"]) if given["--at"] else None
    return Asked(_texts(rest), int(given["-N"]), at)


def _texts(rest: str) -> list[str]:
    texts = [line.strip() for line in rest.split("\n") if line.strip()]
    if len(texts) == 1 and rest[0] in "\"'":
        try:
            texts = shlex.split(rest)
        except ValueError as error:
            raise UsageError(f"a quote is not closed: {USAGE}") from error
    if not texts or not all(text.strip() for text in texts):
        raise UsageError(USAGE)
    return texts


def what_if(chat: Chat, rest: str) -> None:
    asked = parse(rest)
    more: dict[str, Any] = {} if asked.at is None else {"at": asked.at}
    typed = f"/what-if {rest}"
    generate(chat, typed=typed, kind="what-if", texts=asked.texts, n=asked.n, **more)
