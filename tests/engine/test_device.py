"""The device by itself: what it is, what it says is free, and a step it has no memory for."""

from __future__ import annotations

import weakref
from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine.batch import Work
from radchat.engine.device import Device, DeviceFull
from radchat.engine.kv_pool import KVPool
from radchat.engine.memory import available
from radchat.engine.runner import Runner
from radchat_kernels.executor import Heads
from radchat_kernels.plan import Limits, Plan, Segment
from radchat_kernels.plan import plan as make_plan
from radchat_kernels.tiles import Gpu
from radchat_kernels.torch_executor import TorchExecutor
from radchat_kernels.triton_executor import TritonExecutor
from tests.engine.bench import Bench, TinyModel, prompt
from tests.fakes import Cuda, LogicalClock, drain


def test_a_gpu_is_taken_where_there_is_one_and_said_by_name() -> None:
    assert str(Device.best(Cuda())) == "cuda (NVIDIA H200)"
    assert str(Device("cpu", Cuda())) == "cpu"
    assert str(Device.best(Cuda(sees_one=False))) == "cpu"


def test_what_torch_keeps_for_later_counts_as_free() -> None:
    cuda = Cuda()
    assert Device("cuda", cuda).free_bytes() == 1000 + 300
    assert Device().free_bytes() == pytest.approx(available(), rel=0.2)


def test_waiting_and_releasing_are_the_gpus() -> None:
    cuda = Cuda()
    for device in (Device("cuda", cuda), Device()):
        device.wait()
        device.release()
    assert cuda.called == ["synchronize", "empty_cache"]


def test_lists_go_up_together_each_at_an_address_that_wide_reads_take() -> None:
    lists = [[5], [1, 2, 3], [], array("q", [7, -8])]
    tensors = Device().upload(*lists)
    assert [each.tolist() for each in tensors] == [list(each) for each in lists]
    assert {each.dtype for each in tensors} == {torch.int64}
    first = tensors[0].data_ptr()
    assert all((each.data_ptr() - first) % 16 == 0 for each in tensors)
    assert len({each.untyped_storage().data_ptr() for each in tensors if len(each)}) == 1


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What was asked for when host tensors were made, and when tensors went to the GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pinned: list[int] = []  # values of each host tensor that is
        self.sent: list[tuple[int, bool]] = []  # values, whether nobody waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if kwargs.get("pin_memory"):
            self.pinned.append(made.numel())
        if func.name() == "aten::_to_copy":
            self.sent.append((made.numel(), bool(kwargs.get("non_blocking"))))
        return made


def test_to_a_gpu_they_go_from_pinned_memory_and_nobody_waits() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), Transfers() as seen:
        tensors = Device("cuda", Cuda()).upload([5], [1, 2, 3])
    assert {str(each.device) for each in tensors} == {"cuda:0"}
    assert [len(each) for each in tensors] == [1, 3]
    assert seen.pinned == [5]
    assert seen.sent == [(5, True)]


def test_a_work_list_goes_up_once_from_pinned_memory() -> None:
    """Of a plan that the kernels' tiles are of; launches are left out."""
    executor = TritonExecutor("cpu", launch=lambda *_, **__: None, gpu=Gpu("sm90", 132))
    heads = Heads(4, 2, 16)
    made = make_plan([Segment(0, 1, 40, [1, 2, 3])], 16, limits=executor.limits(heads, 2))
    with FakeTensorMode(allow_non_fake_inputs=True), Transfers() as seen:
        q = torch.empty(1, 4, 16, dtype=torch.bfloat16, device="cuda:0")
        shape = 4, 16, 2, 16
        k, v = (torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(2))
        at = torch.empty(1, dtype=torch.int64, device="cuda:0")
        for _ in range(3):  # layers
            executor.attend(q, k, v, made, at, 0.25)
    (sent,) = seen.sent
    assert seen.pinned == [sent[0]]
    assert sent[1]


# -- a step that is too much ----------------------------------------------------------------------


class Small(TinyModel):
    """Has no memory for a step of more rows than ``room``."""

    room = 1000
    error: Exception = torch.OutOfMemoryError("tried to allocate 20.00 MiB")

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        if len(ids) > self.room:
            raise self.error
        return super().forward(ids, positions, slots, plan, pool, logit_rows)


class Released(Device):
    """Remembers that it was told to give back what is not used."""

    releases = 0

    def release(self) -> None:
        self.releases += 1


