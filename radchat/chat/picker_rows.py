"""The rows of the tree picker: what of a tree is shown, and where in it the cursor is.

The cursor stands on a row that is shown, whatever was filtered, folded or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.tree_shape import FILTERS, Message, Place, hung, labels_of, short_ids, walk


class Shown:
    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.filter = "default"
        self.found = ""  # words that shown messages have
        self.folded: set[str] = set()  # what follows these is not shown
        self.page = 10  # rows that are seen
        self.top = 0  # the first of them
        self.cursor: str | None = None
        self.rows: list[Place] = []
        self.renew(tree)
        self.to_head()

    def renew(self, tree: Mapping[str, Any]) -> None:
        """The tree as it is now; what is gone of it is no longer marked, folded or stood on."""
        self.tree = tree
        self.messages: dict[str, Message] = {m["id"]: m for m in tree["messages"]}
        self.short = short_ids(self.messages)
        self.names: dict[str, list[str]] = {key: [] for key in self.messages}
        for name, key in (tree.get("branches") or {}).items():
            self.names.setdefault(key, []).append(name)
        for key, message in self.messages.items():
            self.names[key] += labels_of(message)
        self.head: str | None = tree.get("head")
        self.path = set(self.up(self.head))
        self.folded &= self.messages.keys()
        self._texts: dict[str, str] = {}  # to be searched
        self.lay_out()

    def lay_out(self) -> None:
        """Rows anew: after a fold, a filter, words to be found, or another tree."""
        before = self.rows
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
        self.rows = []
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
        for key in self.up(self.cursor):
            if key in self._index:
                self.cursor = key
                return
        at = next((n for n, (key, _, _) in enumerate(before) if key == self.cursor), 0)
        self.cursor = self.rows[min(at, len(self.rows) - 1)][0] if self.rows else None

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

    def up(self, key: str | None) -> list[str]:
        """The message and all above it."""
        path = []
        while key is not None and key in self.messages:
            path.append(key)
            key = self.messages[key].get("parent")
        return path

    @property
    def at(self) -> int:
        """The cursor's row; -1 where there is none."""
        return -1 if self.cursor is None else self._index[self.cursor]

    def scroll(self, page: int) -> None:
        """So many rows are seen: the cursor's is one of them."""
        self.page = max(page, 1)
        self.top = max(min(self.top, self.at, len(self.rows) - self.page), 0)
        self.top = max(self.top, self.at - self.page + 1)

    def move(self, row: int) -> None:
        self.cursor = self.rows[max(min(row, len(self.rows) - 1), 0)][0]

    def to_head(self) -> None:
        """Whatever it takes to see it."""
        if self.head in self.messages and self.head not in self._index:
            self.found, self.folded = "", self.folded - self.path
            self.lay_out()
        if self.head in self._index:
            self.cursor = self.head

    def fold(self, cursor: str, *, folds: bool) -> None:
        is_folded = cursor in self.folded and not self.found
        if folds and self.below[cursor] and not is_folded and not self.found:
            self.folded.add(cursor)
        elif folds:
            self.cursor = self.parents[cursor] or cursor
            return
        elif is_folded:
            self.folded.discard(cursor)
        else:
            if self.below[cursor]:
                self.move(self.at + 1)
            return
        self.lay_out()

    def find(self, words: str) -> None:
        self.found = words
        self.lay_out()
        if self.matches and self.cursor not in self.matches:
            self.next_match(1)

    def next_match(self, step: int) -> None:
        """Around the end to the beginning."""
        for number in range(1, len(self.rows) + 1):
            key = self.rows[(self.at + step * number) % len(self.rows)][0]
            if key in self.matches:
                self.cursor = key
                return


def _num_below(order: list[Place], parents: Mapping[str, str | None]) -> dict[str, int]:
    """How many follow each, however far."""
    below = {key: 0 for key, _, _ in order}
    for key, _, _ in reversed(order):
        parent = parents[key]
        if parent is not None:
            below[parent] += below[key] + 1
    return below
