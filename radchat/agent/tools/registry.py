"""The tools there are, by name. What a run may use of them is chosen once, so that the list of
tools in its prompt stays the same from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

from radchat.agent.sandbox.tools import Python, Shell
from radchat.agent.tools.asking import AskUser
from radchat.agent.tools.finding import Glob, Grep
from radchat.agent.tools.reading import List, ReadFile, ReadOutput
from radchat.agent.tools.writing import Edit, WriteFile
from radchat.agent.types import Tool
from radchat.errors import UsageError

BUILT_IN: tuple[Tool, ...] = (
    AskUser(),
    Edit(),
    Glob(),
    Grep(),
    List(),
    Python(),
    ReadFile(),
    ReadOutput(),
    Shell(),
    WriteFile(),
)


def choose(
    names: Sequence[str] | None, more: Sequence[Tool] = (), *, can_ask: bool
) -> dict[str, Tool]:
    """By name, sorted. ``names``: of those that were asked for (`--tools`), all without it;
    ``can_ask``: somebody is there to be asked.
    """
    tools = {tool.name: tool for tool in sorted((*BUILT_IN, *more), key=lambda tool: tool.name)}
    if names is not None:
        unknown = [name for name in names if name not in tools]
        if unknown:
            raise UsageError(f"no tool {unknown[0]!r}: there are {', '.join(tools)}")
        # a result that is cut is of no use without it
        wanted = {*names, "read_output"} if names else set()
        tools = {name: tool for name, tool in tools.items() if name in wanted}
    if not can_ask:
        tools.pop("ask_user", None)
    return tools
