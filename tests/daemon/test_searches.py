"""Searches: asks that are messages of a session, and what it takes to go on from them."""

from __future__ import annotations

import asyncio
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.body import check_arguments
from radchat.errors import Busy, InvalidInput, NotFound, UsageError
from radchat.protocol import Event
from tests.daemon.programs import program
from tests.daemon.searching import search
from tests.daemon.services import WHERE, House, house, named, run, until
from tests.e2e.test_reasoning import ADDED, SAYS
from tests.e2e.tiny_models import converted
from tests.engine.text_toys import TEMPLATES

HOT: Any = {"temperature": 2, "seed": 5}


def test_an_ask_is_stored_with_the_very_ids_and_told_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            assert (s.init["number"], s.init["at"], s.init["found"]) == (1, None, None)
            before = s.computed()
            names = ["s1.1", "s1.2", "s1.3"]
            events = await s.events(s.asked("one two", n=3, names=names, options=HOT))
            (answer,) = named(events, "answer")
            assert [event.name for event in events if event.name != "delta"] == ["answer", "done"]
            user = await s.ids(answer["user"])
            assert s.computed() - before == len(user) + 3 * 4, "the prompt once"
            for number, out in enumerate(answer["outputs"]):
                message = await s.message(out["message"])
                assert (message.text, message.parent) == (out["text"], answer["user"])
                assert (message.choice, message.seed) == (number, 5)
                assert (message.usage or {})["output_tokens"] == out["tokens"] == 5
                assert (message.usage or {})["reuse"]["computed"] == len(user)
                assert (await s.ids(out["message"]))[: len(user)] == user
                words = "".join(
                    each["text"] for each in named(events, "delta") if each["choice"] == number
                )
                assert words == out["text"]
            assert len({out["text"] for out in answer["outputs"]}) > 1
            assert answer["usage"]["output_tokens"] == 15
            assert answer["usage"]["input_tokens"] == answer["cache"]["computed"] == len(user)
            labels = await s.on_desk(lambda store: store.labels(s.session))
            assert sorted(each.value for each in labels) == names
            assert await home.branches() == {"main": None}, "HEAD stays"
            assert (await home.service.sessions_verify(WHERE))["problems"] == []

    run(main())


def test_what_follows_a_thought_computes_only_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            thought = (await s.ask("one two", n=2, options=HOT))["messages"][1]
            ids, ran = await s.ids(thought), s.computed()
            after = await s.ask("three", thought, max_tokens=1)
            user = await s.ids(after["user"])
            assert user[: len(ids)] == ids
            assert s.computed() - ran == after["cache"]["computed"] == len(user) - len(ids) + 1
            ran = s.computed()
            seen = await home.say("three", session=s.init["name"], at=thought, exact=True)
            assert seen["usage"]["cached_input_tokens"] == len(user) - 1, "as an ordinary turn has"

    run(main())


def test_asks_of_one_call_run_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            thoughts = (await s.ask("think", n=4, options=HOT))["messages"]
            worker = home.service._worker
            before = worker.steps
            await s.ask("rate this", thoughts[0], max_tokens=8)
            alone, before = worker.steps - before, worker.steps
            asks = [s.asked("rate that", each, max_tokens=8) for each in thoughts]
            events = await s.events(*asks)
            assert worker.steps - before <= alone + 1
            assert sorted(each["ask"] for each in named(events, "answer")) == [0, 1, 2, 3]
            done = events[-1].data
            total = sum(each["usage"]["output_tokens"] for each in named(events, "answer"))
            assert done["usage"]["output_tokens"] == total
            assert (done["session"], done["name"]) == (s.session, s.init["name"])
            for each in named(events, "answer"):
                parent = (await s.message(each["user"])).parent
                assert parent == thoughts[each["ask"]]

    run(main())


