"""Models that work, as scripts (tests/scripted.py): they answer by what their prompt ends with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.scripted import Turns

RIGHT, WRONG = "a + b", "a * b"


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def edit(new: str) -> str:
    return call("edit", path="calc.py", old="a - b", new=new)


def mends(turns: Turns) -> Mapping[str, float]:
    """Looks, runs the test, mends what fails, runs it again, is done."""
    role, text = turns[-1]
    if role != "tool":
        return {f"I look first.\n{call('read_file', path='calc.py')}\n{call('list')}": 1.0}
    if "AssertionError" in text:
        return {edit(RIGHT): 1.0}
    if "test_calc.py" in text:  # of list, the last of the two
        return {call("shell", command="python3 test_calc.py"): 1.0}
    if "written" in text:
        return {call("shell", command="python3 test_calc.py; echo $?"): 1.0}
    return {"It is mended.": 1.0}


def tries(turns: Turns) -> Mapping[str, float]:
    """One edit of several, of which one is right, and far the likeliest: what is drawn is another
    thing on another day, for its prompt has the date. Then it is done.
    """
    role, _ = turns[-1]
    if role != "tool":
        return {edit(RIGHT): 60.0, edit(WRONG): 1.0, edit("b - a"): 1.0}
    return {f"Done{', and looked at' * 10}.": 1.0}
