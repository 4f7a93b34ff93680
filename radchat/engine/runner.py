"""A step's work as tensors: rows, slots and segments into the model, rows of logits out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from radchat.engine.batch import Work
from radchat.engine.choice import Choice
from radchat.engine.device import Device, DeviceFull
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import Lease
from radchat_kernels.plan import Limits, Plan, Segment
from radchat_kernels.planner import Planner

T = TypeVar("T")
log = logging.getLogger(__name__)


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
    def __init__(self, model: Model, pool: KVPool, device: Device, limits: Limits) -> None:
        """``limits``: of the steps' plans."""
        self._model = model
        self._pool = pool
        self._device = device
        self.planner = Planner(limits, pool.page_size)
        self.rows_run = 0  # through the model, by the engine's own count

    def copy_pages(self, leases: Iterable[Lease]) -> None:
        """The copies that admissions asked for; before any KV of the step is written."""
        copying = [lease for lease in leases if lease.copies]
        pairs = [pair for lease in copying for pair in lease.copies]
        if pairs:
            self._in_memory(lambda: self._pool.copy_pages(pairs))
            for lease in copying:
                lease.copies.clear()

    def run(self, work: Sequence[Work]) -> Tensor:
        """Logits of the rows that are wanted, in the order of ``wanted_rows``, [rows, vocab].

        Raises DeviceFull; then it can be run again, whole or in smaller steps.
        """
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

        def forward() -> Tensor:
            attention = self.planner.plan(segments)
            ids_t, at, slots_t, rows = self._device.upload(ids, positions, slots, logit_rows)
            with torch.inference_mode():
                return self._model.forward(ids_t, at, slots_t, attention, self._pool, rows)

        logits = self._in_memory(forward)
        self.rows_run += len(ids)
        return logits

    def _in_memory(self, run: Callable[[], T]) -> T:
        """What ``run()`` gives. Raises DeviceFull when all that it had taken is free again."""
        try:
            return self._waited_for(run)
        except Exception as error:
            if not self._device.is_full(error):
                raise
            reason, is_possible = str(error), self._device.has_at_all(error)
            if not is_possible:
                log.exception("a step asks for more memory than the device has at all")
        # here the error, whose traceback holds the step's plan and tensors, is gone
        self.planner.forget()
        self._device.release()
        raise DeviceFull(reason, is_possible=is_possible)

    def _waited_for(self, run: Callable[[], T]) -> T:
        done = run()
        self._device.wait()
        return done


def wanted_rows(work: Work) -> range:
    """Positions whose logits are needed: the last one to draw from, all that are being scored."""
    choice: Choice = work.choice
    if choice.is_scoring:
        return range(max(work.start, choice.scored), work.end)
    return range(work.end - 1, work.end) if work.draws else range(0)
