"""The engines' thread has kept paths written when nothing runs; no threads outlive an engine."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from functools import partial

from radchat.daemon.worker import Worker
from radchat.engine.engine import Engine
from radchat.engine.request import Event, Finished, Request
from radchat.engine.saving import RETRY_S
from tests.daemon.services import run, until
from tests.engine.blocks_in_memory import BlocksInMemory
from tests.fakes import LogicalClock, greedy, scripted_engine

IDS = array("I", range(100))
SAVE_AFTER_S = 0.05


def worker_of(broken: list[BaseException]) -> Worker:
    worker = Worker(broken.append, save_after_s=SAVE_AFTER_S, check_after_s=SAVE_AFTER_S)
    worker.start()
    return worker


async def answer(worker: Worker, key: str, max_tokens: int = 2) -> None:
    inbox: list[Event] = []
    await worker.submit(key, Request(key, IDS, greedy(max_tokens)), inbox.append)
    await until(lambda: inbox and isinstance(inbox[-1], Finished))


def test_kept_paths_are_written_when_nothing_has_run_for_a_while() -> None:
    async def main() -> None:
        broken: list[BaseException] = []
        worker, store = worker_of(broken), BlocksInMemory()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await answer(worker, "a")
        await worker.call(lambda: engine.keep("s/main", IDS))
        await until(lambda: store.writes)
        assert store.writes == [(0, 100)]
        await until(lambda: not worker._idle.unchecked)  # the idle check is made as well
        # without any work: what is asked to be kept later is written too
        await worker.call(lambda: engine.keep("s/other", IDS[:50]))
        await until(lambda: not worker._idle.unsaved)
        worker.stop()
        assert broken == []

    run(main())


def test_nothing_is_written_while_any_engine_has_work() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await worker.install("b", lambda: scripted_engine(on_forward=lambda _: time.sleep(0.001)))
        await answer(worker, "a")
        inbox: list[Event] = []
        await worker.submit("b", Request("b", IDS, greedy()), inbox.append)
        await worker.call(lambda: engine.keep("s/main", IDS))
        steps = worker.steps
        begin = time.monotonic()
        await until(lambda: time.monotonic() - begin > 4 * SAVE_AFTER_S and worker.steps > steps)
        assert store.writes == []
        worker.abort("b")
        await until(lambda: store.writes)
        worker.stop()

    run(main())


def test_an_engine_that_is_removed_or_left_at_the_end_has_no_threads() -> None:
    async def main() -> None:
        worker = worker_of([])
        for key in ("a", "b"):
            await install_and_save(worker, key)
        assert writers() == 2
        assert await worker.remove(["a", "nobody"], 5.0) == []
        assert writers() == 1
        worker.stop()
        assert writers() == 0

    run(main())


def test_an_engine_that_goes_writes_first_while_others_go_on() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        store.write_gate.clear()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await worker.install("b", scripted_engine)
        await answer(worker, "a")
        await worker.call(lambda: engine.keep("s/main", IDS))
        going = asyncio.create_task(worker.remove(["a"], 30.0))
        await answer(worker, "b", 50)
        assert not going.done()
        store.write_gate.set()
        assert await going == []
        assert store.writes == [(0, 100)]
        worker.stop()

    run(main())


def test_a_disk_that_hangs_holds_up_neither_others_nor_the_one_that_goes() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        store.write_gate.clear()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await worker.install("b", scripted_engine)
        await answer(worker, "a")
        await worker.call(lambda: engine.keep("s/main", IDS))
        going = asyncio.create_task(worker.remove(["a"], 0.05))
        await until(lambda: any(each.name == "leaving" for each in threading.enumerate()))
        await answer(worker, "b", 50)  # its threads are waited for
        assert not going.done()
        assert await going == ["a"]
        assert writers() == 1  # left behind
        store.write_gate.set()
        await until(lambda: writers() == 0)
        worker.stop()

    run(main())


def test_what_is_no_longer_kept_is_not_written_by_one_that_goes_either() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        store.write_gate.clear()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await answer(worker, "a")
        other = array("I", range(100, 200))
        await worker.submit("a", Request("other", other, greedy(1)), lambda _: None)
        await until(lambda: not worker._sinks)
        for name, ids in (("first/main", IDS), ("second/main", other)):
            await worker.call(partial(engine.keep, name, ids))
        going = asyncio.create_task(worker.remove(["a"], 30.0))
        await until(lambda: engine.stats()["disk"]["staged_bytes"] == 200 * 8)
        assert not await worker.has_written(0.01)
        await worker.unkeep(["second/"])
        store.write_gate.set()
        assert await going == []
        assert list(store.held) == [(0, IDS.tobytes())]
        assert await worker.has_written(1.0)
        worker.stop()

    run(main())


def test_what_the_store_refuses_is_not_waited_for() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        store.refuses = True
        engine = await worker.install("a", lambda: scripted_engine(blocks=store))
        await answer(worker, "a")
        await worker.call(lambda: engine.keep("s/main", IDS))
        begin = time.monotonic()
        assert await worker.remove(["a"], 60.0) == ["a"]
        assert time.monotonic() - begin < 30
        worker.stop()

    run(main())


def test_what_was_refused_is_tried_again_by_an_idle_worker_when_it_is_time() -> None:
    async def main() -> None:
        worker, store = worker_of([]), BlocksInMemory()
        store.refuses = True
        clock = LogicalClock()
        engine = await worker.install("a", lambda: scripted_engine(blocks=store, clock=clock))
        await answer(worker, "a")
        await worker.call(lambda: engine.keep("s/main", IDS))
        await until(lambda: worker._idle.unsaved.get("a", 0) > time.monotonic() + RETRY_S - 5)
        at = worker._idle.unsaved["a"]
        await asyncio.sleep(10 * SAVE_AFTER_S)
        assert worker._idle.unsaved == {"a": at}  # it has slept
        store.refuses = False
        clock.advance(RETRY_S)
        worker._idle.unsaved["a"] = 0.0
        worker.abort("nobody")  # wakes it
        await until(lambda: store.writes)
        worker.stop()

    run(main())


async def install_and_save(worker: Worker, key: str) -> None:
    store = BlocksInMemory()
    engine: Engine = await worker.install(key, lambda: scripted_engine(blocks=store))
    await answer(worker, key)
    await worker.call(lambda: engine.keep("s/main", IDS))
    await until(lambda: store.writes)


def writers() -> int:
    return sum(thread.name == "kv-writer" for thread in threading.enumerate())
