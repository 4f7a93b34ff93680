"""Tile sizes of the attention kernels by architecture and head dimension.

Chosen from compiled code (registers, spills, shared memory; the README's table), not measured.
AMD's were compiled for gfx942 alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from radchat_kernels._triton import power_of_two

KNOWN = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120", "gfx942")
OLDEST = 8.0  # compute capability: on 7.5 the tiles spill in loops, or have no room
MAX_DIM = 256  # of a head
MAX_GROUP = 128  # query heads on a KV head: one row's fill the largest tile
CDNA = re.compile("gfx9(0a|4.|5.)")  # AMD's with the matrix unit and the registers of gfx942
LARGE = ("sm90", "sm100")  # registers and shared memory for 128 query rows at a head_dim of 128


@dataclass(frozen=True, slots=True)
class Tile:
    """block_m query rows × heads of one KV head against block_n tokens at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """narrow: few rows; wide: many; extend: many, in plans with causal items.

    One launch has one number of warps: narrow items beside wide ones run with the wide tile's.
    A merge program does merge_heads heads of one row, merge_parts parts at a time.
    """

    narrow: Tile
    wide: Tile
    extend: Tile
    merge_heads: int = 4
    merge_parts: int = 8

    @staticmethod
    @cache
    def of(arch: str, head_dim: int, element_size: int = 2) -> Tiles:
        """``arch``: one of ``KNOWN``, or ``interpret``, where few large programs are quickest.

        element_size: bytes. fp32 is not multiplied on tensor cores: all registers, so small tiles.
        """
        if arch == "interpret":
            large = Tile(128, 64, 4, 1)
            return Tiles(Tile(16, 64, 4, 1), large, large, merge_heads=32)
        assert arch in KNOWN, arch
        assert head_dim <= MAX_DIM, f"no tiles for a head_dim of {head_dim}"
        if element_size > 2:
            block_n = 32 if head_dim <= 64 else 16
            wide = Tile(32, block_n, 8, 1)
            return Tiles(Tile(16, block_n, 8, 1), wide, wide)
        if head_dim <= 64:
            return Tiles(Tile(16, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 2))
        if head_dim > 128:
            return Tiles(Tile(16, 32, 4, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2))
        narrow = Tile(16, 64, 4, 2)
        if arch in LARGE:
            return Tiles(narrow, Tile(64, 64, 4, 2), Tile(128, 64, 8, 2))
        wide = Tile(64, 64 if arch == "gfx942" else 32, 4, 2)
        return Tiles(narrow, wide, Tile(64, 64, 8, 2))

    def holding(self, group: int) -> Tiles:
        """These, where even a narrow tile holds one row's ``group`` query heads on a KV head."""
        needed = power_of_two(group)
        all_three = (self.narrow, self.wide, self.extend)
        fit = [tile for tile in all_three if tile.block_m >= needed]
        fit = fit or [replace(self.extend, block_m=needed)]
        narrow, wide, extend = (t if t.block_m >= needed else fit[0] for t in all_three)
        return replace(self, narrow=narrow, wide=wide, extend=extend)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the choice of tiles and plans asks of a device."""

    arch: str  # as the compiler names it: sm90, gfx942; interpret
    num_sms: int

    @staticmethod
    def of(properties: Any) -> Gpu:
        """``properties``: of ``torch.cuda.get_device_properties``."""
        name = getattr(properties, "gcnArchName", "").split(":")[0]  # "gfx942:sramecc+:xnack-"
        if not name.startswith("gfx"):
            name = f"sm{properties.major}{properties.minor}"
        return Gpu(name, properties.multi_processor_count)

    def why_not(self) -> str:
        """Why no known architecture's tiles fit this one; empty: some do."""
        vendor, number = ("", 0) if self.arch == "interpret" else _split(self.arch)
        if vendor == "sm" and number < 10 * OLDEST:
            has = f"{number // 10}.{number % 10}"
            return f"the kernels want compute capability {OLDEST}, this GPU has {has}"
        if vendor == "gfx" and not CDNA.fullmatch(self.arch):
            return f"the kernels want AMD's gfx90a, gfx94x or gfx95x, this GPU is {self.arch}"
        return ""

    def tiled_as(self) -> str:
        """The known architecture whose tiles this gets: its own, or the newest before it."""
        if self.arch in (*KNOWN, "interpret"):
            return self.arch
        vendor, number = _split(self.arch)
        alike = sorted((_split(known)[1], known) for known in KNOWN if known.startswith(vendor))
        older = [known for at, known in alike if at <= number]
        return older[-1] if older else alike[0][1]


def _split(arch: str) -> tuple[str, int]:
    """``sm90`` → (sm, 90); ``gfx90a`` → (gfx, 0x90a)."""
    found = re.fullmatch(r"(?:(sm)(\d+))|(?:(gfx)([0-9a-f]+))", arch)
    assert found is not None, f"not an architecture: {arch}"
    if found[1]:
        return found[1], int(found[2])
    return found[3], int(found[4], 16)
