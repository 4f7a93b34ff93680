"""Which executor is chosen, and what is said where one can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from radchat_kernels import _triton
from radchat_kernels.executor import Unavailable, choose
from radchat_kernels.torch_executor import TorchExecutor


def test_a_cpu_has_the_torch_executor_and_triton_is_not_imported() -> None:
    code = (
        "import sys; from radchat_kernels.executor import choose; made = choose('cpu')\n"
        "print(made.name, made.why, 'triton' in sys.modules, sep=', ')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "torch, the device is the CPU, False"


def test_what_was_asked_for_is_said() -> None:
    made = choose("cpu", "torch")
    assert (made.name, made.why) == ("torch", "asked for")


def test_triton_on_a_cpu_is_refused_with_the_reason() -> None:
    with pytest.raises(Unavailable, match=r"no kernels for cpu|can't be imported"):
        choose("cpu", "triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there Triton can use the GPU")
def test_a_gpu_that_triton_cannot_use_has_the_torch_executor_and_says_why() -> None:
    made = choose("cuda")
    assert made.name == "torch"
    assert made.why == _triton.why_not("cuda")
    assert "Triton can't use the GPU" in made.why or "can't be imported" in made.why
    with pytest.raises(Unavailable) as told:
        choose("cuda", "triton")
    assert str(told.value) == made.why


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(Unavailable, match="'tritn': want auto, torch or triton"):
        choose("cpu", "tritn")


def test_pages_are_copied_in_every_layer_and_others_stay() -> None:
    pool = torch.randn(2, 2, 5, 3, 1, 4, generator=torch.Generator().manual_seed(4))
    before = pool.clone()
    TorchExecutor().copy_pages(pool, [(1, 3), (2, 4)])
    assert torch.equal(pool[:, :, 3:], before[:, :, 1:3])
    assert torch.equal(pool[:, :, :3], before[:, :, :3])


def test_no_pages_are_no_work() -> None:
    pool = torch.ones(1, 2, 3, 1, 1, 1)
    TorchExecutor().copy_pages(pool, [])
    assert pool.eq(1).all()


def test_kernels_import_where_there_is_no_triton_and_say_so_when_launched() -> None:
    program = """
import sys
from pathlib import Path
sys.modules["triton"] = None
import torch
from radchat_kernels import attn, cache, fused, int4, sample
for kernel in (attn.merge_kernel, cache.store_kernel):
    try:
        kernel[(1,)]()
    except RuntimeError as error:
        print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "kernels")},
        capture_output=True,
        text=True,
        check=True,
    )
    for line, name in zip(run.stdout.splitlines(), ("merge_kernel", "store_kernel"), strict=True):
        assert line.startswith(f"{name} can't run here: triton can't be imported")
