"""An engine's cache is touched on the engines' thread alone, whatever is asked of the service."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from radchat.engine.prefix_cache import PrefixCache
from tests.daemon.services import WHERE, house, run


class Bound(PrefixCache):
    """The cache ``inner``, for one thread alone."""

    def __init__(self, inner: PrefixCache) -> None:
        self.__dict__ = inner.__dict__

    def __getattribute__(self, name: str) -> Any:
        thread = threading.current_thread().name
        assert thread == "engine", f"{name} was read on {thread}"
        return super().__getattribute__(name)


def test_whatever_is_asked_of_a_cache_is_asked_on_the_engines_thread(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            service = at.service
            first = (await at.say("a first turn of some length", new_session=True))["session"]
            (loaded,) = service._engines.all
            worker = service._worker
            loaded.engine.cache = await worker.call(lambda: Bound(loaded.engine.cache))
            stats = await service.cache_stats(WHERE)
            assert stats["pin_tokens"] == 0
            pinned = await service.cache_pin(WHERE)
            assert pinned["pin_tokens"] > 0
            assert (await service.cache_stats(WHERE))["pins"]
            assert (await service.cache_ls(where=WHERE))["entries"]
            assert (await service.cache_tree(WHERE))["nodes"]
            assert (await service.cache_why(WHERE))["answers"]
            assert (await service.context(WHERE))["cached"]
            tree = await service.tree(WHERE, show_cache=True, lru=True)
            assert tree["tiers"]["device"]["tokens"]
            await service.switch(WHERE, ref="HEAD")
            assert await service.cache_unpin(WHERE)
            assert await service.cache_evict(WHERE, tokens=16)
            assert await service.cache_evict(WHERE, ref="HEAD")
            assert await at.say("and on", session=first)
            assert (await service.cache_clear(pinned=True))["freed_tokens"]

    run(work())
