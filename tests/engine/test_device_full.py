"""A device that has no memory for a step: nothing is lost, said twice or counted that has not run.

The model raises as torch does where a step has more rows than it has room for, after it has
written rubbish into their slots; the engine around it is real and recounts after every step.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from radchat.engine.device import Device
from radchat.engine.kv_pool import KVPool
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Priority,
    Request,
    SamplingParams,
    Tokens,
)
from radchat.engine.saving import RETRY_S
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.step_limit import CALM
from radchat_kernels.torch_executor import TorchExecutor
from tests.engine.blocks_in_memory import BlocksInMemory
from tests.engine.cramped import (
    FATAL,
    PAGE,
    ROOMY,
    ask,
    cramped,
    crowd,
    prompt,
    run,
    same,
)
from tests.fakes import (
    LogicalClock,
    ScriptedModel,
    drain,
    finished,
    flush,
    hashed,
    output,
    scripted_engine,
)


@functools.cache
def roomy_crowd() -> tuple[list[Event], int]:
    """What the crowd is told where there is room, and the rows that it takes."""
    roomy = scripted_engine()
    return run(roomy, crowd()), roomy.rows_run


@pytest.mark.parametrize("most", [PAGE, PAGE + 3, 40, 300])
def test_all_answers_are_those_of_a_roomy_device(most: int) -> None:
    wanted, rows = roomy_crowd()
    engine, model = cramped(most)
    events = run(engine, crowd())
    for request in crowd():
        same(events, wanted, request)
    engine.check_idle()
    stats = engine.stats()
    assert model.full
    assert stats["device_full"] == len(model.full)
    assert stats["steps"] == len(model.rows)
    assert stats["rows_run"] == sum(model.rows) == model.tokens_computed
    assert max(model.rows) <= most
    # halved until it fits, and then at most one in so many steps is tried in vain
    assert len(model.full) <= 10 + len(model.rows) // CALM
    assert (stats["retractions"] > 0) is (most < 200)
    # put back with their KV in the tree, they are given it again: no row has run twice
    assert sum(model.rows) <= rows


def test_one_that_never_fits_ends_with_the_way_out_and_all_others_go_on() -> None:
    requests, wanted = crowd(), roomy_crowd()[0]
    engine, model = cramped(ROOMY)
    doomed = [
        ask("doomed", prompt(70, 40) + array("I", [FATAL]) + prompt(71, 40), 5),
        ask("later", prompt(72, 8) + array("I", [FATAL]), 5, priority=Priority.BACKGROUND, n=3),
    ]
    events = run(engine, [*requests[:6], doomed[0], *requests[6:], doomed[1]])
    for request in requests:
        same(events, wanted, request)
    for request in doomed:
        for choice in range(request.n):
            end = finished(events, request.id, choice)
            assert (end.reason, end.kept) == (FinishReason.ERROR, 0)
            assert "kv_device" in (end.error or "")
        assert sum(isinstance(e, Tokens) and e.request_id == request.id for e in events) == 0
    engine.check_idle()
    assert len(model.full) < 40
    after = run(engine, [ask("after", prompt(80, 50))])
    same(
        after, run(scripted_engine(), [ask("after", prompt(80, 50))]), ask("after", prompt(80, 50))
    )


def test_an_answer_that_loses_its_memory_half_way_keeps_what_it_has_said() -> None:
    engine, model = cramped(lambda attempt: ROOMY if attempt < 12 else 0)
    request = ask("a", prompt(0, 50), 40)
    events = run(engine, [request])
    end = finished(events, "a")
    assert end.reason is FinishReason.ERROR
    assert end.kept == len(output(events, "a")) == 12
    assert output(events, "a") == output(run(scripted_engine(), [request]), "a")[:12]
    assert len(model.full) == 2  # alone by a row: once more, after what was cached is given back
    engine.check_idle()


def test_those_put_back_in_the_midst_of_their_answers_run_no_token_again() -> None:
    requests = [ask(f"{i}", prompt(i, 40), 60) for i in range(6)]
    roomy = scripted_engine()
    wanted = run(roomy, requests)
    engine, model = cramped(lambda attempt: ROOMY if attempt < 30 else 2)
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    while not engine.stats()["retractions"]:
        events += engine.step()
    waiting = engine._scheduler.waiting
    assert waiting
    assert not any(choice.retractions for choice in waiting)  # which would make them run alone
    events += drain(engine)
    for request in requests:
        same(events, wanted, request)
    ends = [event.request_id for event in events if isinstance(event, Finished)]
    assert set(ends[:2]) == {"0", "1"}  # the newest are put back
    assert engine.stats()["retractions"] >= 4
    assert sum(model.rows) == roomy.stats()["rows_run"]


@pytest.mark.parametrize("rows", [1, 200])
def test_what_passes_costs_a_step_and_nothing_else(rows: int) -> None:
    """Memory that another program took for a moment."""
    at = 0 if rows > 1 else 7
    engine, model = cramped(lambda attempt: 0 if attempt == at else ROOMY)
    request = ask("a", prompt(0, 200), 100)
    events = run(engine, [request])
    same(events, run(scripted_engine(), [request]), request)
    assert model.full == [rows]
    assert engine.stats()["retractions"] == 0


@pytest.mark.parametrize(
    "said",
    [
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you",
    ],
)
def test_others_say_it_in_other_words(said: str) -> None:
    engine, model = cramped(lambda attempt: 0 if attempt == 3 else ROOMY)
    model.error = RuntimeError(said)
    request = ask("a", prompt(0, 50), 10)
    same(run(engine, [request]), run(scripted_engine(), [request]), request)
    assert engine.stats()["device_full"] == 1


def test_what_is_no_want_of_memory_is_a_lost_device() -> None:
    engine, model = cramped(0)
    model.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    engine.submit(ask("a", prompt(0, 50)))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.step()


def test_the_rows_of_a_step_grow_again_while_steps_succeed() -> None:
    engine, model = cramped(lambda attempt: 100 if attempt == 0 else ROOMY)
    run(engine, [ask("a", prompt(0, 256), 2)])
    assert (model.full, model.rows[:2]) == ([256], [128, 128])
    run(engine, [ask("b", prompt(1, 40), CALM)])
    before = len(model.rows)
    run(engine, [ask("c", prompt(2, 512), 1)])
    assert model.rows[before:] == [512]


@pytest.mark.parametrize("most", [PAGE, 50])
def test_the_foreground_goes_on_first(most: int) -> None:
    engine, _ = cramped(most)
    for i in range(6):
        engine.submit(ask(f"back{i}", prompt(i, 60), 60, priority=Priority.BACKGROUND))
    events: list[Event] = []
    for _ in range(20):
        events += engine.step()
    engine.submit(ask("front", prompt(9, 60), 10))
    events += drain(engine)
    ends = [event.request_id for event in events if isinstance(event, Finished)]
    assert ends.index("front") <= most // PAGE  # no more than those that were nearly done
    engine.check_idle()


@pytest.mark.parametrize("seed", range(7))
def test_whatever_memory_comes_and_goes_nothing_is_lost(seed: int) -> None:
    """In a small pool, so that pages are short as well, and with some that are cancelled."""
    dice = random.Random(seed)
    wanted, _ = roomy_crowd()
    engine, model = cramped(lambda _: dice.choice([PAGE, 25, 60, ROOMY]), pool_tokens=512)
    requests = [each for each in crowd() if len(each.ids) < 300]
    events: list[Event] = []
    gone: set[str] = set()
    for request in requests:
        engine.submit(request)
        for _ in range(dice.choice([0, 1, 5])):
            events += engine.step()
        if dice.random() < 0.2:
            name = dice.choice(requests).id
            if engine.abort(name):
                gone.add(name)
    events += drain(engine, max_steps=1200)
    for request in requests:
        if request.id not in gone:
            same(events, wanted, request)
    assert model.full
    engine.check_idle()


@pytest.mark.parametrize("most", [PAGE, 70])
def test_what_comes_from_disk_is_restored_and_counted_while_steps_are_full(most: int) -> None:
    store = BlocksInMemory()
    old = [prompt(i, 512 + 40 * i) for i in range(3)]
    options = SchedulerOptions(chunk_tokens=128)
    first = scripted_engine(blocks=store, options=options)
    for i, ids in enumerate(old):
        run(first, [ask(f"{i}", ids, 1)])
        first.keep(f"s/{i}", ids)
    assert flush(first)
    first.close()
    turns = [ask(f"{i}", ids + prompt(50 + i, 90), 20) for i, ids in enumerate(old)]
    turns.append(ask("load", old[0], fill="load"))
    wanted = run(scripted_engine(options=options), turns[:3])
    engine, model = cramped(most, blocks=store, options=options)
    events = run(engine, turns)
    for request in turns[:3]:
        same(events, wanted, request)
        usage = finished(events, request.id).usage  # what is put back finds it on the device
        assert usage.disk + usage.device == len(request.ids) - 90
    assert finished(events, "load").reason is FinishReason.STOP
    assert len(store.reads) <= 9  # each block once
    assert engine.stats()["device_full"] == len(model.full) > 0
    engine.check_idle()
    engine.close()


class Strained(Tensor):
    """Logits on a device that has no memory for anything made of them but a copy elsewhere."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cpu:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args).as_subclass(Tensor)
        if func.__name__ in ("__get__", "__getitem__", "__len__"):  # views, sizes
            return super().__torch_function__(  # type: ignore[no-untyped-call]
                func, types, args, kwargs or {}
            )
        raise torch.OutOfMemoryError(f"CUDA out of memory: {func.__name__}")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")


