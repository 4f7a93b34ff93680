"""A device that is full at any operation of a real model's step: the ids are a roomy device's."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine.request import Finished, FinishReason, Request, SamplingParams, Tokens
from tests.engine.bench import PAGE, Bench, GeneralTinyModel, TinyModel, prompt

T = TypeVar("T")
ODDS = 0.0004  # of an operation: about a step in eight of the decoder's


class Dice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails an operation now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dice = random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._dice.random() < ODDS:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **(kwargs or {}))


def made(kind: str) -> TinyModel:
    if kind == "gemma2":
        return GeneralTinyModel(kind, torch.float32)
    more: dict[str, Any] = {"sliding_window": 24} if kind == "mistral" else {}
    return TinyModel(kind, torch.float32, **more)


def converse(kind: str, seed: int | None) -> tuple[Bench, dict[tuple[str, int], list[int]]]:
    """A prompt, branches with samples that fork inside pages, a longer prompt; in a small pool."""
    bench = Bench(torch.float32, kind, 60 * PAGE, on=made(kind))
    if seed is not None:
        runner, dice = bench.engine._runner, Dice(seed)
        guarded = runner._in_memory

        def within(run: Callable[[], T]) -> T:
            def diced() -> T:
                with dice:
                    return run()

            return guarded(diced)

        runner._in_memory = within  # type: ignore[method-assign]
    head = prompt(1, 90)
    own = [SamplingParams(max_tokens=8, temperature=1.0, seed=i, top_p=0.9) for i in range(4)]
    events = bench.run(Request("a", head, SamplingParams(max_tokens=6, temperature=0.0)))
    events += bench.run(*(
        Request(f"k{i}", head[: 70 + i] + prompt(i + 3, 20 + i * 9), own[i], n=1 + i % 2)
        for i in range(4)
    ))  # fmt: skip
    last = SamplingParams(max_tokens=6, temperature=0.0, logprobs=2)
    events += bench.run(Request("z", head + prompt(77, 200), last))
    said: dict[tuple[str, int], list[int]] = {}
    for event in events:
        if isinstance(event, Tokens):
            said.setdefault((event.request_id, event.choice), []).extend(event.ids)
    for event in events:
        if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            said.pop((event.request_id, event.choice), None)
    return bench, said


@cache
def roomy(kind: str) -> dict[tuple[str, int], list[int]]:
    return converse(kind, None)[1]


@pytest.mark.parametrize(
    ("kind", "seed"), [("llama", 0), ("llama", 1), ("mistral", 0), ("mistral", 1), ("gemma2", 2)]
)
def test_whatever_operation_finds_no_room_the_ids_are_the_same(kind: str, seed: int) -> None:
    bench, said = converse(kind, seed)
    assert bench.engine.stats()["device_full"] > 0
    assert said.keys() <= roomy(kind).keys()
    assert len(said) >= 4  # two that end in one run are bad luck
    assert all(ids == roomy(kind)[name] for name, ids in said.items())
    bench.engine.check_idle()
    assert bench.engine.rows_run == bench.model.decoder.tokens_computed
