"""Pins: what is kept on purpose, how much, how long, and to whom it gives way."""

from __future__ import annotations

from array import array

import pytest

from radchat.engine.engine import Engine
from radchat.engine.pins import PinsFull
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, FinishReason, GaveWay, Ids, Request
from radchat.errors import InvalidInput
from tests.fakes import drain, finished, greedy, output, scripted_engine

P = 4


def ids(*parts: int | range) -> Ids:
    found = array("I")
    for part in parts:
        found.extend(part if isinstance(part, range) else [part])
    return found


def store(cache: PrefixCache, text: Ids) -> None:
    lease = cache.admit(text)
    assert lease is not None
    lease.computed_len = len(text)
    cache.finish(lease)
    cache.check([])


def ask(engine: Engine, name: str, prompt: Ids, max_tokens: int = 4) -> list[Event]:
    engine.submit(Request(name, prompt, greedy(max_tokens)))
    return drain(engine)


@pytest.fixture
def cache() -> PrefixCache:
    """Three texts of five pages, of one root; the oldest first."""
    cache = PrefixCache(81, P)
    for text in range(3):
        store(cache, ids(range(10), range(100 * text + 100, 100 * text + 110)))
    return cache


OLD, NEW = ids(range(10), range(100, 110)), ids(range(10), range(300, 310))


def test_what_is_pinned_has_no_rank_and_no_eviction_by_age_comes_to_it(cache: PrefixCache) -> None:
    cache.pin("a", OLD)
    kept = {node.id for node in cache.nodes() if node.pins}
    assert not kept & {step.node_id for step in cache.eviction_plan()}
    assert cache.clear() > 0
    assert cache.match_len(OLD) == len(OLD)
    assert cache.match_len(NEW) == 10
    assert (cache.evictable, cache.free + cache.pinned) == (0, cache.total)


def test_a_pin_ends_where_its_path_does_however_the_nodes_are_cut(cache: PrefixCache) -> None:
    cache.pin("a", OLD[:13])
    store(cache, ids(range(10), range(100, 102), 7, 8))  # splits what is pinned
    store(cache, ids(range(10), range(100, 113)))  # goes on from it
    cache.clear()
    assert cache.match_len(OLD) == 13
    assert [node.pins for node in cache.nodes()] == [1, 1, 1]


def test_forgetting_a_path_by_name_ends_at_what_is_pinned(cache: PrefixCache) -> None:
    cache.pin("a", OLD[:12])
    cache.forget(OLD, 0)
    assert cache.match_len(OLD) == 12


def test_what_only_a_pin_kept_stands_again_where_its_last_use_puts_it(cache: PrefixCache) -> None:
    before = cache.eviction_plan()
    cache.pin("a", OLD)
    cache.pin("b", NEW)
    assert len(cache.eviction_plan()) == 1
    assert cache.unpin("a")
    assert cache.unpin("b")
    assert cache.eviction_plan() == before
    assert not cache.unpin("b")


def test_what_two_pins_keep_stays_until_both_have_ended(cache: PrefixCache) -> None:
    cache.pin("short", OLD[:12])
    cache.pin("long", OLD)
    cache.unpin("short")
    assert cache.pinned == 5
    cache.unpin("long")
    assert cache.pinned == 0


def test_a_path_that_is_not_cached_yet_is_kept_once_it_is_computed() -> None:
    cache = PrefixCache(81, P)
    text = ids(range(50, 70))
    cache.pin("a", text)
    assert cache.pins()[0].held_tokens == 0
    lease = cache.admit(text + ids(1, 2, 3))
    assert lease is not None
    lease.computed_len = 9  # a chunk
    cache.show(lease)
    assert cache.pins()[0].held_tokens == 9
    cache.check([lease])
    lease.computed_len = 23
    cache.finish(lease)
    cache.check([])
    assert cache.pins()[0].held_tokens == 20
    cache.clear()
    assert cache.match_len(text) == 20


