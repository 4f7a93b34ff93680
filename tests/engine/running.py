"""Run a model a step at a time over a pool of shuffled, poisoned pages."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from radchat.engine.forward import Forward
from radchat.engine.kv_pool import KVPool
from radchat_kernels import Segment, plan


def some_ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=count)


class Running:
    """One sequence in a pool of shuffled pages; free slots are NaN."""

    def __init__(self, decoder: Forward, num_pages: int = 24, page_size: int = 16) -> None:
        self.decoder = decoder
        config = decoder.config
        self.pool = KVPool(
            config.num_layers,
            num_pages,
            page_size,
            config.num_kv_heads,
            config.head_dim,
            decoder.dtype,
            poison=True,
        )
        self.table = random.Random(7).sample(range(1, num_pages), num_pages - 1)
        self.ids: list[int] = []

    def extend(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """Run ``ids`` after what is there; logits of ``rows`` (all when not given)."""
        start, count = len(self.ids), len(ids)
        self.ids += ids
        wanted = range(count) if rows is None else rows
        return run_step(self.decoder, self.pool, [(self.table, start, ids)], wanted)

    def greedy(self, count: int) -> list[int]:
        """``count`` ids, the first from the last row of what was just run."""
        last = self.ids.pop()
        logits = self.extend([last])
        found = []
        for _ in range(count):
            found.append(int(logits[-1].argmax()))
            logits = self.extend(found[-1:])
        return found


def run_step(
    decoder: Forward,
    pool: KVPool,
    parts: Sequence[tuple[list[int], int, Sequence[int]]],  # (table, start, ids)
    logit_rows: Sequence[int],
) -> Tensor:
    segments: list[Segment] = []
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for table, start, new in parts:
        segments.append(Segment(len(ids), len(new), start, table))
        at = range(start, start + len(new))
        ids += new
        positions += at
        slots += [table[t // pool.page_size] * pool.page_size + t % pool.page_size for t in at]

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    made = plan(segments, pool.page_size)
    return decoder.forward(
        tensor(ids), tensor(positions), tensor(slots), made, pool, tensor(logit_rows)
    )
