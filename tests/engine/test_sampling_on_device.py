"""Sampling where the logits are: the tokens of the NumPy path, one transfer, nothing on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine import sampling, sampling_on_device
from radchat.engine.request import SamplingParams
from radchat.engine.sampling import Draw, Drawn, Seen
from radchat.errors import ModelBroken
from radchat_kernels.torch_executor import TorchExecutor
from tests.engine.sampling_cases import some_step

TORCH = TorchExecutor()


def told(results: list[Drawn | ModelBroken]) -> list[str]:
    return [repr(each) for each in results]  # NaN and all


@pytest.mark.parametrize(("vocab", "steps"), [(1, 20), (40, 400), (5000, 40)])
def test_the_tokens_are_the_numpy_paths(vocab: int, steps: int) -> None:
    tokens = broken = 0
    for seed in range(steps):
        logits, draws = some_step(seed, vocab, most=6)
        before = logits.clone()
        want = sampling.sample(logits, draws)
        got = sampling_on_device.sample(logits, draws, TORCH)
        assert told(got) == told(want), f"seed {seed}"
        assert torch.equal(logits.nan_to_num(9e9), before.nan_to_num(9e9))
        tokens += len(got)
        broken += sum(isinstance(each, ModelBroken) for each in got)
    assert 0 < broken < tokens


def test_a_draw_by_itself_is_the_same() -> None:
    for seed in range(60):
        logits, draws = some_step(seed, 300, most=6)
        together = sampling_on_device.choose(logits, draws, TORCH).tolist()
        for index, draw in enumerate(draws):
            alone = sampling_on_device.choose(logits, [draw], TORCH)
            assert alone.tolist() == together[index : index + 1]


def test_more_rows_than_are_sorted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, draws = some_step(3, 300, most=6)
    while len(draws) < 4:
        draws.append(draws[0])
    want = sampling_on_device.choose(logits, draws, TORCH)
    monkeypatch.setattr(sampling_on_device, "_MOST", 700)
    assert torch.equal(sampling_on_device.choose(logits, draws, TORCH), want)


def test_a_nucleus_that_ends_far_down_the_tail() -> None:
    """1000 tokens of a thousandth of a millionth each: half of them are in."""
    row = torch.cat([torch.zeros(1), -20.7 - torch.arange(1000) / 1000])
    params = SamplingParams(temperature=1.0, top_p=1 - 3e-7)
    want = int((sampling.survivors(row.numpy(), 0.0, params) > -math.inf).sum())
    asked = sampling_on_device._sent([Draw(0, params, 1, 0, Seen())], row[None])
    best = torch.zeros(1, dtype=torch.float64)
    keep = sampling_on_device._thresholds(row[None], best, asked)
    assert 300 < want < 700
    assert int((row.double() >= keep).sum()) == want


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what a device would have to wait for: numbers read into Python."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}:
            self.count += 1
        return func(*args, **(kwargs or {}))


def test_choosing_reads_nothing() -> None:
    with Transfers() as transfers:  # type: ignore[no-untyped-call]
        float(torch.ones(1) + 1)
        assert transfers.count == 1
        for seed in range(40):
            logits, draws = some_step(seed, 40, most=6)
            sampling_on_device.choose(logits, draws, TORCH)
    assert transfers.count == 1


def test_all_of_it_is_on_the_device() -> None:
    """With fake CUDA tensors, which refuse to meet tensors of the CPU."""
    steps = [some_step(seed, 40, most=6) for seed in range(40)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        for _, draws in steps:
            logits = torch.empty(10, 40, device="cuda")
            tokens: Tensor = sampling_on_device.choose(logits, draws, TORCH)
            assert tokens.device.type == "cuda"
            assert tokens.shape == (len(draws),)
