"""Trees of branches to decode over: what the GPU benchmark measures, and what it must cost.

A case is a tree by levels: (1, 8192), (64, 256) are 64 branches of 256 tokens each on 8192 that all
share. A page is shared where every token in it is, as in the engine: a node that begins inside a
page has a copy of that page. All branches stand at the same position, one new token each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from radchat_kernels.executor import Heads
from radchat_kernels.plan import Segment

PAGE = 16
LLAMA_3_8B = Heads(32, 8, 128)

# what kernels.md expects of an H200, written down before anything was measured there
EXPECTED_COPY = 4.3e12  # bytes a second
EXPECTED_MATMUL = 790e12  # flops a second, bf16
EXPECTED_L2 = 6.0e12  # bytes a second of what stays in L2: assumed

Levels = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """``most_ms``: what tree decode of a step may take on an H200; ``least_ratio``: that it must
    be quicker than our own per-sequence plan. Both of kernels.md §5, None where it says nothing.
    """

    name: str
    levels: Levels  # (nodes, tokens each); every level's nodes are a multiple of the last one's
    heads: Heads = LLAMA_3_8B
    layers: int = 32
    most_ms: float | None = None
    least_ratio: float | None = None

    @property
    def branches(self) -> int:
        return self.levels[-1][0]

    @property
    def path(self) -> int:
        """Tokens of a branch, the new one included."""
        return sum(tokens for _, tokens in self.levels)

    @property
    def tokens(self) -> int:
        """Of the tree."""
        return sum(nodes * tokens for nodes, tokens in self.levels)

    def kv_bytes(self, tokens: int, item: int = 2) -> int:
        """K and V of one layer."""
        return 2 * tokens * self.heads.num_kv_heads * self.heads.head_dim * item

    def least_bytes(self, item: int = 2) -> int:
        """A layer must move: every token of the tree once, q once, o once."""
        rows = 2 * self.branches * self.heads.num_heads * self.heads.head_dim * item
        return self.kv_bytes(self.tokens, item) + rows

    def sequence_bytes(self, item: int = 2) -> int:
        """As ``least_bytes``, where each branch reads its whole path."""
        return self.least_bytes(item) + self.kv_bytes(self.branches * self.path - self.tokens, item)

    @property
    def flops(self) -> int:
        """Of a layer, however it is done: two products of every row with its path."""
        return 4 * self.branches * self.path * self.heads.num_heads * self.heads.head_dim

    def floor(self, bandwidth: float = EXPECTED_COPY, matmul: float = EXPECTED_MATMUL) -> float:
        """Seconds a layer, whichever binds."""
        return max(self.least_bytes() / bandwidth, self.flops / matmul)


@dataclass(frozen=True, slots=True)
class Tree:
    """A case laid out in a pool of ``num_pages`` pages, page 0 nobody's."""

    tables: list[list[int]]  # of each branch
    paths: list[list[int]]  # of each branch, its nodes from the root
    slots: list[list[int]]  # of each node, where its tokens lie
    copies: list[tuple[int, int]]  # (from, to): slots of tokens in pages that nodes have copies of
    num_pages: int

    def segments(self, path: int) -> list[Segment]:
        return [Segment(row, 1, path - 1, table) for row, table in enumerate(self.tables)]


