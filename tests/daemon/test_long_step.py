"""While one step is long: who looks is answered, and a stop does not wait for its end."""

from __future__ import annotations

import asyncio
import threading
from array import array
from pathlib import Path

import pytest

from radchat.daemon.service import STEP_S
from radchat.daemon.worker import Worker
from radchat.engine.request import Event, Request, Tokens
from radchat.errors import Busy
from tests.daemon.services import LONG, WHERE, House, house, run
from tests.fakes import greedy, scripted_engine

IDS = array("I", range(40))


def test_who_looks_gives_up_and_who_listens_is_told_when_the_step_is_let_go() -> None:
    async def main() -> None:
        broken: list[BaseException] = []
        entered, gate = threading.Event(), threading.Event()

        def forward(_: object) -> None:
            entered.set()
            assert gate.wait(30)

        worker = Worker(broken.append)
        worker.start()
        await worker.install("a", lambda: scripted_engine(on_forward=forward))
        inbox, ran = worker.inbox(), list[int]()
        await worker.submit("a", Request("a", IDS, greedy()), inbox.put_nowait)
        assert await asyncio.to_thread(entered.wait, 10)
        with pytest.raises(Busy, match="one step for"):
            await worker.look(lambda: ran.append(1))
        waits = asyncio.create_task(worker.call(lambda: ran.append(2)))
        await asyncio.sleep(0)
        assert worker.step_s > 0
        worker.let_go()
        with pytest.raises(Busy, match="stopping"):
            await waits
        with pytest.raises(Busy, match="stopping"):
            await worker.call(lambda: ran.append(3))
        for _ in range(2):
            with pytest.raises(Busy, match="stopping"):
                await inbox.get()
        gate.set()
        await asyncio.to_thread(worker.stop)
        await asyncio.sleep(0.01)
        assert inbox._queue.qsize() == 1  # the end; the step's words are nobody's
        assert (broken, ran) == ([], [])

    run(main())


def held_in_a_step(at: House, gate: threading.Event) -> threading.Event:
    """From now on a step of the loaded engine waits for the gate; set when one has begun."""
    (loaded,) = at.service._engines.all
    engine, entered = loaded.engine, threading.Event()
    step, words = engine.step, list[Event]()

    def slow() -> list[Event]:
        if len(words) > 3:
            entered.set()
            assert gate.wait(30)
        events = step()
        words.extend(event for event in events if isinstance(event, Tokens))
        return events

    engine.step = slow  # type: ignore[method-assign]
    return entered


def test_a_tree_needs_no_engine_and_a_stop_no_end_of_the_step(tmp_path: Path) -> None:
    gate = threading.Event()

    async def main() -> None:
        async with house(tmp_path) as at:
            await at.say("a first turn", new_session=True)
            entered = held_in_a_step(at, gate)
            answer = asyncio.create_task(at.ask("go on for long", options=LONG))
            assert await asyncio.to_thread(entered.wait, 20)
            tree = await at.service.tree(WHERE)
            assert tree["tiers"]["device"]["budget_tokens"] > 0
            for looks in (
                at.service.tree(WHERE, show_cache=True),
                at.service.cache_stats(WHERE),
                at.service.cache_ls(where=WHERE),
                at.service.cache_tree(WHERE),
                at.service.cache_why(WHERE, ref="1"),
                at.service.cache_evict(WHERE, tokens=16),
            ):
                with pytest.raises(Busy, match="one step for"):
                    await looks
            assert "recompute" in await at.service.switch(WHERE, ref="HEAD")
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < STEP_S + 3
        with pytest.raises(Busy, match="stopping"):
            await answer

    try:
        run(main())
    finally:
        gate.set()

    async def after() -> None:
        async with house(tmp_path) as at:
            log = (await at.service.log(WHERE))["messages"]
            assert [message["role"] for message in log] == ["user", "assistant"] * 2
            assert log[-1]["finish_reason"] == "abort"
            assert log[-1]["text"]

    run(after())
