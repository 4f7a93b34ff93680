"""K7 in the interpreter: the torch twin's tokens (which are NumPy's), whatever the blocks."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radchat.engine import sampling, sampling_on_device
from radchat_kernels import sample, torch_sample
from radchat_kernels.triton_executor import TritonExecutor
from tests.engine.sampling_cases import some_step
from tests.triton.banded import Banded

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def some(rows: int, vocab: int, seed: int = 0) -> Given:
    rng = random.Random(seed)
    wide = torch.full((rows, vocab + 5), torch.nan)
    logits = wide[:, 2 : vocab + 2]
    logits.copy_(torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4)
    logits[::7] = 1.5  # all equal
    logits[::5, (vocab + 1) // 2 :] = -torch.inf  # masked
    logits[0, 0] = 0.0
    temperature = [rng.choice([0.1, 0.7, 1.0, 3.0]) for _ in range(rows)]
    keep = [rng.choice([-math.inf, -26.01, -2.0, -0.1, 0.0]) for _ in range(rows)]
    keys = [
        [rng.getrandbits(64) - 2**63, rng.getrandbits(31), rng.choice([0, 1, 2**31 - 1])]
        for _ in range(rows)
    ]
    reals = torch.tensor([temperature, keep], dtype=torch.float64)
    return logits, logits.max(-1).values.double(), reals[0], reals[1], torch.tensor(keys)


# the last: one row a program, as on a GPU
CASES = [
    (1, 9, 256, 2048),
    (2, 300, 256, 65536),
    (255, 700, 64, 16384),
    (1000, 2000, 1024, 1 << 18),
]
CASES += [(49152, 7, 16384, 65536), (130, 5, 64, 64)]


@pytest.mark.parametrize(("vocab", "rows", "block", "tile"), CASES)
def test_tokens_are_the_twins(vocab: int, rows: int, block: int, tile: int) -> None:
    check_tokens(sample, vocab, rows, block, tile)


def check_tokens(kernels: Any, vocab: int, rows: int, block: int, tile: int) -> None:
    given, banded = some(rows, vocab), Banded("block_best_ptr", "block_ids_ptr", "out_ptr")
    got = kernels.draw(*given, block=block, tile=tile, launch=banded)
    assert got.tolist() == torch_sample.draw(*given).tolist()
    assert len(banded.grids) == 2


def test_one_survivor_is_drawn_wherever_it_lies() -> None:
    logits = torch.zeros(9, 300)
    ids = torch.tensor([0, 1, 63, 64, 127, 128, 255, 256, 299])
    logits[torch.arange(9), ids] = 1.0
    ones = torch.ones(9, dtype=torch.float64)
    keys = torch.arange(27).view(9, 3)
    assert torch.equal(sample.draw(logits, ones, ones, ones * -0.5, keys, block=64), ids)


def test_rows_of_which_nothing_is_kept() -> None:
    check_rows_of_which_nothing_is_kept(sample)


def check_rows_of_which_nothing_is_kept(kernels: Any) -> None:
    """A greedy row, a broken one: 0, and no number that would end the others."""
    given = some(3, 300)
    given[0][1, 7] = torch.nan
    given[1][1] = torch.nan
    given[3][:2] = torch.inf
    with np.errstate(invalid="ignore"):  # which only the interpreter has
        got = kernels.draw(*given, block=64)
    assert got[:2].tolist() == [0, 0]
    assert got[2] == torch_sample.draw(*(each[2:] for each in given))[0]


def test_the_executor_draws_in_two_launches_and_none_for_no_rows() -> None:
    banded = Banded("block_best_ptr", "block_ids_ptr", "out_ptr")
    executor = TritonExecutor("cpu", launch=banded)
    given = some(5, 77)
    assert executor.draw(*given).tolist() == torch_sample.draw(*given).tolist()
    assert len(banded.grids) == 2
    assert executor.draw(*(each[:0] for each in given)).tolist() == []
    assert len(banded.grids) == 2


def test_sampling_gives_the_numpy_paths_tokens() -> None:
    """All filters, greedy rows and broken ones among the others."""
    executor = TritonExecutor("cpu")
    for seed in range(50):
        logits, draws = some_step(seed, 300, most=9)
        with np.errstate(invalid="ignore"):
            got = sampling_on_device.sample(logits, draws, executor)
        assert [repr(each) for each in got] == [
            repr(each) for each in sampling.sample(logits, draws)
        ], f"seed {seed}"
