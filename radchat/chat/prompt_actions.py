"""`/multiline` and `/editor`: other ways to type a message; `/think`: how the next is answered."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from radchat.chat.editor import in_editor
from radchat.chat.keyboard import as_found
from radchat.errors import RadchatError, UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

THINK_LEVELS = ("off", "on", "low", "medium", "high")


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


def think(chat: Chat, rest: str) -> None:
    """A level; where the model cannot do it, and is loaded, that is said now and not later."""
    if rest in ("hide", "show"):
        chat.hides_thoughts = rest == "hide"
        chat.host.note(f"thinking is {'hidden' if chat.hides_thoughts else 'shown'}")
        return
    level = rest or ("off" if chat.arguments.get("think", "off") != "off" else "on")
    if level not in THINK_LEVELS:
        raise UsageError(f"/think {level}: want {', '.join((*THINK_LEVELS, 'show', 'hide'))}")
    chat.arguments["think"] = level
    about = None
    if chat.opening.client is not None:
        given = {k: chat.arguments[k] for k in ("model", "think") if chat.arguments.get(k)}
        with contextlib.suppress(RadchatError):  # the next answer tells what is wrong
            about = chat.call("context", **given).get("think")
    if about:
        chat.standing.add(str(about))
    chat.host.note(f"think {level}: {about}" if about else f"think {level}")
