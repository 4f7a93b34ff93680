"""What the attention's launches are made of, and what does without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from radchat_kernels.attn import attend
from radchat_kernels.executor import Unavailable, choose
from radchat_kernels.plan import Segment, plan
from radchat_kernels.tiles import Gpu, Tiles
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


def test_offsets_of_64_bits_give_the_same() -> None:
    class Wide(Launches):
        def __call__(
            self,
            kernel: Any,
            grid: tuple[int, ...],
            args: Sequence[Any],
            consts: dict[str, Any],
            **options: int,
        ) -> None:
            assert consts["I64"] is False
            super().__call__(kernel, grid, args, {**consts, "I64": True}, **options)

    step = Step(LEAVES[-4:], TREE, kv_heads=2)
    assert torch.equal(step.check(Launches()), step.check(Wide()))


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