def test_a_grammar_holds_in_every_answer_and_json_comes_as_data(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"n": {"enum": [12]}}, "required": ["n"], '
    schema += '"additionalProperties": false}'
    asked: Any = {"kind": "json_schema", "source": schema}
    digits: Any = {"kind": "regex", "source": "[0-9]{2}"}

    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            events = await s.events(
                s.asked("a number", grammar=asked, max_tokens=40),
                s.asked("two digits", grammar=digits, n=3, max_tokens=40, options=HOT),
                s.asked("cut", grammar=asked, max_tokens=2),
                s.asked("wrong", grammar={"kind": "regex", "source": "("}),
            )
            answers = {each["ask"]: each["outputs"] for each in named(events, "answer")}
            assert answers[0][0]["data"] == {"n": 12}
            assert answers[0][0]["forced_tokens"] > 0
            assert all(len(out["text"]) == 2 and out["text"].isdigit() for out in answers[1])
            assert "schema_error" in answers[2][0]
            (failed,) = named(events, "failed")
            assert (failed["ask"], failed["error"]["code"]) == (3, "invalid_input")
            message = await s.message(answers[0][0]["message"])
            assert (message.sampling or {})["grammar"]["kind"] == "json_schema"

    run(main())


def test_texts_that_are_given_are_answers_with_ids_and_cost_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            ran = s.computed()
            says = ["4 + 8 = 12", "4 * 8 = 32"]
            body = await s.ask("next step", says=says, names=["s1.1", "s1.2"])
            assert s.computed() == ran
            assert (body["usage"]["output_tokens"], body["seed"]) == (0, None)
            assert [out["text"] for out in body["outputs"]] == says
            tokenizer = s.inside.loaded.tokenizer
            user = await s.ids(body["user"])
            for text, message in zip(says, body["messages"], strict=True):
                alone = tokenizer.encode_text(text, user)
                assert await s.ids(message) == [*user, *alone]
                stored = await s.message(message)
                assert (stored.finish_reason, stored.sampling, stored.seed) == ("stop", None, None)
            after = await s.ask("and then", body["messages"][0], max_tokens=1)
            ids = await s.ids(after["user"])
            first = await s.ids(body["messages"][0])
            assert ids[: len(first)] == first
            assert s.computed() - ran == len(ids), "said once, computed once"

    run(main())


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_a_model_that_reasons_does_so_where_it_is_told_to_and_else_its_reasoning_is_ended(
    tmp_path: Path, name: str
) -> None:
    asked: Any = {"kind": "choices", "source": '["de", "x"]'}

    async def main() -> None:
        async with house(tmp_path) as home:
            template = (TEMPLATES / f"{name}.jinja").read_text()
            models, added, says = home.places.models, ADDED[name], SAYS[name]
            converted(models, name, template=template, added=added, follows=says)
            async with search(home, model=name) as s:
                at = None
                for step in ("one", "two"):
                    body = await s.ask(step, at, grammar=asked)
                    (out,) = body["outputs"]
                    assert (out["text"], out["reasoning"]) == ("de", None)
                    said = await s.ask("say", body["messages"][0], says=["so"])
                    before, at = await s.ids(body["messages"][0]), said["messages"][0]
                    ids = await s.ids(at)
                    assert ids[: len(before) - 1] == before[:-1], "all that was said stands"
                    text = s.inside.loaded.tokenizer.decode(ids)
                    assert text.endswith("</think>\n\nso")
                found = await home.service.search_score(s.id, None, "one", ["de", "x"])
                assert found["choice"] == 0
                assert found["usage"]["cached_input_tokens"] > found["cache"]["computed"]
            async with search(home, model=name, think="on") as s:
                body = await s.ask("one", grammar=asked, max_tokens=30)
                (out,) = body["outputs"]
                assert (out["text"], out["reasoning"]) == ("de", "abc")
                stored = await s.message(out["message"])
                assert (stored.reasoning, stored.text) == ("abc", "de")
            assert (await home.service.sessions_verify(WHERE))["problems"] == []

    run(main())


