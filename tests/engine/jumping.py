"""Engines whose model writes text of a small tokenizer, and requests that hold it to a grammar."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from radchat.engine.detokenize import StopChecker
from radchat.engine.engine import Engine
from radchat.engine.grammar import Grammar, GrammarKind
from radchat.engine.grammars import Compiled, Grammars
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, Request, SamplingParams, Tokens
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.words import TextFactory
from tests.engine.text_toys import toy_tokenizer
from tests.fakes import LogicalClock, ScriptedModel, drain, finished, output, text

PAGE = 16
LAYOUTS = ("gpt2", "llama3", "metaspace-always", "prefix-normalizer")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "system": {"enum": ["weather", "search", "the answer é — 漢字"]},
        "content": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "system", "content"],
    "additionalProperties": False,
}


@cache
def tokenizer(layout: str = "gpt2") -> Tokenizer:
    return toy_tokenizer("chatml", layout)


@cache
def end_of(layout: str = "gpt2") -> int:
    return tokenizer(layout).control["<|im_end|>"]


@cache
def grammars(layout: str = "gpt2", *, ends: bool = True) -> Grammars:
    known = tokenizer(layout)
    return Grammars(known, known.vocab_size, frozenset({end_of(layout)} if ends else ()))


def held_to(
    kind: GrammarKind, source: object, layout: str = "gpt2", *, ends: bool = True, **more: Any
) -> Compiled:
    text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
    return grammars(layout, ends=ends).compile(Grammar(kind, text, **more))


def any_token(size: int, ids: Sequence[int]) -> Mapping[int, float]:
    """Scores for every id, that depend on every id before."""
    dice = random.Random(array("I", ids).tobytes())
    return {token: dice.random() * 6 for token in range(size)}


def text_of(layout: str) -> TextFactory:
    def text(request: Request) -> tuple[Any, StopChecker]:
        said = request.ids[len(request.ids) - request.said :]
        return tokenizer(layout).detokenizer(said), StopChecker(request.params.stop)

    return text


def jumping_engine(
    layout: str = "gpt2",
    *,
    scores: Callable[[Sequence[int]], Mapping[int, float]] | None = None,
    model: ScriptedModel | None = None,
    pool_tokens: int = 4096,
    **options: Any,
) -> Engine:
    num_pages = -(-pool_tokens // PAGE) + 1
    clock = LogicalClock()
    size = tokenizer(layout).vocab_size
    return Engine(
        model or ScriptedModel(vocab_size=size, scores=scores or partial(any_token, size)),
        KVPool(1, num_pages, PAGE, 1, 1, torch.float32, poison=True),
        PrefixCache(num_pages, PAGE, wall_clock=clock),
        text_of(layout),
        options=SchedulerOptions(**{"chunk_tokens": 64, **options}),
        clock=clock,
        check=True,
        pause=clock.advance,
    )


class Asked:
    """The same requests with jump-forward and without."""

    def __init__(self, *requests: Request, layout: str = "gpt2", **options: Any) -> None:
        self.engine = {jump: jumping_engine(layout, **options) for jump in (True, False)}
        self.events: dict[bool, list[Event]] = {}
        for jump, engine in self.engine.items():
            for request in requests:
                engine.submit(replace(request, jump=jump))
            self.events[jump] = drain(engine)
            engine.check_idle()
            assert isinstance(engine.model, ScriptedModel)
            assert engine.model.tokens_computed == engine.rows_run, "the model's own count"
            for request in requests:
                check_counts(self.events[jump], request)
        for request in requests:
            assert told(self.events[True], request) == told(self.events[False], request)

    @property
    def steps(self) -> tuple[int, int]:
        return self.engine[True].stats()["steps"], self.engine[False].stats()["steps"]


def told(events: Sequence[Event], request: Request) -> list[tuple[object, ...]]:
    """All that is said of each choice, but how it was come by."""
    found: list[tuple[object, ...]] = []
    for choice in range(request.n):
        end = finished(events, request.id, choice)
        said = output(events, request.id, choice), text(events, request.id, choice)
        found.append((*said, end.reason, end.kept, end.stopped, end.usage.output_tokens))
    return found


def check_counts(events: Sequence[Event], request: Request) -> None:
    for choice in range(request.n):
        usage = finished(events, request.id, choice).usage
        assert usage.cached_tokens + usage.computed == usage.input_tokens == len(request.ids)
        mine = [
            each
            for each in events
            if isinstance(each, Tokens) and (each.request_id, each.choice) == (request.id, choice)
        ]
        assert usage.output_tokens == sum(len(each.ids) for each in mine)
        assert usage.forced_tokens == sum(len(each.ids) for each in mine if each.forced)
        assert request.jump or not usage.forced_tokens
        assert all(each.ids for each in mine)
        assert all(len(each.ids) == 1 for each in mine if not each.forced)


def asking(
    name: str, grammar: Compiled | None, layout: str = "gpt2", *, words: str = "hello", **more: Any
) -> Request:
    """``more``: of Request where it has such a field, else of SamplingParams."""
    own = {key: more.pop(key) for key in ("n", "said", "priority", "first_choice") if key in more}
    ids = more.pop("ids", None) or array("I", [end_of(layout)]) + tokenizer(layout).encode_text(
        words
    )
    given = {"temperature": 0.0, "max_tokens": 120, "stop_ids": frozenset({end_of(layout)}), **more}
    return Request(name, ids, SamplingParams(**given), grammar=grammar, **own)
