"""KV on disk as the engine uses it: what is restored, what is counted, what is written.

The model is scripted: a token's KV is its id, read back through the page table before every
answer, so a wrong slot shows as another answer. Free pages are NaN and everything is recounted
after each step.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from radchat.engine.engine import Engine
from radchat.engine.reader import AGAIN_S, HANGS_S
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Priority,
    Progress,
    Request,
    Started,
    Tiers,
)
from radchat.engine.restoring import Speed, guessed_token_s
from radchat.engine.scheduler_options import SchedulerOptions
from tests.engine.blocks_in_memory import BlocksInMemory
from tests.fakes import (
    LogicalClock,
    drain,
    finished,
    flush,
    greedy,
    hashed,
    output,
    scripted_engine,
)

BLOCK = 256
CHUNK = 64


def some(seed: int, length: int) -> Ids:
    return array("I", random.Random(seed).choices(range(250), k=length))


class Bench:
    """Engines that come and go over one store; every answer and every count is checked."""

    def __init__(self, **more: Any) -> None:
        self.store = BlocksInMemory()
        self.clock = LogicalClock()
        self._more = {"pool_tokens": 8192, "context_length": 8192} | more
        self._engines: list[Engine] = []
        self.restart()
        self._named = 0

    def restart(self) -> None:
        self.close()
        options = {"chunk_tokens": CHUNK} | self._more.pop("options", {})
        self._more["options"] = options
        more = self._more | {"options": SchedulerOptions(**options)}
        self.engine = scripted_engine(blocks=self.store, clock=self.clock, **more)

    def close(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_idle()
            self.engine.close()

    def request(self, ids: Ids, length: int | None = 3, **more: Any) -> Request:
        self._named += 1
        params = greedy(length, **more.pop("params", {}))
        return Request(f"r{self._named}", ids, params, **more)

    def ask(self, ids: Ids, length: int | None = 3, **more: Any) -> Finished:
        request = self.request(ids, length, **more)
        before = self.engine.rows_run
        self.engine.submit(request)
        events = drain(self.engine)
        end = self.expect(request, events)
        rows = self.engine.rows_run - before
        assert rows == end.usage.computed + end.usage.output_tokens - bool(length), "rows"
        return end

    def expect(self, request: Request, events: Sequence[Event]) -> Finished:
        end = finished(events, request.id)
        assert end.error is None
        if request.fill == "answer":
            whole = list(request.ids)
            for token in output(events, request.id):
                assert token == hashed(whole), f"{request.id} after {len(whole)} ids"
                whole.append(token)
        check_counts(end, request)
        self.engine.check_idle()
        return end

    def keep(self, ids: Ids, name: str = "s/main") -> None:
        """Have ids computed, kept and written."""
        self.ask(ids, 1)
        self.engine.keep(name, ids)
        assert flush(self.engine)


def check_counts(end: Finished, request: Request) -> None:
    usage, at = end.usage, 0
    for span in end.spans:
        assert span.start == at < span.end
        at = span.end
    assert usage.cached_tokens == usage.device + usage.disk
    if request.fill != "load":
        assert at == usage.device + usage.disk + usage.computed == len(request.ids)


def tiers(end: Finished) -> Sequence[tuple[int, int, str]]:
    return list(end.spans)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


# -- what is restored ------------------------------------------------------------------------------


def loaded(length: int) -> int:
    """Of so many tokens on disk: a block's only one is computed sooner than read."""
    return length - (length % BLOCK == 1)


LENGTHS = [2, 15, 16, 17, 31, 33, 255, 256, 257, 300, 511, 512, 513, 700]


@pytest.mark.parametrize("length", LENGTHS)
def test_after_a_restart_all_that_was_kept_is_restored_and_used(bench: Bench, length: int) -> None:
    ids = some(1, length)
    bench.keep(ids)
    bench.restart()
    longer = ids + some(2, 40)
    restored = loaded(length)
    assert bench.engine.probe_tiers(longer) == Tiers(0, restored)
    end = bench.ask(longer)
    assert tiers(end) == [(0, restored, "disk"), (restored, len(longer), "computed")]
    assert bench.engine.probe_tiers(longer).device >= len(longer)
    bench.restart()
    again = bench.ask(ids, 5)  # wholly on disk: the last token's row is run for the answer
    assert again.usage.disk == loaded(length - 1)


