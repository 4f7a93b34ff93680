"""Looking at the cache changes nothing of it: order, ticks, hits, times, counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from radchat.daemon.service import Service
from tests.daemon.services import WHERE, House, house, run


async def state(home: House) -> tuple[Any, ...]:
    """Everything that the next eviction, match or display depends on."""
    loaded = home.service._engines.loaded
    assert loaded is not None
    engine = loaded.engine

    def look() -> tuple[Any, ...]:
        cache = engine.cache
        line = [node.id for node in cache._tree.order]
        beside = ("seconds", "disk")  # what is kept is written meanwhile
        stats = {key: value for key, value in engine.stats().items() if key not in beside}
        return cache.nodes(), cache.eviction_plan(), cache.pins(), cache.generation, line, stats

    return await home.service._worker.call(look)


async def look_around(service: Service, refs: list[str]) -> None:
    await service.tree(WHERE, show_cache=True, lru=True)
    await service.cache_stats()
    await service.cache_ls(by="lru")
    await service.cache_ls(by="size")
    await service.cache_tree()
    for ref in refs:
        await service.cache_why(WHERE, ref=ref)
        await service.switch(WHERE, ref=ref)
    await service.sessions_open(WHERE)
    await service.status()


def test_any_number_of_looks_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("the root of it all, at some length " * 3, new_session=True)
            for name in ("left", "right"):
                await home.say(f"{name} it goes", at="1", branch=name)
            await home.service.cache_pin(WHERE, ref="left")
            refs = ["main", "left", "right"]
            await home.service.cache_evict(WHERE, tokens=16)
            before = await state(home)
            for _ in range(10):
                await look_around(home.service, refs)
            assert await state(home) == before

    run(main())


def test_why_is_kept_with_the_answer_and_outlives_the_service(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            await home.say("and again")
            before = await home.service.cache_why(WHERE)
        async with house(tmp_path) as home:
            after = await home.service.cache_why(WHERE)
        (old,), (new,) = before["answers"], after["answers"]
        assert old.pop("now")["computed"] == 1
        assert new.pop("now")["disk"] == new["input_tokens"] - 1
        assert old.pop("now_why_not") is new.pop("now_why_not") is None
        assert new == old

    run(main())
