"""Chat completions: whole and streamed, of a real service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.services import run
from tests.v1.apis import USER, Api, api


def text_of(chunks: list[dict[str, Any]], choice: int = 0) -> str:
    return "".join(
        one["delta"].get("content") or ""
        for chunk in chunks
        for one in chunk["choices"]
        if one["index"] == choice
    )


def test_a_stream_says_what_the_whole_answer_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            whole = await it.chat()
            chunks = await it.chunks()
            (choice,) = whole["choices"]
            assert whole["object"] == "chat.completion"
            assert choice["message"]["role"] == "assistant"
            assert choice["message"]["content"] == text_of(chunks)
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
            assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])
            assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"
            assert len({chunk["id"] for chunk in chunks}) == 1
            usage = whole["usage"]
            assert usage["completion_tokens"] == 5
            assert usage["total_tokens"] == usage["prompt_tokens"] + 5

    run(work())


def test_usage_comes_where_it_is_asked_for_and_there_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await it.chat()
            whole = (await it.chat())["usage"]
            for options in (None, {}, {"include_usage": False}):
                more = {} if options is None else {"stream_options": options}
                assert all("usage" not in chunk for chunk in await it.chunks(**more))
            *others, last = await it.chunks(stream_options={"include_usage": True})
            assert last["choices"] == []
            assert last["usage"] == whole
            assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)

    run(work())


def test_a_conversation_that_is_told_again_goes_on_with_its_own_ids(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, *USER]
            before = 0
            for turn in range(4):
                told = await it.chat(messages, max_tokens=7)
                usage = told["usage"]
                if turn:  # all that was read and said, but the last token drawn
                    assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 1
                before = usage["total_tokens"]
                messages += [told["choices"][0]["message"], {"role": "user", "content": f"{turn}?"}]
            assert (await it.home.service.sessions_list({"terminal": None, "folder": "/"}))[
                "sessions"
            ] == []

    run(work())


def test_several_choices_are_one_prompt_and_the_same_again_for_a_seed(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            more = {"n": 4, "seed": 42, "temperature": 1, "max_tokens": 12}
            first, second = await it.chat(**more), await it.chat(**more)
            texts = [choice["message"]["content"] for choice in first["choices"]]
            assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
            assert len(set(texts)) == 4
            assert texts == [choice["message"]["content"] for choice in second["choices"]]
            chunks = await it.chunks(**more)
            assert texts == [text_of(chunks, choice) for choice in range(4)]
            said = sum(12 for _ in texts)
            assert first["usage"]["completion_tokens"] == said
            one = await it.chat(max_tokens=1)
            assert first["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]

    run(work())


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a word as the key of a bias": ({"logit_bias": {"word": 1}}, "logit_bias"),
    "a token that is none": ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    "5,000 biases": ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
    "a top_k that is no number of tokens": ({"top_k": 0.01}, "top_k"),
    "a temperature below 0": ({"temperature": -1}, "temperature"),
    "top_p 0": ({"top_p": 0}, "top_p"),
    "an empty stop string": ({"stop": [""]}, "stop"),
    "1,000 stop strings": ({"stop": [str(i) for i in range(1000)]}, "stop"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "fewer than none": ({"max_completion_tokens": -1}, "max_completion_tokens"),
    "a name nobody knows": ({"temprature": 1}, "temprature"),
    "a name of any form": ({"_Foo-bar 1": 1}, "_Foo-bar 1"),
    "a name nobody knows in ours": ({"radchat": {"Sesion": "x"}}, "radchat.Sesion"),
    "a penalty beyond numbers": ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    "tools and a form": (
        {
            "response_format": {"type": "json_object"},
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
        "response_format",
    ),
    "a rule of a schema that is not enforced": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"if": {"type": "null"}}},
            }
        },
        "response_format",
    ),
    "a tool whose parameters are none": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "cat"}}}]},
        "tools",
    ),
    "true for a number": ({"n": True}, "n"),
    "many choices": ({"n": 129}, "n"),
    "logprobs of none": ({"top_logprobs": 3}, "top_logprobs"),
    "messages that are a text": ({"messages": "hi"}, "messages"),
    "a message that is nothing": ({"messages": [None]}, "messages[0]"),
    "no messages": ({"messages": []}, "messages"),
    "a role nobody has": ({"messages": [{"role": "cat", "content": "x"}]}, "messages[0].role"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
    ),
    "nothing to answer": ({"messages": [*USER, {"role": "assistant", "content": "x"}]}, "messages"),
    "a result of no call": (
        {"messages": [*USER, {"role": "tool", "content": "x"}]},
        "messages[1].tool_call_id",
    ),
    "a tool to be called that is not there": ({"tool_choice": "required"}, "tool_choice"),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "cat"}}}},
        "response_format",
    ),
    "a type of answer without its schema": (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
    ),
}


def test_a_bad_request_is_told_by_its_name_and_hurts_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        import asyncio

        async with api(tmp_path) as it:
            neighbour = asyncio.create_task(it.chat(max_tokens=60))
            for what, (body, param) in BAD.items():
                answer = await it.chat(**{"status": 400, "messages": USER, **body})
                error = answer["error"]
                assert error["type"] == "invalid_request_error", what
                assert error["param"] == param, (what, error)
                assert "--" not in error["message"], error  # nothing of a command line
            whole = await neighbour
            assert whole["usage"]["completion_tokens"] == 60
            here = str(it.home.places.models)  # a path is no name: nobody learns of files
            for name in ("nobody/knows", here, f"{here}/tiny", "/", "../.."):
                error = (await it.chat(status=404, model=name))["error"]
                assert (error["code"], error["param"]) == ("model_not_found", "model")
                assert error["message"].startswith("no model")

    run(work())


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/nothing", "POST", 404), ("/v1/chat/completions", "GET", 405), ("/", "GET", 404)],
)
def test_addresses_that_are_none(tmp_path: Path, path: str, method: str, status: int) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            answer = await it.http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["message"].startswith("no such address")

    run(work())


def test_too_long_is_an_error_and_nothing_is_left_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, RADCHAT_KV_DEVICE="512tok") as it:
            one = (await it.chat(max_tokens=1))["usage"]
            assert one["completion_tokens"] == 1
            usual = one["prompt_tokens"] - len("hello")
            for text in ("word " * 5000, "x" * (513 - usual), "x" * (512 - usual)):
                long = [{"role": "user", "content": text}]
                for asked in ({}, {"stream": True}):
                    error = (await it.chat(long, status=400, **asked))["error"]
                    assert error["code"] == "context_length_exceeded"
                    assert error["param"] == "messages"
            last = await it.chat([{"role": "user", "content": "x" * (511 - usual)}])
            assert last["usage"]["total_tokens"] == 512
            for most in (None, 100_000_000):  # to the end of the context
                clipped = await it.chat(max_tokens=most)
                assert clipped["choices"][0]["finish_reason"] == "length"
                assert clipped["usage"]["total_tokens"] == 512

    run(work())


async def _fork(it: Api) -> None:
    system = {"role": "system", "content": "Be kind."}
    first = await it.chat([system, *USER], radchat={"session": "s"})
    told = first["radchat"]
    assert first["choices"][0]["radchat"]["message"] == told["message"]
    length = first["usage"]["total_tokens"]
    for branch in ("left", "right"):
        more = {"parent": told["message"], "branch": branch}
        fork = await it.chat([{"role": "user", "content": branch}], radchat=more)
        assert fork["radchat"]["branch"] == branch
        assert fork["radchat"]["session"] == told["session"]
        assert fork["usage"]["prompt_tokens_details"]["cached_tokens"] >= length - 1
    tree = await it.home.service.tree({"terminal": None, "folder": "/"}, session="s")
    assert {"main", "left", "right"} <= set(tree["branches"])
    # the whole conversation told to the session: an edit of its last word is a fork
    messages = [
        system,
        *USER,
        first["choices"][0]["message"],
        {"role": "user", "content": "left"},
    ]
    again = await it.chat(messages, radchat={"session": "s"})
    assert again["radchat"]["branch"] not in ("left", "right")
    messages[-1]["content"] = "another"
    other = await it.chat(messages, radchat={"session": "s"})
    assert other["radchat"]["session"] == told["session"]
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] >= length - 1
    moved = await it.chat(
        [{"role": "user", "content": "x"}],
        status=409,
        radchat={"session": "s", "parent": told["message"], "branch": "left"},
    )
    assert "left" in moved["error"]["message"]
    for wanted in ({"session": "0" * 32}, {"parent": "0" * 32}, {"session": "s", "parent": "ffff"}):
        assert (await it.chat(status=404, radchat=wanted))["error"]["type"] == "not_found_error"


def test_a_client_forks_by_the_message_it_was_given(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await _fork(it)

    run(work())
