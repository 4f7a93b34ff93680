"""A search and a chat in one engine: the chat goes first, and the search is the same after it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from radchat.protocol import Event
from tests.daemon.searching import Open, search
from tests.daemon.services import House, Machine, house, named, run, until
from tests.scripted import Script, ScriptedDecoder, Turns

SAID = 11  # ids of a chat's answer
DRAWN = {"temperature": 1.0}


def thinks(sizes: Sequence[int]) -> Script:
    """Texts of so many letters, other ones after every path; a chat is answered in ten."""

    def thoughts(turns: Turns) -> dict[str, float]:
        said = "\n".join(text for _, text in turns)
        if turns[-1][1].startswith("chat"):
            return {_letters(said, SAID - 1): 1.0}
        own = (1, 1) if turns[-1][1] == "rate it" else sizes
        return {_letters(f"{said} {number}", size): 1 + number for number, size in enumerate(own)}

    return thoughts


def _letters(seed: str, size: int) -> str:
    drawn = hashlib.shake_256(seed.encode()).digest(size)
    return "".join(chr(97 + each % 26) for each in drawn)


class Steps:
    """Of an engine, as its log tells them: the requests in each, by the first letters of their id,
    and how many rows each had there.
    """

    def __init__(self, home: House, caplog: pytest.LogCaptureFixture, *halts: int) -> None:
        """When so many have been run no other is, though all else goes on, until ``go``."""
        self._inbox, self._caplog = home.service._worker._inbox, caplog
        caplog.set_level(logging.DEBUG, "radchat.engine.batch")
        caplog.clear()
        self._halts, self._num = halts, 0
        self._stands, self._goes = threading.Event(), threading.Event()
        decoder = home.service._engines.all[-1].model.decoder  # type: ignore[union-attr]
        assert isinstance(decoder, ScriptedDecoder)
        decoder.on_step = self._step

    @property
    def all(self) -> list[dict[str, int]]:
        lines = [each for each in self._caplog.messages if each.startswith("step ")]
        return [dict(map(_rows, line.rpartition(": ")[2].split())) for line in lines]

    def _step(self, _rows: int) -> None:
        self._num += 1
        if self._num in self._halts:
            self._inbox.put(self._stand)

    def _stand(self) -> None:
        self._stands.set()
        while not self._goes.is_set():
            with contextlib.suppress(Empty):
                entry = self._inbox.get(timeout=0.01)
                assert entry is not None
                entry()
        self._goes.clear()

    async def stand(self) -> int:
        """Wait for the next halt; how many steps have been run."""
        await until(self._stands.is_set)
        self._stands.clear()
        return self._num

    def go(self) -> None:
        self._goes.set()


def _rows(word: str) -> tuple[str, int]:
    name, _, rows = word.partition("+")
    return name.partition("/")[0], int(rows or 1)


async def frontier(s: Open, width: int, judges: int) -> list[list[str]]:
    """``width`` thoughts after one message, one more after each, and each of those judged: all that
    was said, an ask after the other.
    """
    first = await s.ask("the problem", n=width, options={**DRAWN, "seed": 1}, max_tokens=64)
    asks = [
        s.asked("and then?", at=at, options={**DRAWN, "seed": 2 + number}, max_tokens=64)
        for number, at in enumerate(first["messages"])
    ]
    second = _answers(await s.events(*asks))
    after = [out["message"] for answer in second for out in answer["outputs"]]
    rated = [
        s.asked("rate it", at=at, n=judges, options={**DRAWN, "seed": 3}, max_tokens=4)
        for at in after
    ]
    third = _answers(await s.events(*rated))
    return [[out["text"] for out in answer["outputs"]] for answer in (first, *second, *third)]


def _answers(events: list[Event]) -> list[dict[str, Any]]:
    assert named(events, "failed") == []
    return sorted(named(events, "answer"), key=lambda answer: int(answer["ask"]))


async def turn(home: House, steps: Steps) -> tuple[int, int]:
    """Of a chat beside a search, asked at the next halt: how many steps it took to its first token,
    the first of its own included, and the rows run for it. It misses no step from then on, and the
    search runs in each of them.
    """
    at = await steps.stand()
    loop, events = asyncio.get_running_loop(), list[Event]()

    def say(event: Event) -> None:
        events.append(event)
        if event.name == "init":
            loop.call_soon(steps.go)  # after the request has gone into the engine's inbox

    options = {"temperature": 0, "max_tokens": 16}
    answer = home.answer(say, text=f"chat {at}", new_session=True, options=options)
    await answer.run()
    assert events[-1].data["branches"][0]["usage"]["output_tokens"] == SAID
    mine = answer.id[:4]
    with_it = [(number, rows) for number, rows in enumerate(steps.all) if mine in rows]
    first, last = with_it[0][0], with_it[-1][0]
    assert last - first + 1 == len(with_it) == SAID  # its prompt is one chunk
    assert all(len(rows) > 1 for _, rows in with_it)
    return first + 1 - at, sum(rows[mine] for _, rows in with_it)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is recounted."""
    monkeypatch.setenv("RADCHAT_CHECK", "1")


async def searched(
    home: House, caplog: pytest.LogCaptureFixture, turns: Sequence[int], width: int, judges: int
) -> tuple[list[list[str]], int, list[int], dict[str, Any]]:
    """With turns of a chat, each when so many steps have been run: what the search says, the rows
    run for it, how long each turn waited, and the engine's own counts.
    """
    async with search(home) as s:
        steps = Steps(home, caplog, *turns)
        going = asyncio.create_task(frontier(s, width, judges))
        waited = [await turn(home, steps) for _ in turns]
        said = await going
        await home.service._worker.call(s.engine.check_idle)
        rows = s.computed() - sum(rows for _, rows in waited)
        return said, rows, [num for num, _ in waited], s.engine.stats()


def test_a_turn_goes_before_a_search_that_then_goes_on_and_computes_nothing_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(script=thinks((50, 40, 50, 60, 50, 60)))

    async def main() -> None:
        async with house(tmp_path / "alone", machine) as home:
            alone, rows, _, _ = await searched(home, caplog, (), 6, judges=2)
        async with house(tmp_path / "beside", machine) as home:
            beside, same, waited, _ = await searched(home, caplog, (1, 25, 75), 6, judges=2)
        assert beside == alone
        assert same == rows
        assert waited == [1] * 3

    run(main())


def test_a_frontier_of_more_thoughts_than_the_pool_holds_ends_as_it_would_and_starves_no_chat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """64 of them, of which about 20 fit: what was used longest ago goes."""
    machine = Machine(script=thinks((16, 20, 22, 24)))
    turns = (1, 30, 90, 150)

    async def main() -> None:
        wide, tight = ({"RADCHAT_KV_DEVICE": f"{pool}tok"} for pool in (32768, 1280))
        async with house(tmp_path / "wide", machine, **wide) as home:
            said, rows, _, stats = await searched(home, caplog, (), 64, judges=3)
            assert stats["retractions"] == 0
        async with house(tmp_path / "tight", machine, RADCHAT_PERSIST="off", **tight) as home:
            same, more, waited, stats = await searched(home, caplog, turns, 64, judges=3)
            assert stats["retractions"] > 0
        assert same == said
        assert set(waited) <= {1, 2}  # 2: the pool was full in just that step
        assert rows < more < 1.4 * rows  # of what had to go, but no more than that

    run(main())
