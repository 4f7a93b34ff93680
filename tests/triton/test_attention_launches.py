"""What the attention's launches are made of, and what does without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from radchat_kernels.attn import attend
from radchat_kernels.attn_kernels import attend_kernel
from radchat_kernels.executor import Heads, Unavailable, choose
from radchat_kernels.plan import Limits, Segment, plan
from radchat_kernels.tiles import Gpu, Tile, Tiles
from radchat_kernels.triton_executor import TritonExecutor
from tests.triton.guarded import Launches
from tests.triton.steps import SMALL, TOLERANCE, Step

TREE = {"a": 5, "b": 5, "c": 4}
LEAVES = [*[("ab", n, 1) for n in range(7)], *[("ac", n, 1) for n in range(2)]]


def names(launches: Launches) -> list[str]:
    return [call.kernel for call in launches.calls]


def test_a_tree_of_three_levels_takes_two_launches() -> None:
    """Narrow items and wide ones, of one grid with room to spare."""
    launches = Launches()
    step = Step(LEAVES, TREE)
    made = step.plan()
    step.check(launches, made)
    assert names(launches) == ["attend_kernel", "merge_kernel"]
    call = launches.calls[0]
    assert (call.consts["BLOCK_M"], call.consts["WIDE_M"]) == (16, 32)
    assert call.grid == (16,)
    assert len(made.items) < 16


def test_rows_of_one_part_each_take_one_launch() -> None:
    launches = Launches()
    step = Step([("", n, 1) for n in (3, 9, 14)])
    step.check(launches)
    assert names(launches) == ["attend_kernel"]
    assert launches.calls[0].consts["WIDE_M"] == 0


def test_only_wide_items_compile_no_narrow_path() -> None:
    launches = Launches()
    Step([("", 0, 14)]).check(launches)
    assert launches.calls[0].consts["BLOCK_M"] == 0


@pytest.mark.parametrize("window", [None, 6])
def test_no_argument_of_a_launch_depends_on_a_length(window: int | None) -> None:
    """Of two steps with the same rows, and of one plan as it grows, only tensors differ."""
    one, other = Launches(), Launches()
    longer = {"a": 6, "b": 4, "c": 7}
    for launches, leaves, runs in (
        (one, LEAVES, TREE),
        (other, [(path, n + 3, rows) for path, n, rows in LEAVES], longer),
    ):
        step = Step(leaves, runs, spare=2)
        made = step.plan(step.limits(growing=True), window)
        step.check(launches, made)
        step.grow(4)
        step.check(launches, made)
    assert len(one.calls) == 4
    assert one.calls == other.calls
    assert one.calls[:2] == one.calls[2:]


def test_a_plan_goes_to_the_device_once() -> None:
    step = Step(LEAVES, TREE)
    made = step.plan()
    step.check(Launches(), made)
    before = dict(made.scratch)
    step.pool.mul_(2)
    step.check(Launches(), made)
    assert made.scratch == before


def test_a_plan_is_sent_again_for_other_tiles_or_another_dtype() -> None:
    step = Step(LEAVES, TREE)
    made = step.plan()
    large = Tiles.of("interpret", 16)
    for tiles in (SMALL, large):
        launches = Launches()
        step.check(launches, made, tiles=tiles)
        assert launches.calls[0].consts["WIDE_M"] in (0, tiles.wide.block_m)
        assert launches.calls[0].consts["BLOCK_N"] == tiles.narrow.block_n
    step.pool, step.q, step.dtype = step.pool.half(), step.q.half(), torch.float16
    step.check(Launches(), made)
    assert len(made.scratch) == 4  # and the positions


def test_a_large_pool_has_offsets_of_64_bits() -> None:
    def flags(num_pages: int) -> list[bool]:
        found: list[bool] = []
        pool = torch.empty(2, num_pages, 16, 1, 16, device="meta")
        attend(
            torch.empty(1, 2, 16, device="meta"),
            pool[0],
            pool[1],
            plan([Segment(0, 1, 3, [1])], 16),
            torch.empty(1, dtype=torch.int64, device="meta"),
            1.0,
            tiles=SMALL,
            launch=lambda kernel, grid, args, consts, **options: found.append(consts["I64"]),
        )
        return found

    assert flags(2**23 - 2**13) == [False]
    assert flags(2**23) == [True]


def test_large_partial_results_have_offsets_of_64_bits() -> None:
    """Of 1,100 rows of 2^20 elements two each, where nothing else is beyond 2^31."""
    found: list[bool] = []
    q, pool = (torch.empty(n, 2**12, 256, device="meta") for n in (1100, 2 * 80 * 16))
    pool = pool.view(2, 80, 16, 2**12, 256)[:, :, :1]
    attend(
        q, pool[0], pool[1],
        plan([Segment(0, 1100, 1, range(1101))], 1),
        torch.empty(1100, dtype=torch.int64, device="meta"), 1.0, tiles=SMALL,
        launch=lambda kernel, grid, args, consts, **options: found.append(consts["I64"]),
    )  # fmt: skip
    assert found == [True, True]


def test_more_items_than_a_second_axis_has_room_for() -> None:
    """CUDA's grids: 2^31 - 1 by 65,535 by 65,535. Here 80,000 rows by themselves, of two heads."""
    grids: list[tuple[int, ...]] = []
    q, pool = torch.empty(80_000, 4, 16), torch.empty(2, 1, 16, 2, 16)
    attend(
        q, pool[0], pool[1],
        plan([Segment(row, 1, 3, [0]) for row in range(len(q))], 16),
        torch.full((len(q),), 3), 1.0, tiles=SMALL,
        launch=lambda kernel, grid, args, consts, **options: grids.append(grid),
    )  # fmt: skip
    assert grids == [(2 * 2**17,)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_where_nothing_is_cached_torch_gives_what_the_kernel_gives(dtype: torch.dtype) -> None:
    """A lone row more, and the same rows go through the kernel."""
    step = Step([("", 0, 64), ("", 0, 0), ("", 0, 66), ("", 5, 1)], dtype=dtype, group=3)
    tiles = Tiles.of("interpret", 16)
    launches = Launches()
    by_kernel = step.check(launches, tiles=tiles)
    assert names(launches) == ["attend_kernel"]
    step.segments.pop()
    launches = Launches()
    step.q = step.q[:-1]
    by_torch = step.check(launches)
    assert names(launches) == []
    difference = (by_torch - by_kernel[:-1]).double().norm()
    assert difference < TOLERANCE[dtype] * by_torch.double().norm()


def test_rows_in_another_order_than_their_sequences_or_of_none_go_through_the_kernel() -> None:
    tiles = Tiles.of("interpret", 16)
    turned, launches = Step([("", 0, 64), ("", 0, 66)], dtype=torch.float16, group=3), Launches()
    turned.segments.reverse()
    turned.check(launches, tiles=tiles)
    more = Step([("", 0, 64)], dtype=torch.float16, group=3)
    more.q = torch.cat([more.q, more.normal(2, *more.q.shape[1:])])
    assert (more.check(launches, tiles=tiles)[64:] == 0).all()
    assert names(launches) == ["attend_kernel"] * 2


def test_a_launch_has_the_warps_and_blocks_of_its_largest_tile() -> None:
    """Blocks under a window are small: all of them are masked, which takes registers."""
    tiles = Tiles(Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(128, 64, 8, 1))
    lone, new = Segment(0, 1, 99, range(9)), Segment(1, 130, 7, range(9, 20))
    many = [Segment(row, 1, 70 + row % 2, range(9)) for row in range(33)]
    q, pool = torch.empty(131, 2, 16), torch.empty(2, 20, 16, 1, 16)
    found: list[tuple[int, ...]] = []

    def look(kernel: Any, grid: Any, args: Any, consts: dict[str, Any], **options: int) -> None:
        if kernel is attend_kernel:
            sizes = [consts[name] for name in ("BLOCK_M", "BLOCK_N", "WIDE_M", "WIDE_N")]
            found.append((*sizes, options["num_warps"], options["num_stages"]))

    for segments in ([lone], [lone, new], many):
        for window in (None, 40):
            made = plan(segments, 16, window, Limits(shared=True, group=2, narrow=16))
            attend(
                q[: made.num_rows], pool[0], pool[1], made, torch.tensor(made.positions), 1.0,
                tiles=tiles, launch=look,
            )  # fmt: skip
    assert found == [
        (16, 64, 0, 0, 4, 3), (16, 64, 0, 0, 4, 3),
        (16, 64, 128, 64, 8, 1), (16, 64, 128, 32, 8, 1),
        (16, 64, 64, 64, 8, 2), (16, 64, 64, 32, 8, 2),
    ]  # fmt: skip


def test_the_tiles_of_a_gpu_hold_more_query_heads_than_a_narrow_tile_has_room_for() -> None:
    """71 on one KV head (Falcon), lone rows and new ones, with the tiles as they are compiled."""
    step = Step([("a", 2, 1), ("a", 3, 1), ("", 5, 2)], {"a": 2}, group=71)
    launches, tiles = Launches(), Tiles.of("sm90", 64)
    limits = TritonExecutor("cuda", gpu=Gpu("sm90", 8)).limits(Heads(71, 1, 64), 2)
    step.check(launches, step.plan(limits), tiles=tiles)
    assert launches.calls[0].consts["BLOCK_M"] == 128


def test_a_window_a_cap_or_a_sink_is_never_left_to_torch() -> None:
    step = Step([("", 0, 64)], dtype=torch.float16, group=1)
    tiles = Tiles.of("interpret", 16)
    limits = step.limits(shared=False)
    made, windowed = step.plan(limits), step.plan(limits, 9)
    for one, softcap, sinks in (
        (windowed, None, None),
        (made, 3.0, None),
        (made, None, torch.ones(1)),
    ):
        launches = Launches()
        step.check(launches, one, softcap, sinks, tiles)
        assert names(launches)[0] == "attend_kernel"


def test_on_a_gpu_all_that_a_launch_gets_is_there() -> None:
    """With stand-ins for tensors of a GPU, and a launcher that only looks."""
    devices: set[str] = set()

    def look(kernel: Any, grid: Any, args: Sequence[Any], consts: Any, **options: int) -> None:
        devices.update(arg.device.type for arg in args if isinstance(arg, torch.Tensor))

    with FakeTensorMode(allow_non_fake_inputs=True):
        for count in (2, 70):
            q = torch.empty(count, 4, 64, dtype=torch.bfloat16, device="cuda:0")
            pool = torch.empty(2, 20, 16, 2, 64, dtype=torch.bfloat16, device="cuda:0")
            made = plan([Segment(0, count, 0, range(5)), Segment(count, 0, 0, [])], 16)
            at = torch.empty(count, dtype=torch.int64, device="cuda:0")
            options: Any = {"tiles": Tiles.of("sm90", 64), "launch": look}
            o = attend(q, pool.select(0, 0), pool.select(0, 1), made, at, 1.0, **options)
            assert (o.device.type, o.shape, o.dtype) == ("cuda", q.shape, q.dtype)
    assert devices == {"cuda"}


def test_the_executor_hands_its_launcher_and_tiles_on() -> None:
    step = Step(LEAVES, TREE)
    launches = Launches()
    executor = TritonExecutor("cpu", SMALL, launches)
    k, v = step.pool
    got = executor.attend(step.q, k, v, step.plan(), step.positions, step.scale)
    assert torch.equal(got, step.check(Launches()))
    assert [call.consts.get("BLOCK_N") for call in launches.calls] == [16, None]


def test_a_gpu_that_no_tiles_fit_has_the_torch_executor_and_says_why() -> None:
    reason = "the kernels want compute capability 8.0, this GPU has 7.5"
    found = choose("cuda", gpu=Gpu("sm75", 40))
    assert (found.name, found.why) == ("torch", reason)
    with pytest.raises(Unavailable, match=reason):
        choose("cuda", "triton", Gpu("sm75", 40))
    assert choose("cuda", gpu=Gpu("sm86", 40)).name == "triton"
