"""A node of the radix tree as it is shown: a copy, which nothing that happens later changes."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from radchat.engine.node import Node
from radchat.engine.request import Ids


class NodeView(NamedTuple):
    """A node as it is shown: tokens [start, end) of its path."""

    id: int
    parent: int | None
    depth: int  # 0 = first below the root
    namespace: str
    start: int
    end: int
    tokens: Ids
    pages: tuple[int, ...]
    adds: int  # pages not counted by a node above
    lock_ref: int
    pins: int
    tick: int
    last_used: float
    hits: int


def view_of(node: Node, depth: int, namespace: str) -> NodeView:
    return NodeView(
        id=node.id,
        parent=node.parent.id if depth else None,
        depth=depth,
        namespace=namespace,
        start=node.start,
        end=node.end,
        tokens=array("I", node.tokens),
        pages=tuple(node.pages),
        adds=node.adds,
        lock_ref=node.lock_ref,
        pins=node.pins,
        tick=node.tick,
        last_used=node.last_used,
        hits=node.hits,
    )
