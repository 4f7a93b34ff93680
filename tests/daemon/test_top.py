"""`cache top`: every token in one row, and what the rows hold adds up to the tiers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import FileText, Options
from radchat.daemon.held import Match, Snapshot
from radchat.daemon.top_rows import NOBODY, SESSIONS, Owner, joined, pages_of, parts
from radchat.errors import Busy
from tests.daemon.services import LONG, WHERE, House, house, run, until
from tests.daemon.test_long_step import held_in_a_step
from tests.daemon.test_service_probes import state

KEYS = ("evictable", "pinned", "locked")
MAIN, PRICE, OTHER = (
    Owner("branch", "s", "main"),
    Owner("branch", "s", "price"),
    Owner("branch", "t", "main"),
)


async def top(at: House) -> dict[str, Any]:
    """As it is told, after what must be true of it at any moment."""
    found = await at.service.cache_top(WHERE)
    rows = found["rows"]
    used = (found["total_tokens"] or 0) - (found["free_tokens"] or 0)
    assert sum(row["held_tokens"] for row in rows) == used
    assert used == found["tiers"].get("device", {}).get("tokens", 0)
    for key in KEYS:
        assert sum(row[f"{key}_tokens"] for row in rows) == found[f"{key}_tokens"]
    ranks = [row["lru_rank"] for row in rows if row["lru_rank"]]
    assert ranks == list(range(1, len(ranks) + 1))
    assert all(row["held_tokens"] for row in rows if row["lru_rank"])  # there is something to free
    owners = [(row["kind"], row["session"], row["branch"]) for row in rows]
    assert len(owners) == len(set(owners))
    return found


async def talk(at: House) -> str:
    """A session of one turn; its answer."""
    said = await at.say("the root of it all, at some length " * 3, new_session="talk")
    return str(said["branches"][0]["message"])


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{row['name']}/{row['branch'] or row['kind']}": row for row in found["rows"]}


def test_whose_a_token_is_where_several_have_it() -> None:
    assert joined(MAIN, MAIN) == joined(MAIN, NOBODY) == joined(NOBODY, MAIN) == MAIN
    shared = joined(MAIN, PRICE)
    assert shared == joined(shared, PRICE) == Owner("shared", "s")
    assert joined(shared, OTHER) == joined(SESSIONS, MAIN) == joined(MAIN, SESSIONS) == SESSIONS


def test_every_page_of_a_split_path_counts_once(tmp_path: Path) -> None:
    """A branch that ends in the midst of another's run, and in the midst of a page."""

    async def main() -> None:
        async with house(tmp_path) as at:
            await at.say("a talk of some length, over several pages " * 3, new_session="talk")
            loaded = at.service._engines.loaded
            assert loaded is not None
            cache = loaded.engine.cache
            snapshot = await at.service._worker.call(lambda: Snapshot(cache, "", ""))
            (node,) = snapshot.nodes
            for cut in range(1, node.end + 1):
                ends = [(Match(node, node.end), MAIN), (Match(node, cut), PRICE)]
                runs = list(parts(snapshot.nodes, ends))
                assert [run[2] for run in runs] == [node.end, cut][-len(runs) :]
                assert sum(end - start for _, start, end, _ in runs) == node.end
                assert runs[-1][3] == Owner("shared", "s")
                pages = [pages_of(node, start, end, cache.page_size) for _, start, end, _ in runs]
                assert sum(pages) == node.adds
                assert pages[-1] == -(-cut // cache.page_size)

    run(main())


def test_the_rows_add_up_and_say_whose_is_what(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="off") as at:
            nothing = await top(at)
            assert nothing["rows"] == []
            assert 0 < nothing["look_s"] < 60
            root = await talk(at)
            (row,) = (await top(at))["rows"]
            assert (row["kind"], row["branch"], row["lru_rank"]) == ("branch", "main", 1)
            assert (
                row["cached"]["device"] == row["tokens"] - 1
            )  # its last one runs with what follows
            for name in ("left", "right"):
                await at.say(f"{name} it goes, and on, and on", at=root, branch=name)
                await at.service.switch(WHERE, ref="main")
            await at.say("the root of it all, at some length, but of another", new_session="other")
            await at.say("of nobody else", new_session=True, ephemeral=True)
            await at.service.sessions_use(WHERE, session="talk")
            for seed in (5, 6):  # what the first of them made has no name then
                options: Options = {"temperature": 1, "seed": seed, "max_tokens": 9}
                await at.say(kind="retry", options=options)
            rows = by_name(await top(at))
            assert {"talk/main", "talk/left", "talk/right", "talk/shared", "other/main"} < set(rows)
            assert {"None/shared", "None/unnamed"} < set(rows), "the sessions', and nobody's"
            assert [row["ephemeral"] for row in rows.values()].count(True) == 1
            shared = rows["talk/shared"]
            assert shared["tokens"] > 60
            assert shared["tokens"] > 2 * rows["talk/left"]["tokens"]
            tree = await at.service.tree(WHERE, show_cache=True)
            mine = [row for row in rows.values() if row["session"] == tree["session"]]
            mine.append(rows["None/unnamed"])
            counted = sum(m["cached"]["device"] for m in tree["messages"])
            assert sum(row["cached"]["device"] for row in mine) == counted
            await at.service.cache_pin(WHERE, ref="left")
            rows = by_name(await top(at))
            assert rows["talk/left"]["pinned_tokens"] > 0
            assert rows["talk/left"]["lru_rank"] is rows["talk/shared"]["lru_rank"] is None
            first = min((r for r in rows.values() if r["lru_rank"]), key=lambda r: r["lru_rank"])
            await at.service.cache_evict(WHERE, tokens=first["next_tokens"])
            after = by_name(await top(at))
            for name, row in rows.items():
                gone = row["held_tokens"] - after.get(name, {"held_tokens": 0})["held_tokens"]
                assert gone == (first["next_tokens"] if row is first else 0), name

    run(main())


def test_what_goes_from_the_device_is_told_of_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as at:
            root = await talk(at)
            said = await at.say("left it goes, and on, and on", at=root, branch="left")
            async for _ in at.service.cache_save(WHERE, ref="left"):
                pass
            before = by_name(await top(at))
            assert before["talk/left"]["cached"]["disk"] == 0
            await at.service.cache_evict(WHERE, ref=said["branches"][0]["parent"])
            row = by_name(await top(at))["talk/left"]
            assert row["cached"]["device"] < 8  # the words that any turn opens with
            assert row["cached"]["device"] + row["cached"]["disk"] >= row["tokens"] - 1
            assert row["last_used_s"] is not None
        async with house(tmp_path) as at:
            found = await top(at)
            assert found["model"] is None
            assert all(row["cached"]["disk"] for row in found["rows"] if row["tokens"])
            assert all(row["cached"]["device"] == row["held_tokens"] == 0 for row in found["rows"])
            assert await at.loaded() == []

    run(main())


def test_an_answer_in_progress_locks_what_it_relies_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as at:
            root = await talk(at)
            await at.say("left it goes", at=root, branch="left")
            long = asyncio.create_task(at.ask("and then?", options=LONG))
            stats = at.service._engines.all[0].engine.stats
            await until(lambda: stats()["output_tokens"] > 60)
            found = await top(at)
            (answer,) = found["answers"]
            assert (answer["name"], answer["branch"]) == ("talk", "left")
            assert answer["text"] == "and then?"
            rows = by_name(found)
            assert not any(row["kind"] == "unnamed" for row in rows.values())
            for name in ("talk/shared", "talk/left", "None/running"):
                assert rows[name]["locked_tokens"] > 0
                assert rows[name]["answers"] == [answer["message"]]
            assert "talk/main" not in rows or not rows["talk/main"]["answers"]
            assert (found["running"], found["waiting"]) == (1, 0)
            gate = threading.Event()
            entered = held_in_a_step(at, gate)
            try:
                assert await asyncio.to_thread(entered.wait, 20)
                with pytest.raises(Busy, match="one step for"):
                    await at.service.cache_top(WHERE)
            finally:
                gate.set()
            for request in list(at.service._answers):
                await at.service.cancel(request)
            await long

    run(main())


def test_what_no_message_has_is_nobodys_until_a_request_relies_on_it(tmp_path: Path) -> None:
    """As of `cache warm`, whose words nobody has said."""

    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="off") as at:
            await talk(at)
            files: list[FileText] = [
                {"name": "a.txt", "text": "of no session, at some length " * 8}
            ]
            async for _ in at.service.cache_warm(WHERE, files=files, dtype="fp32"):
                pass
            row = by_name(await top(at))["None/unnamed"]
            assert row["held_tokens"] > 96
            assert row["tokens"] == row["locked_tokens"] == 0
            loaded = at.service._engines.loaded
            assert loaded is not None
            cache, call = loaded.engine.cache, at.service._worker.call
            nodes = await call(lambda: Snapshot(cache, "", ""))
            last = max(nodes.nodes, key=lambda node: node.end)
            lease = await call(lambda: cache.admit(nodes.ids(Match(last, last.end))))
            assert lease is not None
            rows = by_name(await top(at))
            assert rows["None/running"]["locked_tokens"] >= row["held_tokens"] - 2 * cache.page_size
            await call(lambda: cache.abort(lease))

    run(main())


def test_a_hundred_looks_leave_the_cache_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="off") as at:
            root = await talk(at)
            for name in ("left", "right"):
                await at.say(f"{name} it goes", at=root, branch=name)
            await at.service.cache_evict(WHERE, tokens=16)
            before = await state(at)
            seen = await top(at)
            for _ in range(100):
                again = await at.service.cache_top(WHERE)
            for row in (*seen["rows"], *again["rows"]):
                del row["last_used_s"]
            assert again["rows"] == seen["rows"]
            assert await state(at) == before

    run(main())
