"""The radix tree: which token prefixes have KV in the pool, and in which pages.

A node is a run of tokens [start, end) of a path and the pages of the indices it touches. Reuse is
exact to the token, so nodes begin and end inside pages, and two nodes of one path may hold the
same page. All follows from one convention: **a node's page of index k holds the KV of all path
tokens from k * page_size to the node's end**, also of those above its start. Hence the lowest node
that covers an index gives its page, and a page is never needed from two nodes at once.

Requests are known here only by the locks they hold (``prefix_cache.py`` has the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from radchat.engine.eviction import EvictionOrder, cuts
from radchat.engine.node import Node, below, path_up
from radchat.engine.pages import PageAllocator
from radchat.engine.raw_ids import ID_BYTES, common_len


class RadixTree:
    def __init__(
        self,
        page_size: int,
        pages: PageAllocator,
        order: EvictionOrder,
        wall_clock: Callable[[], float],
    ) -> None:
        self.page_size = page_size
        self.roots: dict[str, Node] = {}  # by namespace
        self.evictable = 0  # pages added by nodes that are neither locked nor pinned
        self.pinned = 0  # pages added by pinned nodes that are not locked
        self.locked = 0  # pages added by locked nodes
        self.open: dict[int, int] = {}  # tail pages without a writer -> slots filled
        self.on_evict: Callable[[Node, int], None] | None = None
        self.order = order
        self.generation = 0  # changes when a match may end elsewhere than before
        self._pages = pages
        self._wall_clock = wall_clock
        self._tick = 0
        self._num_made = 0

    def root(self, namespace: str) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._new_node(None, 0, b"", [])
            root.lock_ref = 1  # for ever
        return root

    def match(self, root: Node, raw: bytes, limit: int) -> tuple[Node, int]:
        """The deepest node that agrees with ``raw``, and how many of its first ``limit`` ids do.

        Changes nothing, stamps nothing.
        """
        node, at, stop = root, 0, limit * ID_BYTES
        while at < stop:
            child = node.children.get(raw[at : at + ID_BYTES])
            if child is None:
                break
            if not raw.startswith(child.tokens, at, stop):
                return child, at // ID_BYTES + common_len(child.tokens, raw, at, stop)
            node = child
            at += len(child.tokens)
        return node, at // ID_BYTES

    def table(self, node: Node) -> list[int]:
        """The page table of the path that ends with ``node``."""
        table: list[int] = []
        for each in reversed(list(path_up(node))):
            if each.start % self.page_size:
                table.pop()  # the lower node's page has these slots as well
            table += each.pages
        return table

    def lock(self, node: Node, at: int, above: Node) -> Node:
        """Lock the path to token ``at`` of ``node``, up to but not including ``above``.

        Splits the node if ``at`` lies inside, so that no more is locked than was asked for. Returns
        the node that ends at ``at``.
        """
        if at < node.end:
            node = self._split(node, at)
        self._tick += 1
        now = self._wall_clock()
        each = node
        while each is not above:
            if not each.lock_ref:
                adds = len(each.pages) - each.shares
                if each.pins:
                    self.pinned -= adds
                else:
                    self.order.remove(each)
                    self.evictable -= adds
                self.locked += adds
            each.lock_ref += 1
            each.tick, each.last_used = self._tick, now
            each = each.parent
        return node

    def unlock(self, node: Node, used: Node) -> None:
        """Give back one lock on ``node``'s path; ``used`` is ``node`` or what was used below it.

        One walk from the lowest node up, so that a child stands in line before its parent.
        """
        self._tick += 1
        now = self._wall_clock()
        each = used
        while each is not node:
            if not (each.lock_ref or each.pins):
                self.order.touch(each)
            each.tick, each.last_used = self._tick, now
            each = each.parent
        while each.end:
            assert each.lock_ref > 0, "unlocked more often than locked"
            each.lock_ref -= 1
            if not each.lock_ref:
                adds = len(each.pages) - each.shares
                self.locked -= adds
                if each.pins:
                    self.pinned += adds
                else:
                    self.order.add(each)
                    self.evictable += adds
            each.tick, each.last_used = self._tick, now
            each = each.parent

    def insert(self, base: Node, raw: bytes, table: list[int]) -> tuple[int, Node]:
        """Store the tokens ``raw`` that follow ``base``, whose lock the caller holds.

        Returns (present, node): the path up to token ``present`` was there before; ``node`` ends
        where ``raw`` does. If anything was stored, the caller's ownership of the pages
        ``table[present // P :]`` that it covers has passed to the tree. The caller then walks up
        from ``node`` (lock or unlock), which gives new and halved nodes their place in line.
        """
        node, at, stop = base, 0, len(raw)
        while at < stop:
            child = node.children.get(raw[at : at + ID_BYTES])
            if child is None:
                break
            if raw.startswith(child.tokens, at):
                node = child
                at += len(child.tokens)
            else:
                common = common_len(child.tokens, raw, at, stop)
                node = self._split(child, child.start + common)
                at += common * ID_BYTES
                break
        present = base.end + at // ID_BYTES
        if at < stop:
            self.generation += 1
            end = base.end + stop // ID_BYTES
            pages = table[present // self.page_size : -(-end // self.page_size)]
            # A leaf on whose end nobody else relies grows: a conversation stays one node.
            is_free = node.lock_ref == (node is base) and not node.pins
            if is_free and not node.children and node.end:
                self._lengthen(node, raw[at:], pages)
            else:
                node = self._add_child(node, raw[at:], pages)
        return present, node

    def evict(self, num_pages: int) -> int:
        """Free min(``num_pages``, evictable) pages of leaves that are neither locked nor pinned.
        Returns how many.
        """
        num_pages = min(num_pages, self.evictable)  # so none goes that would free nothing
        for node, freed in cuts(self.order, num_pages):
            self.cut(node, freed)
        return num_pages

    def pin(self, node: Node, at: int, above: Node) -> Node:
        """Count a pin on the path to token ``at`` of ``node``, up to but not including ``above``.

        Splits as ``lock`` does, and returns the node that ends at ``at``. Nothing is used by it.
        """
        if at < node.end:
            node = self._split(node, at)
        each = node
        while each is not above:
            if not (each.pins or each.lock_ref):
                self.order.remove(each)
                self.evictable -= each.adds
                self.pinned += each.adds
            each.pins += 1
            each = each.parent
        return node

    def unpin(self, node: Node) -> None:
        """Take back one pin from ``node``'s path."""
        loose = []
        for each in path_up(node):
            each.pins -= 1
            if not (each.pins or each.lock_ref):
                self.pinned -= each.adds
                self.evictable += each.adds
                loose.append(each)
        if loose:
            self.order.rejoin(loose)

    def forget(self, node: Node, start: int) -> int:
        """Cut the path that ends with ``node`` back to ``start``. Returns the pages freed. It ends
        at what a request relies on, at what is pinned and at what others continue.
        """
        num_freed = 0
        for each, _ in self.forgettable(node, start, {}):
            if each.start >= start:
                self.order.remove(each)
                num_freed += self._cut_at(each, each.start)
        last = next((each for each in path_up(node) if each.start < start), None)
        if last is None or last.end <= start or last.lock_ref or last.pins or last.children:
            return num_freed
        return num_freed + self._cut_at(last, start)

    def forgettable(
        self, node: Node, start: int, gone: Mapping[Node, int]
    ) -> Iterator[tuple[Node, int]]:
        """What ``forget`` cuts, in its order: nodes, and the pages freed of each; where so many
        pages of the nodes in ``gone`` were cut already.
        """
        while node.end > start and not (node.lock_ref or node.pins):
            parent, freed = node.parent, node.adds
            if gone.get(node) != freed:
                if any(gone.get(child) != child.adds for child in node.children.values()):
                    break
                if node.start < start:
                    freed = len(node.pages) - (
                        -(-start // self.page_size) - node.start // self.page_size
                    )
                    if freed <= gone.get(node, 0):
                        break
                yield node, freed - gone.get(node, 0)
            node = parent

    def cut(self, node: Node, freed: int) -> None:
        """Take ``freed`` pages from the tail of an unlocked leaf; all it adds: it goes.

        The caller has taken a whole one out of the order.
        """
        last = node.start // self.page_size + len(node.pages) - freed
        self._cut_at(node, node.start if freed == node.adds else last * self.page_size)

    def _cut_at(self, node: Node, end: int) -> int:
        """Take what an unlocked leaf has behind ``end``, which may lie inside a page. Returns the
        pages freed.
        """
        whole = end == node.start
        keep = 0 if whole else -(-end // self.page_size) - node.start // self.page_size
        freed = node.adds if whole else len(node.pages) - keep
        self.generation += 1
        if self.on_evict is not None:
            self.on_evict(node, end)
        if freed or not whole:  # an only page, held above as well, may be open there
            self.open.pop(node.pages[-1], None)
        self._pages.release(node.pages[keep:])
        if whole:
            del node.parent.children[node.tokens[:ID_BYTES]]
        else:
            del node.pages[keep:]
            node.tokens = node.tokens[: (end - node.start) * ID_BYTES]
            node.end = end
        if node.pins:
            self.pinned -= freed
        else:
            self.evictable -= freed
        return freed

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, a parent before its children."""
        for root in self.roots.values():
            yield from below(root)

    def _lengthen(self, leaf: Node, tokens: bytes, pages: list[int]) -> None:
        before = leaf.adds
        if leaf.end % self.page_size:
            # The request's page has these slots as well; often it is the same page.
            old = leaf.pages.pop()
            if self._pages.release([old]):
                self.open.pop(old, None)
            if not leaf.pages:
                leaf.shares = self._held_above(leaf.parent, pages[0], leaf.start)
        leaf.pages += pages
        leaf.tokens += tokens
        leaf.end += len(tokens) // ID_BYTES
        if leaf.lock_ref:
            self.locked += leaf.adds - before
        else:
            self.evictable += leaf.adds - before

    def _add_child(self, parent: Node, tokens: bytes, pages: list[int]) -> Node:
        node = self._new_node(parent, parent.end, tokens, pages)
        node.shares = self._held_above(parent, pages[0], node.start)
        parent.children[tokens[:ID_BYTES]] = node
        self.order.add(node)
        self.evictable += node.adds
        return node

    def _held_above(self, node: Node, page: int, start: int) -> int:
        """1 if a node from ``node`` up holds ``page``, the page of token ``start``.

        Not only the next one: a node with a copy may stand between two with the same page.
        """
        page_start = start - start % self.page_size
        while node.end > page_start:
            if node.pages[-1] == page:
                return 1
            node = node.parent
        return 0

    def _split(self, node: Node, at: int) -> Node:
        """Cut ``node`` at token ``at``; the new node is the upper one, so holders keep theirs."""
        size = self.page_size
        parent = node.parent
        cut = (at - node.start) * ID_BYTES
        first = node.start // size
        upper = self._new_node(
            parent, node.start, node.tokens[:cut], node.pages[: -(-at // size) - first]
        )
        upper.lock_ref, upper.shares, upper.hits = node.lock_ref, node.shares, node.hits
        upper.tick, upper.last_used, upper.pins = node.tick, node.last_used, node.pins
        parent.children[upper.tokens[:ID_BYTES]] = upper
        node.parent, node.start, node.tokens = upper, at, node.tokens[cut:]
        del node.pages[: at // size - first]
        node.shares = 0
        if at % size:  # both hold the page that is cut
            self._pages.add_owner(node.pages[0])
            node.shares = 1
        upper.children[node.tokens[:ID_BYTES]] = node
        if not (upper.lock_ref or upper.pins):
            self.order.add(upper)
        return upper

    def _new_node(self, parent: Node | None, start: int, tokens: bytes, pages: list[int]) -> Node:
        self._num_made += 1
        return Node(self._num_made, parent, start, tokens, pages)
