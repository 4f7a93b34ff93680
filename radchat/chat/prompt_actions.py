"""`/multiline` and `/editor`: other ways to type a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radchat.chat.editor import in_editor
from radchat.chat.keyboard import as_found

if TYPE_CHECKING:
    from radchat.chat.repl import Chat


def multiline(chat: Chat, rest: str) -> None:  # noqa: ARG001
    chat.prompt.is_multiline = not chat.prompt.is_multiline
    if chat.prompt.is_multiline:
        chat.host.note('Enter is a newline; Alt+Enter or a line of """ sends; /multiline ends it')
    else:
        chat.host.note("Enter sends")


def editor(chat: Chat, rest: str) -> None:
    """What was written is offered at the prompt, as after Ctrl+G: Enter sends it."""
    with as_found():
        chat.default = in_editor(rest, chat.host.env)
