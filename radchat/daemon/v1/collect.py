"""From the events of ``generate`` to a chat completion: whole, or in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radchat.daemon.v1 import wires
from radchat.daemon.v1.logprobs import chat_shape
from radchat.protocol import Event

if TYPE_CHECKING:
    from starlette.types import Send

    from radchat.engine.tokenizer import Tokenizer

_ABOUT = "schema interrupted context recompute branched ended failed think remote not_saved"
TOLD = frozenset(_ABOUT.split())  # codes of notices that are about an answer


def finish_of(body: Mapping[str, Any]) -> str:
    """OpenAI's word for how an answer ended: one that was cut off, whatever by, was too long."""
    reason = str(body["finish_reason"])
    if reason in ("length", "dead_end", "abort"):
        return "length"
    if reason == "error":
        return "error"
    return "tool_calls" if body.get("calls") else "stop"


def usage_json(usage: Mapping[str, Any]) -> dict[str, Any]:
    """``usage`` of an answer, or the sum of several: their prompt counts once."""
    prompt, said = int(usage["input_tokens"]), int(usage["output_tokens"])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": usage["cached_input_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": int(usage.get("reasoning_tokens") or 0)},
    }


def calls_json(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments_text"]},
        }
        for call in calls
    ]


class Completion:
    """What is known of one while its events come.

    ``tokenizer_of``: of a loaded model and dtype. ``is_kept``: in a session, of which is told.
    ``on_answer`` hears each answer's body.
    """

    def __init__(
        self,
        tokenizer_of: Callable[[str, str], Tokenizer | None],
        on_answer: Callable[[Mapping[str, Any]], None],
        *,
        is_kept: bool,
    ) -> None:
        self._tokenizer_of, self._on_answer, self._is_kept = tokenizer_of, on_answer, is_kept
        self.tokenizer: Tokenizer | None = None
        self.init: Mapping[str, Any] = {}
        self.answers: dict[int, Mapping[str, Any]] = {}
        self.parts: dict[int, dict[int, dict[str, Any]]] = {}  # calls as they are written
        self.usage: Mapping[str, Any] | None = None
        self.notices: list[dict[str, Any]] = []
        self._created = int(time.time())

    def hear(self, event: Event) -> None:
        data = event.data
        if event.name == "init":
            self.init = data
            self.tokenizer = self._tokenizer_of(data["model"], data["dtype"])
        elif event.name == "notice" and data.get("code") in TOLD:
            self.notices.append({"code": data["code"], "text": data["text"]})
        elif event.name == "call_part":
            self._take_part(data)
        elif event.name == "message":
            self.answers[data["choice"]] = data
            if data["finish_reason"] == "stop" and data.get("schema_error"):
                self.notices.append({"code": "schema", "text": data["schema_error"]})
            self._on_answer(data)
        elif event.name == "done":
            self.usage = data["usage"]

    def _take_part(self, data: Mapping[str, Any]) -> None:
        calls = self.parts.setdefault(data["choice"], {})
        call = calls.setdefault(
            data["index"], {"id": data.get("id"), "name": data.get("name"), "arguments_text": ""}
        )
        call["arguments_text"] += data["text"]

    @property
    def head(self) -> dict[str, Any]:
        """What the whole and each chunk begin with."""
        return {
            "id": f"chatcmpl-{self.init['request']}",
            "created": self._created,
            "model": self.init["model"],
            "system_fingerprint": f"radchat-{self.init['dtype']}",
        }

    def kept(self, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Of the session, and of an answer in it; in passing, by what it can be gone on from."""
        if not self._is_kept:
            return {} if body is None or body["message"] is None else {"message": body["message"]}
        told = {"session": self.init["session"], "name": self.init["name"]}
        if body is None:
            return {**told, "parent": self.init["user"]}
        return {**told, **{name: body[name] for name in ("message", "parent", "branch")}}

    def message_of(self, choice: int) -> dict[str, Any]:
        body = self.answers[choice]
        calls = list(self.parts.get(choice, {}).values())
        content = str(body["text"])
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if body["reasoning"]:
            message["reasoning_content"] = body["reasoning"]
        if calls:
            message["tool_calls"] = calls_json(calls)
        return message

    def logprobs(self, told: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
        if told is None or self.tokenizer is None:
            return None
        return {"content": chat_shape(self.tokenizer, told), "refusal": None}

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, body in sorted(self.answers.items()):
            choice = {
                "index": number,
                "message": self.message_of(number),
                "logprobs": self.logprobs(body.get("logprobs")),
                "finish_reason": finish_of(body),
            }
            if told := self.kept(body):
                choice["radchat"] = told
            choices.append(choice)
        told = self.kept(self.answers[min(self.answers)])
        if self.notices:
            told["notices"] = self.notices
        return {
            "object": "chat.completion",
            **self.head,
            "choices": choices,
            "usage": None if self.usage is None else usage_json(self.usage),
            **({"radchat": told} if told else {}),
        }


class ChunkWire(wires.ChunkWire):
    def __init__(self, send: Send, completion: Completion, *, include_usage: bool) -> None:
        super().__init__(send)
        self._completion, self._include_usage = completion, include_usage
        self._told: set[int] = set()  # choices whose role was told

    @property
    def has_begun(self) -> bool:
        return bool(self._completion.init)

    def last(self) -> Iterator[Mapping[str, Any]]:
        if self._include_usage and self.has_begun:
            usage = self._completion.usage
            told = None if usage is None else usage_json(usage)
            yield {**self._head(), "choices": [], "usage": told}

    def chunks(self, event: Event) -> Iterator[Mapping[str, Any]]:
        done, data = self._completion, event.data
        done.hear(event)
        if event.name == "delta" and data["text"]:
            yield self._chunk(data["choice"], {"content": data["text"]})
        elif event.name == "reasoning" and data["text"]:
            yield self._chunk(data["choice"], {"reasoning_content": data["text"]})
        elif event.name == "logprobs":
            told = done.logprobs(data["logprobs"])
            if told is not None and told["content"]:
                yield self._chunk(data["choice"], {}, logprobs=told)
        elif event.name == "call_part":
            call: dict[str, Any] = {"index": data["index"]}
            function = {"arguments": data["text"]}
            if "name" in data:
                call |= {"id": data["id"], "type": "function"}
                function = {"name": data["name"], **function}
            yield self._chunk(data["choice"], {"tool_calls": [{**call, "function": function}]})
        elif event.name == "message":
            chunk = self._chunk(data["choice"], {}, finish=finish_of(data))
            told = done.kept(data)
            if done.notices:
                told["notices"] = done.notices
            yield {**chunk, **({"radchat": told} if told else {})}

    def _head(self) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return {"object": "chat.completion.chunk", **self._completion.head, **usage}

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        is_first = choice not in self._told
        self._told.add(choice)
        if is_first:
            delta = {"role": "assistant", "content": "", **delta}
        one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        told = self._completion.kept() if is_first else {}
        return {**self._head(), "choices": [one], **({"radchat": told} if told else {})}
