"""Small tasks for an agent on the real model, through real tools in a folder of its own.

SmolLM2 hardly ever calls a tool by itself, so its first steps must: what is held here is that all
it calls is valid and that each run ends, not that the task is done.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, Literal, cast

import jsonschema

from radchat.agent.lines import LogLines
from radchat.agent.loop import Agent, Bounds, Ended
from radchat.agent.prompt import SYSTEM, facts
from radchat.agent.setting_up import Asked, Place
from radchat.agent.steps import DaemonSteps
from radchat.agent.tools.registry import choose
from radchat.agent.types import Ask, Listener, Step
from radchat.paths import Places
from tests.agent.sandboxes import KINDS
from tests.e2e.homes import Home, Shell

TASKS = (
    "List the files here.",
    "Read calc.py and say what add returns.",
    "Make the failing test pass.",
    "Which file has the word subtract in it?",
    "Write a file hello.txt that says hello.",
    "Run the tests.",
    "Replace - by + in calc.py.",
    "How many lines has test_calc.py? <tool_call>",
    "Create a folder docs with a README.md about calc.py.",
    "Compute 12 * 13 with python.",
)
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef subtract(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
    "notes/todo.md": "- mend add\n",
}
CLEAN = {"answer", "tokens", "turns", "repeated"}


class Eager(DaemonSteps):
    """Its first steps of a turn call something."""

    def __init__(self, *args: Any, must: int) -> None:
        super().__init__(*args)
        self._choices = itertools.chain(["required"] * must, itertools.repeat("auto"))

    def step(self, ask: Ask, listener: Listener) -> Step:
        self._first["tool_choice"] = next(self._choices)
        return super().step(ask, listener)


def run_task(home: Home, folder: Path, number: int, *, most: int, must: int = 2) -> Ended:
    """AssertionError where a call is not valid, or has no result where something follows it."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    mode: Literal["bypassPermissions", "acceptEdits"]
    mode = "bypassPermissions" if KINDS else "acceptEdits"  # no command without a sandbox
    place = Place.open(Asked(mode), Places.from_env(home.env), home.env, _nothing, folder)
    tools = choose(None, can_ask=False)
    where = {"terminal": f"task {number}", "folder": str(folder)}
    options = {"temperature": 0.8, "seed": number, "max_tokens": most}
    asked = {"where": where, "new_session": True, "system": SYSTEM, "options": options}
    Shell(home, f"task {number}")("daemon", "start")
    client = home.client()
    steps = Eager(client, asked, list(tools.values()), must=must)
    listener = LogLines(_nothing, is_quiet=True)
    bounds = Bounds(must + 2)
    agent = Agent(steps, tools, place.judge, listener, place.open_kept, bounds=bounds)
    try:
        ended = agent.turn(TASKS[number % len(TASKS)], facts(folder))
    finally:
        agent.close()
        place.close()
    rows = client.call("log", where=where, session=steps.session)["messages"]
    check(rows, {tool.name: dict(tool.parameters) for tool in tools.values()})
    return ended


def check(rows: list[dict[str, Any]], parameters: dict[str, dict[str, Any]]) -> None:
    waiting: list[str] = []
    for row in rows:
        if row["role"] == "tool":
            waiting.remove(cast("str", row["result"]["call"]))
            continue
        assert not waiting, f"{row['id']}: calls before it have no result"
        for call in row.get("calls", ()):
            jsonschema.validate(call["arguments"], parameters[call["name"]])
            waiting.append(call["id"])


def called(home: Home, folder: Path, number: int) -> Counter[str]:
    """By name, in the task's session."""
    where = {"terminal": f"task {number}", "folder": str(folder)}
    rows = home.client().call("log", where=where)["messages"]
    return Counter(call["name"] for row in rows for call in row.get("calls", ()))


def _nothing(_: str) -> None:
    pass
