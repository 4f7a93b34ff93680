"""`/export` and `/copy`: what was said, out of the chat."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.chat import clipboard
from radchat.chat.exporting import format_of, write
from radchat.chat.footer import count
from radchat.chat.sessions_view import messages
from radchat.errors import InvalidInput

if TYPE_CHECKING:
    from radchat.chat.repl import Chat


def export(chat: Chat, rest: str) -> None:
    """The path to here, or as JSON the whole tree; without FILE, as Markdown of its own name."""
    result = chat.call("sessions.export", format=format_of(rest or None))
    path = rest or f"{str(result['name']).replace('/', '-')}.md"
    if not rest and Path(path).exists():
        raise InvalidInput(f"there is a {path} already: /export FILE writes to another, or over it")
    written, was_there = write(path, str(result["text"]))
    over = " (replaced)" if was_there else ""
    chat.host.note(f"{messages(result['messages'])} in {written}{over}")


def copy(chat: Chat, rest: str) -> None:  # noqa: ARG001 - as all slash commands
    answers = [m for m in chat.call("log")["messages"] if m["role"] == "assistant"]
    if not answers:
        raise InvalidInput("no answer here yet")
    text = str(answers[-1]["text"])
    terminal = sys.stdout if sys.stdout.isatty() else None
    how = clipboard.copy(text, terminal, chat.host.env)
    chat.host.note(f"copied {count(len(text))} characters: {how}")