def test_a_step_that_the_device_has_no_memory_for_counts_nothing_and_can_run_again() -> None:
    model = Small("llama", torch.float32)
    bench = Bench(torch.float32, on=model)
    request = bench.request(prompt(1, 50), 4)
    bench.engine.submit(request)
    work = bench.engine._scheduler.schedule(0.0).work
    device = Released()
    runner = Runner(model, bench.pool, device, Limits())
    model.room = 30
    with pytest.raises(DeviceFull, match=r"20\.00 MiB"):
        runner.run(work)
    assert device.releases == 1
    assert (runner.rows_run, model.decoder.tokens_computed) == (0, 0)
    (whole,) = work
    model.room = 25
    for start, end in ((0, 25), (25, 50)):
        runner.run([Work(whole.choice, start, end)])
    assert (runner.rows_run, model.decoder.tokens_computed) == (50, 50)
    model.room = 1000
    bench.expect(request, drain(bench.engine))


def test_a_full_device_gets_back_what_the_last_plan_has_on_it() -> None:
    """A plan that grows is kept from step to step, and with it the room for partial results."""
    bench = Bench(torch.float32)
    bench.engine.submit(bench.request(prompt(1, 20), 9))
    bench.engine.step()
    (work,) = bench.engine._scheduler.schedule(0.0).work
    kept: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    class Keeping(Small):
        def forward(
            self,
            ids: Tensor,
            positions: Tensor,
            slots: Tensor,
            plan: Plan,
            pool: KVPool,
            logit_rows: Tensor,
        ) -> Tensor:
            of_the_plan = plan.scratch.setdefault("mine", torch.empty(1))
            assert isinstance(of_the_plan, Tensor)
            kept.append(weakref.ref(of_the_plan))
            if len(kept) == 3:
                raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")
            return torch.zeros(1, 1)

    class Looks(Device):
        def release(self) -> None:
            super().release()
            alive.extend(each() is not None for each in kept)

    limits = Limits(growing=True)
    runner = Runner(Keeping("llama", torch.float32), bench.pool, Looks(), limits)
    for _ in range(2):
        runner.run([work])
    assert kept[0]() is kept[1]() is not None
    with pytest.raises(DeviceFull):
        runner.run([work])
    assert alive == [False] * 3
    runner.run([work])


class Older(TorchExecutor):
    """Its plans serve while rows grow, as those of the kernels do, which read where rows are."""

    def limits(self, heads: Heads, element_size: int) -> Limits:
        return replace(super().limits(heads, element_size), growing=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, positions: Tensor,
               scale: float, **more: Any) -> Tensor:  # fmt: skip
        now = [replace(s, start=int(positions[s.row_begin])) for s in plan.segments]
        return super().attend(q, k, v, make_plan(now, plan.page_size), positions, scale, **more)


def test_rows_are_rotated_by_where_they_are_not_by_where_the_plan_was_made() -> None:
    """The table of angles grows at 256, in the midst of a plan."""
    bench = Bench(torch.float32, on=TinyModel("llama", torch.float32, Older()))
    request = bench.request(prompt(1, 240), 40)
    bench.expect(request, bench.run(request))
    assert bench.engine.plans_made < 10


class Late(Device):
    """A step is done, or has failed, when it has been waited for."""

    def __init__(self, clock: LogicalClock) -> None:
        super().__init__()
        self.clock = clock
        self.is_full_at: int | None = None
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1
        self.clock.advance(0.5)
        if self.waits == self.is_full_at:
            raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")


def test_a_step_is_waited_for_before_its_time_is_taken_and_fails_then_too() -> None:
    clock = LogicalClock()
    device = Late(clock)
    bench = Bench(torch.float32, device=device, clock=clock)
    request = bench.request(prompt(1, 50), 3)
    bench.expect(request, bench.run(request))
    assert device.waits == 3
    assert bench.engine.stats()["seconds"]["model"] == 3 * 0.5
    device.is_full_at = 5
    again = bench.request(prompt(2, 50), 3)
    bench.expect(again, bench.run(again))
    assert bench.engine.stats()["device_full"] == 1


def test_what_a_step_gave_is_free_when_the_wait_for_it_finds_no_room() -> None:
    bench = Bench(torch.float32)
    bench.engine.submit(bench.request(prompt(1, 20), 9))
    work = bench.engine._scheduler.schedule(0.0).work
    given: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    class Watched(TinyModel):
        def forward(self, *args: Any) -> Tensor:
            logits = torch.zeros(1, 1)
            given.append(weakref.ref(logits))
            return logits

    class FullAtLast(Device):
        def wait(self) -> None:
            raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")

        def release(self) -> None:
            alive.extend(each() is not None for each in given)

    runner = Runner(Watched("llama", torch.float32), bench.pool, FullAtLast(), Limits())
    with pytest.raises(DeviceFull):
        runner.run(work)
    assert alive == [False]


def test_another_error_of_a_step_is_passed_on_as_it_is() -> None:
    model = Small("llama", torch.float32)
    model.room, model.error = 0, RuntimeError("a lost device")
    bench = Bench(torch.float32, on=model)
    bench.engine.submit(bench.request(prompt(1, 50), 4))
    with pytest.raises(RuntimeError, match="a lost device"):
        bench.engine.step()
