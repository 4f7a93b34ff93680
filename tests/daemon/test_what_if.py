"""What-ifs in the service: several sayings at one place, answered side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import Options
from radchat.errors import ContextOverflow, UsageError
from radchat.protocol import Event
from tests.daemon.services import WHERE, House, house, named, notices, run

WORDS: Options = {"seed": 7, "max_tokens": 6}
LOADED = "a long document that all of them stand on, word after word after word " * 12


async def what_if(home: House, *texts: str, **args: Any) -> list[Event]:
    return await home.ask(kind="what-if", texts=list(texts), **{"options": WORDS, **args})


def total(done: dict[str, Any], *names: str) -> list[int]:
    return [sum(body["usage"][name] for body in done["branches"]) for name in names]


async def numbers(home: House, **args: Any) -> dict[int, str]:
    rows = (await home.service.branch_list(WHERE, **args))["branches"]
    return {row["number"]: row["name"] for row in rows if row["number"] is not None}


# -- what is told ----------------------------------------------------------------------------------


def test_each_text_gets_a_branch_an_answer_and_its_share_of_what_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            events = await what_if(
                home, "price -10 %", "cost -5 %", "cost -5 %", head=first["head"]
            )
            (init,) = named(events, "init")
            rows = init["branches"]
            assert [row["choice"] for row in rows] == [0, 1, 2]
            assert [row["branch"] for row in rows] == ["price-10", "cost-5", "cost-5-2"]
            assert [row["text"] for row in rows] == ["price -10 %", "cost -5 %", "cost -5 %"]
            assert init["messages"] == [row["message"] for row in rows]
            assert len({row["user"] for row in rows}) == 3
            assert sorted(start["choice"] for start in named(events, "start")) == [0, 1, 2]
            assert {data["choice"] for data in named(events, "progress")} <= {0, 1, 2}

            done = events[-1].data
            assert done["parent"] == first["head"]["message"]
            assert [body["choice"] for body in done["branches"]] == [0, 1, 2]
            assert [body["seed"] for body in done["branches"]] == [7, 8, 9]
            assert sorted(body["choice"] for body in named(events, "message")) == [0, 1, 2]
            for body, row in zip(done["branches"], rows, strict=True):
                said = [d["text"] for d in named(events, "delta") if d["choice"] == row["choice"]]
                assert "".join(said) == body["text"]
                assert (body["message"], body["parent"]) == (row["message"], row["user"])
                log = await home.service.log(WHERE, ref=row["branch"])
                assert [m["text"] for m in log["messages"]][2:] == [row["text"], body["text"]]

            kept = await home.on_desk(lambda store: [store.message(m) for m in init["messages"]])
            assert {message.sampling["temperature"] for message in kept} == {0.8}

            usage, cache, shared = done["usage"], done["cache"], done["shared"]
            assert [
                usage["input_tokens"],
                usage["cached_input_tokens"],
                usage["output_tokens"],
            ] == (total(done, "input_tokens", "cached_input_tokens", "output_tokens"))
            assert usage["input_tokens"] == init["input_tokens"] == sum(cache.values())
            assert usage["input_tokens"] == 3 * shared["tokens"] + shared["new"]
            assert shared["tokens"] == shared["cached"] + shared["computed"]

    run(main())


def test_head_stays_where_it_was_and_so_does_a_chats_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            second = await home.say("more")
            done = (await what_if(home, "one", "two"))[-1].data
            assert done["head"] == second["head"]
            other = (await what_if(home, "one", "two", head=first["head"], at="1"))[-1].data
            assert other["head"] == first["head"]
            tree = await home.service.tree(WHERE)
            assert (tree["branch"], tree["head"]) == ("main", second["head"]["message"])
            assert set(await home.branches()) == {"main", "one", "two", "one-2", "two-2"}
            assert notices(await home.ask("on")) == []

    run(main())


def test_samples_of_one_text_are_answers_to_one_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            events = await what_if(home, "cost -5 %", n=3)
            (init,) = named(events, "init")
            done = events[-1].data
            assert [body["branch"] for body in done["branches"]] == [
                "cost-5",
                "cost-5-2",
                "cost-5-3",
            ]
            assert {row["text"] for row in init["branches"]} == {"cost -5 %"}
            assert {body["parent"] for body in done["branches"]} == {init["user"]}
            assert {body["seed"] for body in done["branches"]} == {7}
            assert done["usage"]["input_tokens"] == init["input_tokens"]
            assert done["shared"]["tokens"] == init["input_tokens"]
            assert done["shared"]["new"] == 0
            again = await home.ask(kind="retry", n=2, ref="main", options=WORDS)
            assert [row["text"] for row in named(again, "init")[0]["branches"]] == [None, None]
            assert again[-1].data["shared"]["tokens"] > 0
            alone = await home.ask("x")
            assert alone[-1].data["shared"] is None
            assert len(named(alone, "init")[0]["branches"]) == 1

    run(main())


def test_any_text_has_a_branch_with_a_name_that_can_be_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            odd = ["🙂🙃", "x" * 3000, "a\x1b[31m\x00b\r\n", "2", "HEAD", "-", "main", "🙂🙃"]
            done = (await what_if(home, *odd))[-1].data
            assert len(done["branches"]) == len(odd)
            for body, text in zip(done["branches"], odd, strict=True):
                log = await home.service.log(WHERE, ref=body["branch"])
                assert log["messages"][-2]["text"] == text
                assert log["messages"][-1]["id"] == body["message"]

    run(main())


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"texts": []}, "Say one text or more"),
        ({"texts": ["a", " \n"]}, "none of them empty"),
        ({"texts": ["a", "b"], "n": 2}, "one text with -N"),
        ({"texts": ["a"] * 65}, "at most 64"),
        ({"texts": ["a"], "n": 65}, "at most 64"),
        ({"texts": ["a"], "text": "b"}, "named after"),
        ({"texts": ["a"], "branch": "b"}, "named after"),
        ({"texts": ["a"], "kind": "turn", "text": "b"}, "for a what-if"),
    ],
)
def test_a_wrong_command_is_refused_with_the_way_out(
    tmp_path: Path, args: dict[str, Any], says: str
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            with pytest.raises(UsageError, match=says):
                await home.ask(**{"kind": "what-if", **args})

    run(main())


def test_a_text_that_does_not_fit_refuses_all_before_anything_is_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            before = await home.branches()
            with pytest.raises(
                ContextOverflow, match=r"^what-if 2 \(word-word-word-word\)"
            ) as caught:
                await what_if(home, "short", "word " * 9000)
            assert caught.value.data["choice"] == 1
            with pytest.raises(ContextOverflow, match=r"^the prompt has"):
                await what_if(home, "word " * 9000, n=2)
            assert await home.branches() == before
            assert await home.running() == 0
            assert len(await home.texts()) == 2

    run(main())
