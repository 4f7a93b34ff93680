"""Steps nobody thought of: trees, lengths, shapes, dtypes and scoring drawn at random."""

from __future__ import annotations

import random

import pytest
import torch

from radchat_kernels.tiles import Tile, Tiles
from tests.triton.guarded import Launches
from tests.triton.steps import TOLERANCE, Step

NUM_CASES = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_any_step_with_any_scoring(seed: int) -> None:
    draw = random.Random(seed)
    page_size = draw.choice([1, 3, 4, 8, 16])
    runs = {name: draw.randint(1, 40 // page_size + 1) for name in "abcdef"}
    paths = ["", "a", "ab", "abc", "abd", "ae", "f", "fc"]
    rows = [0, 1, 1, 1, 1, 2, draw.randint(3, 40)]
    leaves = [
        (draw.choice(paths), draw.choice([0, 1, draw.randint(0, 20)]), draw.choice(rows))
        for _ in range(draw.randint(1, 9))
    ]
    group, kv_heads = draw.choice([1, 2, 3, 5, 8, 20]), draw.randint(1, 2)
    step = Step(
        leaves,
        runs,
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        dim=draw.choice([8, 16, 24, 40, 64]),
        dtype=draw.choice(list(TOLERANCE)),
        spare=draw.choice([0, 0, 24 // page_size + 1]),
        seed=seed,
    )
    step.q = torch.cat([step.q, step.normal(draw.choice([0, 0, 2]), *step.q.shape[1:])])
    tiles = Tiles(
        Tile(16, draw.choice([16, 32]), 4, 1),
        Tile(32, draw.choice([16, 32]), 4, 1),
        Tile(draw.choice([32, 64]), draw.choice([16, 32]), 4, 1),
        merge_heads=draw.choice([1, 4, 64]),
        merge_parts=draw.choice([1, 2, 8]),
    )
    window = draw.choice([None, None, 1, draw.randint(2, 60)])
    softcap = draw.choice([None, None, 2.0])
    sinks = draw.choice([None, step.normal(group * kv_heads) * 3])
    limits = step.limits(
        shared=draw.random() < 0.8,
        fold_below=draw.choice([0, 8, 32]),
        growing=draw.random() < 0.5,
    )
    made = step.plan(limits, window)
    step.check(Launches(), made, softcap, sinks, tiles)
    room = [len(s.table) * page_size - s.start - 1 for s in step.segments if s.row_count == 1]
    if limits.growing and room and min(room) > 0:
        step.grow(draw.randint(1, min(room)))
        step.check(Launches(), made, softcap, sinks, tiles)
