"""What is chosen to run models on, and how its memory is counted: on a CPU, on a GPU that is
given, on none, on one whose driver is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.config import Size, kv_default
from radchat.engine import try_device
from radchat.engine.device import Device
from radchat.engine.hardware import Hardware, NotHere, choose
from radchat.engine.memory import PAGE_SIZE, WORK_BYTES, Need, gpu_kv, need, num_pages
from radchat.errors import ModelBroken
from tests.fakes import Cuda

GB = 10**9
no_real_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton takes the real GPU")


class NoKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a torch that was not built for the GPU does at the first operation on it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cuda":
            raise torch.AcceleratorError(
                "CUDA error: no kernel image is available for execution on the device\n"
                "Search for `cudaErrorNoKernelImageForDevice' in the manual"
            )
        return made


@contextmanager
def no_kernels() -> Iterator[None]:
    with FakeTensorMode(), NoKernels():  # type: ignore[no-untyped-call]
        yield


def test_a_gpu_that_is_there_is_taken_tried_and_named() -> None:
    cuda = Cuda()
    with FakeTensorMode():
        found = choose("auto", "torch", cuda)
        assert (found.device.type, str(found.device)) == ("cuda", "cuda (NVIDIA H200)")
        assert (found.executor.name, found.why) == ("torch", "asked for")
        assert cuda.called == ["synchronize"]
        assert str(choose("cuda", "torch", Cuda()).device) == "cuda (NVIDIA H200)"
    assert choose("cpu", "auto", Cuda()).device.type == "cpu"


@pytest.mark.parametrize("executor", ["auto", "torch"])
def test_a_gpu_that_torch_has_no_kernels_for_is_refused_with_the_reason(executor: str) -> None:
    with no_kernels():
        found = choose("auto", executor, Cuda())
        assert found.device.type == "cpu"
        assert found.why.endswith(
            "no GPU: the GPU can't be used (CUDA error: no kernel image is available for execution "
            "on the device)"
        )
        assert found.why.startswith("asked for; ") == (executor == "torch")
        with pytest.raises(NotHere, match="no kernel image"):
            choose("cuda", executor, Cuda())


@no_real_gpu
def test_where_triton_does_not_take_the_gpu_torch_runs_there_and_the_reason_is_kept() -> None:
    with FakeTensorMode():
        found = choose("auto", "auto", Cuda())
    assert (found.device.type, found.executor.name) == ("cuda", "torch")
    assert found.why.startswith("Triton can't use the GPU (")


@pytest.mark.parametrize(
    ("asked", "cuda", "why"),
    [
        ("auto", Cuda(sees_one=False), "no GPU: torch"),
        ("auto", Cuda(is_broken=True), "no GPU: the GPU can't be used (CUDA driver init"),
        ("cpu", Cuda(), "the CPU is asked for"),
    ],
)
def test_on_a_cpu_it_is_said_why_it_is_no_gpu(asked: str, cuda: Any, why: str) -> None:
    found = choose(asked, "auto", cuda)
    assert (found.device.type, found.executor.name) == ("cpu", "torch")
    assert found.why.startswith(why), found.why
    both = "asked for" if asked == "cpu" else f"asked for; {why}"
    assert choose(asked, "torch", cuda).why.startswith(both)


@pytest.mark.parametrize("cuda", [Cuda(sees_one=False), Cuda(is_broken=True)])
def test_a_gpu_that_is_asked_for_and_not_there_is_an_error(cuda: Any) -> None:
    with pytest.raises(NotHere) as caught:
        choose("cuda", "auto", cuda)
    assert (caught.value.setting, caught.value.asked) == ("device", "cuda")
    assert "torch" in str(caught.value) or "driver" in str(caught.value)


@no_real_gpu
@pytest.mark.parametrize(("device", "cuda"), [("cpu", Cuda()), ("auto", Cuda())])
def test_triton_that_is_asked_for_and_can_not_run_is_an_error(device: str, cuda: Any) -> None:
    with FakeTensorMode(), pytest.raises(NotHere, match="Triton") as caught:
        choose(device, "triton", cuda)
    assert (caught.value.setting, caught.value.asked) == ("executor", "triton")


def test_what_is_chosen_is_tried_and_what_it_gives_is_looked_at() -> None:
    assert try_device.report("cpu", "torch") == {
        "device": "cpu", "executor": "torch", "why": "asked for; it has run"
    }  # fmt: skip

    class Wrong:
        def add_rmsnorm(self, *args: Any) -> torch.Tensor:
            return torch.zeros(try_device.ROWS, try_device.SIZE)

    with pytest.raises(AssertionError, match="not close"):
        try_device.run(Hardware(Device(), Wrong(), ""))  # type: ignore[arg-type]


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [GB // 4, 5 * GB, 60 * GB])
@pytest.mark.parametrize("token_bytes", [22_528, 131_072])
def test_the_kv_of_a_gpu_is_what_weights_and_a_tenth_leave(weights: int, token_bytes: int) -> None:
    """And the least that is asked for is just what leaves a page."""
    needed = need("m", weights, None, token_bytes, 8192, on_gpu=True)
    page = token_bytes * PAGE_SIZE
    for free in (needed.least, needed.good, 2 * needed.good):
        needed.require(free)
        given = gpu_kv(free - weights, weights)
        assert num_pages(None, token_bytes, given) * page <= free - weights
        assert free - weights - given >= max(WORK_BYTES, free // 10)
    assert num_pages(None, token_bytes, gpu_kv(needed.least - weights, weights)) == 1
    assert gpu_kv(needed.good - weights, weights) >= 8192 * token_bytes
    with pytest.raises(ModelBroken, match="of the GPU's memory and"):
        needed.require(needed.least - 1)
    assert gpu_kv(needed.least - 2 - weights - page // 10, weights) < page


def test_a_budget_that_is_set_leaves_a_gpu_what_a_step_takes_and_no_tenth() -> None:
    needed = need("m", 5 * GB, Size(bytes=2 * GB), 131_072, 8192, on_gpu=True)
    assert needed.least == needed.good == 5 * GB + needed.kv + WORK_BYTES
    assert needed.least == need("m", 5 * GB, Size(bytes=2 * GB), 131_072, 8192).least


def test_what_does_not_fit_says_the_numbers_of_the_gpu_and_what_to_lower() -> None:
    plain = Need("big", 16 * GB, GB, GB, on_gpu=True)
    with pytest.raises(ModelBroken) as caught:
        plain.require(8 * GB)
    message = caught.value.message
    assert "big needs 18.9 GB of the GPU's memory and 8.0 GB are free: end what else" in message
    assert "a smaller model, or run it on the CPU" in message
    assert caught.value.data == {"need_bytes": plain.least, "free_bytes": 8 * GB}
    with pytest.raises(ModelBroken, match=r"2\.0 GB of it KV .* take a smaller kv_device"):
        Need("big", 16 * GB, 2 * GB, 2 * GB, kv_is_set=True, on_gpu=True).require(8 * GB)
    with pytest.raises(ModelBroken, match=r"of memory and 1\.0 GB are free: close something"):
        Need("big", 16 * GB, GB, GB).require(GB)


PULL = "a .gguf file of it in Q4_0 or Q4_1"


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(
    ("dtype", "has_4_bits", "lighter"),
    [
        ("fp32", False, f"take --dtype bf16, {PULL} or a smaller model"),
        ("fp32", True, "take --dtype bf16, --dtype int4 or a smaller model"),
        ("bf16", False, f"take {PULL} or a smaller model"),
        ("bf16", True, "take --dtype int4 or a smaller model"),
        ("int4", True, "take a smaller model"),
    ],
)
def test_only_what_is_lighter_is_offered(
    dtype: str, lighter: str, *, has_4_bits: bool, on_gpu: bool
) -> None:
    weights = 8 * GB
    needed = need("m", weights, None, 1000, 4096, on_gpu=on_gpu, dtype=dtype, has_4_bits=has_4_bits)
    assert lighter in needed.refusal(GB).message


def test_a_cpu_is_counted_as_before() -> None:
    needed = need("m", 5 * GB, None, 1000, 4096)
    assert needed.least == 5 * GB + WORK_BYTES + 16_000
    assert num_pages(None, 1000, kv_default(8 * GB)) == 2 * GB // 16_000
