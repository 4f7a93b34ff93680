"""What goes to a device: all of it, each list where wide reads begin, and nobody waits for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine.request import SamplingParams
from radchat.engine.sampling import Draw, Seen
from radchat.engine.sampling_on_device import _sent
from radchat_kernels import cache
from radchat_kernels.upload import upload, upload_all

GPU = torch.device("cuda", 0)


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``to_gpu``: of each transfer, whether the host goes on; ``pinned``: tensors made for one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.to_gpu: list[bool] = []
        self.pinned = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.pinned += bool(kwargs.get("pin_memory"))
        if func.name() == "aten::_to_copy" and kwargs.get("device") == GPU:
            self.to_gpu.append(bool(kwargs.get("non_blocking")))
        return func(*args, **kwargs)


def copy_pages() -> None:
    pool = torch.empty(1, 2, 5, 1, 1, 1, device=GPU)
    cache.copy_pages(pool, [(1, 4)], launch=lambda *_, **__: None)


def send_draws() -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=1)
    _sent([Draw(0, params, 1, 0, Seen())], torch.empty(1, 9, device=GPU))


@pytest.mark.parametrize(
    "send",
    [
        lambda: upload(array("i", [1, 2, 3]), GPU),
        lambda: upload_all([[1], [2, 3]], GPU),
        copy_pages,
        send_draws,
    ],
)
def test_a_gpu_takes_one_transfer_from_pinned_memory_and_nobody_waits(
    send: Callable[[], object],
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), Transfers() as seen:
        send()
    assert (seen.to_gpu, seen.pinned) == ([True], 1)


def test_on_a_cpu_it_is_the_values_own_memory() -> None:
    values = array("i", [1, 2, 3])
    there = upload(values, torch.device("cpu"))
    values[1] = 7
    assert (there.tolist(), there.dtype) == ([1, 7, 3], torch.int32)
