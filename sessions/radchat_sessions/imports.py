"""Files to import: what a file is, is seen from what it holds, never from its name.

Ours (JSON or JSON lines), OpenAI messages (a list, ``{"messages": …}``, or lines of either), and
the ``logs.db`` of simonw/llm. One bad line refuses the file: nobody wants half a conversation.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from radchat_sessions import llm_logs, reading
from radchat_sessions.content import Json, Part, text_part
from radchat_sessions.drafts import Draft, DraftMessage
from radchat_sessions.errors import Unreadable
from radchat_sessions.exports import FORMAT
from radchat_sessions.messages import Role
from radchat_sessions.reading import Document

NO_JSON = (
    "it is not JSON. What can be imported: an export as json or jsonl (md is for reading), OpenAI "
    "messages, llm's logs.db"
)
SQLITE = b"SQLite format 3\0"
_ROLES: Mapping[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip
_TEXTS = ("text", "input_text", "output_text")


def load(path: Path) -> list[Document | Draft]:
    """All sessions of a file. Raises Unreadable, naming the place in it; OSError."""
    with path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            return list(llm_logs.read(path))
        file.seek(0)
        return parse(file.read(), path.stem)


def parse(data: bytes, name: str) -> list[Document | Draft]:
    """All sessions of a text; ``name`` is for those that bring none."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is no UTF-8 text (byte {error.start:,})") from error
    if not text.strip():
        raise Unreadable("it is empty")
    values, is_lines = _values(text)
    if isinstance(values[0], dict) and values[0].get("format") == FORMAT:
        return _documents(values)
    if is_lines and all(isinstance(value, dict) and "role" in value for value in values):
        values = [values]  # one message a line
    elif not is_lines and isinstance(values[0], list) and values[0]:
        first = values[0][0]
        if not (isinstance(first, dict) and "role" in first):
            values = values[0]  # a list of conversations
    return [_conversation(value, name) for value in values]


def _values(text: str) -> tuple[list[Json], bool]:
    """The one value of a JSON text, or those of its lines."""
    try:
        return [_loads(text)], False
    except ValueError as error:
        if text.lstrip()[0] not in "[{":
            raise Unreadable(NO_JSON) from error
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2:
            raise Unreadable(f"it is not JSON: {_why(error)}") from error
    values = []
    for number, line in lines:
        try:
            values.append(_loads(line))
        except ValueError as error:
            raise Unreadable(f"line {number} is not JSON: {_why(error)}") from error
    return values, True


def _loads(text: str) -> Json:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # JSON has no word for it: it could not be written again
        raise ValueError("a number is too large")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _why(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    return str(error)


def _documents(values: list[Json]) -> list[Document | Draft]:
    """A document of one value has its messages in it; of lines, they follow the header."""
    found: list[Document | Draft] = []
    header: Mapping[str, Any] = {}
    records: list[Json] = []

    def end() -> None:
        if header:
            found.append(reading.read(header, records))

    for value in values:
        if isinstance(value, dict) and value.get("format") == FORMAT:
            end()
            inside = value.get("messages", [])
            if not isinstance(inside, list):
                raise Unreadable("messages is not a list")
            header, records = value, list(inside)
        else:
            records.append(value)
    end()
    return found


# -- OpenAI messages -------------------------------------------------------------------------------


def _conversation(value: Json, name: str) -> Draft:
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages:
        raise Unreadable("it is no session, no list of messages and no logs.db of llm")
    model = value.get("model") if isinstance(value, dict) else None
    left_out: Counter[str] = Counter()
    drafts = [
        _message(message, number, left_out, model if isinstance(model, str) else None)
        for number, message in enumerate(messages, 1)
    ]
    told = next((text for m in drafts if m.role == "user" and (text := _words(m))), name)
    return Draft(told, drafts, {"main": len(drafts) - 1}, left_out=dict(+left_out))


def _words(message: DraftMessage) -> str:
    return "".join(str(part.get("text", "")) for part in message.parts)


def _message(value: Json, number: int, left_out: Counter[str], model: str | None) -> DraftMessage:
    where = f"message {number}"
    if not isinstance(value, dict):
        raise Unreadable(f"{where} is not an object")
    role = _ROLES.get(str(value.get("role")))
    if role is None:
        raise Unreadable(f"{where} has no role, or one that is not known here")
    parts = [*_content(value.get("content"), where, left_out)]
    for key, kind in (("reasoning_content", "reasoning"), ("reasoning", "reasoning")):
        if isinstance(value.get(key), str) and value[key]:
            parts.insert(0, {"type": kind, "text": value[key]})
            break
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Unreadable(f"tool_calls of {where} is not a list")
    parts += [{"type": "tool_call", "call": _call(call, where)} for call in calls]
    if role == "tool":
        parts = _answering(parts, value)
    return DraftMessage(
        number - 2 if number > 1 else None,
        role,
        tuple(parts),
        model=model if role == "assistant" else None,
    )


def _call(value: Json, where: str) -> dict[str, Json]:
    """A call as it is kept here: its arguments read, where they can be."""
    if not isinstance(value, dict):
        raise Unreadable(f"tool_calls of {where} has one that is not an object")
    function = value["function"] if isinstance(value.get("function"), dict) else value
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # what is not whole stays as it is written
            arguments = _loads(arguments)
    return {
        "id": str(value.get("id") or ""),
        "name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, dict) else {"arguments": arguments},
    }


def _answering(parts: list[Part], value: Json) -> list[Part]:
    """A result's parts, of which the first says whose it is."""
    first, *rest = parts or [text_part("")]
    about = {
        "tool": value.get("name"),
        "call": value.get("tool_call_id"),
    }
    named = {key: text for key, text in about.items() if isinstance(text, str)}
    return [{**first, **named}, *rest]


def _content(content: Json, where: str, left_out: Counter[str]) -> Iterator[Part]:
    if isinstance(content, str):
        yield text_part(content)
    elif isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(part, str):
                yield text_part(part)
            elif kind in _TEXTS and isinstance(part.get("text"), str):
                yield text_part(part["text"])
            elif isinstance(kind, str) and kind not in _TEXTS:
                left_out[kind] += 1
            else:
                raise Unreadable(f"the content of {where} has a part of no kind")
    elif content is not None:
        raise Unreadable(f"the content of {where} is no text")


def left_out(sessions: list[Document | Draft]) -> dict[str, int]:
    """What is not taken over, and how often, of all of them."""
    counts: Counter[str] = Counter()
    for session in sessions:
        if isinstance(session, Draft):
            counts.update(session.left_out)
    return dict(counts)
