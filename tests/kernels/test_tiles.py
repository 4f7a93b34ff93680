"""Tiles by architecture: what a launch, a plan and the kernels ask of each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from radchat_kernels.executor import Heads, Unavailable
from radchat_kernels.pack import pack
from radchat_kernels.plan import Segment, plan
from radchat_kernels.tiles import KNOWN, Gpu, Tiles
from radchat_kernels.torch_executor import TorchExecutor
from radchat_kernels.triton_executor import TritonExecutor


@pytest.mark.parametrize("arch", [*KNOWN, "interpret"])
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("element_size", [2, 4])
def test_tiles_are_powers_of_two_and_grow(arch: str, dim: int, element_size: int) -> None:
    tiles = Tiles.of(arch, dim, element_size)
    for tile in (tiles.narrow, tiles.wide, tiles.extend):
        for size in (tile.block_m, tile.block_n, tile.num_warps):
            assert size & (size - 1) == 0
        assert tile.block_m >= 16
    assert tiles.narrow.block_m < tiles.wide.block_m <= tiles.extend.block_m


@pytest.mark.parametrize(("group", "narrow", "wide"), [(1, 16, 64), (16, 16, 64), (71, 128, 128)])
def test_a_tile_holds_a_rows_query_heads(group: int, narrow: int, wide: int) -> None:
    tiles = Tiles.of("sm90", 64).holding(group)
    assert (tiles.narrow.block_m, tiles.wide.block_m) == (narrow, wide)


def test_a_device_is_named_by_its_properties() -> None:
    nvidia = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    amd = SimpleNamespace(
        gcnArchName="gfx942:sramecc+:xnack-", major=9, minor=4, multi_processor_count=304
    )
    assert Gpu.of(nvidia) == Gpu("sm90", 132)
    assert Gpu.of(amd) == Gpu("gfx942", 304)


@pytest.mark.parametrize(
    ("arch", "known"),
    [
        ("sm90", "sm90"),
        ("sm87", "sm86"),
        ("sm103", "sm100"),
        ("sm121", "sm120"),
        ("sm130", "sm120"),
        ("gfx90a", "gfx942"),
        ("gfx950", "gfx942"),
    ],
)
def test_an_unknown_architecture_has_the_tiles_of_the_newest_before_it(
    arch: str, known: str
) -> None:
    gpu = Gpu(arch, 100)
    assert gpu.tiled_as() == known
    assert TritonExecutor("cuda", gpu=gpu).note == ("" if arch == known else f"{arch} as {known}")


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("sm75", "want compute capability 8.0, this GPU has 7.5"),
        ("sm61", "want compute capability 8.0, this GPU has 6.1"),
        ("gfx1100", "want AMD's gfx90a, gfx94x or gfx95x, this GPU is gfx1100"),
        ("gfx908", "this GPU is gfx908"),
        ("gfx1250", "this GPU is gfx1250"),
    ],
)
def test_a_gpu_that_no_tiles_fit_is_refused(arch: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        TritonExecutor("cuda", gpu=Gpu(arch, 40))
    assert not any(Gpu(known, 40).why_not() for known in (*KNOWN, "sm87", "gfx90a", "interpret"))


def test_plans_for_a_gpu_share_grow_and_fill_it() -> None:
    limits = TritonExecutor("cuda", gpu=Gpu("sm90", 132)).limits(Heads(32, 8, 128), 2)
    assert limits.shared
    assert limits.growing
    assert (limits.group, limits.num_kv_heads, limits.programs) == (4, 8, 264)
    assert (limits.narrow, limits.wide, limits.extend, limits.block_tokens) == (16, 64, 128, 64)


@pytest.mark.parametrize(
    ("heads", "hidden", "said"),
    [
        (Heads(8, 1, 512), 4096, "take a head_dim of 256 at most, this model has 512"),
        (Heads(144, 1, 64), 4096, "query heads on a KV head of 128 at most, this model has 144"),
        (Heads(128, 8, 128), 18_432, "a hidden size of 16,384 at most, this model has 18,432"),
        (Heads(71, 1, 64), 4544, ""),
        (Heads(16, 8, 256), 16_384, ""),
        (Heads(8, 1, 256), 0, ""),
    ],
)
def test_a_shape_that_no_kernel_takes_is_told_before_anything_runs(
    heads: Heads, hidden: int, said: str
) -> None:
    reason = TritonExecutor("cuda", gpu=Gpu("sm90", 132)).why_not(heads, hidden)
    assert reason.endswith(said)
    assert bool(reason) == bool(said)
    assert TorchExecutor().why_not(heads, hidden) == ""


def test_plans_in_fp32_are_for_its_tiles() -> None:
    limits = TritonExecutor("cuda", gpu=Gpu("sm90", 132)).limits(Heads(32, 8, 128), 4)
    assert (limits.narrow, limits.wide, limits.extend, limits.block_tokens) == (16, 32, 32, 16)


@pytest.mark.parametrize(("rows", "context"), [(512, 32_768), (512, 129_024), (2048, 129_024)])
def test_an_extend_reads_more_of_its_prefix_than_it_writes_partial_results(
    rows: int, context: int
) -> None:
    """Of Llama 3 8B on a GPU of 132 multiprocessors, which its row tiles keep busy."""
    heads = Heads(32, 8, 128)
    limits = TritonExecutor("cuda", gpu=Gpu("sm90", 132)).limits(heads, 2)
    table = range(-(-(context + rows) // 16))
    work = pack(plan([Segment(0, rows, context, table)], 16, None, limits), rows)
    assert work.num_items * heads.num_kv_heads >= limits.programs
    partial = 2 * 4 * work.num_slots * heads.num_heads * (heads.head_dim + 1)
    assert partial < 2 * 2 * context * heads.num_kv_heads * heads.head_dim