class Kernels(TorchExecutor):
    """What can only be used on the device."""

    name = "triton"

    @staticmethod
    def draw(logits: Tensor, *_: Any) -> Tensor:
        raise AssertionError(f"launched on tensors on the {logits.device}")


class StrainingModel(ScriptedModel):
    def forward(self, *args: Any) -> Tensor:
        return super().forward(*args).as_subclass(Strained)


def spread(ids: Sequence[int]) -> Mapping[int, float]:
    """Logits a few units wide, different after every sequence."""
    dice = random.Random(hashed(ids) * 1000 + len(ids))
    return {token: dice.gauss(0, 2) for token in range(97, 123)}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 9, "logprobs": 1},
        {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.2, "prompt_logprobs": True},
    ],
)
def test_logits_that_the_device_has_no_memory_to_draw_from_are_drawn_from_elsewhere(
    params: dict[str, Any],
) -> None:
    request = Request("a", prompt(0, 40), SamplingParams(max_tokens=9, **params), n=3)
    wanted = run(scripted_engine(scores=spread), [request])
    strained = StrainingModel(scores=spread)
    device = Device()
    device.type = "meta"  # where logits are; the rest of the step is nowhere in particular
    engine = scripted_engine(model=strained, device=device, executor=Kernels())
    events = run(engine, [request])
    same(events, wanted, request)
    assert [e for e in events if isinstance(e, Tokens)] == [
        e for e in wanted if isinstance(e, Tokens)
    ]
    assert engine.stats()["device_full"] == 0
    engine.check_idle()


