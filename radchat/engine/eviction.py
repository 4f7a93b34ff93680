"""What is evicted next, and how much of it.

The order is a strategy; least recently used is the one users are shown. Deciding is apart from
doing: ``cuts`` names the victims one by one, the tree applies them. Given a copy of the order,
the same code says what an eviction *would* do (``radchat tree --lru``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from radchat.engine.node import Node


class Eviction(NamedTuple):
    """One step of an eviction: tokens [start, end) of a node go, and free ``pages`` pages."""

    node_id: int
    start: int
    end: int
    pages: int


class EvictionOrder(Protocol):
    """All nodes that are neither locked nor pinned, in the order in which they would go.

    ``first`` is a leaf once those before it are removed. An order keeps what it decides by in
    itself, so that a copy can be run dry while the tree stays as it is.
    """

    def add(self, node: Node) -> None: ...  # the last request let go of it: most recently used
    def touch(self, node: Node) -> None: ...  # used again while unlocked
    def remove(self, node: Node) -> None: ...  # locked, pinned or evicted
    def rejoin(self, nodes: Iterable[Node]) -> None: ...  # no longer pinned: none of it is a use
    def first(self) -> Node | None: ...
    def copy(self) -> EvictionOrder: ...
    def __iter__(self) -> Iterator[Node]: ...


class LeastRecentlyUsed:
    """One line, oldest first.

    Whoever uses nodes walks from one of them up to the root, so a child always joins the line
    before its parent: the first in line is a leaf, and no heap or scan is needed.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._line: OrderedDict[Node, None] = OrderedDict.fromkeys(nodes)

    def add(self, node: Node) -> None:
        self._line[node] = None

    def touch(self, node: Node) -> None:
        self._line.move_to_end(node)

    def remove(self, node: Node) -> None:
        del self._line[node]

    def rejoin(self, nodes: Iterable[Node]) -> None:
        """Where their last use puts them: one walk, one tick, a child before its parent."""
        line = sorted([*self._line, *nodes], key=lambda node: (node.tick, -node.start))
        self._line = OrderedDict.fromkeys(line)

    def first(self) -> Node | None:
        return next(iter(self._line), None)

    def copy(self) -> LeastRecentlyUsed:
        return LeastRecentlyUsed(self._line)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._line)


def cuts(order: EvictionOrder, num_pages: int) -> Iterator[tuple[Node, int]]:
    """Yield (victim, pages to free from its tail) until ``num_pages`` are freed or none is left.

    A victim that goes whole is removed from ``order``. It may free fewer pages than it holds,
    even none: so pages are counted, not nodes.
    """
    while num_pages > 0 and (node := order.first()) is not None:
        freed = min(node.adds, num_pages)
        if freed == node.adds:
            order.remove(node)
        num_pages -= freed
        yield node, freed
