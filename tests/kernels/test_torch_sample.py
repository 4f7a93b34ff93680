"""The torch twin of the drawing kernel against NumPy's Philox and plain code."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from radchat.engine import philox
from radchat_kernels import torch_sample

PLACES = [
    (0, 0, 0),
    (1, 2, 3),
    (2**63 - 1, 2**31 - 1, 0),
    (2**63, 5, 2**31 - 1),
    (2**64 - 1, 2**31, 2**31),
    (0x243F6A8885A308D3, 77, 1),
]


def keys_of(places: list[tuple[int, int, int]]) -> Tensor:
    """Seeds of 64 bits, the highest one as a sign."""
    signed = [(s - 2**64 if s >= 2**63 else s, p, c) for s, p, c in places]
    return torch.tensor(signed, dtype=torch.int64)


def plain_draw(
    logits: Tensor, best: float, temperature: float, keep: float, place: tuple[int, int, int]
) -> int:
    scores = (logits.double().numpy() - best) / temperature
    u = philox.uniforms_of_all(*place, len(scores))
    return int(np.where(scores >= keep, scores - np.log(-np.log(u)), -np.inf).argmax())


def test_the_words_are_numpys() -> None:
    words = torch_sample.words(keys_of(PLACES), 1001)
    for row, place in zip(words, PLACES, strict=True):
        u = philox.uniforms_of_all(*place, 1001)
        assert ((row.double() + 0.5) * 2.0**-32).tolist() == u.tolist()
    assert torch_sample.words(keys_of(PLACES), 1).shape == (len(PLACES), 1)


@pytest.mark.parametrize(
    ("vocab", "rows"), [(1, 50), (2, 500), (255, 1000), (1000, 1000), (49152, 20)]
)
def test_tokens_are_plain_codes(vocab: int, rows: int) -> None:
    rng = random.Random(vocab)
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    logits[::7] = 1.5  # all equal
    logits[::5, (vocab + 1) // 2 :] = -torch.inf  # masked
    logits[0, 0] = 0.0
    best = logits.max(-1).values.double()
    temperature = torch.tensor([rng.choice([0.1, 0.7, 1.0, 3.0]) for _ in range(rows)])
    keep = torch.tensor([rng.choice([-math.inf, -26.01, -2.0, -0.1, 0.0]) for _ in range(rows)])
    places = [
        (rng.getrandbits(64), rng.getrandbits(31), rng.choice([0, 1, rng.getrandbits(31)]))
        for _ in range(rows)
    ]
    given = logits, best, temperature.double(), keep.double(), keys_of(places)
    drawn = torch_sample.draw(*given).tolist()
    numbers = zip(best.tolist(), given[2].tolist(), given[3].tolist(), places, strict=True)
    assert drawn == [plain_draw(row, *each) for row, each in zip(logits, numbers, strict=True)]
    # of a row by itself, too
    assert torch_sample.draw(*(each[3:4] for each in given)).tolist() == drawn[3:4]


def test_a_row_without_survivors_and_no_rows() -> None:
    logits = torch.tensor([[1.0, torch.nan], [1.0, 2.0]])
    ones = torch.ones(2, dtype=torch.float64)
    keep = torch.tensor([0.0, torch.inf], dtype=torch.float64)
    given = logits, ones * torch.nan, ones, keep, keys_of(PLACES[:2])
    assert torch_sample.draw(*given).tolist() == [0, 0]
    assert torch_sample.draw(*(each[:0] for each in given)).tolist() == []
