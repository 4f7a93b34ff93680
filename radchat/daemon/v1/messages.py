"""OpenAI's messages as the store keeps them, and the digests they are found again by."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NoReturn

from radchat.daemon.arguments import Given
from radchat.daemon.tools import Tool as ToolGiven
from radchat.daemon.tools import calls_in, result_of
from radchat.daemon.v1.bodies import Called, Message, Tool
from radchat.errors import InvalidInput
from radchat_sessions.content import Part, reasoning_part, text_of, text_part

LATER_SYSTEM = "(system) "


def given(messages: Sequence[Message]) -> list[Given]:
    """In order, as many. System messages at the beginning are one, as templates know one; a later
    one is said by the user, who is told apart by its first word.
    """
    told: list[Given] = []
    names: dict[str, str] = {}  # of the tools, by the calls' ids
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        text = _text(message, where)
        if message.role in ("system", "developer"):
            _add_system(told, text)
        elif message.role == "assistant":
            told.append({"role": "assistant", "parts": [*map(dict, _answer(message, text, names))]})
        elif message.role == "tool":
            if not message.tool_call_id:
                raise InvalidInput(
                    f"{where}.tool_call_id: a result names the call it is of",
                    field=f"{where}.tool_call_id",
                )
            call = message.tool_call_id
            named = names.get(call) or message.name
            about = {"call": call, **({"tool": named} if named else {}), "status": "ok"}
            told.append({"role": "tool", "parts": [{**text_part(text), **about}]})
        else:
            if not text:
                raise InvalidInput(f"{where}.content: it is empty", field=f"{where}.content")
            told.append({"role": "user", "parts": [dict(text_part(text))]})
    return told


def _add_system(told: list[Given], text: str) -> None:
    if not told:
        told.append({"role": "system", "parts": [dict(text_part(text))]})
    elif len(told) == 1 and told[0]["role"] == "system":
        before = str(told[0]["parts"][0]["text"])
        told[0]["parts"] = [dict(text_part(f"{before}\n\n{text}"))]
    else:
        told.append({"role": "user", "parts": [dict(text_part(LATER_SYSTEM + text))]})


def _text(message: Message, where: str) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            place = f"{where}.content[{index}]"
            raise InvalidInput(f"{place}: only text can be read here, no {part.type}", field=place)
    return "\n".join(str(part.text) for part in content)


def _answer(message: Message, text: str, names: dict[str, str]) -> Iterable[Part]:
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        yield reasoning_part(reasoning)
    if text or not message.tool_calls:
        yield text_part(text)
    for call in message.tool_calls or ():
        names[call.id] = call.function.name
        yield {"type": "tool_call", "call": _call(call)}


def tools_of(tools: Sequence[Tool] | None) -> list[ToolGiven]:
    """As ``generate`` takes them."""
    told: list[ToolGiven] = []
    for tool in tools or ():
        function = tool.function
        one: ToolGiven = {
            "name": function.name,
            "parameters": function.parameters or {"type": "object", "properties": {}},
        }
        if function.description:
            one["description"] = function.description
        told.append(one)
    return told


def _call(call: Called) -> dict[str, Any]:
    """What is no JSON object stays as it is written, and is read by the model as a text."""
    arguments: Any = call.function.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number, parse_float=_real)
        except (ValueError, RecursionError):
            arguments = {"arguments": arguments}
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return {"id": call.id, "name": call.function.name, "arguments": arguments}


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _real(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


# -- found again -----------------------------------------------------------------------------------


def digests(messages: Iterable[Mapping[str, Any]], start: str = "") -> list[str]:
    """One a message, of it and all before it: who says what, and calls what. What a model has
    thought is left out, as clients send it back or don't. Calls count with their ids: results name
    them.
    """
    found, before = [], start
    for message in messages:
        parts: Sequence[Part] = message["parts"]
        text = text_of(parts)
        if message["role"] == "assistant":
            text = text.strip()  # clients do
        calls = [[call.id, call.name, dict(call.arguments)] for call in calls_in(parts)]
        answers = result_of(parts)[1] if message["role"] == "tool" else None
        line = json.dumps([before, message["role"], text, calls, answers], sort_keys=True)
        before = blake2b(line.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        found.append(before)
    return found
