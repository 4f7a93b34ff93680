"""The service with a disk tier: what outlives it, what is said of it, what never gets there."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import ChatHead
from radchat.daemon.kept import Dropped
from radchat.daemon.reuse import Part, worth_telling
from radchat.errors import Busy, InvalidInput, NotFound, RadchatError, UsageError
from radchat.protocol import Event
from radchat_sessions.content import pack_ids
from radchat_sessions.errors import SaveFailed
from radchat_sessions.kv_files import Files
from tests.daemon.services import GREEDY, WHERE, House, house, named, notices, run
from tests.daemon.services import StumblingStore as Stumbling

LONG_TEXT = "the quick brown fox jumps over the lazy dog and " * 16  # 768 tokens
OTHER_TEXT = "sphinx of black quartz judge my vow at once now " * 16


def kv_files(home: House) -> list[Path]:
    return sorted(home.places.kv.rglob("*.safetensors"))


def words_on_disk(home: House, raw: bytes) -> bool:
    """Whether any file under kv/ holds these bytes."""
    return any(raw in path.read_bytes() for path in home.places.kv.rglob("*") if path.is_file())


async def last(events: AsyncIterator[Event]) -> dict[str, Any]:
    """The end of a stream; raises its error."""
    return [event async for event in events][-1].data


async def ids_of(home: House, message: str) -> Any:
    return await home.on_desk(lambda store: store.ids(message))


async def save(home: House, **args: Any) -> dict[str, Any]:
    return await last(home.service.cache_save(WHERE, **args))


def disk_of(tree: dict[str, Any]) -> int:
    return sum(message["cached"]["disk"] for message in tree["messages"])


# -- what outlives the daemon ----------------------------------------------------------------------


def test_a_turn_after_a_restart_restores_its_path_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path / "a") as home:
            first = await home.say(LONG_TEXT, new_session=True)
            warm = await home.say("and on")
        async with house(tmp_path / "b") as home:
            again = await home.say(LONG_TEXT, new_session=True)
            assert again["branches"][0]["text"] == first["branches"][0]["text"]
        async with house(tmp_path / "b") as home:
            tree = await home.service.tree(WHERE, show_cache=True)
            assert home.service._engines.all == []
            num = first["usage"]["input_tokens"]
            on_disk = disk_of(tree)
            assert num <= on_disk == tree["tiers"]["disk"]["tokens"]
            assert tree["tiers"]["disk"]["bytes"] == tree["tiers"]["disk"]["kept_bytes"] > 0
            assert all(m["last_used_s"] < 600 for m in tree["messages"] if m["cached"]["disk"])
            looked = await home.service.cache_tree(WHERE)
            assert (looked["nodes"], looked["tiers"]["disk"]["tokens"]) == ([], on_disk)
            assert sum(m["cached"]["device"] for m in tree["messages"]) == 0
            stats = await home.service.cache_stats(WHERE)
            assert stats["tiers"]["disk"]["tokens"] == on_disk
            assert (stats["persist"], stats["persist_off"], stats["disk_trouble"]) == (
                "auto", None, None
            )  # fmt: skip

            events = await home.ask("and on")
            done = events[-1].data
            (told,) = [n for n in named(events, "notice") if n["code"] == "restore"]
            assert told["text"].startswith(f"{done['usage']['input_tokens']:,} tokens: ")
            assert f"{told['tokens']:,} on disk, " in told["text"]
            (start,) = named(events, "start")
            assert start["cached"]["disk"] == told["tokens"] == done["cache"]["disk"]
            assert done["cache"]["disk"] >= num
            assert done["usage"]["cached_input_tokens"] == done["cache"]["disk"]
            assert sum(done["cache"].values()) == done["usage"]["input_tokens"]
            assert done["why"] is None
            assert done["branches"][0]["text"] == warm["branches"][0]["text"]

            (why,) = (await home.service.cache_why(WHERE))["answers"]
            assert (why["matched"], why["restored"]) == (0, done["cache"]["disk"])
            assert [part["cause"] for part in why["parts"]] == ["new"]
            tree = await home.service.tree(WHERE, show_cache=True)
            assert disk_of(tree) == 0  # each token counts in its fastest tier
            kept = tree["tiers"]["disk"]
            assert kept["tokens"] == 0 < on_disk <= kept["kept_tokens"] + 1  # what is safe to stop
            stats = await home.service.cache_stats(WHERE)
            assert stats["tiers"]["disk"]["restored_tokens"] == done["cache"]["disk"]
            status = await home.service.status()
            assert status["kv"]["disk"]["tokens"] >= on_disk

    run(main())


LOOKS = """
import asyncio, sys
from radchat import config
from radchat.daemon.service import Service
from radchat.paths import Places

