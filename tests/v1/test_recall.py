"""Conversations that are told again: found by their words, and forgotten when nobody comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from radchat.daemon.v1.recall import IDLE_S, MOST, Recall, Told
from radchat.protocol import Where
from tests.daemon.services import run
from tests.scripted import Turns
from tests.v1.apis import USER, Api, api

OWNER: Where = {"terminal": "t", "folder": "/"}


class Desk:
    """As much of one as a recall needs."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.passing = self

    def remove(self, session: str) -> None:
        self.removed.append(session)

    async def run(self, work: Any) -> Any:
        return work()


def test_a_conversation_stays_while_it_is_used_and_an_hour_more() -> None:
    async def work() -> None:
        desk, now = Desk(), 0.0
        recall = Recall(desk, clock=lambda: now)  # type: ignore[arg-type]

        async def talk(session: str, digest: str) -> None:
            recall.begin(session)
            recall.add("key", Told(session, f"m-{digest}", digest))
            await recall.end(session)

        await talk("old", "a")
        recall.begin("running")
        recall.begin("silent")  # in which nothing was said: it goes at once
        await recall.end("silent")
        assert desk.removed == ["silent"]
        now = IDLE_S + 1
        await talk("new", "b")
        assert desk.removed == ["silent", "old"]
        assert recall.find(["a"]) is None
        assert recall.of_message("key", "m-a") is None
        assert recall.find(["x", "b", "y"]) == (1, Told("new", "m-b", "b"))
        assert recall.of_message("key", "m-b") is not None
        assert recall.of_message("", "m-b") is None  # another's
        for number in range(MOST):
            await talk(f"s{number}", f"d{number}")
        assert len(recall) == MOST
        assert recall.find(["b"]) is None
        assert "running" not in desk.removed

    run(work())


async def _on(it: Api, radchat: dict[str, Any], **more: Any) -> Any:
    return await it.chat(radchat=radchat, **more)


def test_a_conversation_in_passing_can_be_forked_by_its_answers_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            first = await it.chat(n=2, temperature=1, seed=3)
            ids = [choice["radchat"]["message"] for choice in first["choices"]]
            assert len(set(ids)) == 2
            length = first["usage"]["prompt_tokens"] + 5
            for message in ids:
                on = await _on(it, {"parent": message})
                assert on["usage"]["prompt_tokens_details"]["cached_tokens"] >= length - 1
                further = await _on(it, {"parent": on["radchat"]["message"]})
                cached = further["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= on["usage"]["total_tokens"] - 1
            # told as a whole it is the same conversation
            answers = [first["choices"][1], on["choices"][0]]
            messages: list[Any] = [*USER]
            for answer in answers:
                messages += [answer["message"], *USER]
            whole = await it.chat(messages)
            assert whole["usage"]["prompt_tokens"] == further["usage"]["prompt_tokens"]
            cached = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == whole["usage"]["prompt_tokens"] - 1
            assert (await it.home.service.sessions_list(OWNER))["sessions"] == []

    run(work())


def test_calls_that_a_client_names_itself_have_the_results_it_tells(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'

    def calls(turns: Turns) -> dict[str, float]:
        return {call if turns[-1][0] == "user" else f"told {len(turns)}": 1.0}

    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "list", "parameters": nothing}}]

    async def work() -> None:
        async with api(tmp_path, calls) as it:
            said = [{"role": "user", "content": "go"}]
            first = await it.chat(said, tools=tools, max_tokens=200)
            asked = first["choices"][0]["message"]
            asked["tool_calls"][0]["id"] = "my-own"
            result = {"role": "tool", "tool_call_id": "my-own", "content": "here"}
            told = await it.chat([*said, asked, result], tools=tools, max_tokens=200)
            assert told["choices"][0]["message"]["content"] == "told 3"
            assert "notices" not in told["radchat"]

    run(work())
