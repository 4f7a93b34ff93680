"""A conversation as its template sees it: normalised, masked, in the form this template reads.

Every string of people, tools and parsed answers is masked, so the only control tokens in a
rendering are the template's own and those that stand as control ids in a sampled answer given raw.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from radchat.engine.conversation import ROLES, Settings, ToolCall, Turn
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.request import Ids
from radchat.engine.tokenizer import Tokenizer, join_surrogates
from radchat.engine.tool_order import in_order
from radchat.errors import InvalidInput

Message: TypeAlias = dict[str, Any]

_LETTERS = string.ascii_letters + string.digits
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Form:
    """How a template wants conversations written; learned by the probes."""

    no_tools: Literal["null", "empty"] = "null"
    calls: Literal["shown", "raw"] = "raw"
    arguments: Literal["dict", "string"] = "dict"
    call_ids: Literal["any", "nine"] = "any"
    reasoning: Literal["field", "raw", "none"] = "none"
    open_mark: str = ""
    close_mark: str = ""
    said_mark: str = ""  # where an answer's words for the user begin
    call_ending: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A conversation ready to be rendered again and again, with small changes."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    switches: Mapping[str, Any]
    clock: datetime
    texts: tuple[str, ...] = field(default=())  # of each message: what must show


class Renderer:
    def __init__(self, compiled: CompiledTemplate, tokenizer: Tokenizer, form: Form) -> None:
        self.compiled = compiled
        self.tokenizer = tokenizer
        self.form = form

    def view(self, turns: Sequence[Turn], settings: Settings) -> View:
        """InvalidInput for what no template could show."""
        if not turns:
            raise InvalidInput("messages: want at least one")
        call_ids = self._call_ids(turns)
        return View(
            messages=tuple(
                self._message(turn, call_ids[i], i, turns) for i, turn in enumerate(turns)
            ),
            tools=self.tools(settings.tools),
            switches=self._masked(settings.switches, "switches"),
            clock=settings.clock,
            texts=tuple(self.text(turn.text) for turn in turns),
        )

    def render(self, view: View, *, opening: bool = True, upto: int | None = None) -> str:
        tools = view.tools or (() if self.form.no_tools == "empty" else None)
        return self.compiled.render(
            view.messages[:upto],
            tools=tools,
            opening=opening,
            clock=view.clock,
            switches=view.switches,
        )

    def with_answer(self, view: View, i: int, text: str, *, in_call: bool = False) -> View:
        """Message i's content, or the last argument of its last call, replaced by ``text``."""
        message = {
            k: v for k, v in view.messages[i].items() if k not in ("reasoning_content", "thinking")
        }
        if in_call:
            calls = [dict(call) for call in message["tool_calls"]]
            function = dict(calls[-1]["function"])
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            name = next(reversed(arguments), "x")
            changed = {**arguments, name: text}
            function["arguments"] = self._arguments(changed)
            calls[-1]["function"] = function
            message["tool_calls"] = calls
            if self.form.reasoning == "raw":
                message["content"] = ""
        else:
            message["content"] = text
            message.pop("tool_calls", None)
        return replace(view, messages=(*view.messages[:i], message, *view.messages[i + 1 :]))

    def text(self, text: str) -> str:
        return self.tokenizer.mask(join_surrogates(text))

    def raw(self, turn: Turn) -> str:
        """A sampled answer as the model wrote it: control ids as control text, no stop token."""
        assert turn.prompt is not None
        assert turn.out is not None
        out = turn.out[:-1] if turn.stopped else turn.out
        opened = self.form.open_mark if self.opens_reasoning(turn.prompt.ids) else ""
        return opened + self.tokenizer.decode_masked(out)

    def opens_reasoning(self, ids: Ids) -> bool:
        """Whether a prompt ends inside a reasoning block that its opening began."""
        mark = self.form.open_mark
        return bool(mark) and self.tokenizer.decode(ids[-32:]).rstrip().endswith(mark.rstrip())

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        """Tool schemas in one order, keys in one order, masked."""
        return self.tools_in_order([self._masked(tool, "tools") for tool in tools])

    @staticmethod
    def tools_in_order(tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        wrapped = [
            tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
        ]
        ordered = [in_order(tool) for tool in wrapped]
        return tuple(sorted(ordered, key=lambda tool: json.dumps(tool["function"].get("name"))
                            + json.dumps(tool)))  # fmt: skip

    # -- one message ---------------------------------------------------------------------------

    def _message(
        self, turn: Turn, call_ids: tuple[str, ...], i: int, turns: Sequence[Turn]
    ) -> Message:
        if turn.role not in ROLES:
            raise InvalidInput(f"messages[{i}]: unknown role {turn.role!r}", index=i)
        message: Message = {"role": turn.role, "content": self.text(turn.text)}
        if turn.role == "assistant":
            self._answer(message, turn, call_ids)
        elif turn.role == "tool":
            if call_ids:
                message["tool_call_id"] = self.text(call_ids[0])
            name = turn.name or _called_name(turns, i)
            if name:
                message["name"] = self.text(name)
        elif turn.name:
            message["name"] = self.text(turn.name)
        return message

    def _answer(self, message: Message, turn: Turn, call_ids: tuple[str, ...]) -> None:
        form = self.form
        raw_calls = bool(turn.tool_calls) and form.calls == "raw"
        if raw_calls or (turn.reasoning is not None and form.reasoning != "field"):
            if turn.is_sampled and (raw_calls or not turn.tool_calls):
                message["content"] = self.raw(turn)
            else:
                message["content"] = self._written(turn, with_calls=raw_calls)
        elif turn.reasoning is not None:
            message["reasoning_content"] = message["thinking"] = self.text(turn.reasoning)
        if turn.tool_calls and not raw_calls:
            message["tool_calls"] = [
                {
                    "id": self.text(call_id),
                    "type": "function",
                    "function": {
                        "name": self.text(call.name),
                        "arguments": self._arguments(self._masked(call.arguments, "arguments")),
                    },
                }
                for call_id, call in zip(call_ids, turn.tool_calls, strict=True)
            ]

    def _written(self, turn: Turn, *, with_calls: bool) -> str:
        """An answer as text, as this model would have written it."""
        parts: list[str] = []
        if turn.reasoning is not None and self.form.open_mark:
            marks = (self.form.open_mark, self.form.close_mark)
            parts.append(f"{marks[0]}\n{self.text(turn.reasoning)}\n{marks[1]}\n")
        if turn.text:
            parts.append(self.text(turn.text))
        parts += [self._written_call(call) for call in turn.tool_calls if with_calls]
        return "\n".join(parts)

    def _written_call(self, call: ToolCall) -> str:
        body = {"name": call.name, "arguments": self._masked(call.arguments, "arguments")}
        return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"

    def _arguments(self, arguments: Mapping[str, Any]) -> Any:
        if self.form.arguments == "string":
            return json.dumps(arguments, ensure_ascii=False)
        return dict(arguments)

    def _masked(self, value: Any, where: str) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            for key in value:
                if self.text(str(key)) != str(key):
                    raise InvalidInput(f"{where}: a key contains a control token: {key!r}")
            return {str(key): self._masked(item, where) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._masked(item, where) for item in value]
        return value

    # -- tool-call ids -------------------------------------------------------------------------

    def _call_ids(self, turns: Sequence[Turn]) -> list[tuple[str, ...]]:
        """Of each message: the ids of its calls, or the one of the call it answers.

        Unique in the conversation. A new name depends only on the place of the call, so that it is
        the same each time the conversation is rendered.
        """
        used: set[str] = set()
        waiting: list[tuple[str, str]] = []  # (id as given, id as used) of unanswered calls
        result: list[tuple[str, ...]] = []
        for i, turn in enumerate(turns):
            names: list[str] = []
            if turn.role == "assistant":
                waiting = []
                for n, call in enumerate(turn.tool_calls):
                    name = call.id
                    bad = self.form.call_ids == "nine" and not _NINE.fullmatch(name)
                    if not name or name in used or bad:
                        name = _nine_letters(f"{i} {n} {call.id}")
                    used.add(name)
                    names.append(name)
                    waiting.append((call.id, name))
            elif turn.role == "tool":
                given = turn.tool_call_id
                found = [pair for pair in waiting if given in (None, "", pair[0])]
                if found:
                    names.append(found[0][1])
                    waiting.remove(found[0])
                elif given:
                    names.append(given)
            result.append(tuple(names))
        return result


def random_word() -> str:
    """A sentinel: ASCII letters and digits, more than 64 random bits."""
    return "S" + "".join(secrets.choice(_LETTERS) for _ in range(19))


def _nine_letters(seed: str) -> str:
    number = int.from_bytes(
        hashlib.blake2b(seed.encode("utf-8", "replace"), digest_size=8).digest()
    )
    letters = []
    for _ in range(9):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(letters)


def _called_name(turns: Sequence[Turn], i: int) -> str | None:
    """The function whose result message i is: by id, else in the order of the calls."""
    place = i - 1
    while place >= 0 and turns[place].role == "tool":
        place -= 1
    calls = turns[place].tool_calls if place >= 0 else ()
    by_id = [call.name for call in calls if call.id and call.id == turns[i].tool_call_id]
    if by_id:
        return by_id[0]
    order = i - place - 1
    return calls[order].name if order < len(calls) else None