async def main():
    places = Places.from_env()
    service = Service(places, config.load(places))
    await service.start()
    where = {"terminal": "t1", "folder": "/tmp"}
    tree = await service.tree(where, show_cache=True)
    stats = await service.cache_stats(where)
    rows = (await service.cache_ls(where=where))["entries"]
    opened = await service.sessions_open(where)
    (why,) = (await service.cache_why(where))["answers"]
    context = await service.context(where)
    print(
        sum(m["cached"]["disk"] for m in tree["messages"]),
        stats["tiers"]["disk"]["tokens"],
        sum(row["tokens"] for row in rows),
        opened["recompute"]["restores"],
        why["now"]["disk"] + context["cached"]["disk"],
    )
    await service.close()
    assert "torch" not in sys.modules

asyncio.run(main())
"""


def test_who_only_looks_sees_the_disk_and_imports_no_torch(tmp_path: Path) -> None:
    async def main() -> House:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            return home

    home = asyncio.run(main())
    env = {**os.environ, **home.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], check=True, capture_output=True, text=True, env=env
    )
    in_tree, in_all, listed, restores, twice = map(int, done.stdout.split())
    assert in_tree == in_all == listed == restores > 700
    assert 2 * in_all - 8 < twice < 2 * in_all  # the prompt of `why` ends before its answer


def test_every_sample_of_a_retry_is_kept_and_nothing_is_piled_up(tmp_path: Path) -> None:
    async def main() -> None:
        many = {"temperature": 1, "seed": 1, "max_tokens": 30}
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            done = await home.say(kind="retry", n=3, options=many)
        async with house(tmp_path) as home:
            tree = await home.service.tree(WHERE, show_cache=True)
            ends = {body["message"] for body in done["branches"]}
            for row in tree["messages"]:
                if row["id"] in ends:
                    assert row["cached"]["disk"] == row["tokens"] - 1  # the last has not run
            store = home.service._disk.store
            assert store is not None
            starts = Counter(entry.start for entry in store.entries())
            assert starts == {0: 1, 256: 1, 512: 3, 768: 3}  # the prompt ends in the third

    run(main())


@pytest.mark.parametrize("persist", ["auto", "always"])
def test_an_answer_that_no_branch_names_any_more_is_kept_if_one_asks_for_that(
    tmp_path: Path, persist: str
) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST=persist) as home:
            first = await home.say(LONG_TEXT, new_session=True)
            options = {"temperature": 1, "seed": 1, "max_tokens": 5}
            await home.say(kind="retry", options=options)
            hourly = (await home.service.cache_stats(WHERE))["tiers"]["disk"]["hourly_bytes"]
            assert hourly == (None if persist == "always" else 2 * 1024**3)
        async with house(tmp_path, RADCHAT_PERSIST=persist) as home:
            tree = await home.service.tree(WHERE, show_cache=True)
            left = first["branches"][0]["message"]
            (row,) = [row for row in tree["messages"] if row["id"] == left]
            assert (row["cached"]["disk"] == row["tokens"] - 1) == (persist == "always")

    run(main())


def test_what_is_said_last_is_on_disk_when_its_model_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            assert kv_files(home) == []
            await home.service.models_unload()
            assert kv_files(home)
            back = await home.say("and on")
            assert back["cache"]["disk"] > 700

    run(main())


# -- what never gets there -------------------------------------------------------------------------


def test_an_ephemeral_session_leaves_nothing_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="always") as home:
            done = await home.say(LONG_TEXT, new_session=True, ephemeral=True)
            with pytest.raises(InvalidInput, match="is ephemeral: it is never kept on disk"):
                await save(home, session=done["session"])
            await home.service.models_unload()
            back = await home.ask("and on", session=done["session"], ephemeral=True)
            assert back[-1].data["cache"]["disk"] == 0
            assert back[-1].data["why"] == "it is no longer cached: the model was loaded since"
            tree = await home.service.tree(WHERE, session=done["session"], show_cache=True)
            assert disk_of(tree) == 0
        assert kv_files(home) == []

    run(main())


def test_removed_words_are_in_no_file_and_what_others_share_stays(tmp_path: Path) -> None:
    async def main() -> None:
        system = "you are a helper who answers in short words only " * 8  # more than a block
        async with house(tmp_path) as home:
            doomed = await home.say(LONG_TEXT, new_session="a", system=system)
            await home.say("and on")
            stays = await home.say(OTHER_TEXT, new_session="b", system=system)
            secret = (await ids_of(home, doomed["branches"][0]["message"]))[500:516]
            other = (await ids_of(home, stays["branches"][0]["message"]))[500:516]
            await save(home, session="a")
            await save(home, session="b")
            assert words_on_disk(home, pack_ids(secret))
            before = (await home.service.tree(WHERE, session="b", show_cache=True))["messages"]
            await home.service.models_unload()
            await home.service.sessions_rm(WHERE, ["a"])
            assert not words_on_disk(home, pack_ids(secret))
            assert words_on_disk(home, pack_ids(other))
            tree = await home.service.tree(WHERE, session="b", show_cache=True)
            assert disk_of(tree) == sum(m["cached"]["device"] for m in before)
        assert not words_on_disk(home, pack_ids(secret))

    run(main())


def test_pruned_words_are_in_no_file_also_if_their_model_is_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(LONG_TEXT, new_session=True)
            gone = await home.say(OTHER_TEXT)
            await save(home)
            secret = (await ids_of(home, gone["branches"][0]["message"]))[-300:-200]
            assert words_on_disk(home, pack_ids(secret))
            await home.service.undo(WHERE)
            dry = await home.service.sessions_prune(WHERE, dry_run=True)
            assert dry["messages"] == 2
            assert words_on_disk(home, pack_ids(secret))
            await home.service.sessions_prune(WHERE)
            assert not words_on_disk(home, pack_ids(secret))
            on = await home.say("and on", head=first["head"])
            assert on["cache"]["device"] > 700
        assert not words_on_disk(home, pack_ids(secret))
        async with house(tmp_path) as home:
            assert (await home.say("once more"))["cache"]["disk"] > 700

    run(main())


def test_only_files_without_a_row_that_hold_removed_words_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            doomed = await home.say(LONG_TEXT, new_session="a")
            stays = await home.say(OTHER_TEXT, new_session="b")
            secret, other = [
                pack_ids((await ids_of(home, each["branches"][0]["message"]))[500:516])
                for each in (doomed, stays)
            ]
        for path in home.places.kv.glob("index.db*"):
            path.unlink()
        async with house(tmp_path) as home:
            (removed,) = (await home.service.sessions_rm(WHERE, ["a"]))["removed"]
            assert removed["kv_left"] is None
            assert not words_on_disk(home, secret)
            assert words_on_disk(home, other)

    run(main())


def test_what_is_said_while_kv_is_deleted_goes_with_its_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            done = await home.say(LONG_TEXT, new_session="a")
            message, calls = done["branches"][0]["message"], 0

            def meant() -> set[str]:
                nonlocal calls
                calls += 1
                return {message, *(() if calls == 1 else [done["branches"][0]["parent"]])}

            service = home.service
            counted: list[int] = []
            no_kv = await service._drop_blocks(home.store, done["session"], meant)
            assert (no_kv, calls) == ((None, Dropped()), 0)  # nothing is on disk: no work
            await save(home)
            await service._remove(home.store, done["session"], meant, lambda: counted.append(calls))
            assert counted == [4]  # looked twice, each time before and after

    run(main())


# -- where it can't be -----------------------------------------------------------------------------


def test_without_persistence_nothing_is_written_and_the_answer_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="off") as home:
            assert notices(await home.ask(LONG_TEXT, new_session=True)) == []
            stats = await home.service.cache_stats(WHERE)
            assert "disk" not in stats["tiers"]
            assert stats["persist_off"] == "KV is not kept on disk: persist = off"
        assert not home.places.kv.exists()
        async with house(tmp_path, RADCHAT_PERSIST="off") as home:
            events = await home.ask("and on")
            (told,) = [n for n in named(events, "notice") if n["code"] == "recompute"]
            why = (
                "it is no longer cached: the model was loaded since (KV is not kept on disk: "
                "persist = off)"
            )
            assert told["text"].endswith(why)
            assert events[-1].data["why"] == why
            assert events[-1].data["why_short"] == "KV is not kept on disk: persist = off"
            with pytest.raises(InvalidInput, match="persist = off"):
                await save(home)
            with pytest.raises(RadchatError, match=r"nothing to verify: .*: persist = o") as no:
                await last(home.service.cache_verify())
            assert no.value.exit_code == 1  # no mistake of who asks

    run(main())


def test_kv_of_before_persistence_was_turned_off_goes_with_its_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            done = await home.say(LONG_TEXT, new_session="a")
        assert kv_files(home)
        async with house(tmp_path, RADCHAT_PERSIST="off") as home:
            back = await home.say("and on", session="a")
            assert back["cache"]["disk"] == 0
            looked = await last(home.service.cache_verify())  # what lies there can be looked at
            assert (looked["ok"], looked["blocks"]) == (True, len(kv_files(home)))
            await home.service.sessions_rm(WHERE, [done["session"]])
            assert kv_files(home) == []

    run(main())


@pytest.mark.parametrize("off", [{"RADCHAT_PERSIST": "off"}, {"RADCHAT_KV_DISK": "0"}])
def test_kv_of_before_it_was_turned_off_stays_until_somebody_says_so(
    tmp_path: Path, off: dict[str, str]
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session="a")
        files = kv_files(home)
        assert files
        async with house(tmp_path, None, **off) as home:
            await home.service._disk.tidy()
            assert kv_files(home) == files
            gone = await home.service.cache_evict(WHERE, tier="disk")
            assert gone["freed_tokens"] > 700
            assert kv_files(home) == []

    run(main())


def test_a_second_radchat_on_one_cache_folder_says_so_once_and_works(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path / "a") as one:
            await one.say(LONG_TEXT, new_session=True)
            cache = str(one.places.cache)
            async with house(tmp_path / "b", RADCHAT_CACHE_DIR=cache) as two:
                events = await two.ask(LONG_TEXT, new_session=True, model="tiny")
                (told,) = [n for n in named(events, "notice") if n["code"] == "persist_off"]
                assert "KV is not kept on disk: another radchat" in told["text"]
                assert str(one.places.kv) in told["text"]
                assert notices(await two.ask("and on")) == []
                await two.service.models_unload()
                back = await two.ask("once more")
                assert "another radchat" in back[-1].data["why"]
            await one.service.models_unload()
            assert (await one.say("and on"))["cache"]["disk"] > 700

    run(main())


def test_a_removal_says_where_kv_may_be_left_that_another_radchat_holds(tmp_path: Path) -> None:
    async def main() -> None:
        cache = str(tmp_path / "shared")
        async with house(tmp_path / "a", RADCHAT_CACHE_DIR=cache) as one:
            await one.say(LONG_TEXT, new_session="secret")
        async with (
            house(tmp_path / "b", RADCHAT_CACHE_DIR=cache),
            house(tmp_path / "a", RADCHAT_CACHE_DIR=cache) as one,
        ):
            (removed,) = (await one.service.sessions_rm(WHERE, ["secret"]))["removed"]
            assert removed["kv_left"].startswith(f"KV of it may be left in {one.places.kv}: ")
            assert "another radchat" in removed["kv_left"]
            assert (await one.service.sessions_list(WHERE))["sessions"] == []

    run(main())


class Stuck(Files):
    """A disk on which nothing is deleted."""

    def remove(self, path: Path) -> None:
        raise PermissionError(13, "no", str(path))


def test_a_removal_says_where_kv_is_left_that_could_not_be_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session="a")
            await save(home)
            await home.service.fork(WHERE, ref="HEAD", name="aside")
            await home.say(OTHER_TEXT)
            await save(home)
            opened = home.service._disk.opened
            assert opened is not None
            opened.files = Stuck()
            await home.service.switch(WHERE, ref="main")
            await home.service.branch_delete(WHERE, name="aside")
            pruned = await home.service.sessions_prune(WHERE)
            assert pruned["messages"]
            (removed,) = (await home.service.sessions_rm(WHERE, ["a"]))["removed"]
            for body in (pruned, removed):
                assert f"may be left in {home.places.kv}: " in body["kv_left"]
                assert "cache clear --disk" in body["kv_left"]
            opened.files = Files()

    run(main())


class Hanging(Files):
    """A disk whose writes hang while ``opens`` is not set."""

    def __init__(self) -> None:
        self.opens, self.hangs = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        self.hangs.set()
        assert self.opens.wait(60)
        super().sync(fd)


def test_while_a_write_hangs_nothing_is_removed_and_everybody_talks(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(OTHER_TEXT, new_session="old")
            await save(home)
            mine = await home.say(LONG_TEXT, new_session="mine")
            service, disk = home.service, Hanging()
            opened = service._disk.opened
            assert opened is not None
            opened.files, service.drain_s = disk, 0.1
            saving = asyncio.create_task(save(home))
            await asyncio.to_thread(disk.hangs.wait, 60)
            asked: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: service.sessions_rm(WHERE, ["old"]),
                lambda: service.sessions_prune(WHERE, session="old"),
                lambda: service.cache_evict(WHERE, ref="HEAD", session="mine", tier="disk"),
                lambda: service.cache_clear(disk=True),
            ]
            for ask in asked:
                with pytest.raises(Busy, match="the disk does not answer"):
                    await ask()
                assert (await home.say("and on", session="mine"))["branches"]
                assert (await service.tree(WHERE, session="old", show_cache=True))["messages"]
            disk.opens.set()
            assert (await saving)["session"] == mine["session"]
            (removed,) = (await service.sessions_rm(WHERE, ["old"]))["removed"]
            assert removed["kv_left"] is None

    run(main())


HANGS = """
import os, signal, sys, threading
from radchat import config
from radchat.daemon.main import serve
from radchat.daemon.service import Service
from radchat.paths import Places
from radchat_sessions.kv_files import Files

