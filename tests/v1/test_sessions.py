"""Sessions that are kept, through the API: where an answer goes, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.daemon.services import run
from tests.scripted import Turns
from tests.v1.apis import USER, Api, api

OWNER: Any = {"terminal": None, "folder": "/"}
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


async def branches(it: Api, session: str) -> dict[str, str]:
    return dict((await it.home.service.sessions_show(OWNER, session=session))["branches"])


async def _asked_again(it: Api) -> None:
    """A conversation that is there already gets another answer to its last word."""
    first = (await it.chat(radchat={"session": "s"}))["radchat"]
    again = (await it.chat(radchat={"session": "s"}, seed=1))["radchat"]
    assert again["parent"] == first["parent"]
    assert again["branch"] != first["branch"]
    assert await branches(it, "s") == {
        first["branch"]: first["message"],
        again["branch"]: again["message"],
    }
    # on the branch that is named; where that is elsewhere, not at all
    named = (await it.chat(radchat={"session": "s", "branch": "mine"}))["radchat"]
    assert named["branch"] == "mine"
    error = (await it.chat(radchat={"session": "s", "branch": "mine"}, status=409))["error"]
    assert error["param"] == "radchat.branch"
    assert (await branches(it, "s"))["mine"] == named["message"]
    # the one that ends there goes on
    messages = [*USER, {"role": "assistant", "content": "x"}, *USER]
    answer = (await it.chat(messages, radchat={"session": "s", "branch": "other"}))["radchat"]
    parent = {"session": "s", "parent": answer["message"], "branch": "other"}
    on = (await it.chat(radchat=parent))["radchat"]
    assert (await branches(it, "s"))["other"] == on["message"]


async def _parents(it: Api) -> None:
    first = (await it.chat(radchat={"session": "p"}))["radchat"]
    question = {"session": "p", "parent": first["parent"]}
    error = (await it.chat(radchat=question, status=400))["error"]
    assert error["param"] == "radchat.parent"
    # a message in a session is found by its id alone, and by its beginning where that is named
    for wanted in ({"parent": first["message"]}, {"session": "p", "parent": first["message"][:8]}):
        told = await it.chat(radchat=wanted)
        assert told["radchat"]["session"] == first["session"]
    assert (await it.chat(radchat={"parent": first["message"][:8]}, status=404))["error"]
    system = [{"role": "system", "content": "x"}, *USER]
    error = (await it.chat(system, radchat={"parent": first["message"]}, status=400))["error"]
    assert error["param"] == "messages"
    # a name that another session's id begins with is a name
    begins = (first["session"][:num] for num in range(4, 32))
    name = next(each for each in begins if not each.isdecimal())  # a number can be none
    named = (await it.chat(radchat={"session": name}))["radchat"]
    assert named["session"] != first["session"]
    bad = (await it.chat(radchat={"session": "a:b"}, status=400))["error"]
    assert "a:b" in bad["message"]


async def _several(it: Api) -> None:
    more = {"n": 3, "temperature": 1, "seed": 4}
    told = await it.chat(radchat={"session": "n", "branch": "mine"}, **more)
    each = [choice["radchat"] for choice in told["choices"]]
    assert told["radchat"]["message"] == each[0]["message"]
    assert each[0]["branch"] == "mine"
    made = {one["branch"]: one["message"] for one in each}
    assert await branches(it, "n") == {"main": None, **made}  # which every session begins with
    chunks = await it.chunks(radchat={"session": "m"}, **more)
    firsts = {chunk["choices"][0]["index"]: chunk for chunk in reversed(chunks)}
    for chunk in firsts.values():
        assert chunk["radchat"]["parent"]
        assert chunk["choices"][0]["delta"]["role"] == "assistant"
    lasts = {c["choices"][0]["index"]: c for c in chunks if c["choices"][0]["finish_reason"]}
    streamed = [lasts[index]["radchat"] for index in range(3)]
    assert await branches(it, "m") == {one["branch"]: one["message"] for one in streamed}


async def _at_once(it: Api) -> None:
    """Many first requests for one session: one makes it, and who came too late asks again."""

    async def ask(number: int) -> tuple[int, Any]:
        body = {"model": "tiny", "messages": USER, "max_tokens": 2, "seed": number}
        asked = {**body, "radchat": {"session": "once"}}
        answer = await it.http.post("/v1/chat/completions", json=asked)
        return answer.status_code, answer.json()

    told = await asyncio.gather(*map(ask, range(8)))
    assert {status for status, _ in told} <= {200, 409}
    late = [answer["error"]["code"] for status, answer in told if status == 409]
    assert set(late) <= {"conflict"}
    names = [answer["radchat"]["name"] for status, answer in told if status == 200]
    assert set(names) == {"once"}
    assert len(await branches(it, "once")) == len(names)


def test_where_an_answer_goes(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await _asked_again(it)
            await _parents(it)
            await _several(it)
            await _at_once(it)

    run(work())


def seen(turns: Turns) -> Mapping[str, float]:
    """The model tells what it sees."""
    return {f"{len(turns)} turns, tools: {'look_up' in str(turns)}": 1.0}


def test_the_tools_of_a_conversation_are_those_that_are_told_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, seen) as it:
            for radchat in (None, {"session": "s"}):
                more: dict[str, Any] = {} if radchat is None else {"radchat": radchat}
                told = await it.chat(tools=TOOLS, max_tokens=60, **more)
                messages = [*USER, told["choices"][0]["message"], *USER]
                assert messages[1]["content"].endswith("tools: True")
                for tools, words in ([], "False"), (TOOLS, "True"):
                    on = await it.chat(messages, max_tokens=60, tools=tools, **more)
                    assert on["choices"][0]["message"]["content"].endswith(f"tools: {words}")
            # a client that tells what is new alone sees the rest as it was
            parent = {"parent": told["radchat"]["message"]}
            on = await it.chat(radchat=parent, max_tokens=60)
            assert on["choices"][0]["message"]["content"].endswith("tools: True")
            length = told["usage"]["total_tokens"]
            assert on["usage"]["prompt_tokens_details"]["cached_tokens"] >= length - 1

    run(work())
