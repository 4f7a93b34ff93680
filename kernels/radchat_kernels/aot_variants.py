"""The launches that the compile check compiles: each wrapper as a model of today calls it.

A variant calls one wrapper on small CPU tensors of a real model's widths, from which strides and
with them alignment follow, and names the kernel it is about. Numbers of rows and of pages are odd,
so that nothing is aligned by luck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch

from radchat_kernels import cache, fused, int4, sample
from radchat_kernels.aot_compile import Capture, Captured
from radchat_kernels.aot_table import Key
from radchat_kernels.attn import attend
from radchat_kernels.executor import Activation, HeadNorm, Heads, Packed4
from radchat_kernels.plan import Item, Plan, Segment, plan
from radchat_kernels.tiles import Tile, Tiles

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PAGE = 16
ROWS = 5  # of those kernels that take any number
LOADS = frozenset({"load16"})
ASYNC = frozenset({"async16"})


@dataclass(frozen=True, slots=True)
class Variant:
    """call: runs the wrapper with the tiles of a target (or others), and the launcher given it.

    needs, needs_nvidia: what the code must have, ``Figures``' names; tiled: its tiles can be asked
    for; matrix: the targets on which the wide tile must use the widest matrix unit; is_exact: it
    multiplies fp32.
    """

    kernel: str
    call: Callable[[str, Tile | None, Capture], object]
    needs: frozenset[str] = frozenset()
    needs_nvidia: frozenset[str] = frozenset()
    matrix: frozenset[str] = frozenset()
    tiled: bool = False
    is_exact: bool = False

    def capture(self, target: str, tile: Tile | None = None) -> Captured:
        launch = Capture()
        self.call(target, tile, launch)
        (found,) = (each for each in launch.launches if each.name == self.kernel)
        return found

    def wants(self, target: str) -> set[str]:
        nvidia = self.needs_nvidia if target.startswith("sm") else frozenset()
        return set(self.needs | nvidia | ({"matrix"} if target in self.matrix else set()))


def _attention(
    kind: str,
    heads: Heads,
    dtype: torch.dtype = BF16,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    is_far: bool = False,
    kernel: str = "attend_kernel",
) -> Variant:
    """is_far: in a pool that 32-bit offsets do not reach the end of."""
    dim, group = heads.head_dim, heads.num_heads // heads.num_kv_heads

    def call(target: str, tile: Tile | None, launch: Capture) -> None:
        tiles = Tiles.of(target, dim, dtype.itemsize)
        if tile is not None:
            tiles = Tiles(tile, tile, tile) if kind == "decode" else Tiles(tiles.narrow, tile, tile)
        step = _step(kind, 1 + tiles.narrow.block_m // group, window)
        q = torch.empty(step.num_rows, heads.num_heads, dim, dtype=dtype)
        page = PAGE, heads.num_kv_heads, dim
        k = torch.empty(99 + is_far * 2**31 // prod(page), *page, dtype=dtype, device="meta")
        attend(
            q,
            k,
            k,
            step,
            torch.tensor(step.positions),
            dim**-0.5,
            softcap=softcap,
            sinks=torch.empty(heads.num_heads, dtype=dtype) if sinks else None,
            tiles=tiles,
            launch=launch,
        )

    if kernel != "attend_kernel":
        return Variant(kernel, call)
    is_half = dtype != FP32
    return Variant(
        kernel,
        call,
        needs_nvidia=ASYNC if is_half else frozenset(),
        matrix=frozenset({"sm90"}) if is_half and kind != "decode" else frozenset(),
        tiled=True,
        is_exact=not is_half,
    )


def _step(kind: str, many: int, window: int | None) -> Plan:
    """many: more rows than a narrow tile holds.

    decode: rows by themselves. tree: two runs, one of all rows, one of each. extend: many new
    tokens of one sequence after others. mixed: that and a row by itself.
    """
    table = range(1, 99)
    lone = [Segment(row, 1, 40, table) for row in range(2 if kind == "decode" else many)]
    if kind == "decode":
        return plan(lone, PAGE, window)
    if kind == "tree":
        slides = window is not None
        items = [Item(range(many), 0, 32, table, windowed=slides)]
        items += [Item(range(row, row + 1), 32, 41, table, windowed=slides) for row in range(many)]
        return replace(plan(lone, PAGE, window), items=tuple(items))
    new = [Segment(0, 128, 40, table)]  # a multiple of any tile's rows: no last, narrow tile
    return plan(new if kind == "extend" else [*new, Segment(128, 1, 40, table)], PAGE, window)


def _rope_store(heads: Heads, *, normed: bool = False) -> Variant:
    num_turned = heads.num_heads + heads.num_kv_heads

    def call(_target: str, _tile: Tile | None, launch: Capture) -> object:
        width = (num_turned + heads.num_kv_heads) * heads.head_dim
        k = torch.empty(9, PAGE, heads.num_kv_heads, heads.head_dim, dtype=BF16)
        angle = torch.empty(ROWS, 1, heads.head_dim)
        norm = HeadNorm(torch.empty(num_turned, heads.head_dim, dtype=BF16), 1e-6)
        return cache.rope_store(
            torch.empty(ROWS, width, dtype=BF16),
            (angle, angle),
            k,
            k,
            torch.arange(ROWS),
            heads,
            norm if normed else None,
            launch=launch,
        )

    return Variant("rope_store_kernel", call)


def _store(_target: str, _tile: Tile | None, launch: Capture) -> None:
    k = torch.empty(9, PAGE, 8, 128, dtype=BF16)
    new = torch.empty(ROWS, 8, 128, dtype=BF16)
    cache.store(new, new, k, k, torch.arange(ROWS), launch=launch)


def _copy_pages(_target: str, _tile: Tile | None, launch: Capture) -> None:
    pool = torch.empty(2, 2, 9, PAGE, 8, 128, dtype=BF16)
    cache.copy_pages(pool, [(1, 2), (3, 4)], launch=launch)


def _add_rmsnorm(hidden: int) -> Variant:
    def call(_target: str, _tile: Tile | None, launch: Capture) -> object:
        x = torch.empty(ROWS, hidden, dtype=BF16)
        return fused.add_rmsnorm(x, x.clone(), x[0], 1e-5, launch=launch)

    return Variant("add_rmsnorm_kernel", call, LOADS)


def _act_mul(activation: Activation) -> Variant:
    def call(_target: str, _tile: Tile | None, launch: Capture) -> object:
        return fused.act_mul(torch.empty(ROWS, 28_672, dtype=BF16), activation, launch=launch)

    return Variant("act_mul_kernel", call, needs_nvidia=LOADS)


def _linear4(rows: int) -> Callable[[str, Tile | None, Capture], object]:
    weight = Packed4(
        torch.empty(4096, 2048, dtype=torch.uint8),
        torch.empty(4096, 128, dtype=FP16),
        torch.empty(4096, 128, dtype=FP16),
    )

    def call(_target: str, _tile: Tile | None, launch: Capture) -> object:
        x = torch.empty(rows, 4096, dtype=BF16)
        return int4.linear4(x, weight, launch=launch)

    return call


def _unpack4(_target: str, _tile: Tile | None, launch: Capture) -> object:
    halves = torch.empty(4096, 128, dtype=FP16)
    weight = Packed4(torch.empty(4096, 2048, dtype=torch.uint8), halves, halves)
    return int4.unpack4(weight, BF16, launch=launch)


def _draw(kernel: str) -> Variant:
    def call(_target: str, _tile: Tile | None, launch: Capture) -> object:
        numbers = torch.zeros(ROWS, dtype=torch.float64)
        keys = torch.zeros(ROWS, 3, dtype=torch.int64)
        logits = torch.empty(ROWS, 128_256)
        return sample.draw(logits, numbers, numbers, numbers, keys, launch=launch)

    return Variant(kernel, call)


LLAMA, GEMMA = Heads(32, 8, 128), Heads(16, 8, 256)  # 3 8B; 2 9B
LLAMA_1B, GPT_OSS = Heads(32, 8, 64), Heads(64, 8, 64)
FALCON = Heads(71, 1, 64)  # 7B: more query heads on a KV head than a narrow tile has room for
PHI_2, PHI_3 = Heads(32, 32, 80), Heads(32, 32, 96)

VARIANTS: dict[str, Variant] = {
    **{
        f"attend {kind} D{heads.head_dim} bf16": _attention(kind, heads)
        for heads in (LLAMA_1B, LLAMA, GEMMA)
        for kind in ("decode", "tree", "extend", "mixed")
    },
    **{
        f"attend {kind} D{heads.head_dim} bf16": _attention(kind, heads)
        for heads in (PHI_2, PHI_3)
        for kind in ("decode", "tree")
    },
    **{f"attend {kind} D128 fp16": _attention(kind, LLAMA, FP16) for kind in ("decode", "tree")},
    **{
        f"attend {kind} D{heads.head_dim} fp32": _attention(kind, heads, FP32)
        for heads in (LLAMA_1B, LLAMA)
        for kind in ("decode", "tree")
    },
    "attend tree D256 cap": _attention("tree", GEMMA, softcap=50.0),
    "attend tree D256 cap, window": _attention("tree", GEMMA, softcap=50.0, window=36),
    "attend tree D64 window": _attention("tree", GPT_OSS, window=36),
    "attend extend D64 window": _attention("extend", GPT_OSS, window=36),
    "attend mixed D64 window": _attention("mixed", GPT_OSS, window=36),
    **{
        f"attend {kind} D128 64-bit": _attention(kind, LLAMA, is_far=True)
        for kind in ("decode", "tree", "mixed")
    },
    "attend decode D64, 71 heads": _attention("decode", FALCON),
    **{
        f"merge D{heads.head_dim}": _attention("tree", heads, kernel="merge_kernel")
        for heads in (LLAMA_1B, LLAMA, GEMMA)
    },
    "merge D128 64-bit": _attention("tree", LLAMA, is_far=True, kernel="merge_kernel"),
    "merge D64 sinks": _attention("tree", GPT_OSS, sinks=True, kernel="merge_kernel"),
    "rope, store D128": _rope_store(LLAMA),
    "rope, store D128 normed": _rope_store(LLAMA, normed=True),
    "rope, store D64": _rope_store(LLAMA_1B),
    "store D128": Variant("store_kernel", _store),
    "copy pages": Variant("copy_pages_kernel", _copy_pages, LOADS),
    "add, norm 4096": _add_rmsnorm(4096),
    "silu x up": _act_mul("silu"),
    "gelu x up": _act_mul("gelu_tanh"),
    "draw: blocks": _draw("best_in_blocks_kernel"),
    "draw: best of blocks": _draw("best_of_blocks_kernel"),
    "int4, 1 row": Variant("gemv4_kernel", _linear4(1), LOADS),
    "int4, 4 rows": Variant("gemv4_kernel", _linear4(4), LOADS),
    **{
        f"int4, {rows} rows": Variant("gemm4_kernel", _linear4(rows), frozenset(), ASYNC)
        for rows in (16, 64)
    },
    "int4 unpacked": Variant("unpack4_kernel", _unpack4, needs_nvidia=LOADS),
}

CHOSEN: tuple[Key, ...] = (
    ("attend tree D128 bf16", "sm90"),
    ("attend decode D128 bf16", "sm80"),
    ("merge D128", "sm120"),
    ("rope, store D128", "gfx942"),
    ("int4, 1 row", "sm86"),
    ("add, norm 4096", "sm89"),
)
