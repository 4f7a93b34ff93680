"""A model that answers by the text of its prompt, for the real daemon: all else of it is real.

A script gives, for the turns so far, texts and their weights. The next token's odds are those of
the texts that begin with what has been said, so draws, samples, masks of grammars and log
probabilities are as of a model that has learned just this. What no text begins with is at its end.

A token's id is its KV, and each row reads its whole sequence back through the page table: a wrong
page, or one that was never written, is another answer or none.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from radchat.config import Config
from radchat.daemon.opener import Opener
from radchat.engine.forward import ModelShape
from radchat.engine.kv_pool import KVPool
from radchat.engine.model import LoadedModel
from radchat_kernels.plan import Plan

Turns = Sequence[tuple[str, str]]  # (role, text), the last one asks
Script = Callable[[Turns], Mapping[str, float]]

ASKS = b"<|im_start|>assistant\n"
NEVER = -20.0  # the score of what is in no text
SHORT = -12.0  # less for a token where a longer one says more of the same text


class ScriptedDecoder:
    """In place of ``model``'s decoder, of the same shape. ChatML, and a tokenizer of bytes."""

    def __init__(self, model: LoadedModel, script: Script) -> None:
        self.config: ModelShape = model.decoder.config
        self.dtype = model.decoder.dtype
        self.tokens_computed = 0
        self.steps: list[int] = []  # rows of each
        self.on_step: Callable[[int], None] | None = None  # told of the rows before they are run
        table = model.tokenizer.table
        assert table is not None
        self._bytes = table
        (self._end,) = model.stop_ids
        self._tokens: dict[int, list[tuple[bytes, int]]] = {}  # by first byte, the longest first
        for number, text in sorted(enumerate(table), key=lambda each: -len(each[1])):
            if text and number not in model.tokenizer.control_ids:
                self._tokens.setdefault(text[0], []).append((text, number))
        self._replies = lru_cache(4096)(lambda prompt: _texts(script(turns(prompt.decode()))))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        if self.on_step is not None:
            self.on_step(len(ids))
        self.tokens_computed += len(ids)
        self.steps.append(len(ids))
        layers, two, _, _, heads, dim = pool.data.shape
        memory = pool.data.view(layers, two, -1, heads, dim)
        memory[:, :, slots] = 0
        memory[0, 0, slots, 0, 0] = (ids % 256).to(pool.dtype)  # exact in bf16 too
        memory[0, 0, slots, 0, 1] = (ids // 256).to(pool.dtype)
        logits = torch.full((len(logit_rows), self.config.vocab_size), NEVER)
        for out, row in enumerate(logit_rows.tolist()):
            whole = _read(plan, memory[0, 0, :, 0, :2], pool.page_size, row, int(positions[row]))
            if whole is None:
                logits[out] = math.nan  # what attention makes of a poisoned page
                continue
            scores = self._scores(b"".join([self._bytes[token] for token in whole]))
            logits[out, list(scores)] = torch.tensor(list(scores.values()))
        return logits

    def _scores(self, text: bytes) -> dict[int, float]:
        prompt, asks, said = text.rpartition(ASKS)
        if not asks:
            return {self._end: 0.0}  # a row in the midst of a prompt
        odds: dict[int, float] = {}
        for reply, weight in self._replies(prompt).items():
            if not reply.startswith(said):
                continue
            rest = reply[len(said) :]
            if not rest:
                odds[self._end] = odds.get(self._end, 0.0) + weight
                continue
            fits = [number for text, number in self._tokens[rest[0]] if rest.startswith(text)]
            for place, number in enumerate(fits):
                share = weight * math.exp(SHORT * place)
                odds[number] = odds.get(number, 0.0) + share
        if not odds:
            return {self._end: 0.0}
        total = sum(odds.values())
        return {number: math.log(weight / total) for number, weight in odds.items()}


class ScriptedOpener(Opener):
    """Whatever it loads answers by the script."""

    def __init__(self, config: Config, script: Script) -> None:
        super().__init__(config)
        self._script = script

    def load(self, *args: Any, **named: Any) -> LoadedModel:
        model = super().load(*args, **named)
        model.decoder = ScriptedDecoder(model, self._script)
        return model


def turns(prompt: str) -> list[tuple[str, str]]:
    """Of ChatML."""
    said = [part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>")[1:]]
    return [(role, text) for role, _, text in (each.partition("\n") for each in said)]


def named(name: str) -> Script:
    """The script of this name, ``module:function``."""
    module, _, function = name.partition(":")
    script: Script = getattr(importlib.import_module(module), function)
    return script


def _texts(replies: Mapping[str, float]) -> dict[bytes, float]:
    return {text.encode(): weight for text, weight in replies.items() if weight > 0}


def _read(plan: Plan, memory: Tensor, page_size: int, row: int, position: int) -> list[int] | None:
    for segment in plan.segments:
        if segment.row_begin <= row < segment.row_begin + segment.row_count:
            places = torch.arange(position + 1)
            pages = torch.tensor(segment.table)[places // page_size]
            low, high = memory[pages * page_size + places % page_size].T.tolist()
            if any(math.isnan(value) for value in low):
                return None
            return [int(a) + 256 * int(b) for a, b in zip(low, high, strict=True)]
    raise AssertionError(f"row {row} is in no segment")