def test_scores_are_the_mean_log_probabilities_and_leave_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            body = await s.ask("tell", options={"temperature": 0, "logprobs": 0})
            (out,) = body["outputs"]
            assert (await s.message(out["message"])).extra["logprob"] == out["logprob"]
            user = await s.ids(body["user"])
            tokenizer = s.inside.loaded.tokenizer
            said = (await s.ids(out["message"]))[len(user) :]
            assert list(tokenizer.encode_text(out["text"], user)) == said, "no other way to say it"
            before = len(await s.stored())
            found = await home.service.search_score(s.id, None, "tell", [out["text"], "zq"])
            assert found["scores"][0] == pytest.approx(out["logprob"] / 5, abs=1e-5)
            assert found["scores"][1] < found["scores"][0]
            assert len(await s.stored()) == before
            async with program(home) as p:
                await p.say("user", "tell")
                other = await p.select([out["text"], "zq"])
                assert found["scores"] == pytest.approx(other["scores"], abs=1e-5)
            with pytest.raises(InvalidInput, match="empty"):
                await home.service.search_score(s.id, None, "tell", [""])
            with pytest.raises(NotFound, match="no message"):
                await home.service.search_score(s.id, "f" * 32, "tell", ["x"])

    run(main())


# -- what ends early -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the stream is closed", "cancel", "the search ends"])
def test_what_is_cut_off_leaves_nothing_and_what_had_ended_stays(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            async with search(home) as s:
                name = "a" * 16
                asks = [s.asked("short", max_tokens=2), s.asked("for long", n=2, max_tokens=3000)]
                stream = home.service.search_ask(s.id, asks, request=name)
                with pytest.raises(InvalidInput, match="runs already"):
                    home.service.search_ask(s.id, asks, request=name)
                events: list[Event] = []
                async for event in stream:
                    events.append(event)
                    if event.name == "answer":
                        break
                assert s.engine.stats()["running"] == 2
                if how == "the search ends":
                    await s.stream.aclose()
                    with pytest.raises(NotFound, match="search has ended"):
                        async for _ in stream:
                            pass
                else:
                    if how == "cancel":
                        assert (await home.service.cancel(name))["cancelled"]
                    else:
                        await stream.aclose()
                    events += [event async for event in stream]
                    assert [each["ask"] for each in named(events, "answer")] == [0]
                await until(lambda: s.engine.stats()["running"] == 0)
                if how == "cancel":
                    (failed,) = named(events, "failed")
                    assert (failed["ask"], failed["error"]["code"]) == (1, "interrupted")
                    assert events[-1].name == "done"
                texts = [text for _, text in await _messages(home, s.session)]
                assert "short" in texts
                assert "for long" not in texts
                assert await home.running() == 0
                assert s.inside.going == 0
            await until(lambda: home.service._searches == {})
            assert home.service._asking == {}
            s.engine.check_idle()
            assert (await home.service.sessions_verify(WHERE))["problems"] == []

    run(main())


async def _messages(home: House, session: str) -> list[tuple[str, str]]:
    found = await home.on_desk(lambda store: store.messages(session))
    return [(message.role, message.text) for message in found]


def test_one_ask_of_several_is_cancelled_and_one_before_the_engine_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            name = "a" * 16
            asks = [s.asked("first", max_tokens=100), s.asked("second", max_tokens=100)]
            stream = home.service.search_ask(s.id, asks, request=name)
            events: list[Event] = []
            async for event in stream:
                if event.name == "delta" and not events:
                    assert (await home.service.cancel(name, 1))["cancelled"]
                    assert not (await home.service.cancel(name, 2))["cancelled"]
                events.append(event)
            assert [each["ask"] for each in named(events, "answer")] == [0]
            assert [each["ask"] for each in named(events, "failed")] == [1]
            stream = home.service.search_ask(s.id, asks, request=name)
            assert (await home.service.cancel(name))["cancelled"]
            events = [event async for event in stream]
            assert [each["ask"] for each in named(events, "failed")] == [0, 1]
            assert named(events, "delta") == []
            assert not (await home.service.cancel(name))["cancelled"]

    run(main())


def test_what_cannot_be_asked_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("elsewhere", new_session="other")
            elsewhere = (await home.service.log(WHERE))["messages"][-1]["id"]
            async with search(home) as s:
                events = await s.events(
                    s.asked("x" * 10_000),
                    s.asked("there", elsewhere),
                    s.asked("nowhere", "f" * 32),
                    s.asked("too long", says=["x", "y" * 10_000]),
                    s.asked("fine"),
                )
                codes = {each["ask"]: each["error"]["code"] for each in named(events, "failed")}
                overflow = "context_length_exceeded"
                assert codes == {0: overflow, 1: "not_found", 2: "not_found", 3: overflow}
                assert [each["ask"] for each in named(events, "answer")] == [4]
                assert len(await s.stored()) == 2

    run(main())


def test_an_ask_that_cannot_be_saved_fails_and_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            async with search(home) as s:
                calls: list[str] = []

                def before(name: str) -> None:
                    calls.append(name)
                    if calls.count("finish") == 2 and name == "finish":
                        raise OSError("a second answer")

                store.before = before
                events = await s.events(s.asked("a", n=3), s.asked("b"))
                (failed,) = named(events, "failed")
                assert len(named(events, "answer")) == 1
                assert len(await s.stored()) == 2
                labels = await s.on_desk(lambda store: store.labels(s.session))
                assert labels == []
                assert failed["error"]["code"] == "error"

    run(main())


def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            for field, more in (
                ("n", {"n": 0}),
                ("n", {"n": 129}),
                ("text", {"text": "  "}),
                ("max_tokens", {"max_tokens": 0}),
                ("temperature", {"options": {"temperature": -1}}),
                ("options.num_ctx", {"options": {"num_ctx": 50}}),
                ("says", {"says": []}),
                ("says", {"says": [""]}),
                ("n", {"says": ["a"], "n": 2}),
                ("grammar", {"says": ["a"], "grammar": {"kind": "regex", "source": "a"}}),
                ("names", {"names": ["s1.1", "s1.2"]}),
                ("names", {"names": ["good"]}),
                ("names", {"names": ["s2.1"]}),
                ("extra", {"extra": {"search": {"number": 2}}}),
                ("extra", {"extra": {"search": {"number": True}}}),
                ("extra", {"extra": {"number": 1}}),
                ("extra", {"extra": s.extra(problem="x" * 300_000)}),
            ):
                fine, bad = s.asked("fine"), {**s.asked("bad"), **more}
                with pytest.raises(InvalidInput) as caught:
                    await s.events(fine, bad)  # type: ignore[arg-type]
                assert caught.value.data["field"] == f"asks[1].{field}"
            many = [s.asked("x", n=128) for _ in range(9)]
            for asks in ([], many, [s.asked(each, names=["s1.1"]) for each in "ab"]):
                with pytest.raises(InvalidInput) as caught:
                    await s.events(*asks)
                assert caught.value.data["field"] == "asks"
            method = home.service.search_ask
            for wrong in ({"at": None}, {**s.asked("x"), "more": 1}, {**s.asked("x"), "says": "x"}):
                with pytest.raises(InvalidInput, match=r"asks\[0\]"):
                    check_arguments("search.ask", method, {"search": s.id, "asks": [wrong]})
            assert await s.stored() == []
            await s.ask("taken", names=["s1.1"])
            (failed,) = named(await s.events(s.asked("again", names=["s1.1"])), "failed")
            assert "thought of this session already" in failed["error"]["message"]
            with pytest.raises(NotFound, match="no search"):
                home.service.search_ask("nobody", [s.asked("x")])

    run(main())


def test_a_daemon_that_stops_ends_a_search_in_the_midst_of_a_step(tmp_path: Path) -> None:
    async def main() -> None:
        gate = threading.Event()
        home = House(tmp_path)
        await home.service.start()
        async with search(home) as s:
            going = asyncio.create_task(s.events(s.asked("for long", max_tokens=3000)))
            await until(lambda: s.engine.stats()["running"] == 1)
            home.hold(gate)
            closing = asyncio.create_task(home.service.close())
            await asyncio.sleep(0)
            gate.set()
            await closing
            with pytest.raises((NotFound, Busy)):
                await going
            assert home.service._searches == {}

    run(main())


# -- sessions --------------------------------------------------------------------------------------


def test_a_search_is_found_again_and_goes_on_with_the_same_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            async with search(home, system="You think.", only_terminal=True) as s:
                root = s.asked("first", n=2, names=["s1.1", "s1.2"], options=HOT)
                root["extra"] = s.extra(problem="make twenty four of these", settings={"depth": 2})
                beside = s.asked("beside", says=["a", "b"], n=1)  # ends first
                (_, first) = named(await s.events(beside, root), "answer")
                thoughts = [out["message"] for out in first["outputs"]]
                await s.ask("rate", thoughts[0], options={"temperature": 0, "logprobs": 0})
                await s.on_desk(
                    lambda store: store.add_label(s.session, thoughts[0], "s1.1=7.5", "score")
                )
                before = await s.ids(thoughts[0])
            await home.say("a turn", session=s.session, at=thoughts[1])
            listed = await home.service.sessions_show(WHERE)
            assert listed["name"] == "make-twenty-four-of"
        async with house(tmp_path) as home:
            async with search(home, new_session=None, resume=True) as s:
                assert (s.init["number"], s.init["session"]) == (1, listed["id"])
                stored = {each.id: each for each in await s.stored()}
                system = next(each for each in stored.values() if each.role == "system")
                assert s.init["at"] == s.init["found"]["at"] == system.id
                found = s.init["found"]["messages"]
                assert [each["id"] for each in found] == [i for i in stored if i != system.id]
                by_id = {each["id"]: each for each in found}
                assert by_id[first["user"]]["extra"]["search"]["settings"] == {"depth": 2}
                one, two = (by_id[each] for each in thoughts)
                assert (one["name"], one["score"], one["tokens"]) == ("s1.1", 7.5, 5)
                assert (two["name"], two["score"], two["choice"]) == ("s1.2", None, 1)
                (rating,) = (each for each in found if each["logprob"] is not None)
                assert by_id[rating["parent"]]["parent"] == thoughts[0]
                again = await s.ask("next", thoughts[0])
                assert (await s.ids(again["user"]))[: len(before)] == before
                with pytest.raises(Busy, match="is running"):
                    async with search(home, new_session=None, resume="s1"):
                        pass
                other = await s.ask("another root")
                assert (await s.message(other["user"])).parent == system.id
            with pytest.raises(NotFound, match="no search s2"):
                async with search(home, new_session=None, resume="s2"):
                    pass
            await home.say("no search here", new_session="plain")
            with pytest.raises(NotFound, match="no search in plain"):
                async with search(home, new_session=None, resume=True):
                    pass

    run(main())


def test_a_search_is_gone_on_with_while_what_it_was_ended_in_still_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            gate = threading.Event()
            async with search(home) as s:
                await s.ask("problem")
                going = asyncio.create_task(s.events(s.asked("for long", max_tokens=3000)))
                await until(lambda: s.engine.stats()["running"] == 1)
                home.hold(gate)
                await s.stream.aclose()
                await until(lambda: s.inside.is_over)
                stream = home.service.search_open(WHERE, exact=True, resume=True)
                opening = asyncio.create_task(anext(stream))
                await until(lambda: len(home.service._searches) == 2)
                gate.set()
                event = await opening
                assert (event.name, event.data["number"]) == ("init", 1)
                with pytest.raises(NotFound):
                    await going
                await stream.aclose()

    run(main())


def test_searches_of_a_session_have_numbers_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session="both")
            again: Any = {"new_session": None}
            async with search(home, **again) as one, search(home, **again) as two:
                assert [one.init["number"], two.init["number"]] == [1, 2]
                assert one.init["at"] == two.init["at"] is not None
                ask = one.asked("problem", names=["s1.1"]), two.asked("other", names=["s2.1"])
                await asyncio.gather(one.events(ask[0]), two.events(ask[1]))
            async with search(home, **again) as three:
                assert three.init["number"] == 3
            async with search(home, resume="s1", **again) as four:
                rows = four.init["found"]["messages"]
                assert [(each["role"], each["name"]) for each in rows] == [
                    ("user", None),
                    ("assistant", "s1.1"),
                ]
                assert rows[0]["text"] == "problem"
            texts = await home.texts()
            assert (texts[0], len(texts)) == (("user", "hello"), 2), "HEAD stays"

    run(main())


