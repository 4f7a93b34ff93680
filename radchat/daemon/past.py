"""The path so far as the template sees it, with the ids the model saw.

The ids of a long conversation's prompts overlap almost wholly, and of most the template looks at
none. So the whole path is read once, and a prompt's ids are put together when they are asked for.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from radchat.daemon.tools import calls_in, result_of
from radchat.engine.conversation import Point, PromptRecord, Turn
from radchat.engine.request import Ids
from radchat_sessions.content import Part
from radchat_sessions.messages import Message, NewMessage, Prompt
from radchat_sessions.store import Store


class StoredPrompt(PromptRecord):
    """A record whose ``ids`` are read when somebody looks."""

    __slots__ = ("_read",)
    _read: Callable[[], Ids]

    def __init__(self, prompt: Prompt, read: Callable[[], Ids]) -> None:
        object.__setattr__(self, "settings", prompt.settings)
        object.__setattr__(self, "points", tuple(Point(*point) for point in prompt.points))
        object.__setattr__(self, "_read", read)

    @property
    def ids(self) -> Ids:
        return self._read()


class Past:
    """A path of messages: its prompts, its answers' ids, its turns. Used on the desk's thread."""

    def __init__(self, store: Store, path: Sequence[Message]) -> None:
        self._store = store
        self.path = path
        on_path = store.prompts_on(path[-1].id) if path else []  # newest first
        self.prompts = {prompt.id: prompt for prompt in on_path}
        self._answers = {m.id: m.prompt for m in path if m.prompt is not None}
        self._outs: dict[str, Ids] = {}
        self._ids: dict[str, Ids] = {}

    def prompts_at(self, message_id: str | None) -> list[Prompt]:
        """Those that end at this message, newest first."""
        return [prompt for prompt in self.prompts.values() if prompt.message == message_id]

    def out(self, answer_id: str) -> Ids:
        if answer_id not in self._outs:
            self._outs[answer_id] = self._store.out(answer_id) or array("I")
        return self._outs[answer_id]

    def ids(self, prompt_id: str) -> Ids:
        """``ids(base)[:kept] + tail``, through the bases down to one that is known."""
        if prompt_id in self._ids:
            return self._ids[prompt_id]
        pieces: list[Ids] = []  # back to front
        current, wanted = prompt_id, self.prompts[prompt_id].length
        while wanted:
            known = self._known(current)
            if known is not None:
                pieces.append(known[:wanted])
                break
            prompt = self.prompts[current]
            kept = min(prompt.kept, wanted)
            pieces.append(prompt.tail[: wanted - kept])
            base = prompt.base_prompt
            if prompt.base_message is not None:
                base = self._answers[prompt.base_message]
                length = self.prompts[base].length
                pieces.append(self.out(prompt.base_message)[: max(0, kept - length)])
                kept = min(kept, length)
            if base is None:
                break
            current, wanted = base, kept
        ids = array("I")
        for piece in reversed(pieces):
            ids.extend(piece)
        self._ids[prompt_id] = ids
        return ids

    def _known(self, prompt_id: str) -> Ids | None:
        """Put together before; or what stands on another path, where the store knows its way."""
        found = self._ids.get(prompt_id)
        if found is not None:
            return found
        prompt = self.prompts.get(prompt_id)
        base = None if prompt is None else prompt.base_message
        if prompt is None or (base is not None and self._answers.get(base) not in self.prompts):
            return self._store.prompt_ids(prompt_id)
        return None

    def turns(self, tokenizer: str) -> list[Turn]:
        """Each message; answers of another tokenizer than this hash are text to it."""
        cleared: set[str] = set()
        for prompt in self.prompts.values():
            cleared.update(prompt.extra.get("cleared", ()))
        return [self._turn(message, tokenizer, cleared) for message in self.path]

    def _turn(self, message: Message, tokenizer: str, cleared: set[str]) -> Turn:
        prompt = None if message.prompt is None else self.prompts[message.prompt]
        if prompt is None or prompt.tokenizer != tokenizer:
            return turn(message.role, message.parts)
        key = prompt.id
        return turn(
            message.role,
            message.parts,
            prompt=StoredPrompt(prompt, lambda: self.ids(key)),
            out=self.out(message.id),
            stopped=message.stopped,
            holds=None if message.id in cleared else message.holds,
        )


def turn(
    role: str,
    parts: Sequence[Part],
    *,
    prompt: PromptRecord | None = None,
    out: Ids | None = None,
    stopped: bool = False,
    holds: str | None = None,
) -> Turn:
    tool, call = result_of(parts) if role == "tool" else (None, None)
    reasoning = "".join(str(p["text"]) for p in parts if p.get("type") == "reasoning")
    return Turn(
        role=role,
        text=spoken(parts),
        reasoning=reasoning or None,
        tool_calls=calls_in(parts) if role == "assistant" else (),
        name=tool,
        tool_call_id=call,
        prompt=prompt,
        out=out,
        stopped=stopped,
        holds=holds,
    )


def as_messages(path: Sequence[Message], new: Sequence[NewMessage]) -> list[dict[str, Any]]:
    """A conversation as OpenAI's messages, for a server that takes no ids."""
    told = []
    every: list[Message | NewMessage] = [*path, *new]
    for message in every:
        one: dict[str, Any] = {"role": message.role, "content": spoken(message.parts)}
        if message.role == "tool":
            one["tool_call_id"] = result_of(message.parts)[1]
        calls = calls_in(message.parts) if message.role == "assistant" else ()
        if calls:
            one["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in calls
            ]
        told.append(one)
    return told


def spoken(parts: Sequence[Part]) -> str:
    """What the model reads of a message: facts, files, each under its name, then the text."""
    facts = [str(p["text"]) for p in parts if p.get("type") == "facts"]
    files = [p for p in parts if p.get("type") == "file"]
    text = "".join(str(p.get("text", "")) for p in parts if p.get("type") == "text")
    blocks = [file_block(p) for p in files]
    before = [*facts, *blocks]
    return "\n\n".join([*before, text] if text or not before else before)


def file_block(part: Part) -> str:
    return f"{part['name']}:\n\n{str(part['text']).rstrip()}"
