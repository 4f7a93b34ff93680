"""Several models in one daemon: who stays, who makes room, who waits, and until when."""

from __future__ import annotations

import asyncio
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from radchat.engine import model
from radchat.engine.memory import WORK_BYTES
from radchat.errors import Busy, ModelBroken, NotFound
from radchat.protocol import Event
from tests.daemon.services import (
    GREEDY,
    LONG,
    WHERE,
    House,
    Machine,
    house,
    named,
    notices,
    run,
    until,
)

TEXT = "a talk of some length, so that it fills pages. " * 4


async def _until_init(stream: Any) -> Event:
    async for event in stream:
        if event.name == "init":
            return event  # type: ignore[no-any-return]
    raise AssertionError("it ended before it began")


async def _long(home: House, model: str) -> tuple[asyncio.Task[None], str]:
    """An answer that runs until it is cancelled, and its request's id."""
    stream = home.service.generate(
        where=WHERE, text="long", new_session=True, dtype="fp32", model=model, options=LONG
    )
    request = str((await _until_init(stream)).data["request"])

    async def read_on() -> None:
        async for _event in stream:
            pass

    return asyncio.create_task(read_on()), request


# -- who stays -------------------------------------------------------------------------------------


def test_where_memory_holds_both_a_session_that_comes_back_finds_all_its_kv(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(TEXT, new_session=True, model="tiny")
            away = await home.ask("and you?", session=first["session"], model="other")
            assert "model_swap" not in notices(away)
            assert await home.loaded() == ["other fp32", "tiny fp32"]
            back = await home.ask("", kind="retry", ref=_message(first), session=first["session"],
                                  model="tiny")  # fmt: skip
            usage = back[-1].data["usage"]
            assert usage["cached_input_tokens"] == usage["input_tokens"] - 1  # the last gives odds
            assert "recompute" not in notices(back)
            assert await home.loaded() == ["tiny fp32", "other fp32"]

    run(main())


def _message(done: dict[str, Any]) -> str:
    return str(done["branches"][0]["message"])


def test_a_dtype_is_an_engine_of_its_own_that_stays_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            for dtype in ("fp32", "bf16", "fp32"):
                done = await home.say(TEXT, new_session=True, dtype=dtype)
                assert done["branches"][0]["dtype"] == dtype
            assert done["usage"]["cached_input_tokens"] > 100
            assert await home.loaded() == ["tiny fp32", "tiny bf16"]

    run(main())


def test_two_models_answer_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            running, request = await _long(home, "tiny")
            done = await home.say("x", new_session=True, model="other")
            assert done["branches"][0]["model"] == "other"
            assert not running.done()
            status = await home.service.status()
            assert (status["running"], len(status["models"])) == (1, 2)
            pools = [model["kv_bytes"] for model in status["models"]]
            assert status["kv"]["device"]["budget_bytes"] == sum(pools)
            await home.service.cancel(request)
            await running

    run(main())


# -- who makes room --------------------------------------------------------------------------------


def test_where_memory_does_not_hold_both_the_old_one_goes_and_one_line_says_so(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(TEXT, new_session=True)
            home.room_for(1)
            events = await home.ask("x", session=first["session"], model="other")
            told = [n for n in named(events, "notice") if n["code"] == "model_swap"]
            assert len(told) == 1
            assert "other fp32 takes the place of tiny fp32" in told[0]["text"]
            assert told[0]["tokens"] > 150
            assert [e.name for e in events].index("notice") < _at(events, "init")
            assert await home.loaded() == ["other fp32"]
            back = await home.ask("", kind="retry", ref=_message(first), session=first["session"],
                                  model="tiny")  # fmt: skip
            assert "model_swap" in notices(back)
            assert back[-1].data["cache"]["device"] == 0
            assert back[-1].data["cache"]["disk"] >= told[0]["tokens"] - 16  # whole pages were told
            same = await home.on_desk(
                lambda store: [
                    list(store.prompt_ids(str(store.message(done).prompt)))
                    for done in (_message(first), _message(back[-1].data))
                ]
            )
            assert same[0] == same[1]

    run(main())


def _at(events: list[Event], name: str) -> int:
    return [event.name for event in events].index(name)


def test_the_one_idle_longest_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("a", new_session=True, dtype="fp32")
            await home.say("b", new_session=True, model="other", dtype="fp32")
            home.room_for(2)
            await home.say("c", new_session=True, dtype="fp32")
            events = await home.ask("d", new_session=True, model="other", dtype="bf16")
            text = next(n for n in named(events, "notice") if n["code"] == "model_swap")["text"]
            assert "takes the place of other fp32" in text
            assert await home.loaded() == ["other bf16", "tiny fp32"]

    run(main())


def test_the_old_model_is_gone_from_memory_before_the_new_one_gets_its_pool(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            home.room_for(1)
            old = weakref.ref(home.service._engines.all[0].engine.pool)  # type: ignore[union-attr]
            seen: list[bool] = []
            install = home.service._worker.install

            async def watched(key: str, build: Any) -> Any:
                seen.append(old() is None)
                return await install(key, build)

            home.service._worker.install = watched  # type: ignore[method-assign]
            await home.ask("x", new_session=True, model="other")
            assert seen == [True]

    run(main())


def test_a_model_that_could_never_fit_is_refused_with_the_numbers_and_nothing_goes(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(TEXT, new_session=True, dtype="bf16")
            home.machine.free = 1_000_000
            with pytest.raises(ModelBroken, match=r"needs 0\.3 GB of memory.* are free: ") as no:
                await home.ask("x", new_session=True, model="other")
            assert "RADCHAT_KV_DEVICE" in no.value.message
            assert no.value.data["need_bytes"] > no.value.data["free_bytes"]
            assert await home.loaded() == ["tiny bf16"]
            after = await home.say("go on", session=first["session"], dtype="bf16")
            assert after["usage"]["cached_input_tokens"] > 150
            assert home.service.state == "ready"

    run(main())


def test_the_setting_bounds_what_all_models_take_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_MEMORY="300MB") as home:
            await home.say(TEXT, new_session=True)
            most = home.service._engines.all[0].num_bytes
            assert most < 30e6  # so one fits, and so would the next but for what its steps need
        async with house(tmp_path, RADCHAT_MEMORY=str(2 * most + (256 << 20))) as home:
            await home.say(TEXT, new_session=True)
            both = await home.ask(TEXT, new_session=True, model="other")
            assert "model_swap" not in notices(both)
        async with house(tmp_path, RADCHAT_MEMORY=str(2 * most + (256 << 20) - 1)) as home:
            await home.say(TEXT, new_session=True)
            one = await home.ask(TEXT, new_session=True, model="other")
            assert "model_swap" in notices(one)

    run(main())


def test_the_line_says_the_dtype_that_is_loaded_where_none_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.ask("x", new_session=True, dtype=None)
            home.room_for(1)
            events = await home.ask("x", new_session=True, model="other", dtype=None)
            text = next(n for n in named(events, "notice") if n["code"] == "model_swap")["text"]
            dtype = home.service._engines.all[0].dtype
            assert dtype in ("fp32", "bf16")
            assert f"other {dtype} takes the place of tiny {dtype}: " in text

    run(main())


def test_a_model_that_was_to_make_room_may_be_unloaded_while_the_next_one_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that fit beside it are loaded first; then it is looked again who must go."""
    begun, gate = threading.Event(), threading.Event()

    def gated(*args: Any, **more: Any) -> Any:
        begun.set()
        assert gate.wait(30)
        return load(*args, **more)

    load = model.load

    async def main() -> None:
        machine = Machine(WORK_BYTES + (64 << 20))
        async with house(tmp_path, machine, RADCHAT_KV_DEVICE="") as home:
            await home.say("x", new_session=True)
            old = home.service._engines.all[0]
            need = model.needs(old.entry.folder, "fp32")
            assert need.least < need.good
            machine.free = old.num_bytes + (need.least + need.good) // 2
            del old
            monkeypatch.setattr(model, "load", gated)
            asking = asyncio.create_task(home.ask("x", new_session=True, model="other"))
            await until(begun.is_set)
            assert await home.loaded() == ["tiny fp32"]
            assert (await home.service.models_unload("tiny"))["models"] == ["tiny"]
            gate.set()
            events = await asking
            assert events[-1].data["branches"][0]["model"] == "other"
            assert "model_swap" not in notices(events)  # nothing had to go any more
            assert await home.loaded() == ["other fp32"]

    run(main())


# -- who waits -------------------------------------------------------------------------------------


def test_a_model_in_use_is_waited_for_and_whoever_comes_later_waits_behind(tmp_path: Path) -> None:
    """Nobody starves: while one waits for room, the engine it waits for takes no new work."""

    async def main() -> None:
        async with house(tmp_path) as home:
            running, request = await _long(home, "tiny")
            home.room_for(1)
            order: list[str] = []

            async def ask(model: str) -> None:
                done = await home.say("x", new_session=True, model=model)
                order.append(done["branches"][0]["model"])

            waiting = asyncio.create_task(ask("other"))
            await until(lambda: home.service._engines._makes_room)
            later = asyncio.create_task(ask("tiny"))
            await asyncio.sleep(0.05)
            assert not later.done()
            assert home.service.state == "ready"  # nothing loads yet
            await home.service.cancel(request)
            await asyncio.gather(running, waiting, later)
            assert order == ["other", "tiny"]
            assert await home.loaded() == ["tiny fp32"]

    run(main())


def test_whoever_stops_waiting_for_room_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            running, request = await _long(home, "tiny")
            home.room_for(1)
            waiting = asyncio.create_task(home.ask("x", new_session=True, model="other"))
            await until(lambda: home.service._engines._makes_room)
            other = next(iter(set(home.service._answers) - {request}))
            await home.service.cancel(other)
            assert "done" not in [event.name for event in await waiting]
            await until(lambda: not home.service._engines._makes_room)
            beside = await home.say("me too", new_session=True, model="tiny")
            assert beside["branches"][0]["model"] == "tiny"
            assert not running.done()
            await home.service.cancel(request)
            await running

    run(main())


# -- unloading -------------------------------------------------------------------------------------


def test_one_model_or_all_can_be_unloaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("a", new_session=True)
            await home.say("a", new_session=True, dtype="bf16")
            running, request = await _long(home, "other")
            with pytest.raises(Busy, match="other is answering"):
                await home.service.models_unload()
            assert len(await home.loaded()) == 3
            gone = await home.service.models_unload("tiny")
            assert (gone["unloaded"], gone["models"]) == (True, ["tiny"])
            assert sorted(each["dtype"] for each in gone["engines"]) == ["bf16", "fp32"]
            with pytest.raises(NotFound, match="tiny is not loaded"):
                await home.service.models_unload("tiny")
            await home.service.cancel(request)
            await running
            assert (await home.service.models_unload())["models"] == ["other"]

    run(main())


def test_a_model_that_is_loaded_again_while_it_is_unloaded_stays(tmp_path: Path) -> None:
    """Its engine is asked for between two steps of the engine's thread, as all that goes is."""

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("a", new_session=True, model="other")
            await home.say("a", new_session=True, model="tiny")
            gates = [threading.Event(), threading.Event()]
            home.hold(gates[0])
            unloading = asyncio.create_task(home.service.models_unload())
            await until(lambda: not home.service._engines.all)
            again = asyncio.create_task(home.say("b", new_session=True, model="tiny"))
            await until(lambda: home.service._worker._inbox.qsize() >= 2)  # it waits to come
            home.hold(gates[1])
            gates[0].set()
            await until(lambda: len(home.service._engines.all) == 1 or unloading.done())
            gates[1].set()
            assert (await unloading)["models"] == ["other", "tiny"]
            assert (await again)["branches"][0]["model"] == "tiny"
            assert (await home.say("c", new_session=True, model="tiny"))["branches"]
            assert len(home.service._worker._engines) == 1

    run(main())


def test_an_unloading_that_nobody_waits_for_any_more_frees_the_memory_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("a", new_session=True, model="other")
            await home.say("a", new_session=True, model="tiny")
            gate = threading.Event()
            home.hold(gate)
            unloading = asyncio.create_task(home.service.models_unload())
            await until(lambda: not home.service._engines.all)
            unloading.cancel()
            await asyncio.wait({unloading})
            gate.set()
            await until(lambda: not home.service._worker._engines)

    run(main())


@pytest.mark.parametrize(
    ("keep_alive", "stays_s", "goes_s"),
    [("10m", 599, 600), ("3600", 3599, 3600), ("0", None, 0), ("-1", 1e9, None)],
)
def test_keep_alive_is_ollamas_grammar_and_each_model_has_its_own(
    tmp_path: Path, keep_alive: str, stays_s: float | None, goes_s: float | None
) -> None:
    async def main() -> None:
        machine = Machine()
        machine.now = 1000.0
        async with house(tmp_path, machine, RADCHAT_KEEP_ALIVE=keep_alive) as home:
            home.service._ticker.cancel()  # the test looks itself
            engines = home.service._engines
            running, request = await _long(home, "tiny")
            await home.say("b", new_session=True, model="other")
            for seconds, left in ((stays_s, 2), (goes_s, 1)):
                if seconds is None:
                    continue
                machine.now = 1000.0 + seconds
                await engines.unload_idle()
                assert len(engines.all) == left
            assert engines.of("tiny") is not None  # in use: however long that takes
            until_s = {m["name"]: m["until_s"] for m in (await home.service.models_ps())["models"]}
            assert until_s["tiny"] is None
            if goes_s is None:
                assert until_s["other"] is None
            await home.service.cancel(request)
            await running
            await engines.unload_idle()
            if goes_s is not None:
                assert len(engines.all) == (goes_s != 0)
                machine.now += goes_s
                await engines.unload_idle()
                assert engines.all == []

    run(main())


# -- what is seen ----------------------------------------------------------------------------------


def test_each_session_is_shown_the_cache_of_its_own_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            a = await home.say(TEXT, new_session="a", model="tiny")
            b = await home.say(TEXT * 2, new_session="b", model="other")
            for done, model in ((a, "tiny"), (b, "other")):
                name = done["session"]
                tree = await home.service.tree(WHERE, session=name, show_cache=True)
                cached = sum(m["cached"]["device"] for m in tree["messages"])
                assert cached >= done["usage"]["input_tokens"] - 16
                stats = await home.service.cache_stats(WHERE, name)
                assert stats["model"] == model
                assert stats["requests"] == 1
                nodes = (await home.service.cache_tree(WHERE, name))["nodes"]
                assert sum(node["end"] - node["start"] for node in nodes) >= cached
            await home.service.models_unload("other")
            tree = await home.service.tree(WHERE, session="b", show_cache=True)
            assert sum(m["cached"]["device"] for m in tree["messages"]) == 0
            assert tree["tiers"].keys() <= {"disk"}

    run(main())


def test_a_removed_session_is_forgotten_by_every_model_that_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(TEXT, new_session=True, model="tiny")
            await home.say("go on", session=first["session"], model="other")
            assert all(each.cached_tokens for each in home.service._engines.all)
            await home.service.sessions_rm(WHERE, [first["session"]])
            assert [each.cached_tokens for each in home.service._engines.all] == [0, 0]

    run(main())


def test_evict_and_clear_reach_every_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(TEXT, new_session=True, model="tiny")
            await home.say("go on", session=first["session"], model="other", options=GREEDY)
            freed = await home.service.cache_evict(WHERE, ref="1")
            assert freed["freed_tokens"] > 300
            await home.say(TEXT, new_session=True, model="tiny")
            await home.say(TEXT, new_session=True, model="other")
            assert (await home.service.cache_clear())["freed_tokens"] > 300
            assert [each.cached_tokens for each in home.service._engines.all] == [0, 0]

    run(main())
