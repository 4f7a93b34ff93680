"""Programs: states of exact ids in the daemon, and what it takes to go on from them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import Busy, ContextOverflow, InvalidInput, NotFound, UsageError
from tests.daemon.programs import program
from tests.daemon.services import WHERE, House, house, named, run, until

LONG = {"temperature": 0, "max_tokens": 3000}


def test_a_generation_goes_on_from_the_very_ids_and_computes_only_what_is_new(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            assert p.init["state"] == 0
            await p.say("system", "You count.")
            said = await p.say("user", "one two")
            before = await p.ids()
            assert said["tokens"] == len(before)
            events = await p.events()
            done = events[-1].data
            (out,) = done["outputs"]
            assert "".join(each["text"] for each in named(events, "delta")) == out["text"]
            assert (out["finish_reason"], out["tokens"]) == ("length", 5)
            after = await p.ids()
            assert after[: len(before)] == before
            assert len(after) == len(before) + 5
            assert done["cache"]["computed"] == len(before)
            ran = p.computed()
            await p.say("assistant", " and ", ends=True)
            await p.say("user", "more")
            asked = await p.ids()
            assert asked[: len(after)] == after
            again = await p.gen(max_tokens=1)
            assert again["usage"]["cached_input_tokens"] == len(after) - 1
            assert p.computed() - ran == again["cache"]["computed"] == len(asked) - len(after) + 1
            roles = [role for role, _ in await p.messages()]
            assert roles == ["system", "user", "assistant", "user", "assistant"]
            assert (await p.messages())[2][1] == out["text"] + " and "

    run(main())


def test_forks_have_the_same_ids_and_what_they_share_is_computed_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "a header that is long enough to be worth computing first " * 3)
            ids = await p.ids()
            before = p.computed()
            body = await home.service.program_fork(p.id, 0, 4)
            assert p.computed() - before == body["cache"]["computed"] == len(ids)
            states = body["states"]
            assert [await p.ids(state) for state in states] == [ids] * 4
            dones = await asyncio.gather(*(p.gen(state, max_tokens=3) for state in states))
            assert [done["cache"]["computed"] for done in dones] == [1] * 4
            assert len({done["outputs"][0]["text"] for done in dones}) == 1
            assert await p.ids() == ids, "the parent stays as it was"
            again = await home.service.program_fork(p.id, 0, 2)
            assert again["usage"]["input_tokens"] == 0, "warm: nothing to do"

    run(main())


def test_samples_are_one_prefill_and_the_state_goes_on_with_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "hello")
            ids, before = await p.ids(), p.computed()
            done = await p.gen(n=3, options={"temperature": 1.5, "seed": 5})
            assert done["cache"]["computed"] == len(ids)
            assert p.computed() - before == len(ids) + 3 * 4
            assert done["usage"]["output_tokens"] == 15
            texts = [out["text"] for out in done["outputs"]]
            assert len(set(texts)) > 1
            assert (await p.messages())[-1] == ("assistant", texts[0])

    run(main())


def test_text_after_sampled_ids_is_tokenized_alone(tmp_path: Path) -> None:
    """``S`` + ``e`` are one token in a text; a model that says ``S`` has said another one."""

    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            tokenizer = home.service._programs[p.id].loaded.tokenizer
            assert len(tokenizer.encode_text("Sep")) == 1
            await p.say("user", "hi")
            prompt = await p.ids()
            await p.gen(max_tokens=1, grammar={"kind": "regex", "source": "S"})
            await p.say("assistant", "ep")
            ids = await p.ids()
            alone = [*tokenizer.encode_text("S", prompt), *tokenizer.encode_text("ep", ids[:-1])]
            assert [i for i in ids if i not in tokenizer.control_ids][-len(alone) :] == alone
            assert ids != [*prompt, *tokenizer.encode_text("Sep", prompt)]
            (fork,) = await p.fork(1)
            assert await p.ids(fork) == ids
            done = await p.gen(fork, max_tokens=2)
            assert done["usage"]["input_tokens"] == len(ids)
            assert (await p.ids(fork))[: len(ids)] == ids

    run(main())


def test_select_says_the_likeliest_choice_and_scores_as_brute_force(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "is it good or bad? " * 4)
            await p.say("assistant", "Label: ")
            prefix = await p.ids()
            choices = ["good", "bad", "neither", "good"]
            body = await p.select(choices)
            loaded = home.service._programs[p.id].loaded
            for choice, score, num in zip(choices, body["scores"], body["tokens"], strict=True):
                ids = [*prefix, *loaded.tokenizer.encode_text(choice, prefix)]
                assert num == len(ids) - len(prefix)
                assert score < 0
            best = max(range(4), key=lambda index: body["scores"][index])
            assert (body["choice"], body["text"]) == (best, choices[best])
            assert (
                body["cache"]["computed"] + body["usage"]["cached_input_tokens"]
                == (body["usage"]["input_tokens"])
            )
            async with program(home, cache=False) as cold:  # each alone, all rows run
                await cold.say("user", "is it good or bad? " * 4)
                await cold.say("assistant", "Label: ")
                for choice, score in zip(choices, body["scores"], strict=True):
                    (state,) = await cold.fork(1)
                    alone = await cold.select([choice], state)
                    assert alone["usage"]["cached_input_tokens"] == 0
                    assert alone["scores"] == pytest.approx([score], abs=1e-5)
                (state,) = await cold.fork(1)
                one_by_one = [(await cold.select([each], state))["scores"][0] for each in "good"]
                assert sum(one_by_one) / 4 == pytest.approx(body["scores"][0], abs=1e-5)
            after = await p.ids()
            assert after == [*prefix, *loaded.tokenizer.encode_text(choices[best], prefix)]
            assert (await p.messages())[-1] == ("assistant", "Label: " + choices[best])

    run(main())


def test_a_stop_id_goes_when_more_is_said_in_its_turn_and_stays_when_the_turn_is_closed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            stops = home.service._programs[p.id].loaded.model.stop_ids
            await p.say("user", "hi")
            end: Any = {"kind": "regex", "source": "ab"}
            (out,) = (await p.gen(grammar=end))["outputs"]
            assert (out["text"], out["finish_reason"]) == ("ab", "stop")
            ended = await p.ids()
            assert ended[-1] in stops
            (fork,) = await p.fork(1)
            await p.say("assistant", "c")
            ids = await p.ids()
            assert len(ids) == len(ended)
            assert ids[:-1] == ended[:-1]
            assert (await p.messages())[-1] == ("assistant", "abc")
            await p.say("user", "more", fork)
            after = await p.ids(fork)
            assert after[: len(ended)] == ended
            assert after[len(ended)] not in stops, "said once"

    run(main())


def test_what_shows_of_a_token_that_a_stop_string_cuts_is_in_the_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "hi")
            before = await p.ids()
            tokenizer = home.service._programs[p.id].loaded.tokenizer
            assert len(tokenizer.encode_text("123")) == 1
            asked: Any = {"kind": "regex", "source": "a123"}
            (out,) = (await p.gen(grammar=asked, options={"stop": ["3"]}))["outputs"]
            assert (out["text"], out["finish_reason"]) == ("a12", "stop")
            ids = await p.ids()
            said = tokenizer.encode_text("a", before)
            assert ids == [*before, *said, *tokenizer.encode_text("12", [*before, *said])]

    run(main())


def test_a_grammar_holds_and_its_json_comes_as_data(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"n": {"enum": [12]}}, "required": ["n"], '
    schema += '"additionalProperties": false}'

    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "a number")
            asked: Any = {"kind": "json_schema", "source": schema}
            events = await p.events(max_tokens=40, grammar=asked)
            (out,) = events[-1].data["outputs"]
            assert out["data"] == {"n": 12}
            assert out["forced_tokens"] > 0
            assert any(each["forced"] for each in named(events, "delta"))
            before = await p.ids()
            await p.say("user", "again")
            (cut,) = (await p.gen(max_tokens=3, grammar=asked))["outputs"]
            assert "schema_error" in cut
            assert cut.get("data") is None
            assert (await p.messages())[-1] == ("assistant", cut["text"])
            with pytest.raises(UsageError, match="uniqueItems"):
                source = '{"type": "array", "uniqueItems": true}'
                await p.gen(grammar={"kind": "json_schema", "source": source})
            assert (await p.ids())[: len(before) - 1] == before[:-1]

    run(main())


def test_a_saved_state_is_a_branch_that_a_turn_goes_on_from_with_its_kv(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            async with program(home) as p:
                await p.say("system", "You count.")
                await p.say("user", "one two three four five six")
                await p.gen()
                await p.say("assistant", " and so on", ends=True)
                await p.say("user", "go on")
                await p.gen()
                ids = await p.ids()
                assert (await home.service.sessions_list(WHERE))["total"] == 0
                saved = await home.service.program_save(p.id, 0, WHERE, name="counted")
                assert (saved["name"], saved["branch"]) == ("counted", "main")
                other = await home.service.program_save(p.id, 0, WHERE, session="counted")
                assert other["branch"] == "program"
                with pytest.raises(UsageError, match="counted"):
                    await home.service.program_save(p.id, 0, WHERE, name="counted")
                assert await p.messages() == await home.texts(session="counted")
            assert (await home.service.sessions_verify(WHERE))["problems"] == []
            done = await home.say("seven", session="counted", at="program")
            (body,) = done["branches"]
            assert body["cache"]["computed"] < 30
            assert body["usage"]["cached_input_tokens"] == len(ids) - 1

    run(main())


def test_a_program_that_ends_ends_its_generations_and_nothing_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            async with program(home) as p:
                await p.say("user", "for long")
                going = asyncio.create_task(p.gen(options=LONG))
                engine = home.service._programs[p.id].loaded.engine
                await until(lambda: engine.stats()["running"] == 1)
                with pytest.raises(Busy):
                    await home.service.models_unload()
                status = await home.service.status()
                assert status["programs"] == 1
            with pytest.raises(NotFound, match="program has ended"):
                await going
            await until(lambda: engine.stats()["running"] == 0)
            engine.check_idle()
            assert home.service._programs == {}
            assert home.service._program_runs == {}
            with pytest.raises(NotFound, match="is open"):
                await p.say("user", "x")
            await home.service.models_unload()

    run(main())


def test_a_stream_that_is_closed_or_a_request_cancelled_leaves_the_state_as_it_was(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "for long")
            before = await p.ids()
            stream = home.service.program_gen(p.id, 0, options=LONG)  # type: ignore[arg-type]
            async for event in stream:
                if event.name == "delta":
                    break
            await stream.aclose()
            assert (await p.gen(max_tokens=1))["outputs"][0]["tokens"] == 1, "after it"
            (fork,) = await p.fork(1)
            name = "a" * 16
            going = asyncio.create_task(p.gen(fork, options=LONG, request=name))
            engine = home.service._programs[p.id].loaded.engine
            await until(lambda: engine.stats()["running"] == 1)
            was = await p.ids(fork)
            assert (await home.service.cancel(name))["cancelled"]
            with pytest.raises(Exception, match="cancelled"):
                await going
            assert await p.ids(fork) == was
            assert was[: len(before)] == before
            going = asyncio.create_task(p.gen(fork, options=LONG))
            await until(lambda: engine.stats()["running"] == 1)
            await home.service.program_drop(p.id, [fork])
            with pytest.raises(NotFound, match="dropped meanwhile"):
                await going
            await until(lambda: engine.stats()["running"] == 0)
            with pytest.raises(NotFound, match="no state"):
                await p.ids(fork)

    run(main())


def test_a_generation_is_cancelled_before_the_engine_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            await p.say("user", "for long")
            first, second = "a" * 16, "b" * 16
            going = asyncio.create_task(p.gen(options=LONG, request=first))
            engine = home.service._programs[p.id].loaded.engine
            await until(lambda: engine.stats()["running"] == 1)
            behind = asyncio.create_task(p.gen(options=LONG, request=second))
            await until(lambda: len(home.service._programs[p.id].held[0].tasks) == 2)
            with pytest.raises(InvalidInput, match="runs already"):
                await p.gen(request=second)
            for name in (second, first):
                assert (await home.service.cancel(name))["cancelled"]
            for each in (going, behind):
                with pytest.raises(Exception, match="cancelled"):
                    await each
            assert home.service._program_runs == {}
            assert (await p.gen(max_tokens=1, request=second))["outputs"][0]["tokens"] == 1

    run(main())


def test_a_daemon_that_stops_ends_a_program_in_the_midst_of_a_step(tmp_path: Path) -> None:
    async def main() -> None:
        gate = threading.Event()
        home = House(tmp_path)
        await home.service.start()
        async with program(home) as p:
            await p.say("user", "for long")
            going = asyncio.create_task(p.gen(options=LONG))
            engine = home.service._programs[p.id].loaded.engine
            await until(lambda: engine.stats()["running"] == 1)
            home.hold(gate)
            closing = asyncio.create_task(home.service.close())
            await asyncio.sleep(0)
            gate.set()
            await closing
            with pytest.raises((NotFound, Busy)):
                await going
            assert home.service._programs == {}

    run(main())


def test_what_makes_no_sense_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as p:
            with pytest.raises(InvalidInput, match="message before it"):
                await p.gen()
            with pytest.raises(InvalidInput, match="message before it"):
                await p.say("assistant", "x")
            with pytest.raises(InvalidInput, match="nothing yet"):
                await home.service.program_save(p.id, 0, WHERE)
            (raw,) = await p.fork(1)
            await p.say("raw", "Once upon", raw)
            with pytest.raises(InvalidInput, match="after raw text"):
                await p.say("user", "x", raw)
            with pytest.raises(InvalidInput, match="raw text"):
                await home.service.program_save(p.id, raw, WHERE)
            assert len(await p.ids(raw)) == len("Once upon")
            assert (await p.gen(raw))["cache"]["computed"] == len("Once upon")
            await p.say("user", "hi")
            ids = await p.ids()
            with pytest.raises(InvalidInput, match="no place among messages"):
                await p.say("raw", "x")
            for bad in ({"n": 0}, {"max_tokens": 0}, {"options": {"temperature": -1}}):
                with pytest.raises(InvalidInput):
                    await p.gen(**bad)
            for choices in ([], [""], ["a"] * 1000):
                with pytest.raises(InvalidInput):
                    await p.select(choices)
            for num in (0, 5000):
                with pytest.raises(InvalidInput):
                    await p.fork(num)
            with pytest.raises(ContextOverflow):
                await p.say("user", "x" * 10_000)
            with pytest.raises(ContextOverflow):
                await p.say("assistant", "x" * 10_000)
            assert await p.ids() == ids

    run(main())


def test_without_the_cache_nothing_is_reused(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home, cache=False) as p:
            await p.say("user", "hello there")
            num = len(await p.ids())
            for state in await p.fork(2):
                assert (await p.gen(state))["cache"]["computed"] == num

    run(main())


def test_two_programs_at_once_know_nothing_of_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, program(home) as one:
            await one.say("user", "hello")
            async with program(home) as other:
                assert await other.ids() == []
                await other.say("user", "hello")
                texts = await asyncio.gather(one.gen(), other.gen())
                assert texts[0]["outputs"][0]["text"] == texts[1]["outputs"][0]["text"]
            assert (await one.gen())["outputs"][0]["tokens"] == 5

    run(main())


def test_an_open_program_writes_no_word_to_disk(tmp_path: Path) -> None:
    word = "Pfefferminzprinz"

    async def main() -> None:
        async with house(tmp_path, RADCHAT_PERSIST="always") as home:
            async with program(home) as p:
                await p.say("user", f"{word} " * 30)
                ids = (await p.gen())["usage"]["input_tokens"]
                assert ids > 300
                packed = p.inside().ids[20:60].tobytes()
            await home.service.models_unload()
            for path in (tmp_path / "h").rglob("*"):
                if path.is_file() and "models" not in path.parts:
                    data = path.read_bytes()
                    assert word.encode() not in data
                    assert packed not in data

    run(main())
