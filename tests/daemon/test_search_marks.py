"""Answers without branches, the names and scores they get, and a branch that goes on to one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import Generate, Options
from radchat.errors import NotFound, UsageError
from radchat.protocol import Event
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