class CrampedPool(KVPool):
    """Some of the transfers from and to it find no room: those of ``full_at``, counted."""

    full_at: frozenset[int] = frozenset()
    transfers = 0

    def _next(self) -> None:
        self.transfers += 1
        if self.transfers - 1 in self.full_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    def read(self, table: Sequence[int], start: int, end: int) -> bytearray:
        self._next()
        return super().read(table, start, end)

    def write(
        self, table: Sequence[int], start: int, end: int, data: bytearray | memoryview, first: int
    ) -> None:
        super().write(table, start, start + 7, data, first)  # a part of it had been done
        self._next()
        super().write(table, start, end, data, first)


class CopyingPool(KVPool):
    """The first copy of pages finds no room."""

    copies = 0

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.copies += 1
        if self.copies == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        super().copy_pages(pairs)


def test_a_page_that_found_no_room_to_be_copied_is_copied_later() -> None:
    head = prompt(0, 40)
    engine = scripted_engine(pool_class=CopyingPool)
    run(engine, [ask("first", head)])
    forks = [ask(f"{i}", head[:37] + prompt(i + 1, 5)) for i in range(3)]
    events = run(engine, forks)
    wanted = run(scripted_engine(), forks)
    for request in forks:
        assert output(events, request.id) == output(wanted, request.id)
    assert isinstance(engine.pool, CopyingPool)
    assert engine.pool.copies > 1
    assert engine.stats()["device_full"] == 1
    engine.check_idle()


@pytest.mark.parametrize("full_at", [{0}, {1}, {0, 1}])
def test_a_block_that_finds_no_room_on_the_device_is_computed(full_at: set[int]) -> None:
    store = BlocksInMemory()
    ids = prompt(0, 512)
    first = scripted_engine(blocks=store)
    run(first, [ask("0", ids, 1)])
    first.keep("s/0", ids)
    assert flush(first)
    first.close()
    turn = ask("a", ids + prompt(1, 30))
    engine = scripted_engine(blocks=store, pool_class=CrampedPool)
    assert isinstance(engine.pool, CrampedPool)
    engine.pool.full_at = frozenset(full_at)
    events = run(engine, [turn])
    same(events, run(scripted_engine(), [turn]), turn)
    assert finished(events, "a").usage.disk == 512 - 256 * len(full_at)
    engine.check_idle()
    engine.close()


def test_a_block_that_can_not_be_copied_for_the_disk_is_saved_later() -> None:
    store, clock = BlocksInMemory(), LogicalClock()
    engine = scripted_engine(blocks=store, pool_class=CrampedPool, clock=clock)
    assert isinstance(engine.pool, CrampedPool)
    engine.pool.full_at = frozenset({1})
    ids = prompt(0, 512)
    run(engine, [ask("a", ids, 1)])
    engine.keep("s/0", ids)
    assert engine.save() == 0.0
    assert engine.save() == RETRY_S
    assert engine.drain(10.0)
    clock.advance(RETRY_S)
    assert flush(engine)
    assert sorted(store.writes) == [(0, 256), (256, 256)]
    engine.close()
