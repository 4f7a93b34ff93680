"""Everything the prefix cache counts, counted again by brute force; AssertionError says what broke.

Written against the rules, not against the code that keeps the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from radchat.engine.node import Node, path_up, prefix_of
from radchat.engine.pages import PageAllocator
from radchat.engine.radix import RadixTree
from radchat.engine.raw_ids import ID_BYTES

if TYPE_CHECKING:
    from radchat.engine.prefix_cache import Lease


def check_tree(tree: RadixTree, locks: Mapping[Node, int], pins: Iterable[Node] = ()) -> None:
    """Recount everything; ``locks`` = how many live requests hold each node, ``pins`` = the
    node each pin ends with.
    """
    size = tree.page_size
    held, kept = Counter[Node](), Counter[Node]()
    for node, count in locks.items():
        for each in path_up(node):
            held[each] += count
    for node in pins:
        kept.update(path_up(node))
    locked: set[int] = set()
    pinned: set[int] = set()
    loose: set[int] = set()
    for node in tree.nodes():
        what = f"node {node.id} [{node.start}, {node.end})"
        parent = node.parent
        assert len(node.tokens) == (node.end - node.start) * ID_BYTES > 0, f"{what}: tokens"
        assert parent.end == node.start, f"{what}: does not begin where its parent ends"
        assert parent.children.get(node.tokens[:ID_BYTES]) is node, f"{what}: its key"
        num_pages = -(-node.end // size) - node.start // size
        assert len(node.pages) == num_pages, f"{what}: pages do not cover it"
        assert node.lock_ref == held[node], f"{what}: lock_ref"
        assert node.pins == kept[node], f"{what}: pins"
        shares, above = False, parent
        while above.end > node.start // size * size:
            shares |= above.pages[-1] == node.pages[0]
            above = above.parent
        assert node.shares == shares, f"{what}: shares"
        (locked if node.lock_ref else pinned if node.pins else loose).update(node.pages)
    assert tree.locked == len(locked), "locked pages"
    assert tree.pinned == len(pinned - locked), "pinned pages"
    assert tree.evictable == len(loose - pinned - locked), "evictable pages"
    for root in tree.roots.values():
        assert (root.lock_ref, root.end, root.pages) == (1, 0, []), "a root"
    line = {node: place for place, node in enumerate(tree.order)}
    assert set(line) == {n for n in tree.nodes() if not (n.lock_ref or n.pins)}, "the line"
    for node, place in line.items():
        after = line.get(node.parent, len(line))
        assert place < after, f"node {node.id} stands in line behind its parent"


def check_leases(tree: RadixTree, pages: PageAllocator, leases: list[Lease]) -> None:
    """Every page's owners, and what each live request has of the tree."""
    size = tree.page_size
    writers = {page: lease for lease in leases for page in lease.table[lease.own_from :]}
    num_own = sum(len(lease.table) - lease.own_from for lease in leases)
    assert len(writers) == num_own, "a page with two writers"
    owners = Counter(writers.keys())
    ends: dict[int, int] = {}  # page of the tree -> end of its longest holder, from page start
    for node in tree.nodes():
        owners.update(node.pages)
        ends.update(dict.fromkeys(node.pages[:-1], size))
        tail = node.pages[-1]
        ends[tail] = max(ends.get(tail, 0), (node.end - 1) % size + 1)
    pages.check(owners)
    for lease in leases:
        end = lease.node.end
        assert lease.own_from == end // size, "own_from"
        assert end <= lease.computed_len <= len(lease.ids), "computed_len"
        assert lease.computed_len <= len(lease.table) * size, "computed without a page"
        assert prefix_of(lease.node) == lease.ids[:end].tobytes(), "a lease's node"
        on_path = tree.table(lease.node)[: lease.own_from]
        assert lease.table[: lease.own_from] == on_path, "a lease's table"
        for page in lease.table[lease.own_from + 1 :]:
            assert page not in ends, "a page being written is shown"
        tail = lease.table[lease.own_from] if end % size else 0
        assert ends.get(tail, 0) <= end % size, "shown beyond what its writer has shown"
    for page, fill in tree.open.items():
        assert page not in writers, "an open page with a writer"
        assert 0 < ends.get(page, 0) <= fill < size, "an open page's fill"
