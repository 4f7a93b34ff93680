"""How the branches of a what-if are named and numbered."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.what_if import name_of
from radchat.errors import ContextOverflow, InvalidInput, UsageError
from radchat.protocol import Event
from radchat_sessions.store import Store
from tests.daemon.services import WHERE, House, house, named, run

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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("price -10 %", "price-10"),
        ("What if the river froze?", "the-river-froze"),
        ("what-if: the river", "the-river"),
        ("what if", "what-if"),
        ("What if?!", "what-if"),
        ("what iffy thing", "what-iffy-thing"),
        ("so what if it rains", "so-what-if-it"),
        ("read @/tmp/doc2.txt and sum it up", "read-and-sum-it"),
        ('@"my notes.txt": who is it?', "who-is-it"),
        ("@notes.txt, what if it rains", "it-rains"),
        ("@notes.txt", "notes-txt"),
        ("ann@example.org says", "ann-example-org-says"),
        ("x" * 500, "x" * 24),
        ("@/" + "deep/" * 100 + " a word", "a-word"),
        ("🙂", "what-if"),
        ("2", "what-if"),
    ],
)
def test_a_branch_has_the_words_of_its_text_that_say_something(text: str, name: str) -> None:
    assert name_of(text) == name


def test_what_is_said_before_each_is_read_once_and_names_nothing(tmp_path: Path) -> None:
    document = "What the report says, and says again. " * 20

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            texts = ["price -10 %", "What if it rains?"]
            asked: dict[str, Any] = {"kind": "what-if", "before": document, "options": WORDS}
            events = await home.ask(texts=texts, **asked)
            rows, done = named(events, "init")[0]["branches"], events[-1].data
            assert [row["text"] for row in rows] == texts
            assert [row["branch"] for row in rows] == ["price-10", "it-rains"]
            assert done["shared"]["tokens"] > len(document) // 4 > done["shared"]["new"]
            for row, text in zip(rows, texts, strict=True):
                log = await home.service.log(WHERE, ref=row["branch"])
                assert log["messages"][-2]["text"] == f"{document}\n\n{text}"
            same = await home.say(f"{document}\n\nand", at="1", options=WORDS)
            assert same["usage"]["cached_input_tokens"] > 0
            with pytest.raises(ContextOverflow, match=r"^what-if 1 \(it-rains\)"):
                await home.ask(texts=texts[::-1], **{**asked, "before": "word " * 9000})
            with pytest.raises(UsageError, match="for a what-if"):
                await home.say("hello", before=document)

    run(main())


def test_of_what_is_shared_only_what_was_computed_counts_as_computed(tmp_path: Path) -> None:
    document = "word after word " * 200

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            events: list[Event] = []

            def say(event: Event) -> None:
                events.append(event)
                if event.name == "progress":
                    answer.cancel()

            asked: dict[str, Any] = {"kind": "what-if", "before": document}
            asked["texts"] = ["one", "two"]
            answer = home.answer(say, **asked)
            await answer.run()
            done, reached = events[-1].data, named(events, "progress")[-1]["done"]
            shared = done["shared"]
            assert 0 < reached <= shared["cached"] + shared["computed"] < shared["tokens"]
            assert shared["computed"] == done["cache"]["computed"]
            whole = (await home.ask(**asked, options=WORDS))[-1].data["shared"]
            assert whole["cached"] + whole["computed"] == whole["tokens"] == shared["tokens"]
            assert whole["cached"] >= shared["computed"] // 16 * 16

    run(main())


def test_of_several_texts_the_last_seed_must_be_one_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            asked: dict[str, Any] = {"kind": "what-if", "texts": ["one", "two", "three"]}
            last = 2**64 - 1
            with pytest.raises(InvalidInput, match=rf"seed: .* at most {last - 2} \(got {last}\)"):
                await home.say(**asked, options={"seed": last})
            done = await home.say(**asked, options={"seed": last - 2, "max_tokens": 1})
            assert [body["seed"] for body in done["branches"]] == [last - 2, last - 1, last]
            assert set(await home.branches()) == {"main", "one", "two", "three"}

    run(main())


def test_what_is_said_anew_before_each_text_is_one_message_for_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            asked: dict[str, Any] = {"kind": "what-if", "texts": ["one", "two", "three"]}
            done = await home.say(**asked, system="Be terse.", new_session=True, options=WORDS)
            rows = (await home.service.tree(WHERE))["messages"]
            assert (
                sorted(row["role"] for row in rows) == ["assistant"] * 3 + ["system"] + ["user"] * 3
            )
            assert done["name"] == "one"
            await home.service.switch(WHERE, ref="2")
            on = await home.say("and on")
            assert (
                on["usage"]["cached_input_tokens"] >= done["branches"][1]["usage"]["input_tokens"]
            )
            await home.say(**asked, system="Be kind.", options=WORDS)  # the path is said again
            rows = (await home.service.tree(WHERE))["messages"]
            assert len(rows) == 7 + 2 + (1 + 4) + 3 * 2
            (kind,) = (row for row in rows if row["text"] == "Be kind.")
            log = await home.service.log(WHERE, ref="3", pick=True)
            assert [row["text"] for row in log["messages"]][:2] == ["Be kind.", "two"]
            assert log["messages"][-2]["text"] == "three"
            assert await home.on_desk(lambda store: store.verify()) == []
            assert kind["parent"] is None

    run(main())


def test_a_temperature_that_is_set_goes_before_the_usual_one(tmp_path: Path) -> None:
    home_config = tmp_path / "h" / "config"
    home_config.mkdir(parents=True)
    (home_config / "config.toml").write_text("temperature = 0.3\n")

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            for given, used in (({}, 0.3), ({"temperature": 0.5}, 0.5)):
                done = await home.say(kind="what-if", texts=["one"], options={**WORDS, **given})
                answer = str(done["branches"][0]["message"])
                kept = await home.on_desk(partial(Store.message, message_id=answer))
                assert kept.sampling["temperature"] == used

    run(main())


def test_a_label_is_no_name_for_a_branch(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            await home.service.branch_label(WHERE, ref="HEAD", text="one")
            done = await home.say(kind="what-if", texts=["one", "two"], options=WORDS)
            assert [body["branch"] for body in done["branches"]] == ["one-2", "two"]

    run(main())


def test_the_whole_takes_as_long_as_the_last_and_who_has_ended_is_not_ended_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            events: list[Event] = []
            again: list[bool] = []

            def say(event: Event) -> None:
                events.append(event)
                if event.name == "delta" and len(named(events, "delta")) == 1:
                    assert answer.cancel_one(0)
                elif event.name == "message" and event.data["choice"] == 0:
                    again.extend(answer.cancel_one(choice) for choice in (0, 1))

            answer = home.answer(
                say, kind="what-if", texts=["one", "two"], options={"temperature": 0}
            )
            await answer.run()
            first, last = (body["timing"]["total_s"] for body in events[-1].data["branches"])
            assert (again, first < last) == ([False, True], True)
            assert events[-1].data["timing"]["total_s"] == last

    run(main())
