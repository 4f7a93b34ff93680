"""One step of a small tree of sequences in a pool that is NaN wherever nothing was written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from radchat_kernels import reference
from radchat_kernels._triton import Launcher
from radchat_kernels.attn import attend
from radchat_kernels.plan import Limits, Plan, Segment, plan
from radchat_kernels.tiles import Tile, Tiles
from tests.triton.guarded import Launches

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
SMALL = Tiles(
    Tile(16, 16, 4, 1), Tile(32, 16, 4, 1), Tile(32, 16, 4, 1), merge_heads=4, merge_parts=2
)


class Step:
    """runs: pages of each named run; leaves: (runs on the path, tokens of its own, rows).

    A leaf's rows are its last tokens, after its own; they are never in a run. Page 0 is nobody's.
    spare: pages at the end of each table that hold nothing yet.
    """

    def __init__(
        self,
        leaves: Sequence[tuple[str, int, int]],
        runs: Mapping[str, int] | None = None,
        *,
        page_size: int = 4,
        kv_heads: int = 1,
        group: int = 2,
        dim: int = 16,
        dtype: torch.dtype = torch.float32,
        spare: int = 0,
        seed: int = 0,
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.page_size, self.group, self.dtype, self.scale = page_size, group, dtype, dim**-0.5
        runs = runs or {}
        own = [-(-(tokens + rows) // page_size) + spare for _, tokens, rows in leaves]
        num_pages = 2 + sum(runs.values()) + sum(own)
        ids = list(range(1, num_pages))
        random.Random(seed).shuffle(ids)
        self.pool = torch.full((2, num_pages, page_size, kv_heads, dim), torch.nan, dtype=dtype)
        pages = {name: [ids.pop() for _ in range(count)] for name, count in runs.items()}
        for page in (page for each in pages.values() for page in each):
            self.pool[:, page] = self.normal(2, page_size, kv_heads, dim)
        self.segments: list[Segment] = []
        row = 0
        for (path, tokens, rows), count in zip(leaves, own, strict=True):
            table = [page for name in path for page in pages[name]]
            start = len(table) * page_size + tokens
            table += [ids.pop() for _ in range(count)]
            self.write(table, start - tokens, start + rows)
            self.segments.append(Segment(row, rows, start, table))
            row += rows
        self.q = self.normal(row, kv_heads * group, dim)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.dtype)

    def write(self, table: Sequence[int], begin: int, end: int) -> None:
        for t in range(begin, end):
            place = self.pool[:, table[t // self.page_size], t % self.page_size]
            place.copy_(self.normal(*place.shape))

    def grow(self, tokens: int) -> None:
        """Lone rows' sequences go on by so many tokens, in the same pages."""
        for index, s in enumerate(self.segments):
            if s.row_count == 1:
                self.write(s.table, s.start + 1, s.start + 1 + tokens)
                self.segments[index] = Segment(s.row_begin, 1, s.start + tokens, s.table)
        self.q = self.normal(*self.q.shape)

    @property
    def positions(self) -> Tensor:
        found = torch.zeros(len(self.q), dtype=torch.int64)
        for s in self.segments:
            found[s.row_begin : s.row_begin + s.row_count] = torch.arange(s.row_count) + s.start
        return found

    def limits(self, *, shared: bool = True, fold_below: int = 0, growing: bool = False) -> Limits:
        """Runs cut at 16 to 32 tokens."""
        return Limits(
            shared=shared,
            fold_below=fold_below,
            chunk=(16, 32),
            block_tokens=16,
            narrow=16,
            wide=32,
            group=self.group,
            num_kv_heads=self.pool.shape[3],
            programs=64,
            growing=growing,
        )

    def plan(self, limits: Limits | None = None, window: int | None = None) -> Plan:
        return plan(self.segments, self.page_size, window, limits or self.limits())

    def run(
        self,
        made: Plan,
        launches: Launcher,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        tiles: Tiles = SMALL,
    ) -> Tensor:
        return attend(
            self.q,
            self.pool[0],
            self.pool[1],
            made,
            self.positions,
            self.scale,
            softcap=softcap,
            sinks=sinks,
            tiles=tiles,
            launch=launches,
        )

    def check(
        self,
        launches: Launches,
        made: Plan | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        tiles: Tiles = SMALL,
    ) -> Tensor:
        """Each row against the reference; a row of no tokens is exactly zero."""
        made = made or self.plan()
        got = self.run(made, launches, softcap, sinks, tiles)
        self.judge(got, made, softcap, sinks)
        return got

    def judge(
        self, got: Tensor, made: Plan, softcap: float | None = None, sinks: Tensor | None = None
    ) -> None:
        now = plan(self.segments, self.page_size, made.window)
        want, _ = reference.attend(
            self.q, self.pool[0], self.pool[1], now, self.scale, softcap=softcap, sinks=sinks
        )
        assert got.dtype == self.dtype
        error = (got.double() - want).flatten(1).norm(dim=1)
        worst = error - TOLERANCE[self.dtype] * want.flatten(1).norm(dim=1)
        assert (worst <= 0).all(), f"rows {(~(worst <= 0)).nonzero().flatten().tolist()}: {error}"
