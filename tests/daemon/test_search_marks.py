"""Answers without branches, the names and scores they get, and a branch that goes on to one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from radchat.chat.tree_rows import kv_cell
from radchat.daemon.arguments import Generate, Options
from radchat.errors import Busy, InvalidInput, NotFound, UsageError
from radchat.protocol import Event
from tests.daemon.searching import Open, search
from tests.daemon.services import LONG, WHERE, House, house, named, notices, run

WORDS: Options = {"seed": 7, "max_tokens": 6, "temperature": 1.5}


async def unnamed(home: House, text: str = "think", n: int = 3, **args: Any) -> list[Event]:
    return await home.ask(text, n=n, named=False, **{"options": WORDS, **args})


async def score(home: House, **values: str) -> None:
    """``m_<id>``: what its score says."""

    def label(store: Any) -> None:
        session = store.current_session(WHERE["terminal"], WHERE["folder"]).id
        for message, value in values.items():
            store.add_label(session, message.removeprefix("m_"), value, "score")

    await home.on_desk(label)


async def tree(home: House, **args: Any) -> dict[str, Any]:
    return await home.service.tree(WHERE, **args)


# -- answers without branches ----------------------------------------------------------------------


def test_answers_without_branches_follow_one_message_and_head_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            await home.ask(kind="what-if", texts=["one", "two"], options=WORDS)
            before = await home.branches()
            events = await unnamed(home, head=first["head"])
            (init,), done = named(events, "init"), events[-1].data
            assert [row["branch"] for row in init["branches"]] == [None] * 3
            assert init["head"] == done["head"] == first["head"]
            assert init["branch"] is None
            bodies = done["branches"]
            assert [body["branch"] for body in bodies + named(events, "message")] == [None] * 6
            assert {body["parent"] for body in bodies} == {init["user"]}
            assert [body["message"] for body in bodies] == init["messages"]
            assert len({body["text"] for body in bodies}) == 3
            assert done["shared"]["tokens"] == init["input_tokens"]
            assert done["usage"]["input_tokens"] == init["input_tokens"]  # its prompt is read once

            told = await tree(home)
            assert (told["branch"], told["head"]) == ("main", first["head"]["message"])
            rows = {row["id"]: row for row in told["messages"]}
            assert rows[init["user"]]["parent"] == first["head"]["message"]
            assert [rows[each]["parent"] for each in init["messages"]] == [init["user"]] * 3
            assert await home.branches() == before
            rows = (await home.service.branch_list(WHERE))["branches"]
            assert {row["number"]: row["name"] for row in rows if row["number"]} == {
                1: "one",
                2: "two",
            }
            again = await unnamed(home, "", n=2, kind="retry", ref=init["messages"][0])
            assert [body["parent"] for body in again[-1].data["branches"]] == [init["user"]] * 2
            assert again[-1].data["head"] == first["head"]
            assert notices(await home.ask("on")) == []
            going = await home.service.sessions_prune(WHERE, dry_run=True)
            assert going["messages"] == 6  # what was asked, and its five answers

    run(main())


def test_a_new_session_may_begin_with_answers_without_branches(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            done = (await unnamed(home, "which one is it", new_session=True, system="Be brief."))[
                -1
            ].data
            assert done["name"] == "which-one-is-it"
            assert done["head"] == {"branch": "main", "message": None}
            told = await tree(home)
            assert (told["branch"], told["head"], told["branches"]) == ("main", None, {})
            assert [row["role"] for row in told["messages"]] == ["system", "user"] + [
                "assistant"
            ] * 3
            at = done["branches"][1]["message"]
            moved = await home.service.branch_advance(WHERE, at)
            assert (moved["branch"], moved["head"], moved["moved"], moved["made"]) == (
                "main", at, True, None
            )  # fmt: skip
            assert len(await home.texts()) == 3
            on = await home.say("and on")
            assert on["head"]["branch"] == "main"
            read = done["branches"][1]["usage"]
            kept = read["input_tokens"] + read["output_tokens"]
            assert on["usage"]["cached_input_tokens"] >= kept - 1

    run(main())


def test_one_of_the_answers_without_branches_is_ended_by_its_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            events: list[Event] = []
            said: set[int] = set()

            def say(event: Event) -> None:
                events.append(event)
                if event.name == "delta":
                    said.add(event.data["choice"])
                    if said == {0, 1, 2}:
                        answer.cancel_one(1)
                        if any(each.data.get("choice") == 1 for each in events
                               if each.name == "message"):  # fmt: skip
                            answer.cancel()

            answer = home.answer(say, text="think", n=3, named=False, options=LONG)
            await answer.run()
            ended = [body["choice"] for body in named(events, "message")]
            assert ended[0] == 1
            bodies = events[-1].data["branches"]
            assert [body["finish_reason"] for body in bodies] == ["abort"] * 3
            counts = [body["usage"]["output_tokens"] for body in bodies]
            assert counts[1] < min(counts[0], counts[2])
            assert await home.running() == 0

    run(main())


@pytest.mark.parametrize(
    "args",
    [
        {"kind": "what-if", "texts": ["a", "b"]},
        {"kind": "continue"},
        {"text": "a", "branch": "side"},
    ],
)
def test_what_makes_a_branch_can_not_go_without(args: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="without branches"):
        Generate(where=WHERE, named=False, **args)


def test_what_is_without_a_branch_is_on_disk_where_all_is_kept_there(tmp_path: Path) -> None:
    async def main() -> None:
        for persist, is_kept in (("always", True), ("auto", False)):
            async with house(tmp_path / persist, RADCHAT_PERSIST=persist) as home:
                await home.say("hello", new_session=True)
                done = (await unnamed(home, "think " * 60, n=2))[-1].data
            async with house(tmp_path / persist, RADCHAT_PERSIST=persist) as home:
                rows = {row["id"]: row for row in (await tree(home, show_cache=True))["messages"]}
                on_disk = [rows[body["message"]]["cached"]["disk"] for body in done["branches"]]
                assert all(on_disk) == any(on_disk) == is_kept

    run(main())


# -- names and scores ------------------------------------------------------------------------------


def test_thoughts_are_told_with_their_names_and_scores_and_are_refs(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            done = (await unnamed(home))[-1].data
            one, two, three = (body["message"] for body in done["branches"])
            deeper = (await unnamed(home, "deeper", n=2, at=two))[-1].data
            four, five = (body["message"] for body in deeper["branches"])
            await score(
                home,
                **{f"m_{one}": "s1.10=0.25", f"m_{two}": "s1.2=7.5", f"m_{four}": "s1.2.1=20"},
                **{f"m_{five}": "s1.2.2", f"m_{three}": "0.5"},
            )
            rows = {row["id"]: row for row in (await tree(home))["messages"]}
            told = {key: (rows[key]["thought"], rows[key]["score"]) for key in rows}
            assert told[one] == ("s1.10", 0.25)
            assert told[two] == ("s1.2", 7.5)
            assert told[three] == (None, 0.5)
            assert told[five] == ("s1.2.2", None)
            assert told[first["head"]["message"]] == (None, None)
            assert all(row["labels"] == [] for row in rows.values())

            log = (await home.service.log(WHERE, ref="s1.2.1"))["messages"]
            assert [(row["thought"], row["score"]) for row in log][-3:] == [
                ("s1.2", 7.5),
                (None, None),
                ("s1.2.1", 20),
            ]
            refs = (await home.service.refs(WHERE, prefix="s"))["refs"]
            assert [(row["kind"], row["ref"]) for row in refs] == [
                ("thought", name) for name in ("s1.2", "s1.2.1", "s1.2.2", "s1.10")
            ]
            assert refs[0]["text"] == f"assistant 7.5: {' '.join(rows[two]['text'].split())}"
            rows_of = (await tree(home, filter="labeled"))["messages"]
            assert {row["id"] for row in rows_of} == {
                one, two, three, four, five, first["head"]["message"]
            }  # fmt: skip
            parents = {row["id"]: row["parent"] for row in rows_of}
            assert parents[four] == parents[five] == two
            assert parents[two] == first["head"]["message"]

            moved = await home.service.switch(WHERE, ref="s1.2.1")
            assert (moved["head"], moved["branch"], moved["text"]) == (four, None, None)
            on = await home.say("talk on")
            assert on["branches"][0]["branch"] == "main-2"
            with pytest.raises(NotFound, match="label or thought s1"):
                await home.service.switch(WHERE, ref="s1.3")

    run(main())


# -- a branch goes on ------------------------------------------------------------------------------


def test_a_branch_goes_on_to_a_thought_and_undo_and_dash_know_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            start = first["head"]["message"]
            thought = (await unnamed(home))[-1].data["branches"][1]["message"]
            best = (await unnamed(home, "deeper", n=2, at=thought))[-1].data["branches"][0]
            moved = await home.service.branch_advance(WHERE, best["message"], expected=start)
            assert (moved["branch"], moved["head"]) == ("main", best["message"])
            assert (moved["moved"], moved["made"]) == (True, None)
            assert best["message"].startswith(moved["short"])
            again = await home.service.branch_advance(
                WHERE, best["message"], expected=best["message"]
            )
            assert (again["branch"], again["moved"], again["made"]) == ("main", False, None)
            await home.say("so what is the answer")
            for there in (best["message"], thought, start):
                undone = await home.service.undo(WHERE)
                assert (undone["branch"], undone["head"]) == ("main", there)
            for there in (thought, best["message"]):
                redone = await home.service.redo(WHERE)
                assert (redone["branch"], redone["head"]) == ("main", there)

            made = await home.service.branch_advance(WHERE, best["message"], expected=start)
            assert (made["made"], made["branch"], made["moved"]) == ("main-2", "main-2", False)
            back = await home.service.switch(WHERE, ref="-")
            assert back["branch"] == "main"

    run(main())


def test_a_branch_that_stands_elsewhere_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            service = home.service
            first = await home.say("hello", new_session=True)
            start = first["head"]["message"]
            thought = (await unnamed(home))[-1].data["branches"][0]["message"]
            second = await home.say("meanwhile")
            made = await service.branch_advance(WHERE, thought, expected=start)
            assert (made["branch"], made["made"], made["head"]) == ("main-2", "main-2", thought)
            assert (await home.branches())["main"] == second["head"]["message"]
            assert (await tree(home))["branch"] == "main-2"

            await service.switch(WHERE, ref="main")  # not on the way to it
            main = second["head"]["message"]
            made = await service.branch_advance(WHERE, thought, expected=main)
            assert (made["made"], made["branch"]) == ("main-3", "main-3")
            assert (await home.branches())["main"] == main

            await service.switch(WHERE, ref="HEAD~1")  # on no branch
            bare = await tree(home)
            assert bare["branch"] is None
            made = await service.branch_advance(WHERE, thought, expected=bare["head"])
            assert made["made"] == made["branch"] == "main-4"
            with pytest.raises(NotFound, match="no message ffff in"):
                await service.branch_advance(WHERE, "f" * 32, expected=None)

    run(main())


def test_an_open_chats_branch_goes_on_and_takes_the_stored_head_along_only_from_there(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            service = home.service
            first = await home.say("hello", new_session=True)
            chat = first["head"]
            for elsewhere in (False, True):
                if elsewhere:
                    await service.fork(WHERE, ref="HEAD", name="aside")
                done = (await unnamed(home, head=chat))[-1].data
                assert done["head"] == chat
                thought = done["branches"][0]["message"]
                moved = await service.branch_advance(
                    WHERE, thought, session=first["session"], head=chat, expected=chat["message"]
                )
                assert (moved["branch"], moved["head"], moved["made"]) == ("main", thought, None)
                stored = await tree(home)
                assert stored["branch"] == ("aside" if elsewhere else "main")
                assert (await home.branches())["main"] == thought
                chat = {"branch": moved["branch"], "message": moved["head"]}
            undone = await service.undo(WHERE, head=chat)
            assert undone["branch"] == "main"
            assert (await tree(home))["branch"] == "aside"

    run(main())


# -- what a search has judged ----------------------------------------------------------------------

HOT: Any = {"temperature": 2, "seed": 5}


async def rows_of(home: House, session: str, **args: Any) -> dict[str, dict[str, Any]]:
    told = await home.service.tree(WHERE, session=session, show_cache=True, **args)
    return {row["id"]: row for row in told["messages"]}


async def begins_like(s: Open, ids: list[int], message: str) -> int:
    """How many of these ids another message's path has."""
    pairs = zip(ids, await s.ids(message), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


async def thoughts(s: Open, at: str | None = None, *, n: int = 3) -> list[str]:
    """Thoughts, each rated twice: as a search has them."""
    found: list[str] = (await s.ask("what is the next step", at, n=n, options=HOT))["messages"]
    asks = [s.asked("rate this step", each, n=2, options=HOT) for each in found]
    assert named(await s.events(*asks), "failed") == []
    return found


def test_scores_are_set_all_at_once_or_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            service = home.service
            names = ["s1.1", "s1.2", "s1.3"]
            one, two, three = (await s.ask("think", n=3, names=names, options=HOT))["messages"]
            done = await service.search_mark(s.id, {one: "s1.1=7.5", two: "s1.2=0.001"})
            assert done == {"marked": 2}
            told = await rows_of(home, s.session)
            assert [(told[m]["thought"], told[m]["score"]) for m in (one, two, three)] == [
                ("s1.1", 7.5), ("s1.2", 0.001), ("s1.3", None),
            ]  # fmt: skip
            with pytest.raises(UsageError, match=f"s1.2 is the thought {two[:4]}"):
                await service.search_mark(s.id, {one: "s1.1=1", three: "s1.2=1"})
            with pytest.raises(NotFound, match="no message ffffffff"):
                await service.search_mark(s.id, {one: "s1.1=1", "f" * 32: "s1.9=1"})
            for value in ("7.5", "best", "s1", "s2.1=7", "s1.1=", "s1.1=nan", "s1.1=7=8"):
                with pytest.raises(InvalidInput, match=r"want s1\.1 or s1\.1=7\.5"):
                    await service.search_mark(s.id, {two: "s1.2=1", one: value})
            again = await rows_of(home, s.session)
            assert [again[m]["score"] for m in (one, two, three)] == [7.5, 0.001, None]
            with pytest.raises(NotFound, match="no search"):
                await service.search_mark("0" * 16, {})

    run(main())


def test_what_is_pruned_leaves_the_device_to_the_token_and_what_lives_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            first = await thoughts(s)
            deeper = await thoughts(s, first[0])
            live = await rows_of(home, s.session)
            assert all(kv_cell(row) == "G" for row in live.values()), "each reports its KV"
            free = s.engine.cache.free
            gone = await home.service.search_release(s.id, [*first[1:], deeper[2]])
            assert gone["freed_tokens"] == (s.engine.cache.free - free) * s.engine.cache.page_size
            per_token = home.service._searches[s.id].loaded.bytes_per_token
            assert gone["freed_bytes"] == gone["freed_tokens"] * per_token > 0
            assert gone["kept_tokens"] == 0
            told = await rows_of(home, s.session)
            below = {m for m in told if {m, told[m]["parent"]} & {*first[1:], deeper[2]}}
            below |= {m for m in told if told[m]["parent"] in below}
            assert len(below) == 3 * 4
            assert {m: kv_cell(told[m]) for m in told} == {
                m: "-" if m in below else "G" for m in told
            }
            again = await home.service.search_release(s.id, first[1:])
            assert again["freed_tokens"] == 0

            ran = s.computed()  # what lives is gone on with as if nothing had been
            answer = await s.ask("and then", deeper[0], max_tokens=1)
            own = len(await s.ids(answer["user"])) - len(await s.ids(deeper[0]))
            assert s.computed() - ran <= own + 1
            ran = s.computed()  # and what is pruned too, at the price of what has left
            answer = await s.ask("and then", first[1], max_tokens=1)
            ids = await s.ids(answer["user"])
            assert s.computed() - ran == len(ids) - await begins_like(s, ids, first[0])

            left = await home.service.search_release(s.id, first)
            assert left["freed_tokens"] > 0
            told = await rows_of(home, s.session)
            root = (await s.message(first[0])).parent
            assert {m: kv_cell(told[m]) for m in told} == {
                m: "G" if m == root else "-" for m in told
            }
            assert await home.service.search_release(s.id, []) == {
                "freed_tokens": 0, "freed_bytes": 0, "kept_tokens": 0,
            }  # fmt: skip
            with pytest.raises(NotFound, match="no message ffffffff"):
                await home.service.search_release(s.id, ["f" * 32])

    run(main())


def test_what_a_branch_a_pin_or_head_stands_on_is_not_released(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            service = home.service
            first = await thoughts(s, n=4)
            talked = await home.say("talk on", session=s.session, at=first[0], exact=True)
            await service.switch(WHERE, session=s.session, ref="-")
            await service.cache_pin(WHERE, session=s.session, ref=first[1])
            await service.switch(WHERE, session=s.session, ref=first[2])
            gone = await service.search_release(s.id, first)
            told = await rows_of(home, s.session)
            root = (await s.message(first[0])).parent
            stays = {root, *first[:3], talked["head"]["message"], talked["branches"][0]["parent"]}
            assert {kv_cell(told[m]) for m in stays} == {"G", "G*"}
            for message in told.keys() - stays:  # but for what begins like something that stays
                start = len(await s.ids(told[message]["parent"]))
                ids = await s.ids(message)
                same = max([await begins_like(s, ids, each) for each in stays])
                assert told[message]["cached"]["device"] == max(same - start, 0)
            assert gone["freed_tokens"] > 0

    run(main())


def test_what_siblings_begin_with_is_theirs_too(tmp_path: Path) -> None:
    """Thoughts that are given as text: only one of them is read by the model, the others not."""

    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            says = ["10 - 4 = 6", "10 - 5 = 5", "10 + 4 = 14"]
            one, two, three = (await s.ask("a step", says=says))["messages"]
            await s.ask("rate this", one)
            told = await rows_of(home, s.session)
            assert [told[m]["cached"]["device"] for m in (one, two, three)] == [10, 5, 3]
            gone = await home.service.search_release(s.id, [two, three])
            assert gone["freed_tokens"] == 0
            again = await rows_of(home, s.session)
            for key, row in told.items():  # all of it is the first one's
                assert again[key]["cached"] == row["cached"]
            await home.service.search_release(s.id, [one, two, three])
            told = await rows_of(home, s.session)
            assert [told[m]["cached"]["device"] for m in (one, two, three)] == [0, 0, 0]

    run(main())


def test_what_is_released_is_on_disk_where_all_is_kept_there(tmp_path: Path) -> None:
    async def main() -> None:
        for persist in ("always", "auto"):
            root = tmp_path / persist
            async with house(root, RADCHAT_PERSIST=persist) as home, search(home) as s:
                first = await thoughts(s)
                gone = await home.service.search_release(s.id, first[1:])
                told = await rows_of(home, s.session)
                below = [m for m in told if told[m]["parent"] in first[1:]]
                cells = {kv_cell(told[m]) for m in first[1:] + below}
                if persist == "auto":
                    assert (cells, gone["kept_tokens"]) == ({"-"}, 0)
                    continue
                assert cells == {"D"}
                on_disk = sum(row["cached"]["disk"] for row in told.values())
                assert gone["kept_tokens"] >= on_disk > 0
                before = s.computed()
                answer = await s.ask("and then", first[1], max_tokens=1)
                assert answer["cache"]["disk"] > 0
                assert s.computed() - before < answer["usage"]["input_tokens"] / 2
            async with house(root, RADCHAT_PERSIST=persist) as home:
                told = await rows_of(home, s.session)
                assert all(told[m]["cached"]["disk"] for m in first)
                pruned = await home.service.sessions_prune(WHERE, session=s.session)
                assert (pruned["messages"], pruned["kv_left"]) == (len(told), None)
                tiers = (await home.service.cache_stats())["tiers"]
                assert tiers["disk"]["tokens"] == 0

    run(main())


def test_nothing_is_deleted_under_a_search(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            service = home.service
            await home.say("hello", new_session="other")
            async with search(home) as s:
                first = await thoughts(s)
                marks = {each: f"s1.{number}=7" for number, each in enumerate(first, 1)}
                await service.search_mark(s.id, marks)
                asked: list[Any] = [{}, {"unlabeled": True}, {"marked": [first[0]]}]
                for each in [{"session": s.session, **more} for more in asked]:
                    told = await service.sessions_prune(WHERE, dry_run=True, **each)
                    assert told["messages"] > 0
                    with pytest.raises(Busy, match=r"search s1 is running in .*: stop it, or wait"):
                        await service.sessions_prune(WHERE, **each)
                with pytest.raises(Busy, match="search s1 is running"):
                    await service.sessions_rm(WHERE, ["other", s.session])
                assert len(await s.stored()) == 1 + 3 * 4
                assert (await service.sessions_rm(WHERE, ["other"]))["removed"]
            pruned = await service.sessions_prune(WHERE, session=s.session)
            assert (pruned["messages"], pruned["thoughts"]) == (1 + 3 * 4, 3)
            assert pruned["kv_tokens"] > 0
            assert (await tree(home, session=s.session))["messages"] == []

    run(main())


def test_without_a_shared_cache_nothing_is_there_to_be_released(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            house(tmp_path, RADCHAT_PERSIST="always") as home,
            search(home, cache=False) as s,
        ):
            first = await thoughts(s)
            gone = await home.service.search_release(s.id, first)
            assert gone == {"freed_tokens": 0, "freed_bytes": 0, "kept_tokens": 0}

    run(main())
