"""Calls of tools and answers under a schema, through the API: whole and streamed alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.daemon.services import run
from tests.scripted import Turns
from tests.v1.apis import USER, Api, api

ARGUMENTS = '{"path": "a}b{", "text": "say \\"{}\\" [ok]"}'
CALL = '<tool_call>\n{"name": "write", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
LIST = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'
TEXT = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "write a file",
            "parameters": {
                "type": "object",
                "properties": {"path": TEXT, "text": TEXT},
                "required": ["path", "text"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "list"}},
]


def answers(turns: Turns) -> Mapping[str, float]:
    asked = turns[-1][1]
    return {
        "call": {f"I write. {CALL}\n{LIST}": 1.0},
        "list": {LIST: 1.0},
    }.get(asked.split("\n")[-1].strip(), {f"told: {len(turns)} turns": 1.0})


async def _calls(it: Api, say: str, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the whole answer and the chunks of a stream tell, each as (content, calls, reason)."""
    messages = [{"role": "user", "content": say}]
    asked = {"tools": TOOLS, "max_tokens": 400, **more}
    whole = (await it.chat(messages, **asked))["choices"][0]
    chunks = await it.chunks(messages, **asked)
    calls: dict[int, dict[str, Any]] = {}
    content = ""
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            one = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})
            one["function"]["arguments"] += part["function"]["arguments"]
            if "id" in part:
                assert part["type"] == "function"
                one["id"], one["function"]["name"] = part["id"], part["function"]["name"]
    message = whole["message"]
    assert (message["content"] or "") == content
    told = message.get("tool_calls") or []
    streamed = [calls[index] for index in sorted(calls)]
    assert [c["function"] for c in told] == [c["function"] for c in streamed]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    return whole, streamed


def test_calls_are_streamed_as_the_whole_answer_has_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, answers, RADCHAT_KV_DEVICE="16384tok") as it:
            whole, calls = await _calls(it, "call")
            assert whole["finish_reason"] == "tool_calls"
            assert whole["message"]["content"] == "I write. "
            assert [c["function"]["name"] for c in calls] == ["write", "list"]
            assert json.loads(calls[0]["function"]["arguments"]) == json.loads(ARGUMENTS)
            assert calls[1]["function"]["arguments"] == "{}"
            alone, (one,) = await _calls(it, "list")
            assert alone["message"]["content"] is None
            assert one["function"] == {"name": "list", "arguments": "{}"}

            cut, calls = await _calls(it, "call", max_tokens=40)
            assert cut["finish_reason"] == "length"

            _, calls = await _calls(it, "call", parallel_tool_calls=False)
            assert len(calls) == 1
            named = {"type": "function", "function": {"name": "list"}}
            _, (one,) = await _calls(it, "call", tool_choice=named)
            assert one["function"]["name"] == "list"
            _, calls = await _calls(it, "call", tool_choice="none")
            assert calls == []

            # the round goes on: what was read and said before is in the cache
            call = whole["message"]["tool_calls"]
            results = [
                {"role": "tool", "tool_call_id": c["id"], "content": f"done {i}"}
                for i, c in enumerate(call)
            ]
            messages = [{"role": "user", "content": "call"}, whole["message"], *results]
            told = await it.chat(messages, tools=TOOLS, max_tokens=400)
            assert told["choices"][0]["message"]["content"].startswith("told:")
            cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0.8 * told["usage"]["prompt_tokens"]

    run(work())


BAD_ARGUMENTS = (
    '{"path": tru',
    "",
    "null",
    "[1]",
    '{"a": NaN}',
    '{"a": 1e999}',
    r'{"a": "\ud800"}',
)


def test_an_old_bad_call_is_read_as_it_is_written(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, answers, RADCHAT_KV_DEVICE="16384tok") as it:
            for arguments in BAD_ARGUMENTS:
                call = {"id": "c1", "function": {"name": "write", "arguments": arguments}}
                bad = {"role": "assistant", "tool_calls": [call]}
                result = {"role": "tool", "tool_call_id": "c1", "content": "an error"}
                messages = [*USER, bad, result, {"role": "user", "content": "and?"}]
                told = await it.chat(messages, tools=TOOLS, max_tokens=50)
                assert told["choices"][0]["message"]["content"].startswith("told:")

    run(work())


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"enum": [1, 2]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_answer_is_of_its_schema(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
            for strict in ({}, {"strict": True}):
                form["json_schema"] = {"name": "p", "schema": SCHEMA, **strict}
                told = await it.chat(response_format=form, max_tokens=200)
                said = json.loads(told["choices"][0]["message"]["content"])
                assert set(said) == {"name", "age"}
                assert told["choices"][0]["finish_reason"] == "stop"
            plain = await it.chat(
                response_format={"type": "json_object"},
                max_tokens=400,
                logit_bias={},
            )
            choice = plain["choices"][0]
            if choice["finish_reason"] == "stop":
                assert isinstance(json.loads(choice["message"]["content"]), dict)
            assert choice["message"]["content"].lstrip().startswith("{")

    run(work())


def test_log_probabilities_are_of_the_tokens_that_were_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            asked = {"logprobs": True, "top_logprobs": 3, "max_tokens": 8}
            whole = (await it.chat(**asked))["choices"][0]
            entries = whole["logprobs"]["content"]
            assert len(entries) == 8
            said = b"".join(bytes(each["bytes"]) for each in entries).decode("utf-8", "replace")
            assert said == whole["message"]["content"]
            for each in entries:
                assert len(each["top_logprobs"]) == 3
                assert each["logprob"] == max(t["logprob"] for t in each["top_logprobs"])
            streamed = [
                entry
                for chunk in await it.chunks(**asked)
                for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            ]
            assert streamed == entries
            assert (await it.chat())["choices"][0]["logprobs"] is None

    run(work())