@pytest.mark.parametrize("shared", [2, 16, 40, 255, 256, 257, 258, 300, 500, 511, 599])
def test_a_prompt_that_leaves_the_kept_path_restores_what_it_shares(
    bench: Bench, shared: int
) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.restart()
    other = ids[:shared] + array("I", [(ids[shared] + 1) % 250]) + some(3, 20)
    usage = bench.ask(other).usage
    assert usage.disk == loaded(shared)


@pytest.mark.parametrize("cached", [1, 16, 20, 254, 256, 257, 300, 512, 530])
def test_the_disk_goes_on_where_the_device_ends(bench: Bench, cached: int) -> None:
    """In the middle of a page and of a block; the page is another's, so it is copied first."""
    ids = some(1, 700)
    bench.keep(ids)
    bench.restart()
    head = ids[:cached]
    fill(bench, head, "warm")
    assert bench.engine.probe_tiers(ids).device == cached
    for turn in (9, 10):  # two that go on with other ids: the open page is taken by the first
        bench.ask(head + array("I", [(ids[cached] + turn) % 250, turn]), 2)
    device = bench.engine.probe(ids)
    end = bench.ask(ids + some(2, 9))
    assert tiers(end) == [(0, device, "device"), (device, 700, "disk"), (700, 709, "computed")]


