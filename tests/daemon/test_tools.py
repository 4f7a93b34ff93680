"""Tools through the daemon: calls are parts of answers, results messages, and nothing is computed
twice. The model answers by its prompt's text (tests/scripted.py); all else is real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.body import check_arguments
from radchat.daemon.tools import calls_in
from radchat.errors import InvalidInput, UsageError
from radchat_sessions.messages import Message
from tests import histories
from tests.daemon.searching import search
from tests.daemon.services import WHERE, House, Machine, house, named, run
from tests.scripted import Turns

NO_MORE = {"additionalProperties": False}
TOOLS: list[Any] = [
    {"name": "shell", "description": "run it", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}},
        "required": ["command"], **NO_MORE}},
    {"name": "list", "description": "what is here", "parameters": {
        "type": "object", "properties": {}, **NO_MORE}},
]  # fmt: skip
ROOM: Any = {"temperature": 0, "max_tokens": 200}
BEGUN: Any = {"tools": TOOLS, "options": ROOM, "new_session": True}


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def shell(turns: Turns) -> Mapping[str, float]:
    """Two calls, then one, then words."""
    role, text = turns[-1]
    if role == "user" and "go" in text:
        return {f"I look. {call('list')}\n{call('shell', command='ls }{')}": 1.0}
    if role == "tool" and "two" in text:
        return {call("shell", command="pwd"): 1.0}
    if role == "tool" and "endless" in text:
        return {call("shell", command=f"again {len(turns)}"): 1.0}
    return {"Done.": 1.0}


def of(result: Mapping[str, Any]) -> dict[str, Any]:
    (answer,) = result["branches"]
    return dict(answer)


async def path(home: House) -> list[Message]:
    log = await home.service.log(WHERE)
    found: list[Message] = await home.on_desk(lambda s: s.path(log["messages"][-1]["id"]))
    return found


def results(answer: Mapping[str, Any], *texts: str) -> list[Any]:
    return [
        {"call": each["id"], "name": each["name"], "text": text, "status": "ok"}
        for each, text in zip(answer["calls"], texts, strict=True)
    ]


def test_calls_are_told_whole_and_results_go_on_from_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            events = await home.ask("go", **BEGUN, system="Be brief.")
            first = of(events[-1].data)
            assert (first["text"], first["finish_reason"]) == ("I look. ", "stop")
            assert [(c["name"], c["arguments"]) for c in first["calls"]] == [
                ("list", {}),
                ("shell", {"command": "ls }{"}),
            ]
            told = named(events, "call")
            assert [(c["index"], c["id"]) for c in told] == [
                (index, c["id"]) for index, c in enumerate(first["calls"])
            ]
            assert "".join(each["text"] for each in named(events, "delta")) == "I look. "
            length = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
            second = of(
                await home.say(tools=TOOLS, options=ROOM, results=results(first, "one", "two"))
            )
            assert second["cache"]["computed"] < 90, "the results alone, and what is around them"
            assert second["usage"]["cached_input_tokens"] >= length - 2
            third = of(await home.say(tools=TOOLS, options=ROOM, results=results(second, "/")))
            assert (third["text"], third["calls"]) == ("Done.", [])
            messages = await path(home)
            assert histories.problems(messages) == []
            roles = ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
            assert [m.role for m in messages] == [*roles, "assistant"]
            assert (await home.service.sessions_verify(WHERE))["problems"] == []
            tree = await home.service.tree(WHERE)
            rows = {row["text"] for row in tree["messages"]}
            assert "I look. -> list; shell ls }{" in rows
            log = (await home.service.log(WHERE))["messages"]
            assert [len(row.get("calls", ())) for row in log] == [0, 0, 2, 0, 0, 1, 0, 0]
            assert log[3]["result"] == {
                "call": first["calls"][0]["id"],
                "name": "list",
                "status": "ok",
            }

    run(main())


def test_twenty_steps_compute_their_tails_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine(script=shell)
        async with house(tmp_path, machine, RADCHAT_KV_DEVICE="16384tok") as home:
            step = of(await home.say("go", **BEGUN))
            given = ("endless",) * len(step["calls"])
            for _ in range(20):
                seen = step["usage"]["input_tokens"] + step["usage"]["output_tokens"]
                step = of(await home.say(tools=TOOLS, options=ROOM, results=results(step, *given)))
                tail = step["usage"]["input_tokens"] - seen
                given = ("endless",)
                assert step["cache"]["computed"] <= tail + 2
                assert len(step["calls"]) == 1
            assert histories.problems(await path(home)) == []

    run(main())


def test_a_call_that_is_cut_off_is_none_and_the_next_turn_works(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            cut: Any = {"temperature": 0, "max_tokens": 60}
            answer = of(await home.say("go", **{**BEGUN, "options": cut}))
            assert answer["finish_reason"] == "length"
            assert "ended inside a call" in answer["call_error"]
            num = len(answer["calls"])
            messages = await path(home)
            assert histories.problems(messages) == []
            assert "<tool_call>" in messages[-1].text
            given = results(answer, *("x",) * num)
            after = of(await home.say("and now?", tools=TOOLS, options=ROOM, results=given))
            assert after["text"] == "Done."
            assert histories.problems(await path(home)) == []

    run(main())


def test_a_call_in_the_midst_of_which_it_is_cancelled_is_none(tmp_path: Path) -> None:
    """Ctrl+C while arguments are being written."""

    def slow(turns: Turns) -> Mapping[str, float]:
        long = call("shell", command="x" * 2000)
        return {f"I look. {long}": 1.0} if turns[-1][0] == "user" else {"Done.": 1.0}

    async def main() -> None:
        async with house(tmp_path, Machine(script=slow)) as home:
            events: list[Any] = []

            def say(event: Any) -> None:
                events.append(event)
                if event.name == "delta" and "look" in "".join(
                    each["text"] for each in named(events, "delta")
                ):
                    answer.cancel()

            long: Any = {"temperature": 0, "max_tokens": 3000}
            answer = home.answer(say, text="go", new_session=True, tools=TOOLS, options=long)
            await answer.run()
            (body,) = named(events, "message")
            assert (body["finish_reason"], body["calls"]) == ("abort", [])
            assert named(events, "call") == []
            messages = await path(home)
            assert histories.problems(messages) == []
            assert not [part for part in messages[-1].parts if part.get("type") == "tool_call"]
            after = of(await home.say("and now?", tools=TOOLS, options=ROOM))
            assert after["calls"] or after["text"] or after["call_error"]
            assert histories.problems(await path(home)) == []

    run(main())


def test_open_calls_get_results_whoever_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            first = of(await home.say("go", **BEGUN))
            for bad in ("nope", first["calls"][0]["id"]):
                given = [{"call": bad, "text": "a"}, {"call": bad, "text": "b"}]
                with pytest.raises(InvalidInput, match=r"results\[[01]\].call: no call"):
                    await home.say("so?", tools=TOOLS, options=ROOM, results=given)
            given = results(first, "one", "two")[:1]
            events = await home.ask("so?", tools=TOOLS, options=ROOM, results=given)
            (notice,) = [n for n in named(events, "notice") if n["code"] == "interrupted"]
            assert notice["text"] == "no result of shell: it counts as interrupted"
            messages = await path(home)
            assert histories.problems(messages) == []
            assert [m.parts[0].get("status") for m in messages if m.role == "tool"] == [
                "ok",
                "interrupted",
            ]
            await home.say("go", tools=TOOLS, options=ROOM)
            before = of(await home.say("hello", tools=TOOLS, options=ROOM))
            seen = before["usage"]["input_tokens"] + before["usage"]["output_tokens"]
            after = of(await home.say("a chat without tools goes on"))
            assert "calls" not in after
            tail = after["usage"]["input_tokens"] - seen
            assert after["cache"]["computed"] <= tail + 2, "it sees what the model has seen"
            assert histories.problems(await path(home)) == []
            context = await home.service.context(WHERE)
            assert context["parts"]["tools"] > 0

    run(main())


def test_a_step_forks_on_its_branches_and_facts_are_for_the_model(tmp_path: Path) -> None:
    heard: list[str] = []

    def script(turns: Turns) -> Mapping[str, float]:
        heard.append(turns[-1][1])
        return shell(turns)

    async def main() -> None:
        async with house(tmp_path, Machine(script=script)) as home:
            done = await home.say("go", **BEGUN, n=3, facts="It is Monday.")
            assert len({each["branch"] for each in done["branches"]}) == 3
            assert [len(each["calls"]) for each in done["branches"]] == [2, 2, 2]
            read = done["branches"][0]["usage"]["input_tokens"]
            assert done["cache"]["computed"] == read, "one prompt, read once"
            assert any(text.endswith("\n\nIt is Monday.\n\ngo") for text in heard)
            tree = await home.service.tree(WHERE)
            assert [row["text"] for row in tree["messages"] if row["role"] == "user"] == ["go"]

    run(main())


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        ({"tools": [{"name": ""}]}, InvalidInput, r"tools\[0\].name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, InvalidInput, "twice"),
        ({"tools": [{"name": "a", "parameters": {"not": {}}}]}, UsageError, r"tools\[0\].param"),
        ({"tools": TOOLS, "grammar": {"kind": "regex", "source": "a"}}, UsageError, "not both"),
        ({"tool_choice": "required"}, InvalidInput, "no tools"),
        ({"text": "", "facts": "x", "results": [{"call": "a", "text": ""}]}, InvalidInput, "facts"),
        ({"results": [{"call": "a", "text": ""}]}, InvalidInput, "no call 'a' is waiting"),
        ({"text": ""}, InvalidInput, "empty"),
    ],
)
def test_what_can_not_be_is_refused_by_name(
    args: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            asked = {"text": "go", "new_session": True, **args}
            check_arguments("generate", home.service.generate, {"where": WHERE, **asked})
            with pytest.raises(error, match=says):
                await home.say(**asked)
            assert of(await home.say("go", **BEGUN))["calls"]

    run(main())


def test_what_an_agent_kept_of_a_session_goes_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            session = (await home.say("go", **BEGUN))["session"]
            kept = home.places.data / "agent" / session / "files"
            kept.mkdir(parents=True)
            (kept / "a").write_text("a secret")
            other = home.places.data / "agent" / "other"
            other.mkdir()
            await home.service.sessions_rm(WHERE, [session])
            assert [path.name for path in other.parent.iterdir()] == ["other"]

    run(main())


def test_calls_in_messages_of_others_are_calls_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            first = of(await home.say("go", **BEGUN))
            await home.say(tools=TOOLS, options=ROOM, results=results(first, "one", "fine"))
            said = [m.parts for m in await path(home)]
            text = (await home.service.sessions_export(WHERE, format="openai"))["text"]
            given = json.loads(text)
            await home.service.sessions_import(WHERE, [{"name": "a", "text": text}])
            messages = await path(home)
            assert [calls_in(m.parts) for m in messages] == [calls_in(parts) for parts in said]
            events = await home.ask("and?", tools=TOOLS, options=ROOM)
            assert [n for n in named(events, "notice") if n["code"] == "interrupted"] == []
            assert histories.problems(await path(home)) == []
            half = given["messages"][1]["tool_calls"]
            half[0]["function"]["arguments"] = '{"command": "ls'
            await home.service.sessions_import(WHERE, [{"name": "b", "text": json.dumps(given)}])
            calls = [call for m in await path(home) for call in calls_in(m.parts)]
            assert calls[0].arguments == {"arguments": '{"command": "ls'}, "as it was written"

    run(main())


def test_calls_can_be_wanted_or_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            none = of(await home.say("go", **BEGUN, tool_choice="none"))
            assert none["calls"] == []
            needed = of(await home.say("hello", tools=TOOLS, options=ROOM, tool_choice="required"))
            assert needed["calls"] or needed["finish_reason"] == "length", "words alone do not end"

    run(main())


def test_a_search_at_open_calls_asks_after_results_that_it_makes_up_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            first = of(await home.say("go", **BEGUN))
            async with search(home, new_session=False) as it:
                for text in ("so?", "and so?"):
                    await it.ask(text)
                stored = await it.stored()
            below = [m for m in stored if m.role == "tool"]
            assert [m.parts[0]["status"] for m in below] == ["interrupted", "interrupted"]
            asked = [m for m in stored if m.role == "user" and "so?" in m.text]
            assert [m.parent for m in asked] == [below[-1].id] * 2
            for each in stored:
                way = await home.on_desk(lambda store: store.path(each.id))  # noqa: B023
                assert histories.problems(way) == [] or way[-1].role in ("assistant", "tool")
            later = of(
                await home.say(tools=TOOLS, options=ROOM, results=results(first, "one", "two"))
            )
            assert later["calls"], "the calls are open where the search left them"

    run(main())


def test_compact_leaves_open_calls_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Machine(script=shell)) as home:
            await home.say("Tell me. " * 60, **BEGUN)
            first = of(await home.say("go", tools=TOOLS, options=ROOM))
            events = [event async for event in home.service.compact(WHERE)]
            assert events[-1].name == "done"
            way = await path(home)
            assert [m.role for m in way] == ["user", "assistant", "user", "assistant"]
            assert [c.id for c in calls_in(way[-1].parts)] == [c["id"] for c in first["calls"]]
            given = results(first, "one", "two")
            assert of(await home.say(tools=TOOLS, options=ROOM, results=given))["calls"]
            await home.say("go", **BEGUN)
            with pytest.raises(InvalidInput, match="no results yet, and there is no turn before"):
                _ = [event async for event in home.service.compact(WHERE)]

    run(main())
