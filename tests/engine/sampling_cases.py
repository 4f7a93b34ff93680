"""Random steps of sampling, with every filter, for more than one way of running them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radchat.engine.matcher import Mask
from radchat.engine.request import SamplingParams
from radchat.engine.sampling import Draw, Seen


def some_step(seed: int, vocab: int, most: int) -> tuple[Tensor, list[Draw]]:
    """Logits [rows, vocab], and up to ``most`` draws from some of their rows.

    A few rows are not finite, a few have ties, some draws are greedy, many have filters, and in
    some steps one draw or all have a mask.
    """
    rng = random.Random(seed)
    count = rng.randint(1, most)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count + 2, vocab, generator=generator) * rng.choice([0.1, 1, 4, 12])
    if rng.random() < 0.3:
        logits = logits.round()  # ties
    if rng.random() < 0.2:
        logits[rng.randrange(count), rng.randrange(vocab)] = rng.choice([torch.nan, torch.inf])
    rows = rng.sample(range(count + 2), count)
    draws = [
        Draw(row, _params(rng, vocab), rng.getrandbits(31), rng.randrange(9), _seen(rng, vocab))
        for row in rows
    ]
    masked = rng.choice([range(0), range(0), range(count), [rng.randrange(count)]])
    for place in masked:
        allowed = rng.sample(range(vocab), max(1, int(vocab * rng.choice([0.02, 0.9]))))
        draws[place] = replace(draws[place], mask=mask_of(allowed, vocab))
    return logits, draws


def mask_of(allowed: Iterable[int], vocab: int) -> Mask:
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _seen(rng: random.Random, vocab: int) -> Seen:
    ids = [rng.randrange(vocab) for _ in range(20)]
    return Seen(array("I", ids[:12]), ids[12:])


def _params(rng: random.Random, vocab: int) -> SamplingParams:
    given: dict[str, Any] = {"seed": rng.getrandbits(64), "temperature": rng.choice([0, 0.6, 1, 2])}
    if rng.random() < 0.4:
        given["top_k"] = rng.choice([1, 2, 5, 40, vocab, 10 * vocab])
    if rng.random() < 0.5:
        given["top_p"] = rng.choice([0.1, 0.5, 0.9, 0.95, 0.999])
    if rng.random() < 0.3:
        given["min_p"] = rng.choice([0.02, 0.3, 1.0])
    if rng.random() < 0.3:
        given["repetition_penalty"] = rng.choice([0.8, 1.3])
    if rng.random() < 0.3:
        given |= {"presence_penalty": 0.7, "frequency_penalty": -0.2}
    if rng.random() < 0.2:
        given["logit_bias"] = {rng.randrange(vocab): 5.0, rng.randrange(vocab): -100.0}
    if rng.random() < 0.2:
        given["logprobs"] = rng.choice([0, 3])
    return SamplingParams(**given)
