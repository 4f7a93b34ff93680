"""Conversations that a client tells itself, and the worlds of keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import Given, Options
from radchat.daemon.tools import answered_by, call_part, result_message, result_of
from radchat.engine.conversation import ToolCall
from radchat.errors import InvalidInput, NotFound
from radchat_sessions.messages import NewMessage
from tests.daemon.services import GREEDY, Machine, house, named, run
from tests.scripted import Turns


def said(role: Any, text: str, **more: Any) -> Given:
    return {"role": role, "parts": [{"type": "text", "text": text, **more}]}


ASKED = [said("system", "Be brief."), said("user", "Count."), said("assistant", "One.")]


def test_a_told_conversation_is_stored_as_it_is_and_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            first = await it.say(messages=[*ASKED, said("user", "Go on.")], new_session="told")
            told = await it.texts()
            assert told[:4] == [
                ("system", "Be brief."),
                ("user", "Count."),
                ("assistant", "One."),
                ("user", "Go on."),
            ]
            await it.say(messages=[said("user", "And?")], session="told")
            assert [role for role, _ in await it.texts()][-3:] == ["assistant", "user", "assistant"]
            assert (await it.texts())[:5] == told
            assert first["session"]

    run(work())


def test_messages_are_all_that_a_turn_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            with pytest.raises(InvalidInput, match="all that it says"):
                await it.say("and this", messages=[said("user", "this")], new_session=True)
            with pytest.raises(InvalidInput, match=r"messages\[1\]"):
                await it.say(
                    messages=[said("user", "a"), said("system", "b")],
                    new_session=True,
                )
            await it.say("Hello", new_session="s")
            with pytest.raises(InvalidInput, match="this one has begun"):
                await it.say(messages=[said("system", "b"), said("user", "c")], session="s")

    run(work())


def test_nothing_of_one_key_is_found_with_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            words = [said("user", "a long enough prompt to be found again " * 3)]
            options = {**GREEDY, "max_tokens": 2}
            first = await it.say(messages=words, new_session="a", key="k1", options=options)
            again = await it.say(messages=words, new_session="b", key="k1", options=options)
            other = await it.say(messages=words, new_session="c", key="k2", options=options)
            owner = await it.say(messages=words, new_session="d", options=options)
            assert again["usage"]["cached_input_tokens"] == again["usage"]["input_tokens"] - 1
            assert other["usage"]["cached_input_tokens"] == 0
            assert owner["usage"]["cached_input_tokens"] == 0
            for ref in (first["session"], "a"):
                with pytest.raises(NotFound, match=f"no session {first['session']}|no session a"):
                    await it.say(messages=[said("user", "x")], session=ref, key="k2")
            assert await it.say(messages=[said("user", "x")], session="a", key="k1")
            assert await it.say(messages=[said("user", "x")], session="a")  # the owner's are all

    run(work())


def test_a_bias_forbids_and_a_stop_id_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            options = {**GREEDY, "logprobs": 0}

            async def drawn(**more: Any) -> list[int]:
                events = await it.ask("Hello", new_session=True, options={**options, **more})
                return [each["id"] for each in named(events, "message")[0]["logprobs"]]

            ids = await drawn()
            assert (await drawn(logit_bias={str(ids[0]): -100}))[0] != ids[0]
            assert await drawn(stop_ids=ids[1:2]) == ids[: ids.index(ids[1]) + 1]
            with pytest.raises(InvalidInput, match="token ids as keys"):
                await it.say("x", new_session=True, options={**GREEDY, "logit_bias": {"word": 1}})

    run(work())


@pytest.mark.parametrize("stop", [[], ["zzz"]])
def test_log_probabilities_are_told_once_each(tmp_path: Path, stop: list[str]) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            options = {**GREEDY, "max_tokens": 12, "logprobs": 2, "stop": stop}
            events = await it.ask("Hello", new_session=True, options=options)
            told = [each for data in named(events, "logprobs") for each in data["logprobs"]]
            (whole,) = named(events, "message")
            assert told == whole["logprobs"]
            assert len(told) == whole["usage"]["output_tokens"]

    run(work())


def test_a_key_stays_in_its_sessions_whatever_it_names(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as it:
            ask: Any = {"messages": [said("user", "x")], "key": "k2"}
            secret = await it.say("a secret", new_session="theirs")
            await it.say(new_session="mine", **ask)
            head = {"branch": None, "message": secret["branches"][0]["message"]}
            with pytest.raises(NotFound, match="in mine"):
                await it.say(session="mine", head=head, **ask)
            for ref in ("theirs:HEAD", "mine:theirs:HEAD"):
                with pytest.raises(InvalidInput, match="stays in its session"):
                    await it.say(session="mine", at=ref, **ask)
            ids = [each.session.id for each in await it.on_desk(lambda store: store.sessions())]
            while len({each[0] for each in ids}) == len(ids):
                ids.append((await it.say("more", new_session=True))["session"])
            first = next(each[0] for each in ids if sum(i[0] == each[0] for i in ids) > 1)
            with pytest.raises(NotFound) as told:
                await it.say(session=first, **ask)
            assert told.value.message == f"no session {first}"

    run(work())


@pytest.mark.parametrize("how", [{"key": "k1"}, {"passing": True, "named": False}])
def test_what_a_key_or_somebody_in_passing_says_is_never_on_disk(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    words = [said("user", "a long prompt that fills some pages " * 30)]

    async def work() -> None:
        async with house(tmp_path) as it:
            await it.say(messages=words, new_session=True, **how)
        assert not list(it.places.kv.rglob("*.safetensors"))
        async with house(tmp_path) as it:
            again = await it.say(messages=words, new_session=True, **how)
            assert again["usage"]["cached_input_tokens"] == 0
            await it.say(messages=words, new_session=True)  # the owner's is
        assert list(it.places.kv.rglob("*.safetensors"))

    run(work())


def test_calls_in_a_told_conversation_have_results_before_anything_else() -> None:
    def asks(*calls: str) -> NewMessage:
        parts = [call_part(ToolCall(each, f"tool-{each}", {})) for each in calls]
        return NewMessage("assistant", tuple(parts))

    def result(call: str) -> NewMessage:
        return result_message(ToolCall(call, "t", {}), "it", "ok")

    user = NewMessage.of("user", "so?")
    told = answered_by([], [user, asks("a", "b"), result("b"), user, asks("c"), result("c"), user])
    assert told.made_up == ("tool-a",)
    said = [(m.role, result_of(m.parts)[1], m.parts[0].get("status")) for m in told.messages]
    assert said[2:5] == [
        ("tool", "b", "ok"),
        ("tool", "a", "interrupted"),
        ("user", None, None),
    ]
    assert len(told.messages) == 8
    assert answered_by([], [user, asks("a", "b"), result("a")]).made_up == ("tool-b",)


def ends(turns: Turns) -> Mapping[str, float]:
    return {"Über den Wolken. STOPP more": 1.0, "Ü. STOPP": 0.5, "Never. STOOP": 0.5}


@pytest.mark.parametrize("stop", [["STOPP"], ["Wo", "ST"], ["n. S"]])
def test_log_probabilities_are_of_the_ids_that_are_kept_before_a_stop(
    tmp_path: Path, stop: list[str]
) -> None:
    async def work() -> None:
        async with house(tmp_path, Machine(script=ends)) as it:
            options: Options = {"temperature": 1, "seed": 3, "logprobs": 1, "stop": stop}
            asked = {"new_session": True, "n": 6, "options": options}
            events = await it.ask("Hello", **asked)
            kept = 0
            for message in named(events, "message"):
                mine = [d for d in named(events, "logprobs") if d["choice"] == message["choice"]]
                told = [each for data in mine for each in data["logprobs"]]
                assert told == message["logprobs"]
                ids = list(await it.on_desk(lambda store: store.out(message["message"])))  # noqa: B023
                assert [each["id"] for each in told] == ids
                kept += len(ids) < message["usage"]["output_tokens"]
            assert kept, "a stop string took ids away"

    run(work())


def writes(turns: Turns) -> Mapping[str, float]:
    calls = [
        '{"name": "write", "arguments": {"text": "a}{\\"", "n": [1, 2.50]}}',
        '{"name": "list", "arguments": {}}',
    ]
    text = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in calls)
    return {f"So. {text}": 1.0}


def test_parts_of_calls_are_the_texts_of_the_whole_ones(tmp_path: Path) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [
        {"name": "write", "parameters": {"type": "object"}},
        {"name": "list", "parameters": nothing},
    ]

    async def work() -> None:
        async with house(tmp_path, Machine(script=writes)) as it:
            room = {"temperature": 0, "max_tokens": 300}
            asked = {"new_session": True, "tools": tools, "options": room}
            events = await it.ask("go", call_parts=True, n=2, **asked)
            for message in named(events, "message"):
                parts = [p for p in named(events, "call_part") if p["choice"] == message["choice"]]
                for index, call in enumerate(message["calls"]):
                    first, *more = [part for part in parts if part["index"] == index]
                    assert (first["id"], first["name"]) == (call["id"], call["name"])
                    assert not any("name" in part for part in more)
                    text = "".join(part["text"] for part in (first, *more))
                    assert text == call["arguments_text"]
                    assert json.loads(text) == call["arguments"]
                assert [call["name"] for call in message["calls"]] == ["write", "list"]
            assert named(await it.ask("go", **asked), "call_part") == []
            (one,) = named(await it.ask("go", parallel=False, **asked), "message")
            assert [call["name"] for call in one["calls"]] == ["write"]
            (one,) = named(await it.ask("go", tool_choice={"name": "list"}, **asked), "message")
            assert {call["name"] for call in one["calls"]} == {"list"}
            with pytest.raises(InvalidInput, match="no tool 'shell'"):
                await it.ask("go", tool_choice={"name": "shell"}, **asked)

    run(work())
