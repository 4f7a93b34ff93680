"""The prefix cache under random lives of requests, checked after every step.

Three independent witnesses: ``PrefixCache.check`` recounts everything; a fake KV pool remembers
for which prefix each slot was written, so that a page table can be *read*; and a plain dict of
prefixes with their last use says what a match must find and who must be evicted next.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radchat.engine.node import Node
from radchat.engine.pins import PinsFull
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.request import Ids

MAX_LEN = 72  # tokens of a text: four pages of 16 and a bit
MAX_LEASES = 6

bits = st.text("01", max_size=20)  # two tokens only: texts meet all the time
some = st.integers(0, 99)  # which text, which lease: taken modulo how many there are
cut = st.integers(0, MAX_LEN)
namespaces = st.sampled_from(["", "other"])


def to_ids(text: str) -> Ids:
    return array("I", map(int, text))


class CacheMachine(RuleBasedStateMachine):
    cache_class: type[PrefixCache] = PrefixCache

    @initialize(page_size=st.sampled_from([1, 2, 3, 16]), num_pages=st.integers(8, 60))
    def start(self, page_size: int, num_pages: int) -> None:
        self.size = page_size
        self.cache = self.cache_class(num_pages, page_size, wall_clock=lambda: float(self.now))
        self.cache.on_evict = self.on_evict
        self.now = 0
        self.leases: list[Lease] = []
        self.texts: list[Ids] = [array("I")]
        self.slots: dict[int, list[bytes | None]] = {}  # page -> the prefix each slot is for
        self.last_use: dict[tuple[str, bytes], int] = {}  # every cached prefix
        self.in_tree: dict[int, int] = {}  # id(lease) -> tokens it has locked
        self.evicted: list[tuple[int, str, bytes, int]] = []  # node id, …, its prefix, new end
        self.pins: dict[str, tuple[str, bytes]] = {}  # name -> namespace, path

    # ---- what a request can do -------------------------------------------------------------

    @rule(text=some, at=cut, tail=bits, namespace=namespaces, over_pins=st.booleans())
    def admit(self, text: int, at: int, tail: str, namespace: str, over_pins: bool) -> None:
        ids = self.some_text(text)[:at] + to_ids(tail)
        self.try_admit(ids, namespace, over_pins=over_pins)

    @precondition(lambda self: self.leases)
    @rule(which=some)
    def twin(self, which: int) -> None:
        lease = self.some_lease(which)
        self.try_admit(lease.ids[:], lease.namespace)

    @precondition(lambda self: self.leases)
    @rule(which=some, count=st.integers(1, 20))
    def compute(self, which: int, count: int) -> None:
        lease = self.some_lease(which)
        self.run(lease, min(lease.computed_len + count, len(lease.ids)))

    @precondition(lambda self: self.leases)
    @rule(which=some, text=bits)
    def decode(self, which: int, text: str) -> None:
        self.generate(self.some_lease(which), text)

    @precondition(lambda self: self.leases)
    @rule(which=some)
    def show(self, which: int) -> None:
        self.show_lease(self.some_lease(which))

    @precondition(lambda self: self.leases)
    @rule(which=some, tail=bits)
    def fork(self, which: int, tail: str) -> None:
        self.fork_lease(self.some_lease(which), tail)

    @precondition(lambda self: self.leases)
    @rule(which=some, text=bits)
    def race(self, which: int, text: str) -> None:
        """A request and its fork compute the same tokens; the fork shows them first."""
        lease = self.some_lease(which)
        self.run(lease, len(lease.ids))
        child = self.fork_lease(lease, "")
        if child is not None and self.generate(lease, text) and self.generate(child, text):
            self.run(child, len(child.ids))
            self.show_lease(child)
            self.run(lease, len(lease.ids))
            self.show_lease(lease)

    @rule(text=some, question=bits, answer=bits, namespace=namespaces)
    def whole_turn(self, text: int, question: str, answer: str, namespace: str) -> None:
        lease = self.try_admit(self.some_text(text) + to_ids(question), namespace)
        if lease is not None and self.generate(lease, answer):
            self.end(lease, lease.computed_len)

    @precondition(lambda self: self.leases)
    @rule(which=some, dropped=st.integers(0, 5))
    def finish(self, which: int, dropped: int) -> None:
        lease = self.some_lease(which)
        self.end(lease, max(0, lease.computed_len - dropped))

    @precondition(lambda self: self.leases)
    @rule(which=some, dropped=st.integers(0, 5))
    def drop_tokens(self, which: int, dropped: int) -> None:
        """A rejected draft: its slots are written again by what comes next."""
        lease = self.some_lease(which)
        keep = max(1, self.in_tree[id(lease)], len(lease.ids) - dropped)
        del lease.ids[keep:]
        lease.computed_len = min(lease.computed_len, keep)

    @precondition(lambda self: self.leases)
    @rule(which=some)
    def abort(self, which: int) -> None:
        lease = self.some_lease(which)
        self.cache.abort(lease)
        self.forget(lease)

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages: int) -> None:
        free, expected = self.cache.free, min(num_pages, self.cache.evictable)
        plan = self.cache.eviction_plan()
        assert sum(step.pages for step in plan) == self.cache.evictable
        assert self.cache.evict(num_pages) == expected
        assert self.cache.free == free + expected
        gone = [node_id for node_id, *_ in self.evicted]
        assert gone == [step.node_id for step in plan][: len(gone)]
        self.settle_evictions()

    @rule(text=some, at=cut, name=st.sampled_from("abc"), ns=namespaces)
    def pin(self, text: int, at: int, name: str, ns: str) -> None:
        """A path that is cached, in part, or not at all; a pin of that name may be there."""
        ids = self.some_text(text)[:at]
        others = [pin for each, pin in self.pins.items() if each != name]
        want = self.pages_of([*others, (ns, ids.tobytes())])
        limit = self.cache.total // 4
        if want > limit:
            with pytest.raises(PinsFull) as refused:
                self.cache.pin(name, ids, ns)
            assert (refused.value.num_pages, refused.value.limit) == (want, limit)
            return
        self.cache.pin(name, ids, ns)
        self.pins[name] = (ns, ids.tobytes())
        assert self.cache.pins_want == want

    @rule(name=st.sampled_from("abc"))
    def unpin(self, name: str) -> None:
        assert self.cache.unpin(name) == (self.pins.pop(name, None) is not None)

    @rule(text=some, start=cut)
    def forget_a_path(self, text: int, start: int) -> None:
        """What is evicted by name: not by age, but only leaves, and nothing a request relies on."""
        ids, free = self.some_text(text), self.cache.free
        told = self.cache.forgettable([(ids, start), (ids, start), (ids[:-1], start + 1)])
        assert self.cache.forget(ids, start) == told == self.cache.free - free
        for _, namespace, path, end in self.evicted:
            assert end >= start
            assert self.may_go(namespace, path, end)
            for n in range(end + 1, len(path) // 4 + 1):
                del self.last_use[namespace, path[: 4 * n]]
        self.evicted.clear()
        left = self.cache.match_len(ids)
        pinned = self.is_pinned("", ids[:left].tobytes(), left - 1) if left else False
        if not (self.leases or pinned) and self.is_last(ids[:left]):
            assert left <= start, "left more than was asked for"

    # ---- what must hold after each step ----------------------------------------------------

    @invariant()
    def counts_agree_with_a_recount(self) -> None:
        self.cache.check(self.leases)

    @invariant()
    def a_pin_holds_all_that_is_cached_of_its_path(self) -> None:
        views = {view.name: view for view in self.cache.pins()}
        assert views.keys() == self.pins.keys()
        for name, (namespace, raw) in self.pins.items():
            ids = array("I", raw)
            held = self.expected_match(ids, namespace, len(ids))
            assert views[name][1:] == (len(ids), held)
        used = self.cache.free + self.cache.evictable + self.cache.pinned + self.cache.locked
        own = sum(len(lease.table) - lease.own_from for lease in self.leases)
        assert self.cache.total - own <= used <= self.cache.total

    @invariant()
    def the_line_is_in_order_of_last_use(self) -> None:
        """An order of walks; where a pin that ends puts back what it kept, too."""
        places = [(node.tick, -node.start) for node in self.cache._tree.order]
        assert places == sorted(places)

    @invariant()
    def every_page_table_reads_its_own_prefix(self) -> None:
        for lease in self.leases:
            table = lease.table[:]
            for source, destination in lease.copies:  # to be done before the next step
                table[table.index(destination)] = source
            self.read(table, lease.ids[: lease.computed_len].tobytes(), 0)

    @invariant()
    def the_tree_holds_exactly_the_prefixes_of_the_model(self) -> None:
        paths: dict[int | None, bytes] = {None: b""}
        found = set()
        used = {page for lease in self.leases for page in lease.table}
        for node in self.cache.nodes():
            path = paths[node.id] = paths[node.parent] + node.tokens.tobytes()
            self.read(list(node.pages), path, node.start // self.size)
            found |= {(node.namespace, path[: 4 * n]) for n in range(node.start + 1, node.end + 1)}
            used.update(node.pages)
        assert found == self.last_use.keys()
        for page in self.slots.keys() - used:  # what nobody owns is poisoned
            del self.slots[page]

    @invariant()
    def a_match_finds_the_longest_cached_prefix(self) -> None:
        for text in self.texts[-3:]:
            assert self.cache.match_len(text) == self.expected_match(text, "", len(text))

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for lease in self.leases[:]:
            self.end(lease, lease.computed_len)
        self.cache.check([])
        assert self.cache.locked == 0
        self.cache.clear(pinned=True)
        assert self.cache.free == self.cache.total
        assert not self.cache.nodes()

    # ---- the parts they are made of --------------------------------------------------------

    def some_text(self, which: int) -> Ids:
        return self.texts[which % len(self.texts)]

    def some_lease(self, which: int) -> Lease:
        return self.leases[which % len(self.leases)]

    def expected_match(self, ids: Ids, namespace: str, limit: int) -> int:
        raw = ids.tobytes()
        length = 0
        while length < limit and (namespace, raw[: 4 * length + 4]) in self.last_use:
            length += 1
        return length

    def try_admit(self, ids: Ids, namespace: str, *, over_pins: bool = False) -> Lease | None:
        if not 0 < len(ids) <= MAX_LEN or len(self.leases) == MAX_LEASES:
            return None
        if not self.cache.fits(len(ids)):
            return None
        self.texts.append(ids[:])
        found = self.expected_match(ids, namespace, len(ids) - 1)
        given_way = self.cache.given_way
        lease = self.cache.admit(ids, namespace, over_pins=over_pins)
        if lease is None:
            room = self.cache.free + self.cache.evictable
            copied = found % self.size > 0  # the page it would be copied from stays as well
            assert not over_pins or room + self.cache.pinned < -(-len(ids) // self.size) + copied
        if self.cache.given_way > given_way:
            assert over_pins
            assert self.cache.free == 0, "more gave way than was needed"
        return self.register(lease, ids, namespace, found)

    def fork_lease(self, lease: Lease, tail: str) -> Lease | None:
        ids = lease.ids[: lease.computed_len] + to_ids(tail)
        if not 0 < len(ids) <= MAX_LEN or len(self.leases) == MAX_LEASES:
            return None
        self.shown(lease)
        found = self.expected_match(ids, lease.namespace, len(ids) - 1)
        return self.register(self.cache.fork(lease, ids), ids, lease.namespace, found)

    def register(self, lease: Lease | None, ids: Ids, namespace: str, found: int) -> Lease | None:
        if lease is None:
            num_needed = -(-len(ids) // self.size) - found // self.size
            assert num_needed > self.cache.free, "refused although there was room"
            assert not self.evicted, "evicted for a request that was refused"
            self.use(namespace, ids, found)
            return None
        assert lease.cached_len == lease.computed_len == found
        assert len(lease.table) == -(-len(ids) // self.size)
        self.leases.append(lease)
        self.in_tree[id(lease)] = found
        self.settle_evictions()
        return lease

    def run(self, lease: Lease, until: int) -> None:
        """A step of the engine: first all copies, then the writes."""
        for each in self.leases:
            for source, destination in each.copies:
                self.slots[destination] = self.slots[source][:]
            each.copies.clear()
        for at in range(lease.computed_len, until):
            page = self.slots.setdefault(lease.table[at // self.size], [None] * self.size)
            page[at % self.size] = lease.ids[: at + 1].tobytes()
        lease.computed_len = max(lease.computed_len, until)

    def generate(self, lease: Lease, text: str) -> bool:
        """Compute what is left and append ``text`` token by token; the last one has no KV yet."""
        for token in to_ids(text)[: MAX_LEN - len(lease.ids)]:
            self.run(lease, len(lease.ids))
            alone = len(self.leases) == 1
            if not self.cache.reserve(lease, len(lease.ids) + 1, over_pins=alone):
                assert self.cache.free + self.cache.evictable == 0
                assert not alone or self.cache.pinned == 0
                self.end(lease, lease.computed_len)  # retract
                return False
            self.settle_evictions()
            lease.ids.append(token)
        return True

    def show_lease(self, lease: Lease) -> None:
        before = lease.table[:]
        swapped = self.cache.show(lease)
        assert [i for i, page in enumerate(before) if page != lease.table[i]] == list(swapped)
        self.shown(lease)

    def shown(self, lease: Lease) -> None:
        if lease.computed_len > self.in_tree[id(lease)]:
            self.in_tree[id(lease)] = lease.computed_len
            self.use(lease.namespace, lease.ids, lease.computed_len)

    def end(self, lease: Lease, n: int) -> None:
        self.cache.finish(lease, n)
        self.in_tree[id(lease)] = max(n, self.in_tree[id(lease)])
        self.forget(lease)

    def forget(self, lease: Lease) -> None:
        self.leases.remove(lease)
        self.use(lease.namespace, lease.ids, self.in_tree.pop(id(lease)))
        self.texts.append(lease.ids[:])

    def use(self, namespace: str, ids: Ids, length: int) -> None:
        self.now += 1
        raw = ids.tobytes()
        for n in range(1, length + 1):
            self.last_use[namespace, raw[: 4 * n]] = self.now

    def read(self, table: list[int], path: bytes, first: int) -> None:
        for at in range(first * self.size, len(path) // 4):
            page = self.slots[table[at // self.size - first]]
            assert page[at % self.size] == path[: 4 * at + 4], f"token {at} read from another's"

    def on_evict(self, node: Node, end: int) -> None:
        path, each = b"", node
        while each.end:
            path = each.tokens + path
            each = each.parent
        namespace = next(n for n, root in self.cache._tree.roots.items() if root is each)
        self.evicted.append((node.id, namespace, path, end))

    def settle_evictions(self) -> None:
        """Each victim was the least recently used leaf that no request relies on or, behind all of
        these, that pins keep.
        """
        if any(self.is_pinned(*entry[1:]) for entry in self.evicted):
            self.settle_what_gave_way()
        for _, namespace, path, end in self.evicted:
            assert self.may_go(namespace, path, end)
            used = self.last_use[namespace, path]
            older = [key for key, time in self.last_use.items() if time < used]
            assert not any(self.may_go(*key, len(key[1]) // 4 - 1) for key in older)
            for n in range(end + 1, len(path) // 4 + 1):
                del self.last_use[namespace, path[: 4 * n]]
        self.evicted.clear()

    def settle_what_gave_way(self) -> None:
        """Pinned paths went: nothing else could, they went last, and only where nothing goes on."""
        kept = [entry for entry in self.evicted if self.is_pinned(*entry[1:])]
        first = self.evicted.index(kept[0])
        assert self.evicted[first:] == kept
        del self.evicted[first:]
        self.settle_evictions()
        assert not any(self.may_go(*key, len(key[1]) // 4 - 1) for key in self.last_use)
        pins, self.pins = self.pins, {}
        for _, namespace, path, end in kept:
            assert self.may_go(namespace, path, end)
            for n in range(end + 1, len(path) // 4 + 1):
                del self.last_use[namespace, path[: 4 * n]]
        self.pins = pins

    def is_pinned(self, namespace: str, path: bytes, end: int) -> bool:
        """Whether a pin reaches beyond token ``end`` of ``path``."""
        beyond = path[: 4 * end + 4]
        return any(ns == namespace and raw.startswith(beyond) for ns, raw in self.pins.values())

    def pages_of(self, pins: list[tuple[str, bytes]]) -> int:
        """Whole pages of these paths, those shared once, and a last one that is not whole."""
        whole = {
            (ns, raw[: 4 * n])
            for ns, raw in pins
            for n in range(self.size, len(raw) // 4 + 1, self.size)
        }
        return len(whole) + sum(len(raw) // 4 % self.size > 0 for _, raw in pins)

    def is_last(self, ids: Ids) -> bool:
        """Whether nothing in the model goes on from ``ids``."""
        longer = [ids + to_ids(bit) for bit in "01"]
        return not any(("", each.tobytes()) in self.last_use for each in longer)

    def may_go(self, namespace: str, path: bytes, end: int) -> bool:
        """Whether ``path`` is a leaf of the model that no request needs beyond token ``end``."""
        longer = [path + to_ids(bit).tobytes() for bit in "01"]
        if any((namespace, each) in self.last_use for each in longer):
            return False
        if self.is_pinned(namespace, path, end):
            return False
        return not any(
            lease.namespace == namespace
            and self.in_tree[id(lease)] > end
            and lease.ids[: end + 1].tobytes() == path[: 4 * end + 4]
            for lease in self.leases
        )


def machine_settings(runs: int, steps: int) -> settings:
    return settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def test_no_life_of_requests_breaks_the_cache() -> None:
    run_state_machine_as_test(CacheMachine, settings=machine_settings(300, 80))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_life_of_requests_breaks_the_cache_in_a_long_run() -> None:
    run_state_machine_as_test(CacheMachine, settings=machine_settings(6000, 100))
