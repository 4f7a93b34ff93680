"""How many compiled variants of each kernel the steps of a life ask for: compiling one takes about
a second, of a step that others wait for. By Triton's own specialiser; no GPU is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from radchat.engine.request import SamplingParams
from radchat.engine.sampling import Draw, Seen
from radchat.engine.sampling_on_device import choose
from radchat_kernels._triton import INTERPRETED, WHY_NOT, triton
from radchat_kernels.executor import Heads, Packed4
from radchat_kernels.plan import Segment
from radchat_kernels.planner import Planner
from radchat_kernels.tiles import Gpu
from radchat_kernels.triton_executor import TritonExecutor

pytestmark = pytest.mark.skipif(bool(WHY_NOT) or INTERPRETED, reason=WHY_NOT or "interpreted")

HEADS, HIDDEN, IDS = Heads(8, 2, 64), 512, 4096
ROWS = range(1, 66)


class Variants:
    """A launcher that runs nothing and notes what a launch would be compiled for."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = defaultdict(set)
        target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
        self._backend = triton.compiler.make_backend(target)

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        **options: int,
    ) -> None:
        bind = triton.runtime.jit.create_function_from_signature(
            kernel.signature, kernel.params, self._backend
        )
        _, types, others = bind(*args, **consts, **options, debug=False)
        self.found[kernel.fn.__name__].add(f"{types} {others}")


def test_a_step_of_any_number_of_rows_finds_its_kernels_compiled() -> None:
    launch = Variants()
    executor = TritonExecutor("cuda", launch=launch, gpu=Gpu("sm90", 132))
    pool = torch.empty(2, 99, 16, HEADS.num_kv_heads, HEADS.head_dim, dtype=torch.bfloat16)
    weight = torch.empty(HIDDEN, dtype=torch.bfloat16)
    nibbles = torch.empty(HIDDEN, HIDDEN // 2, dtype=torch.uint8)
    scales = torch.empty(HIDDEN, HIDDEN // 32, dtype=torch.float16)
    planner = Planner(executor.limits(HEADS, 2), 16)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=1)
    for rows in ROWS:
        x = torch.empty(rows, HIDDEN, dtype=torch.bfloat16)
        qkv = torch.empty(rows, 12 * 64, dtype=torch.bfloat16)
        angle, at = torch.empty(rows, 1, 64), torch.zeros(rows, dtype=torch.int64)
        executor.add_rmsnorm(x, x.clone(), weight, 1e-5)
        q = executor.rope_store(qkv, (angle, angle), pool[0], pool[1], at, HEADS)
        executor.store(q[:, :2], q[:, :2], pool[0], pool[1], at)
        segments = [Segment(i, 1, 50 + i, [1, 2, 3, *range(4 + i, 9 + i)]) for i in range(rows)]
        executor.attend(q, pool[0], pool[1], planner.plan(segments), at, 0.125)
        executor.act_mul(x, "silu")
        executor.linear4(x, Packed4(nibbles, scales, scales))
        draws = [Draw(i, params, 1, 0, Seen()) for i in range(rows)]
        choose(torch.zeros(rows, IDS), draws, executor)
    executor.copy_pages(pool[None], [(1, 2)])
    assert {name: len(each) for name, each in launch.found.items()} == {
        "add_rmsnorm_kernel": 1,
        "rope_store_kernel": 1,
        "store_kernel": 1,
        "attend_kernel": 2,  # narrow items only, and wide ones beside them
        "merge_kernel": 1,
        "act_mul_kernel": 1,
        "gemv4_kernel": 2,  # one row, up to four
        "gemm4_kernel": 2,  # up to 16, up to 64
        "unpack4_kernel": 1,
        "best_in_blocks_kernel": 1,
        "best_of_blocks_kernel": 1,
        "copy_pages_kernel": 1,
    }
