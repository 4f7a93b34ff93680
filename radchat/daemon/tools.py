"""Tools in a conversation: what a client may give, parts of messages, and what is still open.

A call is a part of an answer, a result a message of its own. On every path a call has its result
before anything else follows: what is missing is made up here as ``interrupted``, and told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from radchat.engine.conversation import Settings, ToolCall
from radchat.errors import InvalidInput
from radchat_sessions.content import Part, text_part
from radchat_sessions.messages import Message, NewMessage, Session

if TYPE_CHECKING:
    from radchat.engine.template import Template

Status = Literal["ok", "error", "denied", "interrupted", "timeout"]
MAX_TOOLS = 128
CALL_WORDS = 60  # characters of a call in one line
TELLING = ("path", "command", "pattern", "code", "question", "id")  # arguments that say most
INTERRUPTED = "interrupted: it is not known whether this ran, or how far"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class _Named(TypedDict):
    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | _Named  # that one, and no other


class Tool(_Named, total=False):
    description: str
    parameters: dict[str, Any]


class _Answering(TypedDict):
    call: str
    text: str


class Result(_Answering, total=False):
    name: str
    status: Status


def check_tools(tools: Sequence[Tool]) -> None:
    """InvalidInput names the tool. Its parameters are the grammar's to check."""
    if len(tools) > MAX_TOOLS:
        raise InvalidInput(f"tools: want at most {MAX_TOOLS} (got {len(tools)})", field="tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool["name"]
        if not name or len(name) > 128 or not name.isprintable() or '"' in name or "\\" in name:
            raise InvalidInput(f"tools[{index}].name: {name!r} can be none", field="tools")
        if name in names:
            raise InvalidInput(f"tools[{index}].name: {name!r} is there twice", field="tools")
        names.add(name)


def settings_of(
    session: Session,
    template: Template,
    switches: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Settings:
    """How a session's conversation is shown to its model. ``tools`` None: with those that it was
    last asked with: who only looks, or chats on, sees what the model has seen.
    """
    return Settings(
        clock=datetime.fromisoformat(session.clock),
        tools=tuple(session.settings.get("tools") or () if tools is None else tools),
        switches=switches or {},
        tools_in=template.tool_form.source,
    )


# -- parts -----------------------------------------------------------------------------------------


def call_part(call: ToolCall) -> Part:
    return {
        "type": "tool_call",
        "call": {"id": call.id, "name": call.name, "arguments": dict(call.arguments)},
    }


def calls_in(parts: Sequence[Part]) -> tuple[ToolCall, ...]:
    """An imported one may have arguments of any shape."""
    calls = [part["call"] for part in parts if part.get("type") == "tool_call"]
    return tuple(
        ToolCall(
            str(call.get("id") or ""),
            str(call.get("name") or ""),
            arguments
            if isinstance(arguments := call.get("arguments"), Mapping)
            else {"arguments": arguments},
        )
        for call in calls
    )


def call_id(message: str, index: int) -> str:
    """Nine letters and digits, as some templates want them; the same each time it is asked for."""
    number = int.from_bytes(hashlib.blake2b(f"{message} {index}".encode(), digest_size=8).digest())
    letters = []
    for _ in range(9):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(letters)


def result_message(call: ToolCall, text: str, status: Status) -> NewMessage:
    part = {**text_part(text), "tool": call.name, "call": call.id, "status": status}
    return NewMessage("tool", (part,))


def result_of(parts: Sequence[Part]) -> tuple[str | None, str | None]:
    """Of a tool message: the tool's name, the call it answers."""
    for part in parts:
        if "call" in part or "tool" in part:
            return part.get("tool"), part.get("call")
    return None, None


# -- what is open ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The results that come next on a path."""

    messages: tuple[NewMessage, ...] = ()
    made_up: tuple[str, ...] = ()  # names of the tools whose results nobody gave


def open_calls(path: Sequence[Message]) -> list[ToolCall]:
    """Calls of the last answer on the path that no result follows, in their order."""
    answered = set()
    for message in reversed(path):
        if message.role == "tool":
            answered.add(result_of(message.parts)[1])
            continue
        calls = calls_in(message.parts) if message.role == "assistant" else ()
        return [call for call in calls if call.id not in answered]
    return []


def results_after(path: Sequence[Message], given: Sequence[Result]) -> Answered:
    """A result for every open call: ``given``, or made up. InvalidInput names one too many."""
    waiting = open_calls(path)
    known = {call.id for call in waiting}
    texts: dict[str, Result] = {}
    for index, result in enumerate(given):
        if result["call"] not in known or result["call"] in texts:
            raise InvalidInput(
                f"results[{index}].call: no call {result['call']!r} is waiting for a result here",
                field="results",
            )
        texts[result["call"]] = result
    messages, made_up = [], []
    for call in waiting:
        told = texts.get(call.id)
        if told is None:
            made_up.append(call.name)
            messages.append(result_message(call, INTERRUPTED, "interrupted"))
        else:
            messages.append(result_message(call, told["text"], told.get("status", "ok")))
    return Answered(tuple(messages), tuple(made_up))


def answered_by(path: Sequence[Message], messages: Sequence[NewMessage]) -> Answered:
    """``messages`` behind a path, with made-up results where calls, of the path or among them, get
    none before something else is said.
    """
    told: list[NewMessage] = []
    made_up: list[str] = []
    waiting = open_calls(path)
    for message in messages:
        if message.role == "tool":
            answered = result_of(message.parts)[1]
            waiting = [call for call in waiting if call.id != answered]
        else:
            told += _made_up(waiting)
            made_up += [call.name for call in waiting]
            waiting = [*calls_in(message.parts)] if message.role == "assistant" else []
        told.append(message)
    made_up += [call.name for call in waiting]
    return Answered((*told, *_made_up(waiting)), tuple(made_up))


def _made_up(calls: Sequence[ToolCall]) -> list[NewMessage]:
    return [result_message(call, INTERRUPTED, "interrupted") for call in calls]


# -- in one line -----------------------------------------------------------------------------------


def call_line(call: ToolCall) -> str:
    """``shell pytest -q``, ``edit src/a.py``: one argument says most."""
    names = [*(name for name in TELLING if name in call.arguments), *call.arguments]
    values = [call.arguments[name] for name in names if isinstance(call.arguments[name], str)]
    first = " ".join(values[0].split()) if values else ""
    if not first and call.arguments:
        first = json.dumps(dict(call.arguments), ensure_ascii=False)
    cut = first if len(first) <= CALL_WORDS else f"{first[: CALL_WORDS - 3]}..."
    return f"{call.name} {cut}".rstrip()


def shown_calls(text: str, parts: Sequence[Part]) -> str:
    """An answer in one line, with what it calls."""
    lines = "; ".join(call_line(call) for call in calls_in(parts))
    return f"{text.rstrip()} -> {lines}".lstrip() if lines else text