def test_events_tell_what_comes_from_disk_in_order(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.restart()
    request = bench.request(ids + some(2, 30))
    bench.engine.submit(request)
    events = drain(bench.engine)
    assert events[0] == Started(request.id, 630, 0, 600)
    told = [(e.stage, e.computed_tokens) for e in events if isinstance(e, Progress)]
    assert told == [("restore", 256), ("restore", 512), ("restore", 600), ("extend", 630)]
    bench.expect(request, events)
    disk = bench.engine.stats()["disk"]
    assert disk["restored_tokens"] == 600
    assert bench.engine.stats()["cached_tokens"] == 600


@pytest.mark.parametrize("chunk", [CHUNK, 512, 1024])
@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_a_hole_costs_only_itself(lost: Sequence[int], chunk: int) -> None:
    bench = Bench(options={"chunk_tokens": chunk})
    ids = some(1, 3 * BLOCK)
    bench.keep(ids)
    bench.restart()
    store = bench.store
    store.lost = {place for place in store.held if place[0] // BLOCK in lost}
    longer = ids + some(2, 10)
    end = bench.ask(longer)
    found = [
        span.tier for span in end.spans for _ in range(span.start, min(span.end, 3 * BLOCK), BLOCK)
    ]
    assert found == ["computed" if number in lost else "disk" for number in range(3)]
    assert end.usage.disk == (3 - len(lost)) * BLOCK
    bench.close()


def test_a_store_that_fails_costs_time_only(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.restart()
    bench.store.fails = True
    assert bench.ask(ids).usage.disk == 0
    bench.engine.keep("s/other", ids + some(2, 5))
    bench.ask(ids + some(2, 5))
    assert not flush(bench.engine)
    bench.store.fails = False
    assert flush(bench.engine)


def test_where_computing_is_cheaper_nothing_is_restored(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.store.huge = True
    bench.restart()
    assert bench.engine.probe_tiers(ids) == Tiers(0, 0)
    assert bench.ask(ids).usage.computed == 600
    assert bench.store.reads == []


def test_the_speed_is_that_of_the_reads_seen_and_forgotten_in_time() -> None:
    clock = LogicalClock()
    speed = Speed(clock)
    first = speed.seconds(300_000_000)
    for seconds in (0.1, 0.1, 50.0, 0.1):  # one read hung
        speed.saw(100_000_000, seconds)
    assert speed.bytes_per_s == pytest.approx(1e9)
    speed.saw(1000, 9.0)  # too short to tell
    assert speed.seconds(1_000_000_000, 2) == pytest.approx(1.002)
    clock.advance(10_000)
    assert speed.seconds(300_000_000) == first
    assert speed.bytes_per_s is None


@pytest.mark.parametrize("bytes_per_token", [100, 23_040, 524_288, 2**21])
def test_before_anything_is_measured_whole_blocks_are_loaded_whatever_the_model(
    bytes_per_token: int,
) -> None:
    loading = Speed(LogicalClock()).seconds(BLOCK * bytes_per_token)
    assert loading < BLOCK * guessed_token_s(bytes_per_token) / 2


def test_once_it_is_known_how_fast_prompts_run_that_decides() -> None:
    clock = LogicalClock()
    options = {"chunk_tokens": BLOCK}
    bench = Bench(options=options, on_forward=lambda rows: clock.advance(rows * 1e-6))
    bench.clock = clock
    bench.restart()
    ids = some(1, 600)
    for seed, length in enumerate((16, 200, 16, 200, 500)):
        bench.ask(some(seed + 5, length), 1)
    bench.keep(ids)
    assert bench.engine.probe_tiers(ids + some(2, 600)).disk == 0
    bench.engine.clear()
    assert bench.engine.prompt_cost is not None
    assert bench.ask(ids).usage.computed == 600
    bench.close()


def test_scoring_and_other_namespaces_leave_the_disk_alone(bench: Bench) -> None:
    ids = some(1, 300)
    bench.keep(ids)
    bench.restart()
    assert bench.ask(ids, params={"prompt_logprobs": True}).usage.computed == 300
    bench.restart()
    assert bench.ask(ids, namespace="other").usage.computed == 300
    assert bench.store.reads == []


@pytest.mark.parametrize("start", [100, 256, 257, 300])
def test_scoring_restores_what_comes_before_its_first_row(bench: Bench, start: int) -> None:
    ids = some(1, 300)
    bench.keep(ids)
    bench.restart()
    end = bench.ask(ids + some(2, 9), None, fill="score", score_from=start)
    assert (end.usage.disk, end.usage.computed) == (start - 1, 310 - start)


@pytest.mark.parametrize("n", [2, 5])
def test_samples_share_what_was_restored(bench: Bench, n: int) -> None:
    ids = some(1, 300)
    bench.keep(ids)
    bench.restart()
    request = bench.request(ids + some(2, 3), 4, n=n)
    bench.engine.submit(request)
    events = drain(bench.engine)
    for index in range(n):
        usage = finished(events, request.id, index).usage
        assert (usage.disk, usage.computed) == (300, 3)
    assert bench.engine.rows_run == 3 + 3 * n


# -- beside others ---------------------------------------------------------------------------------


def test_two_that_share_a_path_on_disk_restore_it_once(bench: Bench) -> None:
    ids = some(1, 3 * BLOCK)
    bench.keep(ids)
    bench.restart()
    first, second = (bench.request(ids + some(seed, 20)) for seed in (2, 3))
    bench.engine.submit(first)
    bench.engine.submit(second)
    events = drain(bench.engine)
    assert bench.expect(first, events).usage.disk == 3 * BLOCK
    usage = bench.expect(second, events).usage
    assert (usage.device, usage.disk) == (3 * BLOCK, 0)
    assert len(bench.store.reads) == 3


def test_others_go_on_while_one_waits_for_the_disk(bench: Bench) -> None:
    ids = some(1, 2 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine = bench.engine
    bench.store.gate.clear()
    slow, cold = bench.request(ids + some(2, 5)), bench.request(some(3, 5 * CHUNK), 9)
    engine.submit(slow)
    events = engine.step()
    engine.submit(cold)
    while not any(isinstance(event, Finished) for event in events):
        events += engine.step()
    bench.store.gate.set()
    events += drain(engine)
    assert [e.request_id for e in events if isinstance(e, Finished)] == [cold.id, slow.id]
    bench.expect(cold, events)
    assert bench.expect(slow, events).usage.disk == 2 * BLOCK


def test_a_step_with_nothing_but_a_restore_waits_and_does_not_spin(bench: Bench) -> None:
    ids = some(1, BLOCK)
    bench.keep(ids)
    bench.restart()
    bench.store.gate.clear()
    bench.engine.submit(bench.request(ids + some(2, 5)))
    bench.engine.step()
    begin = time.monotonic()
    for _ in range(10):
        assert bench.engine.step() == []
    assert time.monotonic() - begin > 0.015
    bench.store.gate.set()
    drain(bench.engine)


def comes_back(bench: Bench) -> None:
    bench.store.gate.set()
    assert bench.engine._disk is not None
    reader = bench.engine._disk.restoring._reader
    deadline = time.monotonic() + 10
    while reader._reading is not None and time.monotonic() < deadline:
        time.sleep(0.001)


def test_a_disk_that_hangs_is_given_up_until_it_comes_back(bench: Bench) -> None:
    ids = some(1, 3 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine, store = bench.engine, bench.store
    store.reads_left = 1
    first = bench.request(ids)
    engine.submit(first)
    events: list[Event] = []
    while not any(isinstance(event, Progress) for event in events):
        events += engine.step()
    assert store.waits.wait(10)
    bench.clock.advance(1.1 * HANGS_S)
    assert engine.probe_tiers(some(9, 9)) == Tiers(0, 0)
    events += drain(engine)
    end = bench.expect(first, events)
    assert tiers(end) == [(0, BLOCK, "disk"), (BLOCK, 3 * BLOCK, "computed")]
    assert engine.probe_tiers(ids + some(2, 5)) == Tiers(3 * BLOCK, 0)
    engine.clear()
    assert bench.ask(ids).usage.computed == 3 * BLOCK
    engine.clear()
    bench.clock.advance(2 * AGAIN_S)
    assert bench.ask(ids).usage.computed == 3 * BLOCK  # it has not come back
    engine.clear()
    comes_back(bench)
    assert engine.probe_tiers(ids).disk == 0  # it is not trusted at once
    bench.clock.advance(AGAIN_S)
    assert bench.ask(ids).usage.disk == 3 * BLOCK - 1


def test_a_disk_that_comes_back_in_mid_prompt_is_used_again(bench: Bench) -> None:
    ids = some(1, 4 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine, store = bench.engine, bench.store
    store.reads_left = 1
    request = bench.request(ids + some(2, 9))
    engine.submit(request)
    events: list[Event] = []
    while engine.probe(ids) < BLOCK:
        events += engine.step()
    assert store.waits.wait(10)
    bench.clock.advance(1.1 * HANGS_S)
    while engine.probe(ids) < BLOCK + 2 * CHUNK:
        events += engine.step()
    comes_back(bench)  # the block that was being read, too, and nobody wants it any more
    bench.clock.advance(AGAIN_S)
    events += drain(engine)
    end = bench.expect(request, events)
    at = end.spans[1].end
    assert tiers(end) == [
        (0, BLOCK, "disk"),
        (BLOCK, at, "computed"),
        (at, 4 * BLOCK, "disk"),
        (4 * BLOCK, 4 * BLOCK + 9, "computed"),
    ]
    assert BLOCK + 2 * CHUNK <= at <= 2 * BLOCK


def test_no_chunk_of_the_background_stands_before_blocks_for_the_foreground(bench: Bench) -> None:
    ids = some(1, 2 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine, store = bench.engine, bench.store
    back = bench.request(some(3, 5 * CHUNK), priority=Priority.BACKGROUND)
    talks = bench.request(some(4, 20), 50, priority=Priority.BACKGROUND)
    engine.submit(talks)
    events = engine.step()
    store.gate.clear()
    front = bench.request(ids + some(2, 5))
    engine.submit(front)
    engine.submit(back)
    for _ in range(5):
        before = engine.rows_run
        events += engine.step()
        assert engine.rows_run == before + 1  # rows of answers go on
    bench.clock.advance(0.06)  # the disk is slow: nobody else waits for it
    before = engine.rows_run
    events += engine.step()
    assert engine.rows_run == before + CHUNK
    store.gate.set()
    events += drain(engine)
    assert bench.expect(front, events).usage.disk == 2 * BLOCK
    for request in (back, talks):
        bench.expect(request, events)


@pytest.mark.parametrize("blocks_before", [0, 1, 2])
def test_a_cancel_in_mid_restore_leaves_what_came_and_counts_nothing(
    bench: Bench, blocks_before: int
) -> None:
    ids = some(1, 4 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine, store = bench.engine, bench.store
    request = bench.request(ids)
    engine.submit(request)
    events: list[Event] = []
    store.reads_left = blocks_before
    events += engine.step()
    while sum(isinstance(event, Progress) for event in events) < blocks_before:
        events += engine.step()
    assert engine.abort(request.id)
    events += drain(engine)
    end = finished(events, request.id)
    assert (end.reason, end.usage.disk, end.spans) == (FinishReason.ABORT, 0, ())
    assert engine.probe(ids) == blocks_before * BLOCK
    store.gate.set()
    engine.check_idle()
    end = bench.ask(ids)
    assert (end.usage.device, end.usage.disk) == (
        blocks_before * BLOCK,
        (4 - blocks_before) * BLOCK - 1,
    )


def test_one_put_back_in_mid_restore_goes_on_with_what_the_tree_has() -> None:
    bench = Bench(pool_tokens=1200)
    ids = some(1, 3 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine, store = bench.engine, bench.store
    slow = bench.request(ids + some(2, 5), priority=Priority.BACKGROUND)
    engine.submit(slow)
    events: list[Event] = []
    while not any(isinstance(event, Progress) for event in events):
        events += engine.step()
    store.gate.clear()
    front = bench.request(some(3, 900))
    engine.submit(front)
    while not any(isinstance(e, Finished) for e in events):
        events += engine.step()
    store.gate.set()
    events += drain(engine)
    assert engine.stats()["retractions"] >= 1
    bench.expect(front, events)
    usage = bench.expect(slow, events).usage
    assert usage.device + usage.disk == 3 * BLOCK
    bench.close()


def test_what_was_restored_and_evicted_before_it_was_used_is_counted_as_it_came_back() -> None:
    bench = Bench(pool_tokens=1024)
    ids = some(1, 2 * BLOCK)
    bench.keep(ids)
    bench.restart()
    engine = bench.engine
    slow = bench.request(ids + some(2, 5), priority=Priority.BACKGROUND)
    bench.store.reads_left = 1
    engine.submit(slow)
    events: list[Event] = []
    while not any(isinstance(event, Progress) for event in events):
        events += engine.step()
    bench.store.lost = set(bench.store.held)  # it can only be computed again
    front = bench.request(some(3, 1010), 1)  # takes the whole pool
    engine.submit(front)
    events += engine.step()
    bench.store.gate.set()
    events += drain(engine)
    usage = bench.expect(slow, events).usage
    assert (usage.device, usage.disk, usage.computed) == (0, 0, 517)
    bench.close()


# -- load and warm ---------------------------------------------------------------------------------


def test_load_restores_what_is_on_disk_and_runs_no_row(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.restart()
    longer = ids + some(2, 700)
    end = fill(bench, longer, "load")
    assert (end.reason, end.kept) == (FinishReason.STOP, 0)
    assert tiers(end) == [(0, 600, "disk")]
    assert (end.usage.disk, end.usage.computed) == (600, 0)
    assert bench.engine.rows_run == 0
    assert bench.engine.stats()["input_tokens"] == 0  # nor is it in the hit rate
    assert bench.engine.probe(longer) == 600
    assert tiers(fill(bench, longer, "load")) == [(0, 600, "device")]
    # the first answer that reads them has them from disk, and no other
    assert tiers(bench.ask(longer))[0] == (0, 600, "disk")
    assert tiers(bench.ask(longer))[0] == (0, 1299, "device")


def test_what_a_load_brought_counts_for_the_first_that_reads_it_and_once(bench: Bench) -> None:
    ids = some(1, 700)
    bench.keep(ids)
    bench.restart()
    bench.ask(ids[:100])
    read = bench.engine.stats()["disk"]
    assert read["restored_tokens"] == 99
    assert tiers(fill(bench, ids, "load")) == [(0, 100, "device"), (100, 700, "disk")]
    assert bench.engine.stats()["disk"]["restored_tokens"] == 99  # nobody has read more
    aside = bench.ask(ids[:300] + some(2, 20))
    assert tiers(aside) == [(0, 100, "device"), (100, 300, "disk"), (300, 320, "computed")]
    on = bench.ask(ids + some(3, 20))
    assert tiers(on) == [(0, 300, "device"), (300, 700, "disk"), (700, 720, "computed")]
    assert bench.ask(ids + some(4, 20)).usage.disk == 0
    assert bench.engine.stats()["disk"]["restored_tokens"] == 699


def test_what_a_load_brought_counts_for_no_other_namespace(bench: Bench) -> None:
    ids = some(1, 300)
    bench.keep(ids)
    bench.restart()
    fill(bench, ids, "load")
    longer = ids + some(2, 20)
    bench.ask(longer, namespace="other")
    assert bench.ask(longer, namespace="other").usage.disk == 0
    assert bench.ask(longer).usage.disk == 300


def test_what_a_load_brought_and_was_evicted_unread_counts_for_nobody(bench: Bench) -> None:
    ids = some(1, 512)
    bench.keep(ids)
    bench.restart()
    fill(bench, ids, "load")
    bench.engine.forget(ids, 256)
    bench.store.lost = {place for place in bench.store.held if place[0] == BLOCK}
    assert tiers(bench.ask(ids)) == [(0, 256, "disk"), (256, 512, "computed")]
    assert bench.ask(ids).usage.disk == 0


def test_what_a_load_brought_was_evicted_and_is_generated_again_is_not_from_disk(
    bench: Bench,
) -> None:
    prompt = some(1, BLOCK)
    request = bench.request(prompt, 20)
    bench.engine.submit(request)
    whole = prompt + array("I", output(drain(bench.engine), request.id))
    bench.keep(whole)
    bench.restart()
    fill(bench, whole, "load")
    bench.engine.forget(whole, BLOCK)
    bench.store.held = {place: data for place, data in bench.store.held.items() if not place[0]}
    assert bench.ask(prompt, 20).usage.disk == BLOCK - 1
    assert bench.ask(whole).usage.disk == 0


def test_load_of_a_path_wholly_on_disk_has_all_of_it(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    bench.restart()
    assert tiers(fill(bench, ids, "load")) == [(0, 600, "disk")]
    assert bench.engine.probe(ids) == 600


def test_load_ends_at_a_hole_and_warm_computes_it(bench: Bench) -> None:
    ids = some(1, 3 * BLOCK)
    bench.keep(ids)
    bench.restart()
    store = bench.store
    store.lost = {place for place in store.held if place[0] == BLOCK}
    assert tiers(fill(bench, ids, "load")) == [(0, BLOCK, "disk")]
    end = fill(bench, ids, "warm")
    assert tiers(end) == [
        (0, BLOCK, "disk"),  # brought by the load, and read now
        (BLOCK, 2 * BLOCK, "computed"),
        (2 * BLOCK, 3 * BLOCK - 1, "disk"),
        (3 * BLOCK - 1, 3 * BLOCK, "computed"),
    ]
    assert bench.engine.rows_run == BLOCK + 1


def test_a_turn_joins_a_load_in_the_background_and_takes_over_from_it(bench: Bench) -> None:
    ids = some(1, 4 * BLOCK)
    bench.keep(ids)
    bench.restart()
    store = bench.store
    store.lost = {place for place in store.held if place[0] == 3 * BLOCK}
    load = bench.request(ids, fill="load", priority=Priority.BACKGROUND)
    bench.engine.submit(load)
    events = bench.engine.step()
    turn = bench.request(ids + some(2, 9))
    bench.engine.submit(turn)
    events += drain(bench.engine)
    assert tiers(bench.expect(load, events)) == [(0, 3 * BLOCK, "disk")]
    end = bench.expect(turn, events)
    assert tiers(end) == [(0, 3 * BLOCK, "disk"), (3 * BLOCK, 4 * BLOCK + 9, "computed")]
    assert [start for start, _ in store.reads].count(0) == 1


def test_a_load_takes_no_pages_for_what_is_not_on_disk() -> None:
    bench = Bench(pool_tokens=2048)
    ids = some(1, 300)
    bench.keep(ids)
    bench.restart()
    bench.ask(some(5, 1500))
    fill(bench, ids + some(2, 1600), "load")
    assert bench.engine.probe(some(5, 1500)) == 1500
    bench.close()


def fill(bench: Bench, ids: Ids, how: str) -> Finished:
    request = bench.request(ids, fill=how)
    bench.engine.submit(request)
    return bench.expect(request, drain(bench.engine))


@pytest.mark.parametrize("seed", range(8))
def test_in_a_crowded_pool_restored_prompts_end_as_they_would_alone(seed: int) -> None:
    """Short of memory: requests are put back, in mid-restore too, and some are cancelled."""
    bench = Bench(pool_tokens=1100, options={"growth_tokens": 1})
    stems = [some(number, 2 * BLOCK + 50) for number in (1, 2)]
    for number, stem in enumerate(stems):
        bench.keep(stem, f"s/{number}")
    bench.restart()
    generator = random.Random(seed)
    requests = [
        bench.request(
            stems[generator.randrange(2)][: generator.randrange(200, 560)]
            + some(10 + number, generator.randrange(1, 40)),
            generator.randrange(1, 200),
            priority=generator.choice(list(Priority)),
        )
        for number in range(7)
    ]
    events: list[Event] = []
    cancelled: set[str] = set()
    for request in requests:
        bench.engine.submit(request)
        for _ in range(generator.randrange(12)):
            events += bench.engine.step()
        if generator.random() < 0.2 and bench.engine.abort(request.id):
            cancelled.add(request.id)
    events += drain(bench.engine)
    for request in requests:
        if request.id not in cancelled:
            bench.expect(request, events)
    disk = sum(end.usage.disk for end in events if isinstance(end, Finished))
    assert 0 < disk == bench.engine.stats()["disk"]["restored_tokens"]
    bench.close()
