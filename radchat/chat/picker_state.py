"""The tree picker as a machine: keys in, rows and wishes out. Nothing is painted or called here.

The cursor stands on a row that is shown, whatever was pressed. What a key wants of the daemon is a
``Wish``; the answer comes back by ``renew``, ``ask`` or ``say``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from radchat.chat.tree_shape import FILTERS, Message, Place, hung, short_ids, walk

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
    ("Esc, q", "leave"),
)
ON_HEAD = "HEAD is there or after it: go elsewhere first"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done; "go", "fork" and "leave" end the picker."""

    what: Literal["go", "fork", "label", "count", "prune", "leave"]
    message: str = ""
    text: str = ""
    marked: tuple[str, ...] = ()


class Picker:
    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.mode: Mode = "walk"
        self.filter = "default"
        self.found = ""  # words that shown messages have
        self.typed = ""  # into the line at the bottom
        self.notice = ""
        self.page = 10  # rows that are seen
        self.top = 0  # the first of them
        self.folded: set[str] = set()
        self.marks: set[str] = set()  # each with all that follows it
        self.marked: set[str] = set()  # these and those
        self._next: Wish | None = None  # after the question
        self._cursor: str | None = None
        self.renew(tree)
        self._to_head()

    def renew(self, tree: Mapping[str, Any]) -> None:
        """The tree as it is now; what is gone of it is no longer marked, folded or stood on."""
        self.tree = tree
        self.messages: dict[str, Message] = {m["id"]: m for m in tree["messages"]}
        self.short = short_ids(self.messages)
        self.names: dict[str, list[str]] = {key: [] for key in self.messages}
        for name, key in (tree.get("branches") or {}).items():
            self.names.setdefault(key, []).append(name)
        for key, message in self.messages.items():
            self.names[key] += message.get("labels") or ()
        self.head: str | None = tree.get("head")
        self.path = set(self._up(self.head))
        self.folded &= self.messages.keys()
        self.marks &= self.messages.keys()
        self._texts: dict[str, str] = {}  # to be searched
        self._spread()
        self._lay_out()

    # -- what is shown ---------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Rows anew: after a fold, a filter, words to be found, or another tree."""
        before = getattr(self, "rows", [])
        keep = FILTERS[self.filter]
        kept = hung(
            self.messages.values(),
            lambda m: m["id"] == self.head or keep(m, bool(self.names[m["id"]])),
        )
        self.matches = self._matching(kept)
        if self.found:
            near = set(self.matches)
            for key in self.matches:
                parent = kept[key]
                while parent is not None and parent not in near:
                    near.add(parent)
                    parent = kept[parent]
            kept = {key: parent for key, parent in kept.items() if key in near}
        self.parents = kept
        order = walk(kept)
        self.deepest = max((depth for _, depth, _ in order), default=0)
        self.below = _num_below(order, kept)
        self.rows: list[Place] = []
        folded_at: int | None = None
        for place in order:
            if folded_at is not None and place[1] > folded_at:
                continue
            folded_at = place[1] if place[0] in self.folded and not self.found else None
            self.rows.append(place)
        self._index = {key: number for number, (key, _, _) in enumerate(self.rows)}
        self._settle(before)

    def _settle(self, before: list[Place]) -> None:
        """The cursor on a row: its own, else the nearest one above it, else about where it was."""
        for key in self._up(self._cursor):
            if key in self._index:
                self._cursor = key
                return
        at = next((n for n, (key, _, _) in enumerate(before) if key == self._cursor), 0)
        self._cursor = self.rows[min(at, len(self.rows) - 1)][0] if self.rows else None

    def _matching(self, kept: Mapping[str, str | None]) -> set[str]:
        words = self.found.casefold().split()
        if not words:
            return set()
        if not self._texts:
            self._texts = {
                key: " ".join((key, *self.names[key], str(message.get("text")))).casefold()
                for key, message in self.messages.items()
            }
        return {key for key in kept if all(word in self._texts[key] for word in words)}

    def _up(self, key: str | None) -> list[str]:
        """The message and all above it."""
        path = []
        while key is not None and key in self.messages:
            path.append(key)
            key = self.messages[key].get("parent")
        return path

    @property
    def at(self) -> int:
        """The cursor's row; -1 where there is none."""
        return -1 if self._cursor is None else self._index[self._cursor]

    @property
    def cursor(self) -> str | None:
        return self._cursor

    def scroll(self, page: int) -> None:
        """So many rows are seen: the cursor's is one of them."""
        self.page = max(page, 1)
        self.top = max(min(self.top, self.at, len(self.rows) - self.page), 0)
        self.top = max(self.top, self.at - self.page + 1)

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

    def say(self, text: str) -> None:
        self.notice = text

    def again(self, wish: Wish, why: str) -> None:
        """What was typed was not good: there it is."""
        self.notice, self._next = why, None
        if wish.what in ("fork", "label"):
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
                self._find("")
                return None
            return self._leave(Wish("leave"))
        if key == "tab":
            names = list(FILTERS)
            self.filter = names[(names.index(self.filter) + 1) % len(names)]
            self._lay_out()
            return None
        if key in ("/", "?"):
            self.mode, self.typed = ("find", self.found) if key == "/" else ("help", "")
            return None
        if key == "x":
            return self._count(None)
        if self._cursor is None:
            return None
        return self._row_key(key, self._cursor)

    def _row_key(self, key: str, cursor: str) -> Wish | None:
        moves = {
            "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self.page, "pagedown": self.page,
            "home": -len(self.rows), "end": len(self.rows),
        }  # fmt: skip
        if key in moves:
            self._move(self.at + moves[key])
        elif key == "h":
            self._to_head()
        elif key in ("left", "right"):
            self._fold(cursor, folds=key == "left")
        elif key in ("n", "N"):
            self._next_match(1 if key == "n" else -1)
        elif key == "d":
            self._mark(cursor)
        elif key in ("f", "l"):
            self.mode, self.typed = ("fork" if key == "f" else "label"), ""
        elif key == "enter":
            return self._leave(Wish("go", cursor))
        return None

    def _line_key(self, key: str) -> Wish | None:
        """A line is typed at the bottom."""
        mode, cursor = self.mode, self._cursor or ""
        if key in ("escape", "c-c"):
            self.mode = "walk"
            if mode == "find":
                self._find("")
        elif key == "enter":
            self.mode = "walk"
            if mode == "fork":
                return self._leave(Wish("fork", cursor, self.typed.strip()))
            if mode == "label" and self.typed.strip():
                return Wish("label", cursor, self.typed.strip())
        elif mode == "find" and key in ("up", "down"):
            self._next_match(-1 if key == "up" else 1)
        else:
            self.typed = self._edited(key)
            if mode == "find":
                self._find(self.typed)
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
        return None if key == "escape" else self._next  # not deleted

    # -- moves -----------------------------------------------------------------------------------

    def _move(self, row: int) -> None:
        self._cursor = self.rows[max(min(row, len(self.rows) - 1), 0)][0]

    def _to_head(self) -> None:
        """Whatever it takes to see it."""
        if self.head in self.messages and self.head not in self._index:
            self.found, self.folded = "", self.folded - self.path
            self._lay_out()
        if self.head in self._index:
            self._cursor = self.head

    def _fold(self, cursor: str, *, folds: bool) -> None:
        is_folded = cursor in self.folded and not self.found
        if folds and self.below[cursor] and not is_folded and not self.found:
            self.folded.add(cursor)
        elif folds:
            self._cursor = self.parents[cursor] or cursor
            return
        elif is_folded:
            self.folded.discard(cursor)
        else:
            if self.below[cursor]:
                self._move(self.at + 1)
            return
        self._lay_out()

    def _find(self, words: str) -> None:
        self.found = words
        self._lay_out()
        if self.matches and self._cursor not in self.matches:
            self._next_match(1)

    def _next_match(self, step: int) -> None:
        """Around the end to the beginning."""
        for number in range(1, len(self.rows) + 1):
            key = self.rows[(self.at + step * number) % len(self.rows)][0]
            if key in self.matches:
                self._cursor = key
                return

    # -- marks -----------------------------------------------------------------------------------

    def _mark(self, cursor: str) -> None:
        above = [key for key in self._up(cursor) if key in self.marks]
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
            if key in self.marks and not any(up in self.marks for up in self._up(key)[1:])
        )  # fmt: skip

    def _leave(self, wish: Wish) -> Wish:
        """What is marked is asked about first."""
        return self._count(wish) or wish if self.marks else wish

    def _count(self, after: Wish | None) -> Wish | None:
        self._next = after
        if not self.marks:
            self.notice = "nothing is marked: d marks a message and what follows it"
            return None
        return Wish("count", marked=self._roots())

    def pruned(self, tree: Mapping[str, Any]) -> Wish | None:
        """What was marked is gone; what was wanted before it was asked about."""
        self.renew(tree)
        return self._next


def _num_below(order: list[Place], parents: Mapping[str, str | None]) -> dict[str, int]:
    """How many follow each, however far."""
    below = {key: 0 for key, _, _ in order}
    for key, _, _ in reversed(order):
        parent = parents[key]
        if parent is not None:
            below[parent] += below[key] + 1
    return below
