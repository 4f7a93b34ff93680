"""The prefix cache as the engine sees it: leases, turns, forks, endings, evictions."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from radchat.engine.node import Node
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.request import Ids


def ids(*runs: int | range) -> Ids:
    tokens = array("I")
    for run in runs:
        tokens.extend(run if isinstance(run, range) else [run])
    return tokens


def admitted(cache: PrefixCache, tokens: Ids, namespace: str = "") -> Lease:
    lease = cache.admit(tokens[:], namespace)
    assert lease is not None
    return lease


def compute(lease: Lease, until: int | None = None) -> Lease:
    lease.copies.clear()
    lease.computed_len = len(lease.ids) if until is None else until
    return lease


def generate(cache: PrefixCache, lease: Lease, answer: Ids) -> Lease:
    """Decode: the KV of a token is written in the step after the one that sampled it."""
    for token in answer:
        compute(lease)
        assert cache.reserve(lease, len(lease.ids) + 1)
        lease.ids.append(token)
    return lease


def stored(cache: PrefixCache, tokens: Ids, namespace: str = "") -> Ids:
    cache.finish(compute(admitted(cache, tokens, namespace)))
    return tokens


def locked_tokens(cache: PrefixCache) -> int:
    return sum(node.end - node.start for node in cache.nodes() if node.lock_ref)


def state(cache: PrefixCache) -> object:
    """All there is to know about a cache."""
    tree, pages = cache._tree, cache._pages
    return (
        cache.nodes(),
        [node.id for node in tree.order],
        (cache.free, cache.evictable, cache.locked, tree._tick),
        dict(tree.open),
        dict(pages.extra),
        pages.free_runs(),
        [list(starts) for starts in pages._classes],
    )


# ---- match and lock ------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_a_partial_match_locks_only_what_matched(page_size: int) -> None:
    cache = PrefixCache(64, page_size)
    stored(cache, ids(range(1, 11)))
    running = admitted(cache, ids(range(1, 7), 20, 21))
    assert running.cached_len == 6
    assert locked_tokens(cache) == 6
    stored(cache, ids(range(1, 9), 30))
    assert locked_tokens(cache) == 6
    cache.check([running])
    cache.finish(compute(running))
    assert cache.locked == 0
    cache.clear()
    assert cache.free == cache.total
    assert not cache.nodes()


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33])
def test_a_prompt_that_is_all_cached_leaves_one_token_to_compute(length: int) -> None:
    cache = PrefixCache(64)
    prompt = stored(cache, ids(range(length)))
    assert cache.match_len(prompt) == length
    again = admitted(cache, prompt)
    assert again.cached_len == length - 1
    cache.check([again])


def test_a_prefix_of_a_cached_prompt_leaves_one_token_to_compute() -> None:
    cache = PrefixCache(64)
    stored(cache, ids(range(40)))
    assert admitted(cache, ids(range(20))).cached_len == 19


def test_nothing_is_reused_across_namespaces() -> None:
    cache = PrefixCache(64)
    prompt = stored(cache, ids(range(40)), "adapter:a")
    for namespace in ("", "adapter", "adapter:b", "a"):
        assert cache.match_len(prompt, namespace) == 0
        assert admitted(cache, prompt, namespace).cached_len == 0
    assert cache.match_len(prompt, "adapter:a") == 40


def test_probing_an_unknown_namespace_leaves_no_trace() -> None:
    cache = PrefixCache(64)
    assert cache.match_len(ids(1, 2), "nobody") == 0
    assert cache.path(ids(1, 2), "nobody") == []
    assert not cache._tree.roots


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 300, 998, 999])
def test_reuse_ends_at_the_first_id_that_differs(place: int) -> None:
    """RC-08: by ids, compared in bulk; no hash decides."""
    cache = PrefixCache(256)
    prompt = stored(cache, ids(range(1000)))
    prompt[place] += 1 << 20
    assert cache.match_len(prompt) == place
    assert admitted(cache, prompt).cached_len == place


def test_a_probe_changes_nothing() -> None:
    cache = PrefixCache(64)
    stored(cache, ids(range(40)))
    before = state(cache)
    assert cache.match_len(ids(range(30), 99)) == 30
    assert [(node.start, node.end) for node in cache.path(ids(range(30), 99))] == [(0, 40)]
    assert state(cache) == before


def test_hits_count_the_admitted_requests_that_used_a_node() -> None:
    cache = PrefixCache(64)
    stored(cache, ids(range(40)))
    for last in (100, 101, 102):
        cache.finish(compute(admitted(cache, ids(range(20), last))))
    hits = {(node.start, node.end): node.hits for node in cache.nodes()}
    assert hits == {(0, 20): 3, (20, 40): 0, (20, 21): 0}


# ---- turns ---------------------------------------------------------------------------------


def test_the_next_turn_reuses_the_answer_too() -> None:
    cache = PrefixCache(64)
    lease = generate(cache, admitted(cache, ids(range(100))), ids(range(500, 550)))
    cache.finish(lease)
    following = admitted(cache, lease.ids + ids(range(900, 910)))
    assert following.cached_len == 149  # the last sampled token has no KV yet


@pytest.mark.parametrize(
    ("kept", "cached"), [(149, 149), (147, 147), (120, 120)], ids=["length", "stop", "stop string"]
)
def test_an_answer_is_reused_up_to_where_it_was_cut(kept: int, cached: int) -> None:
    cache = PrefixCache(64)
    lease = generate(cache, admitted(cache, ids(range(100))), ids(range(500, 550)))
    cache.finish(lease, kept)
    assert admitted(cache, lease.ids[:kept] + ids(7)).cached_len == cached
    assert cache.match_len(lease.ids) == kept


def test_the_next_turn_goes_on_in_place_and_copies_nothing() -> None:
    cache = PrefixCache(64)
    first = compute(admitted(cache, ids(range(20))))
    table = first.table[:]
    cache.finish(first)
    following = admitted(cache, ids(range(20), range(100, 120)))
    assert following.copies == []
    assert following.table[:2] == table
    assert following.own_from == 1  # its writer from here on
    cache.check([following])


def test_of_two_that_follow_one_turn_only_the_second_copies() -> None:
    cache = PrefixCache(64)
    stored(cache, ids(range(20)))
    first = admitted(cache, ids(range(20), 100))
    second = admitted(cache, ids(range(20), 200))
    assert first.copies == []
    assert second.copies == [(first.table[1], second.table[1])]
    cache.check([first, second])


def test_a_match_inside_a_page_copies_that_one_page() -> None:
    cache = PrefixCache(64)
    lease = compute(admitted(cache, ids(range(64))))
    table = lease.table[:]
    cache.finish(lease)
    branch = admitted(cache, ids(range(40), 99, 98))
    assert branch.cached_len == 40
    assert branch.copies == [(table[2], branch.table[2])]
    assert branch.table[:2] == table[:2]


def test_a_match_that_ends_with_a_page_copies_nothing() -> None:
    cache = PrefixCache(64)
    stored(cache, ids(range(64)))
    assert admitted(cache, ids(range(48), 99)).copies == []


def test_a_conversation_stays_one_node_however_many_turns_it_has() -> None:
    cache = PrefixCache(256)
    history = ids(range(30))
    for turn in range(20):
        lease = generate(cache, admitted(cache, history), ids(range(turn * 50, turn * 50 + 9)))
        cache.finish(lease)
        history = lease.ids + ids(7, 7, 7)
    assert [(node.start, node.end) for node in cache.nodes()] == [(0, len(lease.ids) - 1)]


# ---- what is computed at the same time -----------------------------------------------------


def test_a_chunk_that_is_shown_serves_the_next_request_at_once() -> None:
    cache = PrefixCache(64)
    first = compute(admitted(cache, ids(range(64))), 32)
    assert list(cache.show(first)) == []
    second = admitted(cache, ids(range(64), 9))
    assert second.cached_len == 32
    assert second.table[:2] == first.table[:2]
    cache.check([first, second])


def test_the_loser_of_a_race_is_given_the_surviving_pages() -> None:
    cache = PrefixCache(64)
    winner, loser = admitted(cache, ids(range(40))), admitted(cache, ids(range(40)))
    own = loser.table[:]
    cache.show(compute(winner))
    free = cache.free
    assert list(cache.show(compute(loser))) == [0, 1]  # never the page it is writing
    assert loser.table == [*winner.table[:2], own[2]]
    assert cache.free == free + 2
    cache.check([winner, loser])


def test_a_duplicate_that_ends_leaves_one_copy() -> None:
    cache = PrefixCache(64)
    first, second = admitted(cache, ids(range(40))), admitted(cache, ids(range(40)))
    cache.finish(compute(first))
    cache.finish(compute(second))
    assert cache.evictable == 3
    assert cache.free == cache.total - 3
    cache.check([])


def test_eight_forks_of_a_running_request_take_eight_pages() -> None:
    cache = PrefixCache(256)
    parent = compute(admitted(cache, ids(range(1500))))
    free = cache.free
    forks = [cache.fork(parent, ids(range(1500), 5000 + k)) for k in range(8)]
    children = [child for child in forks if child is not None]
    assert len(children) == 8
    assert all(child.cached_len == 1500 for child in children)
    assert [child.copies[0][0] for child in children] == [parent.table[-1]] * 8
    assert free - cache.free == 8
    cache.check([parent, *children])


def test_the_parent_of_a_fork_goes_on_writing_in_its_page() -> None:
    cache = PrefixCache(64)
    parent = compute(admitted(cache, ids(range(20))))
    child = cache.fork(parent, ids(range(20), 99))
    assert child is not None
    before = parent.table[:]
    generate(cache, parent, ids(50, 51))
    assert parent.table[:2] == before
    cache.show(compute(parent))
    cache.show(compute(child))
    assert cache.match_len(ids(range(20), 50, 51)) == 22
    assert cache.match_len(ids(range(20), 99)) == 21
    cache.check([parent, child])


# ---- room ----------------------------------------------------------------------------------


def test_a_request_that_can_never_fit_is_told_apart() -> None:
    cache = PrefixCache(5, 16)
    assert cache.fits(64)
    assert not cache.fits(65)


def test_a_refused_request_evicts_nothing_and_locks_nothing() -> None:
    cache = PrefixCache(9, 4)
    stored(cache, ids(range(8)))
    running = admitted(cache, ids(range(100, 120)))
    assert cache.admit(ids(range(200, 216))) is None
    assert cache.match_len(ids(range(8))) == 8
    assert cache.locked == 0
    cache.check([running])


def test_admission_evicts_what_it_needs_but_never_what_it_reuses() -> None:
    cache = PrefixCache(9, 4)
    old = stored(cache, ids(range(8)))
    reused = stored(cache, ids(range(100, 116)))
    lease = admitted(cache, reused + ids(range(200, 216)))
    assert lease.cached_len == 16
    assert cache.match_len(old) == 0
    cache.check([lease])


def test_pages_to_decode_into_come_eight_at_a_time() -> None:
    cache = PrefixCache(64)
    lease = compute(admitted(cache, ids(range(16))))
    assert cache.reserve(lease, 17)
    assert len(lease.table) == 1 + 8
    cache.finish(lease)
    assert cache.free == cache.total - 1  # the unused rest went back


def test_short_of_room_they_come_one_by_one_and_then_not_at_all() -> None:
    cache = PrefixCache(4)
    lease = compute(admitted(cache, ids(range(16))))
    for num_pages in (2, 3):
        assert cache.reserve(lease, 16 * num_pages)
        assert len(lease.table) == num_pages
    before = state(cache)
    assert not cache.reserve(lease, 49)
    assert state(cache) == before
    assert len(lease.table) == 3


# ---- endings -------------------------------------------------------------------------------

PROMPT = ids(range(21))


def by_length(cache: PrefixCache, lease: Lease) -> None:
    cache.finish(generate(cache, lease, ids(range(60, 75))))


def by_first_token(cache: PrefixCache, lease: Lease) -> None:
    cache.finish(generate(cache, lease, ids(60)))


def without_a_token(cache: PrefixCache, lease: Lease) -> None:
    cache.finish(compute(lease))


def by_stop_string(cache: PrefixCache, lease: Lease) -> None:
    cache.finish(generate(cache, lease, ids(range(60, 75))), 25)


def cancelled_before_its_first_chunk(cache: PrefixCache, lease: Lease) -> None:
    cache.abort(lease)


def cancelled_in_prefill(cache: PrefixCache, lease: Lease) -> None:
    compute(lease, 10)
    cache.show(lease)
    compute(lease, 13)
    cache.abort(lease)
    assert cache.match_len(lease.ids) == 10  # what was shown, not what was computed


def cancelled_in_decode(cache: PrefixCache, lease: Lease) -> None:
    cache.show(generate(cache, lease, ids(60, 61)))
    cache.abort(generate(cache, lease, ids(range(62, 70))))


def retracted_and_resumed(cache: PrefixCache, lease: Lease) -> None:
    cache.finish(generate(cache, lease, ids(range(60, 66))))
    resumed = admitted(cache, lease.ids)
    assert resumed.cached_len == len(lease.ids) - 1
    cache.finish(generate(cache, resumed, ids(range(66, 70))))


def forked_and_left_by_its_parent(cache: PrefixCache, lease: Lease) -> None:
    child = cache.fork(compute(lease), lease.ids + ids(99))
    assert child is not None
    cache.abort(lease)
    cache.finish(compute(child))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    "end",
    [
        by_length,
        by_first_token,
        without_a_token,
        by_stop_string,
        cancelled_before_its_first_chunk,
        cancelled_in_prefill,
        cancelled_in_decode,
        retracted_and_resumed,
        forked_and_left_by_its_parent,
    ],
)
def test_the_counters_balance_however_a_request_ends(
    end: Callable[[PrefixCache, Lease], None], page_size: int
) -> None:
    cache = PrefixCache(128, page_size)
    end(cache, admitted(cache, PROMPT))
    cache.check([])
    assert cache.locked == 0
    assert cache.free + cache.evictable == cache.total
    end(
        cache, admitted(cache, ids(range(7), range(80, 94)))
    )  # and again, on top of what is there now
    cache.check([])
    cache.clear()
    assert cache.free == cache.total


def test_a_request_cannot_end_twice() -> None:
    cache = PrefixCache(64)
    lease = compute(admitted(cache, ids(1, 2)))
    cache.finish(lease)
    with pytest.raises(AssertionError, match="ended twice"):
        cache.abort(lease)


# ---- eviction ------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(64, 4)
    for start in (100, 200, 300):
        stored(cache, ids(range(start, start + 8)))
    cache.finish(compute(admitted(cache, ids(range(100, 108)))))  # used again
    cache.evict(2)
    assert [cache.match_len(ids(range(s, s + 8))) for s in (100, 200, 300)] == [8, 0, 8]


def test_a_node_is_shortened_from_its_tail() -> None:
    cache = PrefixCache(64, 4)
    prompt = stored(cache, ids(range(18)))
    assert cache.evict(2) == 2
    assert cache.match_len(prompt) == 12
    cache.check([])


@pytest.mark.parametrize("wanted", [0, 1, 2, 3, 5, 8, 100])
def test_exactly_as_many_pages_are_freed_as_were_asked_for(wanted: int) -> None:
    cache = PrefixCache(64, 4)
    stored(cache, ids(range(10)))
    stored(cache, ids(range(6), 50, 51, 52))
    running = admitted(cache, ids(range(6), 70))
    free, evictable = cache.free, cache.evictable
    assert 0 < evictable < 8
    assert cache.evict(wanted) == min(wanted, evictable)
    assert cache.free == free + min(wanted, evictable)
    cache.check([running])


def test_what_a_request_relies_on_is_never_evicted() -> None:
    cache = PrefixCache(64, 4)
    prompt = stored(cache, ids(range(10)))
    running = admitted(cache, prompt + ids(99))
    assert cache.clear() == 0
    assert cache.match_len(prompt) == 10
    cache.check([running])


def a_busy_cache() -> tuple[PrefixCache, list[Lease]]:
    """Branches cut inside pages, copies, a follower in place, a running request."""
    cache = PrefixCache(200, 4, wall_clock=iter(range(10**6)).__next__)
    for k in range(12):
        stored(cache, ids(range(k % 4 * 5 + 3), range(1000 * k, 1000 * k + 2 * k + 1)))
    stored(cache, ids(range(3), 0, 77, 78, 79))
    running = generate(cache, admitted(cache, ids(range(6), 55)), ids(1, 2, 3))
    cache.show(running)
    return cache, [running]


def test_the_plan_of_an_eviction_disturbs_nothing() -> None:
    cache, leases = a_busy_cache()
    before = state(cache)
    assert len(cache.eviction_plan()) > 10
    assert state(cache) == before
    cache.check(leases)


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_the_plan_is_what_the_real_evictor_then_does(step: int) -> None:
    cache, leases = a_busy_cache()
    plan = cache.eviction_plan()
    done: list[tuple[int, int, int]] = []  # node, new end, end

    def record(node: Node, end: int) -> None:
        if done and done[-1][0] == node.id:  # goes on where the step before had stopped
            assert done[-1][1] == node.end
            done[-1] = (node.id, end, done[-1][2])
        else:
            done.append((node.id, end, node.end))

    cache.on_evict = record
    while cache.evict(step):
        cache.check(leases)
    assert done == [(each.node_id, each.start, each.end) for each in plan]


def test_each_step_of_the_plan_frees_the_pages_it_says() -> None:
    cache, _ = a_busy_cache()
    plan = [step for step in cache.eviction_plan() if step.pages]
    while plan:
        freed = plan.pop(0).pages
        assert cache.evict(freed) == freed
        assert [step for step in cache.eviction_plan() if step.pages] == plan
    assert cache.evictable == 0


def test_pages_are_still_readable_when_their_eviction_is_announced() -> None:
    cache = PrefixCache(64, 4)
    stored(cache, ids(range(18)))
    announced: list[tuple[int, int, bool]] = []

    def save(node: Node, end: int) -> None:
        free = {p for run in cache._pages.free_runs() for p in range(*run)}
        announced.append((node.end, end, bool(free & set(node.pages))))

    cache.on_evict = save
    cache.evict(1)
    cache.clear()
    assert announced == [(18, 16, False), (16, 0, False)]


# ---- what is shown -------------------------------------------------------------------------


def test_nodes_are_listed_with_what_the_tree_view_needs() -> None:
    times = iter([10.0, 11.0, 20.0, 21.0])
    cache = PrefixCache(64, 4, wall_clock=times.__next__)
    stored(cache, ids(range(10)))
    stored(cache, ids(range(6), 99), "")
    upper, lower, branch = cache.nodes()
    assert [(n.depth, n.parent) for n in (upper, lower, branch)] == [
        (0, None),
        (1, upper.id),
        (1, upper.id),
    ]
    assert upper.tokens == ids(range(6))
    assert (upper.adds, lower.adds, branch.adds) == (2, 1, 1)
    assert (upper.last_used, lower.last_used, branch.last_used) == (21.0, 11.0, 21.0)
    assert lower.tick < branch.tick == upper.tick
    assert cache.path(ids(range(6), 99)) == [upper, branch]


def test_check_finds_a_page_table_that_was_tampered_with() -> None:
    cache = PrefixCache(64, 4)
    stored(cache, ids(range(10)))
    lease = admitted(cache, ids(range(10), 99))
    lease.table[0], lease.table[1] = lease.table[1], lease.table[0]
    with pytest.raises(AssertionError, match="a lease's table"):
        cache.check([lease])


def test_the_cache_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import radchat.engine.prefix_cache;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['radchat']"


def chain(num_turns: int) -> PrefixCache:
    """A path as deep as it can be: a fork at the end of each of its turns."""
    cache = PrefixCache(num_turns * 4 + 20)
    path = ids(0)
    for turn in range(num_turns):
        stored(cache, path + ids(range(100, 110)))
        path = path + ids(range(turn * 7 + 200, turn * 7 + 207))
        stored(cache, path)
    return cache


def num_calls(work: Callable[[], object]) -> int:
    """How many functions are entered, resumed generators and built-in ones included."""
    count = 0

    def heard(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(heard)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_listing_and_recounting_a_deep_tree_takes_steps_in_proportion_to_its_nodes() -> None:
    small, large = chain(50), chain(200)
    assert max(node.depth for node in large.nodes()) >= 200
    for name in ("nodes", "eviction_plan"):
        counts = [num_calls(getattr(cache, name)) for cache in (small, large)]
        assert counts[1] < 5 * counts[0], name  # four times the nodes; sixteen, were it quadratic
    counts = [num_calls(lambda cache=cache: cache.check([])) for cache in (small, large)]  # type: ignore[misc]
    assert counts[1] < 5 * counts[0]


def test_views_say_the_same_of_a_node_whichever_way_it_is_found() -> None:
    cache = chain(20)
    stored(cache, ids(5, 6, 7), "other")
    views = {node.id: node for node in cache.nodes()}
    assert {node.namespace for node in views.values()} == {"", "other"}
    path = cache.path(ids(0, *[range(t * 7 + 200, t * 7 + 207) for t in range(20)]))
    assert [node.depth for node in path] == list(range(len(path)))
    assert len(path) > 15
    for above, node in pairwise(path):
        assert views[node.id] == node
        assert node.parent == above.id