def test_a_search_goes_on_from_a_chats_head_or_a_ref(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("one", new_session="chat")
            first = (await home.service.log(WHERE))["messages"][-1]["id"]
            await home.say("two")
            head: Any = {"branch": None, "message": first}
            async with search(home, new_session=None, session="chat", head=head) as s:
                assert s.init["at"] == first
                body = await s.ask("problem")
                assert (await s.message(body["user"])).parent == first
            async with search(home, new_session=None, at="chat:HEAD~1") as s:
                assert (s.init["at"], s.init["branch"]) == (first, "main")
            with pytest.raises(NotFound):
                async with search(home, new_session=None, at="nowhere"):
                    pass
            for more in ({"at": "HEAD"}, {"session": "chat"}, {"resume": True}):
                with pytest.raises((UsageError, InvalidInput)):
                    async with search(home, **more):
                        pass
            with pytest.raises(InvalidInput, match="new session"):
                async with search(home, new_session=None, system="x"):
                    pass

    run(main())


def test_a_session_in_which_nothing_was_said_goes_and_an_ephemeral_one_is_in_no_file(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            async with search(home, new_session="mine", system="You think.") as s:
                assert s.init["name"] == "mine"
            assert (await home.service.sessions_list(WHERE))["total"] == 0
            async with search(home, ephemeral=True) as s:
                body = await s.ask("secret", n=2, names=["s1.1", "s1.2"])
                assert len(await s.stored()) == 3
                assert await home.on_desk(lambda store: store.num_messages()) == 0
            where = {"new_session": None, "ephemeral": True}
            async with search(home, resume=True, **where) as again:
                found = again.init["found"]["messages"]
                assert [each["id"] for each in found] == [body["user"], *body["messages"]]

    run(main())


def test_without_the_cache_nothing_is_shared_and_the_same_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            said = []
            for cache in (True, False):
                async with search(home, cache=cache) as s:
                    ran = s.computed()
                    body = await s.ask("hello there", n=3, options=HOT)
                    num = len(await s.ids(body["user"]))
                    prompts = 1 if cache else 3
                    assert s.computed() - ran == prompts * num + 3 * 4
                    assert body["cache"]["computed"] == body["usage"]["input_tokens"]
                    assert body["usage"]["input_tokens"] == prompts * num
                    assert body["usage"]["output_tokens"] == 15
                    said.append([out["text"] for out in body["outputs"]])
                    thought = body["messages"][2]
                    after = await s.ask("more", thought)
                    assert (after["usage"]["cached_input_tokens"] > 0) == cache
            assert said[0] == said[1]
            assert len(set(said[0])) > 1

    run(main())


@pytest.mark.parametrize("persist", ["auto", "always"])
def test_thoughts_are_on_disk_where_what_has_no_branch_is(tmp_path: Path, persist: str) -> None:
    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST=persist) as home:
            async with search(home) as s:
                body = await s.ask("a problem that is worth a few pages of the cache " * 4, n=2)
                ids = [array("I", await s.ids(each)) for each in body["messages"]]
                blocks = home.service._disk.blocks(s.inside.loaded.model.fingerprint)
            await home.service.models_unload()
            assert blocks is not None
            kept = [sum(end - start for start, end in blocks.spans(i.tobytes())) for i in ids]
            assert kept == ([0, 0] if persist == "auto" else [len(each) - 1 for each in ids])

    run(main())
