"""A step's work as tensors: rows, slots and segments into the model, rows of logits out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from radchat.engine.batch import Work
from radchat.engine.choice import Choice
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import Lease
from radchat_kernels.plan import Plan, Segment, plan


class Model(Protocol):
    """What the engine runs: a decoder with its limits."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        """All [tokens] int64 but logit_rows [rows]; returns logits [rows, vocab] float32."""
        ...


class Runner:
    def __init__(self, model: Model, pool: KVPool, device: str = "cpu") -> None:
        self._model = model
        self._pool = pool
        self._device = device
        self.rows_run = 0  # through the model, by the engine's own count

    def copy_pages(self, leases: Iterable[Lease]) -> None:
        """The copies that admissions asked for; before any KV of the step is written."""
        for lease in leases:
            if lease.copies:
                self._pool.copy_pages(lease.copies)
                lease.copies.clear()

    def run(self, work: Sequence[Work]) -> Tensor:
        """Logits of the rows that are wanted, in the order of ``wanted_rows``, [rows, vocab]."""
        size = self._pool.page_size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        segments: list[Segment] = []
        logit_rows: list[int] = []
        for each in work:
            lease = each.choice.lease
            assert lease is not None
            table, row = lease.table, len(ids)
            segments.append(Segment(row, each.end - each.start, each.start, table))
            logit_rows.extend(row + position - each.start for position in wanted_rows(each))
            ids.extend(each.choice.ids[each.start : each.end])
            positions.extend(range(each.start, each.end))
            slots.extend(
                # a row that runs again for its logits must not write: padding goes into page 0
                table[t // size] * size + t % size if t >= lease.computed_len else t % size
                for t in range(each.start, each.end)
            )
        self.rows_run += len(ids)
        ids_t, positions_t, slots_t, logit_rows_t = (
            torch.tensor(values, dtype=torch.int64, device=self._device)
            for values in (ids, positions, slots, logit_rows)
        )
        attention = plan(segments, size)
        with torch.inference_mode():
            return self._model.forward(
                ids_t, positions_t, slots_t, attention, self._pool, logit_rows_t
            )


def wanted_rows(work: Work) -> range:
    """Positions whose logits are needed: the last one to draw from, all that are being scored."""
    choice: Choice = work.choice
    if choice.is_scoring:
        return range(max(work.start, choice.scored), work.end)
    return range(work.end - 1, work.end) if work.draws else range(0)
