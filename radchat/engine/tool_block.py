"""Tools for a template that knows none: a block of ours in the system prompt, results as messages.

The template sees a conversation without tools. An answer has its calls as text there; a result is
a message of a role of its own, or of the user's where there is no other: control tokens stand
around it, which no text can imitate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from radchat.engine.conversation import Settings, Turn
from radchat.engine.tool_form import ToolForm

BLOCK = """\
# Tools

You may call one or more functions to help with what the user asks. They are, as JSON between the
<tools> marks:
<tools>
{tools}
</tools>

To call one, write its name and arguments as JSON between <tool_call> marks, and stop after it:
<tool_call>
{{"name": "a function's name", "arguments": {{"its": "arguments"}}}}
</tool_call>
The result comes in the next message."""
MARKS = ("<tool_response>", "</tool_response>")


def with_block(
    turns: Sequence[Turn],
    settings: Settings,
    form: ToolForm,
    ordered: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]],
) -> tuple[tuple[Turn, ...], Settings]:
    """The same conversation for a template without tools. As many turns as before.

    ``ordered``: tools in one order, their keys too.
    """
    told = [_told(turn, form) for turn in turns]
    if settings.tools and told:
        lines = [json.dumps(tool, ensure_ascii=False) for tool in ordered(settings.tools)]
        block = BLOCK.format(tools="\n".join(lines))
        place = next((i for i, turn in enumerate(told) if turn.role in ("system", "user")), 0)
        first = told[place]
        # the user's own words come last, a system prompt's first
        parts = (block, first.text) if first.role == "user" else (first.text, block)
        told[place] = replace(first, text="\n\n".join(part for part in parts if part))
    return tuple(told), replace(settings, tools=())


def _told(turn: Turn, form: ToolForm) -> Turn:
    if turn.role == "tool" and form.results == "user":
        text = turn.text
        for mark in MARKS:
            text = text.replace(mark, f"{mark[:1]} {mark[1:]}")
        text = f"{MARKS[0]}\n{text}\n{MARKS[1]}"
        return replace(turn, role="user", text=text, name=None, tool_call_id=None)
    if not turn.tool_calls:
        return turn
    calls = [
        form.written(call.name, json.dumps(call.arguments, ensure_ascii=False))
        for call in turn.tool_calls
    ]
    text = form.between.join([*([turn.text] if turn.text else []), *calls])
    return replace(turn, text=text, tool_calls=())
