"""The tree picker as a machine: keys in, rows and wishes out. Nothing is painted or called here.

What a key wants of the daemon is a ``Wish``; what comes of it comes back by ``renew`` and ``ask``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from radchat.chat.picker_rows import Shown
from radchat.chat.tree_shape import FILTERS

Mode = Literal["walk", "find", "fork", "label", "sure", "help"]
KEYS = (
    ("Up, Down", "the row above, below; also k, j"),
    ("PgUp, PgDn", "a page; Home, End: the first, the last"),
    ("Left", "fold what follows; where it is folded: to the message before"),
    ("Right", "unfold; where it is unfolded: to the next message"),
    ("Enter", "go there; of a message of yours the text comes back to change"),
    ("f", "a new branch there, and go there"),
    ("l", "label it"),
    ("d", "mark it and what follows to be deleted; d again: not"),
    ("x", "delete what is marked"),
    ("/", "show only messages with these words; n, N: the next, the one before"),
    ("Tab", f"which messages: {', '.join(FILTERS)}"),
    ("h", "to HEAD"),
    ("Esc, q", "leave; where only some are shown, Esc shows all again first"),
)
ON_HEAD = "HEAD is there or after it: go elsewhere first"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done; "go", "fork" and "leave" end the picker."""

    what: Literal["go", "fork", "label", "count", "prune", "leave"]
    message: str = ""
    text: str = ""
    marked: tuple[str, ...] = ()


class Picker(Shown):
    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.mode: Mode = "walk"
        self.typed = ""  # into the line at the bottom
        self.notice = ""
        self.marks: set[str] = set()  # each with all that follows it
        self.marked: set[str] = set()  # these and those
        self._next: Wish | None = None  # after the question
        super().__init__(tree)

    def renew(self, tree: Mapping[str, Any]) -> None:
        super().renew(tree)
        self.marks &= self.messages.keys()
        self._spread()

    # -- keys ------------------------------------------------------------------------------------

    def press(self, key: str) -> Wish | None:
        """``key``: a name of prompt_toolkit's, or one character."""
        self.notice = ""
        handler = {
            "walk": self._walk_key,
            "help": self._help_key,
            "sure": self._sure_key,
        }.get(self.mode, self._line_key)
        return handler(key)

    def paste(self, text: str) -> None:
        """Into the line that is typed; elsewhere it is no key."""
        if self.mode in ("find", "fork", "label"):
            self.typed += re.sub(r"\s+", " ", text)
            if self.mode == "find":
                self.find(self.typed)

    def say(self, text: str) -> None:
        self.notice = text

    def again(self, wish: Wish, why: str) -> None:
        """What was typed was not good: there it is."""
        self.notice, self._next = why, None
        if wish.what in ("fork", "label") and wish.message == self.cursor:
            self.mode, self.typed = wish.what, wish.text

    def ask(self, question: str) -> None:
        """Before what is marked is deleted."""
        self.mode, self.notice = "sure", f"{question} y/N"

    def _help_key(self, key: str) -> Wish | None:  # noqa: ARG002 - any
        self.mode = "walk"
        return None

    def _walk_key(self, key: str) -> Wish | None:
        if key in ("escape", "q", "c-c", "c-d"):
            if self.found and key == "escape":
                self.find("")
                return None
            return self._leave(Wish("leave"))
        if key == "tab":
            names = list(FILTERS)
            self.filter = names[(names.index(self.filter) + 1) % len(names)]
            self.lay_out()
            return None
        if key in ("/", "?"):
            self.mode, self.typed = ("find", self.found) if key == "/" else ("help", "")
            return None
        if key == "x":
            return self._count(None)
        if self.cursor is None:
            return None
        return self._row_key(key, self.cursor)

    def _row_key(self, key: str, cursor: str) -> Wish | None:
        moves = {
            "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self.page, "pagedown": self.page,
            "home": -len(self.rows), "end": len(self.rows),
        }  # fmt: skip
        if key in moves:
            self.move(self.at + moves[key])
        elif key == "h":
            self.to_head()
        elif key in ("left", "right"):
            self.fold(cursor, folds=key == "left")
        elif key in ("n", "N"):
            self.next_match(1 if key == "n" else -1)
        elif key == "d":
            self._mark(cursor)
        elif key in ("f", "l"):
            self.mode, self.typed = ("fork" if key == "f" else "label"), ""
        elif key == "enter":
            return self._leave(Wish("go", cursor))
        return None

    def _line_key(self, key: str) -> Wish | None:
        """A line is typed at the bottom."""
        mode, cursor = self.mode, self.cursor or ""
        if key in ("escape", "c-c"):
            self.mode = "walk"
            if mode == "find":
                self.find("")
        elif key == "enter":
            self.mode = "walk"
            if mode == "fork":
                return self._leave(Wish("fork", cursor, self.typed.strip()))
            if mode == "label" and self.typed.strip():
                return Wish("label", cursor, self.typed.strip())
        elif mode == "find" and key in ("up", "down"):
            self.next_match(-1 if key == "up" else 1)
        else:
            self.typed = self._edited(key)
            if mode == "find":
                self.find(self.typed)
        return None

    def _edited(self, key: str) -> str:
        if key == "backspace":
            return self.typed[:-1]
        if key == "c-u":
            return ""
        return self.typed + key if len(key) == 1 else self.typed

    def _sure_key(self, key: str) -> Wish | None:
        self.mode = "walk"
        if key in ("y", "Y"):
            return Wish("prune", marked=self._roots())
        return None if key in ("escape", "c-c") else self._next  # not deleted

    # -- marks -----------------------------------------------------------------------------------

    def _mark(self, cursor: str) -> None:
        above = [key for key in self.up(cursor) if key in self.marks]
        if above:
            self.marks.difference_update(above)
            self.notice = f"{', '.join(self.short[key] for key in above)}: not deleted"
        elif cursor in self.path:
            self.notice = ON_HEAD
        else:
            self.marks.add(cursor)
            self.marks = set(self._roots())
        self._spread()

    def _spread(self) -> None:
        self.marked = set()
        for key, message in self.messages.items():  # parents before children
            if key in self.marks or message.get("parent") in self.marked:
                self.marked.add(key)

    def _roots(self) -> tuple[str, ...]:
        """The marks that no other is above of."""
        return tuple(
            key for key in self.messages
            if key in self.marks and not any(up in self.marks for up in self.up(key)[1:])
        )  # fmt: skip

    def _leave(self, wish: Wish) -> Wish:
        """What is marked is asked about first."""
        return self._count(wish) or wish if self.marks else wish

    def _count(self, after: Wish | None, why: str = "") -> Wish | None:
        self._next = after
        if not self.marks:
            self.notice = "nothing is marked: d marks a message and what follows it"
            return None
        return Wish("count", text=why, marked=self._roots())

    def changed(self, tree: Mapping[str, Any]) -> Wish | None:
        """Something else would go than what was asked about: it is asked about anew."""
        self.renew(tree)
        return self._count(self._next, "by now: ")

    def pruned(self, tree: Mapping[str, Any]) -> Wish | None:
        """What was marked is gone; what was wanted before it was asked about."""
        self.renew(tree)
        return self._next
