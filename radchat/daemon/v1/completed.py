"""From the events of ``raw.complete`` to a completion: whole, or in chunks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radchat.daemon.outgoing import Wire
from radchat.daemon.v1 import wires
from radchat.daemon.v1.collect import usage_json
from radchat.daemon.v1.completion_bodies import CompletionBody
from radchat.daemon.v1.gate import MakeWire
from radchat.daemon.v1.logprobs import legacy_shape, token_text
from radchat.protocol import Event

if TYPE_CHECKING:
    from starlette.types import Send

    from radchat.engine.tokenizer import Tokenizer

FINISHED = {"stop": "stop", "length": "length", "dead_end": "length", "abort": "length"}


class Choice:
    """One, as it comes."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.logprobs: list[dict[str, Any]] = []
        self.end: Mapping[str, Any] | None = None

    @property
    def reason(self) -> str:
        assert self.end is not None
        return FINISHED.get(self.end["reason"], "error")


class Completion:
    def __init__(
        self, body: CompletionBody, tokenizer_of: Callable[[str, str], Tokenizer | None]
    ) -> None:
        self.body, self._tokenizer_of = body, tokenizer_of
        self.tokenizer: Tokenizer | None = None
        self.init: Mapping[str, Any] = {}
        self.choices: dict[int, Choice] = {}
        self._created = int(time.time())

    def hear(self, event: Event) -> None:
        data = event.data
        if event.name == "init":
            self.init = data
            self.tokenizer = self._tokenizer_of(data["model"], data["dtype"])
            return
        if event.name == "done":
            return
        choice = self.choices.setdefault(data["choice"], Choice())
        choice.text += data["text"]
        if event.name == "text":
            choice.ids += data["ids"]
            choice.logprobs += data["logprobs"]
        elif event.name == "end":
            choice.end = data
            del choice.ids[data["kept"] :]
            del choice.logprobs[data["kept"] :]

    @property
    def n(self) -> int:
        return self.body.n or 1

    @property
    def head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.init['request']}",
            "object": "text_completion",
            "created": self._created,
            "model": self.init["model"],
            "system_fingerprint": f"radchat-{self.init['dtype']}",
        }

    def prompt_of(self, number: int) -> list[int]:
        return list(self.init["prompts"][number // self.n])

    def prompt_text(self, number: int) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(self.prompt_of(number))

    def usage(self) -> dict[str, Any]:
        """Each prompt once, and all that was said."""
        ends = [(number, c.end) for number, c in sorted(self.choices.items()) if c.end is not None]
        firsts = [end["usage"] for number, end in ends if number % self.n == 0]
        cached = [usage["cached_input_tokens"] for usage in firsts]
        return usage_json(
            {
                "input_tokens": sum(usage["input_tokens"] for usage in firsts),
                "cached_input_tokens": None if None in cached else sum(cached),
                "output_tokens": sum(end["usage"]["output_tokens"] for _, end in ends),
            }
        )

    def logprobs(self, number: int) -> dict[str, Any] | None:
        if self.body.logprobs is None or self.tokenizer is None:
            return None
        choice = self.choices[number]
        scores = choice.end and choice.end["prompt_logprobs"]
        before: list[Mapping[str, Any]] = []
        if self.body.echo:  # the first token of a prompt follows nothing
            ids = self.prompt_of(number)
            nothing = [{"id": token, "logprob": None, "top": None} for token in ids]
            before = [told or none for told, none in zip(scores or (), nothing, strict=False)]
        return legacy_shape(
            self.tokenizer,
            [*before, *choice.logprobs],
            as_ids=bool(self.body.return_tokens_as_token_ids),
        )

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, choice in sorted(self.choices.items()):
            text = (self.prompt_text(number) if self.body.echo else "") + choice.text
            one: dict[str, Any] = {
                "index": number,
                "text": text,
                "logprobs": self.logprobs(number),
                "finish_reason": choice.reason,
            }
            if self.body.return_token_ids:
                one |= {"token_ids": choice.ids, "prompt_token_ids": self.prompt_of(number)}
            choices.append(one)
        return {**self.head, "choices": choices, "usage": self.usage()}


class ChunkWire(wires.ChunkWire):
    def __init__(self, send: Send, completion: Completion, *, include_usage: bool) -> None:
        super().__init__(send)
        self._completion, self._include_usage = completion, include_usage
        self._told: set[int] = set()
        self._offsets: Counter[int] = Counter()  # characters of tokens told, by choice

    def chunks(self, event: Event) -> Iterator[Mapping[str, Any]]:
        done, data = self._completion, event.data
        done.hear(event)
        if event.name not in ("text", "end"):
            return
        number = data["choice"]
        is_first = number not in self._told
        text = data["text"]
        if is_first and done.body.echo:
            text = done.prompt_text(number) + text
        is_end = event.name == "end"
        ids = [] if is_end else data["ids"]
        if not (text or ids or is_end):
            return
        self._told.add(number)
        one: dict[str, Any] = {
            "index": number,
            "text": text,
            "logprobs": self._logprobs(number, [] if is_end else data["logprobs"], is_end),
            "finish_reason": done.choices[number].reason if is_end else None,
        }
        if done.body.return_token_ids:
            one["token_ids"] = ids
            if is_first:
                one["prompt_token_ids"] = done.prompt_of(number)
            if is_end:
                one["kept_tokens"] = data["kept"]
        yield {**done.head, **({"usage": None} if self._include_usage else {}), "choices": [one]}

    def last(self) -> Iterator[Mapping[str, Any]]:
        if self._include_usage:
            yield {**self._completion.head, "choices": [], "usage": self._completion.usage()}

    def _logprobs(
        self, number: int, told: Sequence[Mapping[str, Any]], is_end: bool
    ) -> dict[str, Any] | None:
        """Where a stop string may take tokens away again, all of them at the end."""
        done = self._completion
        if done.body.logprobs is None or done.tokenizer is None:
            return None
        if done.body.stop:
            told = done.choices[number].logprobs if is_end else []
        if not told:
            return None
        as_ids, offset = bool(done.body.return_tokens_as_token_ids), self._offsets[number]
        self._offsets[number] += sum(len(token_text(done.tokenizer, e["id"])) for e in told)
        return legacy_shape(done.tokenizer, told, offset=offset, as_ids=as_ids)


def wire_of(completion: Completion) -> MakeWire:
    body = completion.body

    def make(send: Send) -> Wire:
        if not body.stream:
            return wires.WholeWire(send, completion)
        include = bool(body.stream_options and body.stream_options.include_usage)
        return ChunkWire(send, completion, include_usage=include)

    return make