def grow(case: Case, seed: int = 0) -> Tree:
    """Pages in random order: what a pool looks like that has served for a while."""
    assert all(n2 % n1 == 0 for (n1, _), (n2, _) in pairwise(case.levels)), case.levels
    paths: list[list[int]] = [[] for _ in range(case.branches)]
    spans: list[tuple[int, int]] = []  # of each node: its tokens
    begin = 0
    for nodes, tokens in case.levels:
        for branch, path in enumerate(paths):
            path.append(len(spans) + branch * nodes // case.branches)
        spans += [(begin, begin + tokens)] * nodes
        begin += tokens
    leaves = {path[-1] for path in paths}
    counts = [
        (-(-end // PAGE) if node in leaves else end // PAGE) - start // PAGE
        for node, (start, end) in enumerate(spans)
    ]
    ids = list(range(1, 1 + sum(counts)))
    random.Random(seed).shuffle(ids)
    own: list[list[int]] = []
    for count in counts:
        own.append(ids[:count])
        del ids[:count]
    tables = [[page for node in path for page in own[node]] for path in paths]
    slots: list[list[int]] = [[] for _ in spans]
    copies: dict[tuple[int, int], None] = {}
    for table, path in zip(tables, paths, strict=True):
        for node in path:
            here = [table[t // PAGE] * PAGE + t % PAGE for t in range(*spans[node])]
            slots[node] = slots[node] or here
            copies |= dict.fromkeys(p for p in zip(slots[node], here, strict=True) if p[0] != p[1])
    return Tree(tables, paths, slots, list(copies), 1 + sum(counts))


@dataclass(frozen=True, slots=True)
class Work:
    """A case with its tensors: q [layers, B, HQ, D], pool [layers, 2, pages, PAGE, HKV, D]."""

    case: Case
    tree: Tree
    q: Tensor
    pool: Tensor
    positions: Tensor  # [B] int64

    @property
    def segments(self) -> list[Segment]:
        return self.tree.segments(self.case.path)

    @property
    def scale(self) -> float:
        return float(self.case.heads.head_dim**-0.5)

    def kv(self, layer: int) -> tuple[Tensor, Tensor]:
        """[pages, PAGE, HKV, D] each."""
        return self.pool[layer, 0], self.pool[layer, 1]

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """[pages × PAGE, HKV, D] each: the same memory."""
        k, v = self.kv(layer)
        return k.flatten(0, 1), v.flatten(0, 1)


class Values:
    """Random numbers on the device, made once and viewed as every case's pool."""

    def __init__(self, cases: Sequence[Case], dtype: torch.dtype, device: str) -> None:
        most = max(grow(case).num_pages * _page_elements(case) for case in cases)
        self._flat = torch.empty(most, dtype=dtype, device=device).normal_()

    def release(self) -> None:
        self._flat = self._flat.new_empty(0)

    def work(self, case: Case) -> Work:
        tree, heads, flat = grow(case), case.heads, self._flat
        shape = (case.layers, 2, tree.num_pages, PAGE, heads.num_kv_heads, heads.head_dim)
        pool = flat[: tree.num_pages * _page_elements(case)].view(shape)
        if tree.copies:
            source, target = torch.tensor(tree.copies, device=flat.device).T
            by_slot = pool.flatten(2, 3)
            by_slot[:, :, target] = by_slot[:, :, source]
        q_shape = (case.layers, case.branches, heads.num_heads, heads.head_dim)
        q = torch.empty(q_shape, dtype=flat.dtype, device=flat.device).normal_()
        positions = torch.full((case.branches,), case.path - 1, device=flat.device)
        return Work(case, tree, q, pool, positions)


def reference(work: Work, layer: int) -> Tensor:
    """Attention of every branch over its whole path in float64, [B, HQ, D]."""
    heads, device = work.case.heads, work.q.device
    k, v = work.slots(layer)
    group = heads.num_heads // heads.num_kv_heads
    out = []
    for row, table in enumerate(work.tree.tables):
        pages = torch.tensor(table, device=device)
        slots = (pages[:, None] * PAGE + torch.arange(PAGE, device=device)).flatten()
        slots = slots[: work.case.path]
        keys, values = k[slots].double(), v[slots].double()  # [path, HKV, D]
        q = work.q[layer, row].double().view(heads.num_kv_heads, group, -1)
        weights = (work.scale * torch.einsum("hgd,thd->hgt", q, keys)).softmax(-1)
        out.append(torch.einsum("hgt,thd->hgd", weights, values).flatten(0, 1))
    return torch.stack(out)


def _page_elements(case: Case) -> int:
    return 2 * case.layers * PAGE * case.heads.num_kv_heads * case.heads.head_dim


MAIN = tuple(
    Case(f"8k + {n} x 256", ((1, 8192), (n, 256)), most_ms=ms, least_ratio=ratio)
    for n, ms, ratio in ((1, 0.40, 0.97), (8, 0.50, 3.5), (32, 0.75, 8.0), (64, 1.1, 11.0))
)
OTHERS = (
    Case("128 + 8 x 64", ((1, 128), (8, 64)), least_ratio=0.95),
    Case("256 + 64 x 32", ((1, 256), (64, 32))),
    Case("4k + 8 x 3k + 64 x 1280", ((1, 4096), (8, 3072), (64, 1280))),
    Case("tree of thought", ((1, 2000), *((2**n, 40) for n in range(1, 7)))),
    Case("32k, one branch", ((1, 32768),)),
    Case("G 8, 8k + 8 x 256", ((1, 8192), (8, 256)), Heads(64, 8, 128)),
    Case("G 1, 8k + 8 x 256", ((1, 8192), (8, 256)), Heads(32, 32, 128)),
    Case("D 64, 8k + 8 x 256", ((1, 8192), (8, 256)), Heads(32, 8, 64)),
    Case("D 256, 8k + 8 x 256", ((1, 8192), (8, 256)), Heads(16, 8, 256)),
)
_TINY = Heads(8, 2, 16)
TINY_MAIN = (
    Case("48 + 1 x 20", ((1, 48), (1, 20)), _TINY, layers=2),
    Case("70 + 6 x 20", ((1, 70), (6, 20)), _TINY, layers=2),
)
TINY_OTHERS = (Case("40 + 2 x 9 + 4 x 7", ((1, 40), (2, 9), (4, 7)), Heads(6, 2, 32), layers=2),)
