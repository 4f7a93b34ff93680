"""What-ifs in the service: several sayings at one place, answered side by side."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.answering import Answer
from radchat.daemon.arguments import Generate, Options
from radchat.errors import ContextOverflow, NotFound, RadchatError, UsageError
from radchat.protocol import Event
from radchat_sessions.store import Store
from tests.daemon.services import LONG, WHERE, House, house, named, notices, run, until

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


def test_one_may_ask_in_another_session_and_in_one_that_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            there = await home.say("hello", new_session="there")
            unkept = await home.say("hello", new_session="unkept", ephemeral=True)
            await home.say("hello", new_session="here")
            for session, head in (("there", there["head"]), ("unkept", unkept["head"])):
                done = (await what_if(home, "one", "two", session="here", at=f"{session}:1"))[-1]
                assert (done.data["name"], done.data["head"]) == (session, head)
                assert done.data["parent"] is None  # the point before what was said first
                assert await numbers(home, session=session) == {1: "one", 2: "two"}
                moved = await home.service.switch(WHERE, ref=f"{session}:2")
                assert moved["branch"] == "two"
            assert len(await home.on_desk(lambda store: store.sessions())) == 2
            assert await numbers(home, session="here") == {}

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
def test_a_wrong_command_is_refused_with_the_way_out(args: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Generate(where=WHERE, **{"kind": "what-if", **args})


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


# -- what is computed ------------------------------------------------------------------------------


def test_a_prefix_is_computed_once_all_decode_in_the_same_steps_and_notes_are_said_once(
    tmp_path: Path,
) -> None:
    texts, length = ("up by ten", "down by ten", "as it was", "gone"), 12
    exact = {"temperature": 0, "max_tokens": length}

    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="off") as home:
            await home.say(LOADED, new_session=True)
            await home.service.models_unload()
            for is_warm in (False, True):
                loaded = home.service._engines.loaded
                rows = 0 if loaded is None else loaded.engine.rows_run
                steps = home.service._worker.steps
                events = await what_if(home, *texts, options=exact)
                done, loaded = events[-1].data, home.service._engines.loaded
                assert loaded is not None
                said = sum(body["usage"]["output_tokens"] - 1 for body in done["branches"])
                shared, computed = done["shared"], done["cache"]["computed"]
                assert computed == (4 if is_warm else shared["computed"] + shared["new"])
                assert loaded.engine.rows_run - rows == computed + said
                assert shared["cached"] == (shared["tokens"] if is_warm else 0)
                assert home.service._worker.steps - steps <= length + 4
                assert notices(events) == ([] if is_warm else ["recompute"])

    run(main())


# -- numbers ---------------------------------------------------------------------------------------


def test_switch_picks_by_number_what_was_just_made_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            here = (await home.say("more"))["head"]
            done = (await what_if(home, "one", "two", "three"))[-1].data
            assert await numbers(home) == {1: "one", 2: "two", 3: "three"}
            assert await numbers(home, head=first["head"]) == {}
        async with house(tmp_path) as home:
            log = await home.service.log(WHERE, ref="2", pick=True)
            assert log["messages"][-1]["id"] == done["branches"][1]["message"]
            assert (await home.service.log(WHERE, ref="2"))["messages"][-1]["text"] == "more"
            for number, name in ((2, "two"), (3, "three"), (1, "one")):
                moved = await home.service.switch(WHERE, ref=str(number))
                assert moved["branch"] == name
            own = await home.service.switch(WHERE, ref="3", head=here)  # an open chat's
            assert (own["branch"], (await home.service.tree(WHERE))["branch"]) == ("three", "one")
            asked = (await home.service.log(WHERE, ref="1"))["messages"][-1]
            assert asked["text"] == "hello"
            await home.say("and on")
            assert await numbers(home) == {}
            moved = await home.service.switch(WHERE, ref="2")
            assert (moved["branch"], moved["text"]) == (None, "more")
            many = await home.say(kind="retry", n=3, ref="1", options=WORDS)
            assert list((await numbers(home)).values()) == [b["branch"] for b in many["branches"]]

    run(main())


# -- the end of one, and of all --------------------------------------------------------------------


def test_one_is_ended_and_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            events: list[Event] = []
            stream = home.service.generate(
                where=WHERE,
                kind="what-if",
                texts=["one", "two", "three"],
                dtype="fp32",
                options={"temperature": 0, "max_tokens": 120},
            )
            told: list[bool] = []
            async for event in stream:
                events.append(event)
                if event.name == "delta" and event.data["choice"] == 1 and not told:
                    request = named(events, "init")[0]["request"]
                    ends = [await home.service.cancel(request, choice) for choice in (1, 3, -1)]
                    told = [end["cancelled"] for end in ends]
            assert told == [True, False, False]
            bodies = events[-1].data["branches"]
            reasons = [body["finish_reason"] for body in bodies]
            assert reasons == ["length", "abort", "length"]
            assert 0 < bodies[1]["usage"]["output_tokens"] < 120
            log = await home.service.log(WHERE, ref="two")
            assert log["messages"][-1]["text"] == bodies[1]["text"]
            assert events[-1].data["head"] == first["head"]
            assert (await home.service.cancel(request, 0))["cancelled"] is False
            assert await home.running() == 0

    run(main())


def test_those_that_are_ended_before_their_first_word_leave_what_was_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            events = await home.cancelled(kind="what-if", texts=["one", "two"], head=first["head"])
            done = events[-1].data
            assert [body["message"] for body in done["branches"]] == [None, None]
            assert (done["head"], done["shared"]) == (first["head"], None)
            rows = named(events, "init")[0]["branches"]
            assert {row["branch"]: row["user"] for row in rows}.items() <= (
                (await home.branches()).items()
            )
            events = await home.cancelled(kind="what-if", texts=["one"], n=3, head=first["head"])
            assert [body["branch"] for body in events[-1].data["branches"]] == ["one-2", None, None]
            assert set(await home.branches()) == {"main", "one", "two", "one-2"}
            assert await numbers(home) == {1: "one-2"}
            assert notices(await home.ask("on", head=first["head"])) == []
            assert await home.running() == 0

    run(main())


def test_a_choice_that_is_ended_before_it_is_handed_over_is_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            for args in ({"texts": ["one", "two", "three"]}, {"texts": ["four"], "n": 3}):
                events: list[Event] = []
                answers: list[Answer] = []

                def say(event: Event, events: Any = events, answers: Any = answers) -> None:
                    events.append(event)
                    if event.name == "init":
                        assert answers[0].cancel_one(1)

                answers.append(home.answer(say, kind="what-if", **args))
                await answers[0].run()
                bodies = events[-1].data["branches"]
                assert [body["message"] is None for body in bodies] == [False, True, False]
                assert [body["finish_reason"] for body in bodies] == ["length", "abort", "length"]
                assert 1 not in {data["choice"] for data in named(events, "delta")}
            loaded = home.service._engines.loaded
            assert loaded is not None
            await home.service._worker.call(loaded.engine.check_idle)

    run(main())


def test_a_client_that_goes_and_a_daemon_that_ends_keep_what_was_said(tmp_path: Path) -> None:
    async def begun(home: House, *texts: str) -> Any:
        stream = home.service.generate(
            where=WHERE, kind="what-if", texts=list(texts), dtype="fp32", options=LONG
        )
        heard: set[int] = set()
        async for event in stream:
            if event.name == "delta":
                heard.add(event.data["choice"])
            if len(heard) == len(texts):
                return stream
        raise AssertionError("ended too soon")

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            await (await begun(home, "one", "two")).aclose()
            await until(lambda: not home.service.busy)
            assert await home.running() == 0
            await begun(home, "three", "four")
        async with house(tmp_path) as home:
            assert home.store.recovered == []
            for name in ("one", "two", "three", "four"):
                last = (await home.service.log(WHERE, ref=name))["messages"][-1]
                assert (last["role"], last["finish_reason"]) == ("assistant", "abort")
                assert last["text"]
            assert (await home.service.tree(WHERE))["branch"] == "main"

    run(main())


def test_a_daemon_killed_in_the_middle_leaves_each_to_the_next_one(tmp_path: Path) -> None:
    """Its home is copied while the engine stands still: what a SIGKILL would leave."""

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            stream = home.service.generate(
                where=WHERE, kind="what-if", texts=["one", "two"], dtype="fp32", options=LONG
            )
            told: dict[int, str] = {0: "", 1: ""}
            async for event in stream:
                if event.name == "delta":
                    told[event.data["choice"]] += event.data["text"]
                if all(len(text) > 10 for text in told.values()):
                    break
            gate = threading.Event()
            home.hold(gate)
            await until(lambda: home.service._worker.step_s > 0.05)
            await home.on_desk(lambda _: shutil.copytree(home.places.data, tmp_path / "copy"))
            gate.set()
            await stream.aclose()
            where = home.places.running.relative_to(home.places.data)
        store = Store.open(
            tmp_path / "copy" / home.places.database.name, running_dir=tmp_path / "copy" / where
        )
        with contextlib.closing(store):
            kept = {str(left.message and left.message.parent): left for left in store.recovered}
            assert len(kept) == 2
            for left in kept.values():
                assert left.message is not None
                asked = store.message(str(left.message.parent)).text
                assert left.message.text.startswith(told[["one", "two"].index(asked)])
                assert store.branch(left.session, asked).message == left.message.id
                assert store.numbered_branches(left.session) == {1: "one", 2: "two"}
            assert store.verify() == []

    run(main())


# -- what goes wrong -------------------------------------------------------------------------------


def stumble(on: str, at: Collection[int]) -> Callable[[str], None]:
    """Raises at these calls of one method."""
    calls = itertools.count(1)

    def before(name: str) -> None:
        if name == on and next(calls) in at:
            raise ValueError("a secret word")

    return before


def test_the_error_of_one_is_told_and_ends_no_other_and_that_of_all_is_the_commands(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            first = await home.say("hello", new_session=True)
            store.before = stumble("append_ids", at=[2])  # each of the three says something once
            events = await what_if(home, "one", "two", "three")
            (notice,) = named(events, "notice")
            assert notice["code"] == "failed"
            assert "ValueError" in notice["text"]
            assert "secret" not in notice["text"]
            bodies = events[-1].data["branches"]
            ended = [body["finish_reason"] for body in bodies]
            assert sorted(ended) == ["error", "length", "length"]
            assert ended[notice["choice"]] == "error"
            kept = await home.service.log(WHERE, ref=bodies[notice["choice"]]["branch"])
            assert kept["messages"][-1]["finish_reason"] == "error"

            store.before = stumble("append_ids", at=range(1, 99))
            with pytest.raises(RadchatError, match=r"inside the daemon \(ValueError\)"):
                await what_if(home, "four", "five")
            before = await home.branches()
            store.before = stumble("begin", at=[2])
            with pytest.raises(RadchatError):
                await what_if(home, "six", "seven")
            store.before = lambda _name: None
            assert await home.branches() == before
            assert await home.running() == 0
            assert notices(await home.ask("on", head=first["head"])) == []

    run(main())


# -- several at once -------------------------------------------------------------------------------


def test_two_what_ifs_and_a_turn_at_once_get_what_is_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            asked = await asyncio.gather(
                what_if(home, "one", "two", head=first["head"]),
                what_if(home, "one", "three"),
                home.ask("a turn meanwhile", head=first["head"]),
            )
            bodies = [body for events in asked for body in events[-1].data["branches"]]
            branches = await home.branches()
            assert len({body["branch"] for body in bodies}) == 5
            assert {body["branch"]: body["message"] for body in bodies} == branches
            assert set(branches) == {"main", "one", "one-2", "two", "three"}
            tree = await home.service.tree(WHERE)
            assert (tree["branch"], tree["head"]) == ("main", asked[2][-1].data["head"]["message"])
            there = await numbers(home, head=first["head"])
            made = [[b["branch"] for b in events[-1].data["branches"]] for events in asked[:2]]
            assert list(there.values()) in made
            assert await home.running() == 0
            assert (await home.service.status())["running"] == 0

    run(main())


def test_a_new_session_may_begin_with_a_what_if(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            done = (await what_if(home, "the first words", "others", new_session=True))[-1].data
            assert done["name"] == "the-first-words"
            assert done["head"] == {"branch": "main", "message": None}
            moved = await home.service.switch(WHERE, ref="2")
            assert moved["head"] == done["branches"][1]["message"]
            with pytest.raises(ContextOverflow):
                await what_if(home, "x", "word " * 9000, new_session="none")
            with pytest.raises(NotFound):
                await home.service.sessions_show(WHERE, session="none")

    run(main())
