"""How the branches of a what-if are named and numbered."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.services import WHERE, House, house, run

WORDS = {"seed": 7, "max_tokens": 3}


async def numbers(home: House) -> dict[int, str]:
    rows = (await home.service.branch_list(WHERE))["branches"]
    return {row["number"]: row["name"] for row in rows if row["number"] is not None}


def test_one_alone_is_a_number_too_and_another_answer_leaves_the_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            await home.say(kind="what-if", texts=["aaa", "bbb"], options=WORDS)
            assert await numbers(home) == {1: "aaa", 2: "bbb"}
            await home.say(kind="what-if", texts=["ccc"], options=WORDS)
            assert await numbers(home) == {1: "ccc"}
            assert (await home.service.switch(WHERE, ref="1"))["branch"] == "ccc"
            again = await home.say(kind="retry", options=WORDS)
            assert (again["head"]["branch"], await numbers(home)) == ("ccc", {1: "ccc"})
            await home.say("and on")
            assert await numbers(home) == {}

    run(main())
