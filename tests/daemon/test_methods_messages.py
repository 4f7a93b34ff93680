"""Conversations that a client tells itself, and the worlds of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import Given
from radchat.errors import InvalidInput, NotFound
from tests.daemon.services import GREEDY, house, named, run


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
