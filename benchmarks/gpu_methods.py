"""What every way to attend has in common, and ours with its variations.

A method is given a case's tensors and gives a function that attends in one layer; what does not
change from step to step is done beforehand, and ``notes`` says what that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.gpu_cases import PAGE, Case, Work
from radchat_kernels import plan
from radchat_kernels._triton import Launcher, launch
from radchat_kernels.plan import Limits, Plan, Segment
from radchat_kernels.tiles import Gpu, Tiles
from radchat_kernels.triton_executor import TritonExecutor


@dataclass(slots=True)
class Prepared:
    """``attend(layer)`` gives o [B, HQ, D]; ``layers``: how many have memory of their own."""

    attend: Callable[[int], Tensor]
    layers: int
    notes: dict[str, Any] = field(default_factory=dict)


class Method(Protocol):
    @property
    def name(self) -> str: ...

    def suits(self, case: Case) -> bool: ...

    def prepare(self, work: Work) -> Prepared: ...


Change = Callable[[Tiles], Tiles]


@dataclass(frozen=True, slots=True)
class Ours:
    """Our kernels on one kind of plan."""

    name: str
    gpu: Gpu
    shared: bool = True
    levels: int | None = None  # that may be shared, from the root; None: all
    chunk: int | None = None  # tokens of every item; None: the planner's choice
    change: Change = lambda tiles: tiles  # of the table's tiles
    launch: Launcher = launch

    def suits(self, case: Case) -> bool:
        """Where it does not do the same as another."""
        return self.levels is None or self.levels < len(case.levels) - 1

    def prepare(self, work: Work) -> Prepared:
        heads = work.case.heads
        tiles = self.change(Tiles.of(self.gpu.tiled_as(), heads.head_dim, work.q.element_size()))
        executor = TritonExecutor(work.q.device.type, tiles, self.launch, self.gpu)
        limits = replace(executor.limits(heads, work.q.element_size()), shared=self.shared)
        if self.chunk is not None:
            # those of wide items are twice as long, whatever the device
            limits = replace(limits, chunk=(self.chunk, self.chunk), programs=1 << 30)
        began = time.perf_counter()
        step = planned(work, limits, self.levels)
        notes = {"plan_ms": 1e3 * (time.perf_counter() - began), "items": len(step.items)}

        def attend(layer: int) -> Tensor:
            return executor.attend(work.q[layer], *work.kv(layer), step, work.positions, work.scale)

        return Prepared(attend, work.case.layers, notes)


def planned(work: Work, limits: Limits, levels: int | None = None) -> Plan:
    """The step's plan. With ``levels`` only so many, from the root, look shared to the planner."""
    if levels is None:
        return plan(work.segments, PAGE, limits=limits)
    tables = work.tree.tables
    first = sum(tokens for _, tokens in work.case.levels[:levels]) // PAGE
    unused = work.tree.num_pages  # ids from here on are nobody's
    seen: list[Segment] = []
    for segment, table in zip(work.segments, tables, strict=True):
        own = range(unused, unused + len(table) - first)
        unused = own.stop
        seen.append(replace(segment, table=[*table[:first], *own]))
    found = plan(seen, PAGE, limits=limits)
    items = [replace(item, table=tables[item.rows[0]]) for item in found.items]
    return replace(found, segments=tuple(work.segments), items=tuple(items), scratch={})


def one_wide_tile(tiles: Tiles) -> Tiles:
    """Every item in the wide tile, however few its rows are."""
    return replace(tiles, narrow=tiles.wide)


def staged(stages: int) -> Change:
    def change(tiles: Tiles) -> Tiles:
        narrow, wide = (replace(t, num_stages=stages) for t in (tiles.narrow, tiles.wide))
        return replace(tiles, narrow=narrow, wide=wide)

    return change


class TwoLaunches:
    """A ``Launcher`` that gives narrow items one launch and wide ones another.

    Each has only its own tile's code, so narrow items need fewer registers. ``cuda``: the wide
    ones go on a stream of their own, so that both can run side by side; None: one after the other.
    """

    def __init__(self, cuda: Any = None) -> None:
        self._cuda = cuda
        self._side: Any = cuda.Stream() if cuda else None
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
    ) -> None:
        options = {"num_warps": num_warps, "num_stages": num_stages}
        if not (consts.get("BLOCK_M") and consts.get("WIDE_M")):
            launch(kernel, grid, args, consts, **options)
            return
        items_at = kernel.arg_names.index("items_ptr")
        n_items_at = kernel.arg_names.index("n_items_ptr")
        narrow, wide = self._parted(args[items_at], consts["G"], consts["BLOCK_M"])
        if self._cuda:
            here = self._cuda.current_stream()
            self._side.wait_stream(here)
        for (items, n_items), without in (
            (wide, {"BLOCK_M": 0, "BLOCK_N": 0}),
            (narrow, {"WIDE_M": 0, "WIDE_N": 0}),
        ):
            its_args = list(args)
            its_args[items_at], its_args[n_items_at] = items, n_items
            aside = self._cuda.stream(self._side) if self._cuda and items is wide[0] else None
            with aside or nullcontext():
                launch(kernel, grid, its_args, consts | without, **options)
        if self._cuda:
            here.wait_stream(self._side)

    def _parted(self, items: Tensor, group: int, narrow: int) -> list[tuple[Tensor, Tensor]]:
        """(items, their number) of narrow and wide ones; made when the plan is first run."""
        found = self._kept.get(items.data_ptr())
        if found is None:
            words = items.view(-1, 8)
            fits = words[:, 1] * group <= narrow
            parts = (words[fits].flatten(), words[~fits].flatten())
            found = [(part, torch.tensor([len(part) // 8]).to(part)) for part in parts]
            self._kept[items.data_ptr()] = found
        return found