def test_at_most_a_quarter_is_pinned_and_a_shared_beginning_counts_once() -> None:
    cache = PrefixCache(81, P)
    assert cache.pin_limit == 20
    cache.pin("a", ids(range(40)))
    cache.pin("b", ids(range(32), range(100, 140)))  # 18 pages, 8 of them a's
    assert cache.pins_want == 20
    with pytest.raises(PinsFull) as refused:
        cache.pin("c", ids(range(8), 9))
    assert (refused.value.num_pages, refused.value.limit) == (21, 20)
    cache.pin("b", ids(range(32), range(100, 104)))  # in its own place
    cache.pin("c", ids(range(8), 9))
    assert [(pin.name, pin.num_tokens) for pin in cache.pins()] == [("a", 40), ("b", 36), ("c", 9)]


def pinned_engine() -> tuple[Engine, Ids]:
    """A pool of 20 pages, five of them pinned."""
    engine = scripted_engine(pool_tokens=320)
    prompt = ids(range(60))
    ask(engine, "first", prompt)
    engine.pin("kept", prompt + ids(range(20)))
    assert engine.cache.pinned == 4
    return engine, prompt


def test_a_pin_beyond_the_limit_is_refused_with_both_numbers() -> None:
    engine, prompt = pinned_engine()
    with pytest.raises(InvalidInput, match=r"would pin 96 tokens, and at most 80 may be") as error:
        engine.pin("more", ids(99))
    assert error.value.data == {"tokens": 96, "limit": 80}
    assert engine.probe(prompt) == len(prompt)


def test_a_request_that_has_room_beside_the_pins_leaves_them_alone() -> None:
    engine, prompt = pinned_engine()
    for number in range(6):
        events = ask(engine, str(number), ids(range(100, 250 + number)), 30)
        assert not [event for event in events if isinstance(event, GaveWay)]
        assert engine.probe(prompt) == len(prompt)
        engine.check_idle()


def test_a_request_that_fits_but_for_the_pins_runs_and_is_told_what_gave_way() -> None:
    engine, prompt = pinned_engine()
    long = ids(range(100, 250), range(100, 230))  # 18 of 20 pages
    events = ask(engine, "long", long)
    assert finished(events, "long").reason is FinishReason.LENGTH
    given = [event for event in events if isinstance(event, GaveWay)]
    assert [(event.request_id, event.tokens) for event in given] == [("long", 32)]
    assert engine.probe(prompt) == 32
    engine.check_idle()
    ask(engine, "again", prompt)  # and once it is computed again it is kept again
    engine.clear()
    assert engine.probe(prompt) == len(prompt)


def test_an_answer_that_outgrows_what_is_beside_the_pins_takes_their_room_only_when_alone() -> None:
    engine, _ = pinned_engine()
    engine.submit(Request("a", ids(range(100, 200)), greedy(160)))
    engine.submit(Request("b", ids(range(60, 100)), greedy(60)))
    events = drain(engine)
    solo = {
        name: output(ask(scripted_engine(), name, text, most), name)
        for name, text, most in (("a", ids(range(100, 200)), 160), ("b", ids(range(60, 100)), 60))
    }
    assert {name: output(events, name) for name in "ab"} == solo
    given = [place for place, event in enumerate(events) if isinstance(event, GaveWay)]
    assert given
    end_of_b = events.index(finished(events, "b"))
    assert end_of_b < given[0]
    engine.check_idle()


def test_a_pinned_path_that_stands_in_its_own_way_does_not_starve() -> None:
    """Its page is in the tree and so are copies of it: cleared, it takes each page once. What was
    kept of it goes for that, and it is told so.
    """
    engine = scripted_engine(pool_tokens=64)
    ask(engine, "first", ids(range(14)), 1)
    engine.pin("kept", ids(range(14)))
    events = ask(engine, "whole", ids(range(5), range(70, 128)), 1)
    assert finished(events, "whole").reason is FinishReason.LENGTH
    assert output(events, "whole")
    given = [event for event in events if isinstance(event, GaveWay)]
    assert [(event.request_id, event.tokens) for event in given] == [("whole", 16)]
    engine.check_idle()
