"""A node of the radix tree: a run of a path's tokens, its pages, and what counts on it.

What is shown of one to people is a ``NodeView`` (``node_view.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from radchat.engine.raw_ids import ID_BYTES


class Node:
    __slots__ = (
        "children",
        "end",
        "hits",
        "id",
        "last_used",
        "lock_ref",
        "pages",
        "parent",
        "pins",
        "shares",
        "start",
        "tick",
        "tokens",
    )

    def __init__(
        self, number: int, parent: Node | None, start: int, tokens: bytes, pages: list[int]
    ) -> None:
        self.id = number
        self.parent = parent or self  # a root is its own parent, and ends at 0
        self.start = start
        self.end = start + len(tokens) // ID_BYTES
        self.tokens = tokens
        self.pages = pages  # indices start // P … ceil(end / P) - 1
        self.children: dict[bytes, Node] = {}  # by first token
        self.lock_ref = 0  # live requests whose node is this one or below it
        self.pins = 0  # pins that end with this node or below it (pins.py)
        self.shares = 0  # 1: a node above holds pages[0] too
        self.tick = 0  # last use, on the tree's logical clock (order)
        self.last_used = 0.0  # the same on the wall (display)
        self.hits = 0  # admitted requests that used these tokens

    @property
    def adds(self) -> int:
        """Pages that become free when this leaf goes."""
        return len(self.pages) - self.shares


def path_up(node: Node) -> Iterator[Node]:
    """The node and those above it, without the root."""
    while node.end:
        yield node
        node = node.parent


def below(node: Node) -> Iterator[Node]:
    """The nodes below it, a parent before its children."""
    stack = list(reversed(node.children.values()))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children.values()))


def prefix_of(node: Node) -> bytes:
    """The ids from the root to the node's end."""
    return b"".join(reversed([each.tokens for each in path_up(node)]))