class Hanging(Files):
    def sync(self, fd):
        threading.Event().wait()

class Hung(Service):
    async def start(self):
        await super().start()
        store = self._disk.store
        store.files = Hanging()
        block = dict(shape=(1, 2, 256, 1, 4), dtype="fp32")
        write = lambda: store.of("a" * 32).write(bytes(1024), 0, bytes(256 * 32), **block)
        threading.Thread(target=write, daemon=sys.argv[1] == "daemon").start()
        os.kill(os.getpid(), signal.SIGTERM)

places = Places.from_env()
serve(places, config.load(places), service_factory=Hung)
"""


@pytest.mark.parametrize("thread", ["daemon", "joined"])
def test_the_daemon_ends_though_a_write_hangs_for_ever(tmp_path: Path, thread: str) -> None:
    home = House(tmp_path)
    env = {**os.environ, **home.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HANGS, thread]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == (0 if thread == "daemon" else 1), done.stderr
    assert "the KV disk does not answer" in done.stderr


def test_a_folder_that_is_none_turns_it_off(tmp_path: Path) -> None:
    async def main() -> None:
        home = House(tmp_path)
        home.places.kv.write_text("in the way")
        await home.service.start()
        try:
            events = await home.ask("hello", new_session=True)
            assert notices(events) == ["persist_off"]
            assert (await home.service.sessions_rm(WHERE, [events[-1].data["session"]]))["removed"]
        finally:
            await home.service.close()
        assert home.places.kv.read_text() == "in the way"

    run(main())


# -- what happened to it ---------------------------------------------------------------------------


def test_a_new_folder_and_a_damaged_block_are_told_as_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
        middle = kv_files(home)
        shutil.copytree(home.places.kv, tmp_path / "copy")
        shutil.rmtree(home.places.kv)
        async with house(tmp_path) as home:
            done = await home.say("and on", head=None)
            assert done["cache"]["disk"] == 0
            assert done["why"] == (
                "it is no longer cached: the model was loaded since, and nothing of it is on disk "
                "(the KV folder is new)"
            )
            assert done["why_short"] == "the KV folder is new"
        shutil.rmtree(home.places.kv)
        shutil.copytree(tmp_path / "copy", home.places.kv)
        for path in middle:
            damage(path)
        async with house(tmp_path) as home:
            events = await home.ask("once more")
            done = events[-1].data
            assert done["cache"]["disk"] == 0
            promised, lost = named(events, "notice")[
                -2:
            ]  # what was said before is not left to stand
            assert promised["code"] == "restore"
            assert lost["code"] == "recompute"
            assert lost["tokens"] == promised["tokens"]
            assert lost["text"].endswith(" could not be read: they were computed again")
            assert done["why"].endswith("is on disk (a damaged block was dropped)")
            assert done["why_short"] == "a damaged block was dropped"
            assert sum(done["cache"].values()) == done["usage"]["input_tokens"]

    run(main())


def test_a_disk_that_is_slower_than_computing_is_not_read_and_that_is_told(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await save(home)
            await home.service.cache_clear()
            (engine,) = [each.engine for each in home.service._engines.all]
            disk = engine._disk  # type: ignore[union-attr]
            assert disk is not None
            disk.restoring.speed.saw(1 << 20, 1000.0)
            away = await home.service.switch(WHERE, ref="HEAD")
            reason = "it is no longer cached, and computing it is faster than loading it from disk"
            assert away["recompute"]["text"].endswith(reason)
            done = await home.say("and on")
            assert done["cache"]["disk"] == 0
            assert done["why"] == reason
            assert done["why_short"] == "computing it is faster than loading it from disk"

    run(main())


@pytest.mark.parametrize(
    ("again", "new", "is_told"),
    [(20, 5000, False), (20, 19, True), (16, 0, False), (300, 5000, True), (0, 300, False)],
)
def test_a_reason_stands_under_an_answer_only_where_it_is_most_of_the_work(
    again: int, new: int, is_told: bool
) -> None:
    parts = [Part(0, again, "evicted", "long", "short")] if again else []
    told = worth_telling([*parts, Part(again, again + new, "new", "the first time", "")])
    assert (told is not None and told.why_short == "short") == is_told


def test_an_answer_waits_for_no_reason_from_a_disk_that_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await save(home)
            await home.service.cache_clear()
            opens = threading.Event()
            opened = home.service._disk.store
            assert opened is not None
            opened._free = lambda _folder: 0
            asked_on: set[str] = set()

            def hangs(question: Any, otherwise: Any, *, patience: float = 0) -> Any:
                asked_on.add(threading.current_thread().name)
                if threading.current_thread().name == "beside":
                    opens.wait(60)
                return otherwise

            opened.ask = hangs  # type: ignore[method-assign]
            done = await home.say("and on")
            assert done["why"] == done["why_short"] == "it is no longer cached"
            assert "MainThread" not in asked_on
            opens.set()

    run(main())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 0xFF
    path.write_bytes(data)


def test_the_folder_may_go_while_the_service_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await save(home)
            shutil.rmtree(home.places.kv)
            assert (await home.say("and on"))["branches"][0]["message"]
            await home.service.models_unload()
            assert (await home.say("once more"))["branches"][0]["message"]
            assert (await home.service.cache_stats(WHERE))["tiers"]["disk"]["tokens"] >= 0

    run(main())


@pytest.mark.parametrize("when", ["begin", "finish"])
def test_a_full_disk_costs_kv_and_not_the_answer(tmp_path: Path, when: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await save(home)
            opened = home.service._disk.opened
            assert opened is not None
            assert kv_files(home)
            opened._free = lambda _path: 0
            store = await home.stumbling()
            failed: list[str] = []

            def full_once(name: str) -> None:
                if name == when and not failed:
                    failed.append(name)
                    raise SaveFailed("the disk is full")

            store.before = full_once
            events = await home.ask("and on")
            assert failed
            assert notices(events) == []
            assert events[-1].data["branches"][0]["message"]
            assert kv_files(home) == []
            assert isinstance(home.store, Stumbling)

    run(main())


# -- commands --------------------------------------------------------------------------------------


def test_save_load_verify_evict_and_clear(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(LONG_TEXT, new_session="a")
            saved = await save(home)
            num = first["usage"]["input_tokens"] + GREEDY["max_tokens"]
            assert saved["path_tokens"] == num
            assert saved["on_disk_tokens"] == saved["tokens"] == num - 1
            assert (saved["name"], saved["left"]) == ("a", None)
            assert saved["blocks"] == len(kv_files(home))
            assert saved["bytes"] == sum(path.stat().st_size for path in kv_files(home))
            again = await save(home)
            assert (again["blocks"], again["on_disk_tokens"]) == (0, num - 1)
            assert (again["tokens"], again["bytes"]) == (0, 0)

            entries = (await home.service.cache_ls(where=WHERE))["entries"]
            rows = [row for row in entries if row["tier"] == "D"]
            assert sum(row["tokens"] for row in rows) == num - 1
            assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
            assert {(row["session"], row["name"]) for row in rows} == {(first["session"], "a")}
            assert rows[0]["message"] == first["branches"][0]["message"]  # the tail goes first
            assert LONG_TEXT[:10] in rows[-1]["text"]

            cleared = await home.service.cache_clear()
            assert cleared["freed_tokens"]
            assert (cleared["disk_tokens"], cleared["disk_bytes"]) == (0, 0)
            events = [event async for event in home.service.cache_load(WHERE)]
            loaded = events[-1].data
            assert notices(events) == ["restore"]
            assert (loaded["device"], loaded["restored"], loaded["missing"]) == (0, num - 1, 1)
            assert (loaded["model"], loaded["dtype"]) == ("tiny", "fp32")
            more = await home.say("and on")
            assert (more["cache"]["device"], more["cache"]["disk"]) == (0, num - 1)  # its first use

            events = [event async for event in home.service.cache_verify()]
            whole = events[-1].data
            assert (whole["ok"], whole["bad"]) == (True, [])
            assert named(events, "progress")[-1] == {
                "stage": "verify", "done": whole["blocks"], "total": whole["blocks"]
            }  # fmt: skip
            damage(kv_files(home)[0])
            broken = await last(home.service.cache_verify())
            assert not broken["ok"]
            assert len(broken["bad"]) == 1

            await home.service.cache_clear()
            gone = await home.service.cache_evict(WHERE, ref="HEAD", tier="disk")
            assert gone["freed_tokens"] >= 0
            with pytest.raises(UsageError, match="is of the device"):
                await home.service.cache_evict(WHERE, tokens=16, tier="disk")
            rest = await home.service.cache_clear(device=False, disk=True)
            assert rest["disk_tokens"] > 0
            assert kv_files(home) == []

    run(main())


def test_saving_a_path_writes_and_counts_that_path_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_KV_DISK="1000KiB") as home:
            for name, words in (("a", LONG_TEXT), ("b", OTHER_TEXT), ("c", LONG_TEXT[9:])):
                await home.say(words, new_session=name)
            for num, name in enumerate("ab", 1):
                saved = await save(home, session=name)
                assert saved["on_disk_tokens"] == saved["path_tokens"] - 1
                assert 0 <= saved["on_disk_tokens"] - saved["tokens"] < 16  # another begins so
                stats = await home.service.cache_stats(WHERE)
                assert stats["tiers"]["disk"]["tokens"] <= num * saved["path_tokens"]
                assert saved["blocks"] >= 3
            third = await save(home, session="c")  # and what it pushes out counts for nothing
            assert third["tokens"] > 256
            assert 0 < third["bytes"] <= 1000 * 1024

    run(main())


def test_a_models_kv_goes_alone_of_every_dtype(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session="a")
            await home.say(LONG_TEXT, new_session="b", dtype="bf16")
            await home.say(LONG_TEXT, new_session="c", model="other")
            await home.service.models_unload("other")
            other = kv_files(home)
            assert other
            clear = home.service.cache_clear
            with pytest.raises(UsageError, match="a model's KV is cleared on disk"):
                await clear(model="tiny", disk=True)
            for name in "ab":
                await save(home, session=name)
            assert len({path.parent.parent for path in kv_files(home)}) == 3
            assert (await clear(model="tiny", device=False, disk=True))["disk_tokens"] > 1400
            assert kv_files(home) == other
        assert kv_files(home) == other  # nor is it written again when the daemon stops

    run(main())


def test_evicting_a_message_from_disk_leaves_what_comes_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            second = await home.say(OTHER_TEXT)
            await save(home)
            await home.service.models_unload()
            before = await home.service.tree(WHERE, show_cache=True)
            user = second["branches"][0]["parent"]
            gone = await home.service.cache_evict(WHERE, ref=user, tier="disk")
            tree = await home.service.tree(WHERE, show_cache=True)
            rows = {row["id"]: row["cached"]["disk"] for row in tree["messages"]}
            assert rows[user] == rows[second["branches"][0]["message"]] == 0
            assert disk_of(tree) == disk_of(before) - gone["freed_tokens"] >= 512

    run(main())


def test_a_first_turn_with_files_finds_what_was_warmed(tmp_path: Path) -> None:
    async def main() -> None:
        files: Any = [{"name": "a.md", "text": LONG_TEXT}]
        async with house(tmp_path) as home:
            events = [e async for e in home.service.cache_warm(WHERE, files=files, dtype="fp32")]
            warm = events[-1].data
            assert warm["computed"] == warm["path_tokens"] > 700
            num = f"{warm['path_tokens']:,}"
            assert named(events, "notice")[0]["text"].startswith(f"{num} tokens: {num} to compute")
            assert (warm["session"], warm["message"]) == (None, None)
            for words in ("what is this", "1 + 1", "Why?"):
                done = await home.say(words, files=files, new_session=True)
                assert done["cache"]["device"] == warm["path_tokens"]
            again = await last(home.service.cache_warm(WHERE, files=files, dtype="fp32"))
            assert again["device"] >= warm["path_tokens"] - 1
            with pytest.raises(InvalidInput, match="leave out the REF"):
                await last(home.service.cache_warm(WHERE, files=files, ref="HEAD"))

    run(main())


def test_a_path_is_warmed_from_disk_and_what_is_not_there_is_computed(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await save(home)
            await home.say(OTHER_TEXT)
            for path in kv_files(home)[:1]:
                path.unlink()
        async with house(tmp_path) as home:
            warm = await last(home.service.cache_warm(WHERE))
            assert warm["restored"] > 0
            assert warm["restored"] + warm["computed"] == warm["path_tokens"]
            on = await home.say("and on")
            assert on["cache"]["device"] == warm["path_tokens"]

    run(main())


def test_a_chat_that_opens_restores_its_path_and_a_turn_joins_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(LONG_TEXT * 3, new_session=True)
            num = first["usage"]["input_tokens"]
        async with house(tmp_path) as home:
            opened = await home.service.sessions_open(WHERE)
            assert (
                f"going on here restores {opened['recompute']['restores']:,} of"
                in (opened["recompute"]["text"])
            )
            done = await last(
                home.service.models_load(
                    where=WHERE, session=first["session"], restore=True, dtype="fp32"
                )
            )
            assert done["restoring"] >= num
            turn = await home.say("and on")
            assert turn["cache"]["disk"] == done["restoring"]  # for it, whenever it was read
            assert turn["cache"]["device"] == 0
            (engine,) = [each.engine for each in home.service._engines.all]
            assert engine.stats()["disk"]["restored_tokens"] == done["restoring"]
            for _ in range(2):  # nothing more is on disk
                again = await last(
                    home.service.models_load(where=WHERE, restore=True, dtype="fp32")
                )
                assert again["restoring"] == 0
            await home.service.models_unload()

    run(main())


def test_a_chat_that_opens_at_an_earlier_place_is_told_of_the_path_to_there(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say(LONG_TEXT, new_session="q3")
            there = first["branches"][0]["message"]
            await home.say(OTHER_TEXT)
        async with house(tmp_path) as home:
            whole = await home.service.sessions_open(WHERE)
            assert "at" not in whole
            num = whole["recompute"]["restores"]
            for ref in (there[:8], "2"):  # the second turn: the point before it
                opened = await home.service.sessions_open(WHERE, session="q3", at=ref)
                assert (opened["at"], opened["head"]) == (there, whole["head"])
                assert num - opened["recompute"]["restores"] > 700
            begun = await home.service.sessions_open(WHERE, at="1")
            assert (begun["at"], begun["recompute"]) == (None, None)
            head: ChatHead = {"branch": None, "message": there}
            session = first["session"]
            done = await last(
                home.service.models_load(
                    where=WHERE, session=session, head=head, restore=True, dtype="fp32"
                )
            )
            assert 0 < done["restoring"] < num - 700
            with pytest.raises(NotFound):
                await home.service.sessions_open(WHERE, at="99")

    run(main())


def test_a_branch_that_was_left_is_told_to_be_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say(LONG_TEXT, new_session=True)
            await home.say(kind="edit", ref="1", text=OTHER_TEXT, branch=None)
            await home.service.fork(WHERE, ref="HEAD", name="aside")
            await save(home)
            await home.service.cache_clear()
            back = await home.service.switch(WHERE, ref="main")
            told = back["recompute"]
            assert told["restores"] > 700
            assert told["seconds"] > 0
            assert "from disk, " in told["text"]

    run(main())
