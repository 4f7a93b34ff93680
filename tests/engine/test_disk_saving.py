"""What of the KV reaches the disk, and when: kept paths, nothing else, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator

import pytest

from radchat.engine.block_store import LOOK_S
from radchat.engine.request import Request, SamplingParams
from radchat.engine.saving import MOST_PATHS, RETRY_S, Rest
from tests.engine.blocks_in_memory import BlocksInMemory
from tests.engine.test_disk_tier import BLOCK, Bench, some
from tests.fakes import drain, flush, output

TOKEN_BYTES = 8  # one layer, K and V, one value of float32


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.store.write_gate.set()
    made.close()


def save(bench: Bench, only: str | None = None) -> int:
    """As an idle worker does, until all is written or some is refused; how often it copied."""
    num_copied = 0
    while (seconds := bench.engine.save(only=only)) is not None and seconds <= LOOK_S:
        num_copied += not seconds
        assert num_copied < 1000
        if seconds:
            assert bench.engine.drain(10)
    return num_copied


def copy_all(bench: Bench) -> None:
    """Nothing is written meanwhile."""
    while bench.engine.save() == 0:
        pass


def on_disk(store: BlocksInMemory) -> set[bytes]:
    """Whole paths: those that no other continues."""
    paths = {raw for _, raw in store.held}
    return {raw for raw in paths if not any(p != raw and p.startswith(raw) for p in paths)}


# -- what is written -------------------------------------------------------------------------------


def test_only_kept_paths_are_written_a_block_at_a_time(bench: Bench) -> None:
    ids = some(1, 600)
    bench.ask(ids, 20)
    bench.ask(some(2, 300))
    assert save(bench) == 0
    assert bench.store.held == {}
    bench.engine.keep("s/main", ids)
    assert bench.engine.stats()["disk"]["kept_paths"] == 1
    assert save(bench) == 3
    assert bench.store.writes == [(0, 256), (256, 256), (512, 88)]
    assert on_disk(bench.store) == {ids.tobytes()}
    disk = bench.engine.stats()["disk"]
    assert (disk["saved_tokens"], disk["saved_bytes"]) == (600, 600 * TOKEN_BYTES)
    assert (disk["staged_bytes"], disk["kept_paths"]) == (0, 0)  # all of it is on disk


def test_a_path_that_goes_on_writes_its_tail_anew_and_no_block_twice(bench: Bench) -> None:
    ids = some(1, 600)
    bench.keep(ids)
    del bench.store.writes[:]
    bench.keep(ids + some(2, 300))
    assert bench.store.writes == [(512, 256), (768, 132)]
    assert sorted(start for start, _ in bench.store.held) == [0, 256, 512, 768]
    del bench.store.writes[:]
    bench.keep(ids + some(2, 300))
    bench.keep(ids, "s/other")
    assert bench.store.writes == []


def test_of_many_samples_the_kept_one_alone_is_written(bench: Bench) -> None:
    prompt = some(1, 300)
    unlike = [
        SamplingParams(temperature=0, max_tokens=30, logit_bias={97 + i: 99}) for i in range(16)
    ]
    for index, params in enumerate(unlike):
        bench.engine.submit(Request(f"v{index}", prompt, params))
    events = drain(bench.engine)
    answers = {tuple(output(events, f"v{index}")) for index in range(16)}
    assert len(answers) == 16
    kept = prompt + array("I", output(events, "v3")[:-1])  # its last token was never run
    bench.engine.keep("s/main", kept)
    save(bench)
    assert bench.store.writes == [(0, 256), (256, len(kept) - 256)]
    assert on_disk(bench.store) == {kept.tobytes()}


def test_what_an_ephemeral_branch_adds_never_reaches_the_store(bench: Bench) -> None:
    ids = some(1, 300)
    bench.ask(ids)
    bench.engine.keep("s/main", ids)
    bench.ask(ids + some(2, 400), 30)  # goes on in the same node, and in the kept path's last block
    save(bench)
    bench.engine.clear()
    save(bench)
    assert on_disk(bench.store) == {ids.tobytes()}


def test_of_a_path_cached_in_part_that_part_is_written(bench: Bench) -> None:
    ids = some(1, 600)
    bench.ask(ids[:290], 1)
    bench.engine.keep("s/main", ids)
    save(bench)
    assert bench.store.writes == [(0, 256), (256, 34)]
    bench.ask(ids)
    assert save(bench) == 0  # it is asked for again with the next turn
    bench.engine.keep("s/main", ids)
    save(bench)
    assert on_disk(bench.store) == {ids.tobytes()}


def test_saving_leaves_the_eviction_order_alone(bench: Bench) -> None:
    for seed in (1, 2, 3):
        bench.ask(some(seed, 300))
    plan = bench.engine.cache.eviction_plan()
    stamps = [(node.id, node.last_used, node.hits) for node in bench.engine.cache.nodes()]
    bench.clock.advance(5)
    bench.engine.keep("s/main", some(1, 300))
    save(bench)
    assert bench.engine.cache.eviction_plan() == plan
    assert [(n.id, n.last_used, n.hits) for n in bench.engine.cache.nodes()] == stamps


# -- eviction --------------------------------------------------------------------------------------


def test_what_is_evicted_before_it_was_written_is_copied_on_its_way_out() -> None:
    bench = Bench(pool_tokens=1024)
    ids = some(1, 600)
    bench.ask(ids)
    bench.engine.keep("s/main", ids)
    bench.ask(some(2, 1010), 1)
    assert bench.engine.probe(ids) == 0
    assert bench.engine.drain(10)
    assert on_disk(bench.store) == {ids.tobytes()}
    assert bench.ask(ids).usage.disk == 599
    bench.close()


def test_what_another_namespace_holds_is_not_kept_whatever_its_ids_are() -> None:
    bench = Bench(pool_tokens=1024)
    ids = some(1, 600)
    bench.engine.keep("s/main", ids)
    bench.ask(ids, namespace="other")
    bench.ask(some(2, 1010), 1)
    assert bench.engine.drain(10)
    assert bench.store.writes == []
    bench.close()


def test_eviction_never_waits_and_what_has_no_room_is_forgotten() -> None:
    bench = Bench(pool_tokens=1024)
    engine = bench.engine
    assert engine._disk is not None
    engine._disk.saving._room = 300 * TOKEN_BYTES
    bench.store.write_gate.clear()
    ids = some(1, 600)
    bench.ask(ids)
    engine.keep("s/main", ids)
    bench.ask(some(2, 1010), 1)
    assert engine.probe(ids) == 0
    assert 0 < engine.stats()["disk"]["staged_bytes"] <= 300 * TOKEN_BYTES
    asked = bench.store.asked
    bench.ask(ids)
    engine.keep("s/main", ids)
    bench.ask(some(2, 1010), 1)
    assert bench.store.asked == asked + 2  # for what is restored: where there is no room, no more
    bench.store.write_gate.set()
    assert engine.drain(10)
    assert bench.store.writes == [(0, 256)]
    assert bench.ask(ids).usage.disk == 256
    bench.close()


def test_the_copies_are_bounded_and_saving_goes_on_when_there_is_room(bench: Bench) -> None:
    engine = bench.engine
    assert engine._disk is not None
    engine._disk.saving._room = 2 * BLOCK * TOKEN_BYTES
    bench.store.write_gate.clear()
    ids = some(1, 8 * BLOCK)
    bench.ask(ids)
    engine.keep("s/main", ids)
    for _ in range(20):
        assert engine.save() is not None
        assert engine.stats()["disk"]["staged_bytes"] <= 2 * BLOCK * TOKEN_BYTES
    assert not engine.drain(0.01)
    assert not flush(engine, 0.01)
    bench.store.write_gate.set()
    assert flush(engine)
    assert on_disk(bench.store) == {ids.tobytes()}


def test_a_disk_that_hangs_is_looked_at_less_and_less(bench: Bench) -> None:
    bench.store.write_gate.clear()
    bench.ask(some(1, 300))
    bench.engine.keep("s/main", some(1, 300))
    copy_all(bench)
    waits: list[float] = []
    while sum(waits) < 10:
        seconds = bench.engine.save()
        assert seconds is not None
        waits.append(seconds)
        bench.clock.advance(seconds)
    assert len(waits) < 20
    assert max(waits) == LOOK_S
    bench.store.write_gate.set()
    assert save(bench) == 0
    assert bench.engine.save() is None


# -- not now ---------------------------------------------------------------------------------------


def test_what_the_store_refuses_stays_kept_and_is_tried_again_later(bench: Bench) -> None:
    engine, store = bench.engine, bench.store
    ids = some(1, 600)
    bench.ask(ids)
    engine.keep("s/main", ids)
    store.refuses = True
    save(bench)
    for _ in range(5):
        assert engine.save() == RETRY_S  # and nothing is copied meanwhile
    assert not flush(engine)
    store.refuses = False
    assert engine.save() == RETRY_S
    bench.clock.advance(RETRY_S - 1.5)
    assert engine.save() == 1.5
    bench.clock.advance(1.5)
    save(bench)
    assert on_disk(store) == {ids.tobytes()}


def test_what_was_refused_when_all_of_it_was_copied_is_copied_again(bench: Bench) -> None:
    engine, store = bench.engine, bench.store
    ids = some(1, 600)
    bench.ask(ids)
    engine.keep("s/main", ids)
    store.write_gate.clear()
    copy_all(bench)
    store.refuses = True
    store.write_gate.set()
    assert engine.drain(10)
    store.refuses = False
    assert engine.save() == RETRY_S
    bench.clock.advance(RETRY_S - 1.5)
    assert engine.save() == 1.5
    bench.clock.advance(1.5)
    save(bench)
    assert on_disk(store) == {ids.tobytes()}


def test_flush_does_not_wait_for_a_better_time(bench: Bench) -> None:
    ids = some(1, 600)
    bench.ask(ids)
    bench.engine.keep("s/main", ids)
    bench.store.refuses = True
    save(bench)
    bench.store.refuses = False
    assert flush(bench.engine)
    assert on_disk(bench.store) == {ids.tobytes()}


def test_now_skips_the_wait(bench: Bench) -> None:
    ids = some(1, 200)
    bench.ask(ids)
    bench.engine.keep("s/main", ids)
    bench.store.refuses = True
    save(bench)
    bench.store.refuses = False
    assert bench.engine.save() == RETRY_S
    assert bench.engine.save(now=True) == 0
    save(bench)
    assert on_disk(bench.store) == {ids.tobytes()}


def test_the_one_asked_for_is_written_alone(bench: Bench) -> None:
    mine, theirs = some(1, 300), some(2, 600)
    for name, ids in (("theirs/main", theirs), ("mine/main", mine)):
        bench.ask(ids)
        bench.engine.keep(name, ids)
    assert save(bench, only="mine/main") == 2
    assert on_disk(bench.store) == {mine.tobytes()}
    assert bench.engine.stats()["disk"]["saved_tokens"] == 300
    assert save(bench, only="nobody") == 0
    assert save(bench) == 3


# -- forgetting ------------------------------------------------------------------------------------


def test_what_is_no_longer_kept_is_not_written_though_it_was_copied(bench: Bench) -> None:
    engine, store = bench.engine, bench.store
    mine, theirs = some(1, 600), some(2, 300)
    bench.ask(mine)
    bench.ask(theirs)
    engine.keep("mine/main", mine)
    engine.keep("theirs/main", theirs)
    store.write_gate.clear()
    copy_all(bench)
    engine.unkeep("mine/")
    disk = engine.stats()["disk"]
    assert disk["kept_paths"] == 1
    assert disk["staged_bytes"] <= (256 + 300) * TOKEN_BYTES
    store.write_gate.set()
    assert engine.drain(10)
    assert flush(engine)
    # the one block that was being written still is
    assert store.writes in ([(0, 256), (0, 256), (256, 44)], [(0, 256), (256, 44)])
    assert theirs.tobytes() in on_disk(store)


def test_a_path_that_two_names_keep_is_written_when_one_goes(bench: Bench) -> None:
    ids = some(1, 300)
    bench.ask(ids)
    bench.engine.keep("a/main", ids)
    bench.engine.keep("b/main", ids)
    bench.store.write_gate.clear()
    copy_all(bench)
    bench.engine.unkeep("a/")
    bench.store.write_gate.set()
    assert bench.engine.drain(10)
    assert bench.store.writes == [(0, 256), (256, 44)]


def test_of_paths_that_go_on_from_each_other_no_block_is_written_twice(bench: Bench) -> None:
    ids = some(1, 900)
    bench.ask(ids)
    for length in (300, 600, 900):
        bench.engine.keep(f"s/m{length}", ids[:length])
    save(bench)
    assert bench.store.writes == [(0, 256), (256, 256), (512, 256), (768, 132)]


def test_what_waits_for_a_disk_that_takes_nothing_is_bounded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(MOST_PATHS + 10):
        bench.engine.keep(f"s/m{index}", some(index, 3))
    assert bench.engine.stats()["disk"]["kept_paths"] == MOST_PATHS
    assert "s/m9 is not kept" in caplog.text
    large = array("I", bytes(48 << 20))
    bench.engine.keep("s/large", large)
    bench.engine.keep("s/larger", large)
    assert bench.engine.stats()["disk"]["kept_paths"] == 1


def test_a_path_is_looked_up_once_however_many_blocks_it_has(bench: Bench) -> None:
    ids = some(1, 8 * BLOCK)
    bench.ask(ids)
    asked = bench.store.asked
    bench.engine.keep("s/main", ids)
    assert flush(bench.engine)
    assert len(bench.store.writes) == 8
    assert bench.store.asked == asked + 1
    bench.engine.keep("s/main", ids)
    assert save(bench) == 0
    assert bench.store.asked == asked + 2
    assert flush(bench.engine)  # what is on disk is not looked up again
    assert bench.store.asked == asked + 2


def test_an_engine_that_is_closed_has_no_threads_left() -> None:
    before = set(threading.enumerate())
    bench = Bench()
    bench.keep(some(1, 300))
    bench.engine.clear()
    bench.ask(some(1, 300))
    made = set(threading.enumerate()) - before
    assert {thread.name for thread in made} == {"kv-reader", "kv-writer"}
    bench.close()
    assert not made & set(threading.enumerate())


def test_while_steps_run_the_writer_rests_between_blocks(bench: Bench) -> None:
    """Else a step's threads wait for the one whose core the writer has."""
    engine, ids = bench.engine, some(1, 3 * BLOCK)
    assert engine._disk is not None
    bench.ask(ids)
    engine.keep("s/main", ids)
    for runs_s, least in ((60.0, 2 * 0.3), (0.0, 0.0)):
        engine._disk.saving._rest = Rest(times=1e9, longest_s=0.3, runs_s=runs_s)
        began = time.monotonic()
        while engine.save() == 0.0:
            pass
        assert engine.drain(10)
        assert time.monotonic() - began >= least
    assert len(bench.store.writes) == 3
