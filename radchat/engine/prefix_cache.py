"""The prefix cache: the radix tree, the pages and the requests that use them.

This is the engine's only door to KV memory. A request is admitted with a lease on what the tree
has of its prompt, computes the rest into pages of its own, and shows them to others (``show``)
or leaves them behind (``finish``).

Who owns the pages of a lease, ``table[0:len]``, and who gives them back, with P = page_size,
o = own_from = node.end // P, and at finish p = present // P (what others have stored meanwhile)
and e = ceil(n / P):

    table    0 ──────────── o ──────────── p ──────────── e ──────────── len
    owner      the tree     │ the request  │ the request  │ the request
    at finish  unlock       │ duplicates:  │ pass to the  │ unused:
                            │ released     │ tree         │ released
    at abort   unlock       │ released ──────────────────────────────────▶

A page has one writer, the request that has it among its own; the tree may hold the same page at
index o, whose slots below node.end were shown. The writer never writes below that line, readers
never read above it. When a writer leaves such a page, or leaves a partly filled one to the tree,
the page is *open*: the next request whose match ends exactly at its fill goes on in place, any
other copies the filled slots to a page of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from radchat.engine import recount
from radchat.engine.eviction import Eviction, EvictionOrder, LeastRecentlyUsed, cuts
from radchat.engine.node import Node, below, path_up, prefix_of
from radchat.engine.node_view import NodeView, view_of
from radchat.engine.pages import PageAllocator
from radchat.engine.pins import Pins, PinView
from radchat.engine.radix import RadixTree
from radchat.engine.raw_ids import ID_BYTES
from radchat.engine.request import Ids

EXTENT = 8  # pages taken at once when a request outgrows its table


@dataclass(slots=True, eq=False)
class Lease:
    """A live request's hold on the cache. The engine appends to ``ids``, advances ``computed_len``,
    performs ``copies`` before the step's KV writes and clears them; the rest is the cache's.
    """

    ids: Ids
    table: list[int]  # page of each index
    own_from: int  # table[:own_from] is the tree's, the rest the request's own
    cached_len: int  # tokens found at admission, at most len(ids) - 1
    computed_len: int  # tokens with KV
    node: Node  # locked; ends where what this request has in the tree ends
    namespace: str
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source page, destination)


class PrefixCache:
    """``num_pages`` counts page 0, which is never handed out."""

    def __init__(
        self,
        num_pages: int,
        page_size: int = 16,
        *,
        wall_clock: Callable[[], float] = time.time,
        order: EvictionOrder | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._pages = PageAllocator(num_pages)
        self._tree = RadixTree(page_size, self._pages, order or LeastRecentlyUsed(), wall_clock)
        self._pins = Pins(self._tree, self.total)
        self.given_way = 0  # pages taken from pins, ever

    @property
    def total(self) -> int:
        return self.num_pages - 1

    @property
    def free(self) -> int:
        return self._pages.free

    @property
    def evictable(self) -> int:
        return self._tree.evictable

    @property
    def pinned(self) -> int:
        """Pages that pins keep and no request relies on."""
        return self._tree.pinned

    @property
    def locked(self) -> int:
        """Pages of the tree that some request relies on. Its own, unshown pages are not in it."""
        return self._tree.locked

    @property
    def on_evict(self) -> Callable[[Node, int], None] | None:
        """Called with a node and its new end before the pages behind that end are released."""
        return self._tree.on_evict

    @on_evict.setter
    def on_evict(self, call: Callable[[Node, int], None] | None) -> None:
        self._tree.on_evict = call

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of this length could be held, were it alone."""
        return self._num_pages_for(num_tokens) <= self.total

    def fits_beside_pins(self, num_tokens: int) -> bool:
        """The same, with all that is pinned now left where it is."""
        return self._num_pages_for(num_tokens) <= self.total - self.pinned

    def match_len(self, ids: Ids, namespace: str = "") -> int:
        """How many of ``ids`` are cached from the start. Changes and stamps nothing."""
        return self.match_raw(ids.tobytes(), namespace)

    def match_raw(self, raw: bytes, namespace: str = "") -> int:
        """The same for ids as bytes. It stays so while ``generation`` does."""
        root = self._tree.roots.get(namespace)
        return self._tree.match(root, raw, len(raw) // ID_BYTES)[1] if root else 0

    @property
    def generation(self) -> int:
        """A number that changes whenever a match may."""
        return self._tree.generation

    def admit(self, ids: Ids, namespace: str = "", *, over_pins: bool = False) -> Lease | None:
        """Lock what is cached of ``ids`` and take pages for the rest, evicting if need be.

        All or nothing: None = no room now, and nothing was evicted. One token is always left to
        compute, since the next is drawn from its row. ``over_pins``: where all else is not enough,
        pins give way; for a request that runs alone.
        """
        assert len(ids) > 0
        tree, size = self._tree, self.page_size
        root = tree.root(namespace)
        node, cached_len = tree.match(root, ids.tobytes(), len(ids) - 1)
        node = tree.lock(node, cached_len, above=root)  # first: keeps the source of a copy alive
        table = tree.table(node)
        fill = cached_len % size
        takes_over = fill > 0 and tree.open.get(table[-1]) == fill
        num_needed = self._num_pages_for(len(ids)) - cached_len // size - takes_over
        if num_needed > self.free + self.evictable + (self.pinned if over_pins else 0):
            tree.unlock(node, used=node)
            return None
        self._make_room(num_needed)
        own = self._pages.take(num_needed, after=table[-1] if table else 0)
        copies = []
        if takes_over:
            del tree.open[table[-1]]
            self._pages.add_owner(table[-1])
        elif fill:
            copies.append((table.pop(), own[0]))
        for each in path_up(node):
            each.hits += 1
        return Lease(
            ids, table + own, cached_len // size, cached_len, cached_len, node, namespace, copies
        )

    def reserve(self, lease: Lease, num_tokens: int, *, over_pins: bool = False) -> bool:
        """Take pages until the table holds ``num_tokens``. False = no room, nothing changed.

        ``over_pins`` as in ``admit``.
        """
        num_needed = self._num_pages_for(num_tokens) - len(lease.table)
        if num_needed <= 0:
            return True
        room = self.free + self.evictable
        if num_needed > room + (self.pinned if over_pins else 0):
            return False
        extent = -(-num_needed // EXTENT) * EXTENT
        if extent <= room:
            num_needed = extent
        self._make_room(num_needed)
        lease.table += self._pages.take(num_needed, after=lease.table[-1])
        return True

    def show(self, lease: Lease) -> range:
        """Put what is computed into the tree while the request goes on.

        Returns the indices of the table that now name a page of the tree instead of a duplicate.
        """
        old, n, table = lease.node, lease.computed_len, lease.table
        if n <= old.end:
            return range(0)
        tail = table[n // self.page_size] if n % self.page_size else 0
        if tail:
            self._pages.add_owner(tail)  # the request goes on writing there
        present, node = self._tree.insert(old, lease.ids[old.end : n].tobytes(), table)
        if tail and present == n:
            self._pages.release([tail])
        swapped = range(lease.own_from, present // self.page_size)
        if swapped:
            duplicates = table[swapped.start : swapped.stop]
            table[swapped.start : swapped.stop] = self._tree.table(node)[
                swapped.start : swapped.stop
            ]
            self._give_back(lease, duplicates)
        lease.node = self._tree.lock(node, n, above=old)  # old's lock stays as part of this one
        lease.own_from = n // self.page_size
        self._pins.settle()
        return swapped

    def fork(self, lease: Lease, ids: Ids) -> Lease | None:
        """Admit ``ids``, which begin like a running request's, reusing all that it has computed."""
        self.show(lease)
        return self.admit(ids, lease.namespace)

    def finish(self, lease: Lease, n: int | None = None) -> None:
        """End a request (or retract it), leaving its first ``n`` tokens in the tree.

        ``n`` defaults to all that is computed; what was shown stays in any case.
        """
        n = lease.computed_len if n is None else n
        assert n <= lease.computed_len, "tokens without KV"
        assert lease.table, "ended twice"
        node, table = lease.node, lease.table
        own_end = unused = len(table)
        if n > node.end:
            present, node = self._tree.insert(node, lease.ids[node.end : n].tobytes(), table)
            if present < n:
                own_end, unused = present // self.page_size, self._num_pages_for(n)
                if n % self.page_size:
                    self._tree.open[table[unused - 1]] = n % self.page_size
        self._give_back(lease, table[lease.own_from : own_end])
        self._pages.release(table[unused:])
        self._tree.unlock(lease.node, used=node)
        lease.table = []
        self._pins.settle()

    def abort(self, lease: Lease) -> None:
        """End a request, leaving only what it has shown."""
        self.finish(lease, 0)

    def evict(self, num_pages: int) -> int:
        """Free exactly min(``num_pages``, evictable) pages, in the eviction order."""
        return self._tree.evict(num_pages)

    def forget(self, ids: Ids, start: int, namespace: str = "") -> int:
        """Evict what is cached of ``ids`` from ``start`` on, to the token; returns pages freed.

        What a live request relies on stays, what is pinned, and what other paths continue.
        """
        node, _ = self._match(ids, namespace)
        return self._tree.forget(node, start) if node else 0

    def forgettable(self, paths: Iterable[tuple[Ids, int]], namespace: str = "") -> int:
        """Pages that ``forget`` would free of these paths, one after the other. Evicts nothing."""
        gone: dict[Node, int] = {}
        for ids, start in paths:
            node, _ = self._match(ids, namespace)
            for each, freed in self._tree.forgettable(node, start, gone) if node else ():
                gone[each] = gone.get(each, 0) + freed
        return sum(gone.values())

    def clear(self, *, pinned: bool = False) -> int:
        """Evict all that no request relies on; what is pinned only if asked. Returns the pages
        freed.
        """
        freed = self.evict(self.evictable)
        return freed + self._give_way(self.pinned) if pinned else freed

    def pages_of(self, raw: bytes) -> tuple[list[int], int]:
        """The page table of what is cached of ids as bytes, and how many tokens that is; it may
        name pages beyond them. Changes and stamps nothing, and holds until something is evicted.
        """
        root = self._tree.roots.get("")
        if root is None:
            return [], 0
        node, num_tokens = self._tree.match(root, raw, len(raw) // ID_BYTES)
        return self._tree.table(node), num_tokens

    def path_of(self, node: Node) -> tuple[bytes, list[int], str]:
        """The ids from the root to a node's end, as bytes, their page table, and the namespace."""
        root = node
        while root.end:
            root = root.parent
        namespace = next(name for name, each in self._tree.roots.items() if each is root)
        return prefix_of(node), self._tree.table(node), namespace

    def pin(self, name: str, ids: Ids, namespace: str = "") -> None:
        """Keep what is, or will be, cached of ``ids``. Raises PinsFull."""
        self._pins.put(name, namespace, ids.tobytes())

    def unpin(self, name: str) -> bool:
        return self._pins.drop(name)

    def pins(self) -> list[PinView]:
        return self._pins.views()

    @property
    def pin_limit(self) -> int:
        """Pages that pinned paths may hold."""
        return self._pins.limit

    @property
    def pins_want(self) -> int:
        """Pages that the pinned paths hold when all of them is cached."""
        return self._pins.num_pages

    def eviction_plan(self) -> list[Eviction]:
        """What ``clear`` would do, in order: the evictor itself, run on a copy of the order."""
        victims = cuts(self._tree.order.copy(), self.evictable)
        return [Eviction(node.id, node.start, node.end, freed) for node, freed in victims]

    def nodes(self) -> list[NodeView]:
        """All nodes, each after its parent."""
        views: list[NodeView] = []
        for namespace, root in self._tree.roots.items():
            depths = {root: -1}
            for node in below(root):
                depths[node] = depths[node.parent] + 1
                views.append(view_of(node, depths[node], namespace))
        return views

    def path(self, ids: Ids, namespace: str = "") -> list[NodeView]:
        """The nodes along the match of ``ids``; it may end inside the last."""
        node, _ = self._match(ids, namespace)
        nodes = list(path_up(node))[::-1] if node else []
        return [view_of(each, depth, namespace) for depth, each in enumerate(nodes)]

    def check(self, leases: Iterable[Lease]) -> None:
        """Recount everything by brute force, given all live leases; AssertionError says what broke.

        For tests, for an idle daemon, and for every step under ``RADCHAT_CHECK=1``.
        """
        recount.check_leases(self._tree, self._pages, list(leases))
        locks = Counter(lease.node for lease in leases)
        recount.check_tree(self._tree, locks, [pin.node for pin in self._pins])
        for pin in self._pins:
            assert pin.raw.startswith(prefix_of(pin.node)), "a pin's node"

    def _match(self, ids: Ids, namespace: str) -> tuple[Node | None, int]:
        root = self._tree.roots.get(namespace)
        return self._tree.match(root, ids.tobytes(), len(ids)) if root else (None, 0)

    def _num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _make_room(self, num_pages: int) -> None:
        num_short = num_pages - self.free
        if num_short > 0:  # a few more at once: neighbours for later, hardly a hit lost
            self.evict(max(num_short, min(16, self.total // 100)))
            if (num_short := num_pages - self.free) > 0:
                self._give_way(num_short)

    def _give_way(self, num_pages: int) -> int:
        freed = self._pins.give_way(num_pages)
        self.given_way += freed
        return freed

    def _give_back(self, lease: Lease, pages: list[int]) -> None:
        """Release own pages, the first being that of ``own_from``: the tree may hold it still."""
        if pages:
            fill = lease.node.end % self.page_size
            if fill and pages[0] in self._pages.extra:
                self._tree.open[pages[0]] = fill
            self._pages.release(pages)
