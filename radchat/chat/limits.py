"""What one does about a full context: `/compact`, and the choice at the limit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from radchat.chat.footer import count
from radchat.chat.text import Cleaner
from radchat.chat.view import DIM, RESET, progress

if TYPE_CHECKING:
    from radchat.chat.repl import Chat


def compact(chat: Chat, rest: str) -> None:
    """Ask for the summary, show it as it comes, and go to the branch that begins with it."""
    done: dict[str, Any] = {}
    shown = _Dim(chat.host.paints(sys.stderr), is_quiet=chat.host.quiet)
    chat.host.status("waiting")
    try:
        keys = ("model", "dtype", "exact", "think", "options")
        with chat.stream("compact", *keys, text=rest) as events:
            for event in events:
                if event.name == "notice":
                    shown.end()
                    chat.host.note(str(event.data.get("text", "")))
                elif event.name == "progress":
                    chat.host.status(progress(event.data))
                elif event.name == "delta":
                    chat.host.status("")
                    shown.write(str(event.data["text"]))
                elif event.name == "done":
                    done = event.data
    except KeyboardInterrupt:
        shown.end()
        chat.host.status("")
        chat.hold()
        chat.host.note("cancelled")
        return
    finally:
        shown.end()
    unsent = chat.default
    chat.moved(done)
    chat.default = unsent
    before, after = count(done["before"]), count(done["after"])
    chat.host.note(f"from {before} to {after} tokens, read with your next message")
    chat.host.note(f"back: /undo, /switch - or /switch {done['label']}")


class _Dim:
    """Text as it comes, on stderr: it is not an answer."""

    def __init__(self, paints: bool, *, is_quiet: bool) -> None:
        self._cleaner, self._paints, self._is_quiet = Cleaner(), paints, is_quiet
        self._is_open = False

    def write(self, text: str) -> None:
        if self._is_quiet:
            return
        if self._paints and not self._is_open:
            sys.stderr.write(DIM)
        self._is_open = True
        sys.stderr.write(self._cleaner.push(text))
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            sys.stderr.write(self._cleaner.flush() + (RESET if self._paints else "") + "\n")
            sys.stderr.flush()


def way_out(chat: Chat) -> None:
    """The choice where a message no longer fits. It waits unsent at the next prompt, whatever
    is chosen.
    """
    said = chat.prompt.choose("[c]ompact, [f]ork from an earlier turn, or [s]top? ").lower()
    if said and "compact".startswith(said):
        compact(chat, "")
    elif said and "fork".startswith(said):
        _fork(chat)


def _fork(chat: Chat) -> None:
    turns = [m for m in chat.call("log")["messages"] if m["role"] == "user"]
    last = int(turns[-1]["turn"]) if turns else 0
    said = chat.prompt.choose(f"before which turn, 1 to {last}? ").lstrip("#") if last else ""
    if said.isdigit() and 1 <= int(said) <= last:
        unsent = chat.default
        chat.moved(chat.call("fork", ref=said, name=None))
        chat.default = unsent
