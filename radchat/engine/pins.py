"""What is kept on purpose: paths whose KV goes last, up to a share of the pool.

A pin is a wish about token ids, not about nodes: as much of its path as is cached is pinned, and
the rest as soon as a request has computed it. Pinned nodes stand in no line, so eviction by age
never comes to them. Only a request that could not run even alone takes their pages; the wish
stays, and holds again what is computed later. When a pin ends is for whoever set it to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from radchat.engine.node import Node, path_up
from radchat.engine.radix import RadixTree
from radchat.engine.raw_ids import ID_BYTES, common_len

SHARE = 4  # pinned paths may hold one page of so many


class PinsFull(Exception):
    """The pinned paths would hold ``num_pages`` of at most ``limit``; nothing has changed."""

    def __init__(self, num_pages: int, limit: int) -> None:
        super().__init__(f"{num_pages} pages pinned, at most {limit}")
        self.num_pages, self.limit = num_pages, limit


@dataclass(slots=True, eq=False)
class Pin:
    name: str
    namespace: str
    raw: bytes  # the ids of the path, four bytes each
    node: Node  # ends where what is cached of the path ends; the root where nothing is

    @property
    def num_tokens(self) -> int:
        return len(self.raw) // ID_BYTES


class PinView(NamedTuple):
    """A pin as it is listed."""

    name: str
    num_tokens: int
    held_tokens: int  # cached now, so kept


class Pins:
    def __init__(self, tree: RadixTree, num_pages: int) -> None:
        self._tree = tree
        self.limit = num_pages // SHARE  # pages
        self._pins: dict[str, Pin] = {}
        self._short: list[Pin] = []  # those of whose path something is not cached
        self._settled = tree.generation  # up to which insertion the short ones were looked for

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    @property
    def num_pages(self) -> int:
        """Pages that the pinned paths hold when all of them is cached."""
        return self._count(self)

    def put(self, name: str, namespace: str, raw: bytes) -> None:
        """Pin a path, in the place of an earlier pin of this name. Raises PinsFull."""
        pin = Pin(name, namespace, raw, self._tree.root(namespace))
        num_pages = self._count([*(each for each in self if each.name != name), pin])
        if num_pages > self.limit:
            raise PinsFull(num_pages, self.limit)
        self.drop(name)
        self._pins[name] = pin
        self._hold([pin])

    def drop(self, name: str) -> bool:
        """End a pin: what only it kept stands where its last use puts it. False: there is none."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self._tree.unpin(pin.node)
        self._look()
        return True

    def settle(self) -> None:
        """Pin what has been computed since of paths that are pinned. After every insertion, when
        its caller has given the new nodes their place in line.
        """
        if self._short and self._settled != self._tree.generation:
            self._hold(self._short)

    def give_way(self, num_pages: int) -> int:
        """Free so many pages, or all that are pinned and not locked, when nothing is evictable.
        Returns how many. The least recently used goes first, from its tail.
        """
        tree = self._tree
        assert tree.evictable == 0, "pins go last"
        while (node := tree.order.first()) is not None:  # those left add no page of their own
            tree.order.remove(node)
            tree.cut(node, node.adds)
        freed = 0
        pinned = {node for pin in self for node in path_up(pin.node) if not node.lock_ref}
        for node in sorted(pinned, key=lambda node: (node.tick, -node.start)):
            if freed == num_pages:
                break
            part = min(node.adds, num_pages - freed)
            whole = part == node.adds
            tree.cut(node, part)
            freed += part
            for pin in self if whole else ():
                if pin.node is node:
                    pin.node = node.parent
        self._look()
        return freed

    def views(self) -> list[PinView]:
        return [PinView(pin.name, pin.num_tokens, pin.node.end) for pin in self]

    def _hold(self, pins: Iterable[Pin]) -> None:
        tree = self._tree
        for pin in pins:
            root = tree.root(pin.namespace)
            node, at = tree.match(root, pin.raw, pin.num_tokens)
            if at > pin.node.end:
                pin.node = tree.pin(node, at, above=pin.node)
        self._look()

    def _look(self) -> None:
        self._short = [pin for pin in self if pin.node.end < pin.num_tokens]
        self._settled = self._tree.generation

    def _count(self, pins: Iterable[Pin]) -> int:
        """Whole pages of distinct paths. In the order of their bytes, what a path shares with any
        before it, it shares with the one just before it.
        """
        size = self._tree.page_size
        count, before = 0, Pin("", "", b"", self._tree.root(""))
        for pin in sorted(pins, key=lambda pin: (pin.namespace, pin.raw)):
            shared = 0
            if pin.namespace == before.namespace:
                shared = common_len(before.raw, pin.raw, 0, len(pin.raw))
            count += -(-pin.num_tokens // size) - shared // size
            before = pin
        return count
