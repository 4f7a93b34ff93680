"""What a server of another make is asked, and what it answers: one small class for each make.

A dialect knows paths and JSON. Connections, retries, stop strings and endings are ``engine.py``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from radchat.engine.request import SamplingParams, TokenLogprob
from radchat.errors import InvalidInput

if TYPE_CHECKING:
    from radchat.engine.grammar import Grammar

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and the model it was asked for. ``root``: where that is from, as the server says;
    its tokenizer is there too.
    """

    dialect: str
    url: str  # without a path: http://host:port
    model: str
    context_length: int | None = None
    root: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "dialect": self.dialect,
            "url": self.url,
            "model": self.model,
            "context_length": self.context_length,
            "root": self.root,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """One sample. ``messages``: the conversation, for servers that take nothing else."""

    ids: Sequence[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    grammar: Grammar | None = None
    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says: new ids, or new text where the server speaks no ids.

    ``missing``: so many ids before these were not told; ``text`` has their words too.
    """

    ids: Sequence[int] = ()
    text: str = ""
    finish: Finish | None = None
    cached: int | None = None  # tokens of the prompt; None: not told in this event
    logprobs: Sequence[TokenLogprob] = field(default=())
    missing: int = 0


class Reading(Protocol):
    """Reads the events of one answer, in order."""

    def read(self, data: Mapping[str, Any]) -> Piece: ...


class Dialect(Protocol):
    name: str
    title: str  # for people
    takes_ids: bool

    def call(self, served: Served, asked: Asked) -> tuple[str, dict[str, Any]]:
        """The path and the JSON of a request. InvalidInput names what can't be asked there."""
        ...

    def reading(self) -> Reading: ...


def refused(dialect: str, what: str) -> InvalidInput:
    return InvalidInput(f"{what}: {dialect} can't be asked for it; a model on this machine can")


def schema_of(grammar: Grammar) -> Any:
    return json.loads(grammar.source)


def choices_of(grammar: Grammar) -> list[str]:
    return [str(each) for each in json.loads(grammar.source)]


def usual(params: SamplingParams) -> dict[str, Any]:
    """What all of them call alike."""
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }


def bias(params: SamplingParams) -> dict[str, Any]:
    found = {str(token): value for token, value in params.logit_bias.items()}
    return {"logit_bias": found} if found else {}
