"""What is compiled before a model's first step: all that its first chats launch."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radchat.config import Size
from radchat.engine.device import Device
from radchat.engine.forward import heads_of
from radchat.engine.model import build_engine, load
from radchat.engine.request import Request, SamplingParams
from radchat.engine.warm_up import STEPS, warm_up
from radchat_kernels import _triton
from radchat_kernels.triton_executor import TritonExecutor
from tests.e2e.tiny_models import converted
from tests.engine.bench import Bench, TinyModel, prompt


class Variants:
    """A launcher that knows which launches would be compiled: Triton makes a kernel anew for other
    constants and dtypes, and where numbers and addresses become divisible by 16, or 1.

    Rows of a program, which are many only in the interpreter, are left out.
    """

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self.new: list[Hashable] = []

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
    ) -> None:
        kinds = tuple(
            (each.dtype, each.data_ptr() % 16 == 0)
            if isinstance(each, Tensor)
            else (each == 1, each % 16 == 0)
            if isinstance(each, int)
            else float
            for each in args
        )
        compiled = {name: each for name, each in consts.items() if name != "BLOCK_ROWS"}
        key = (kernel.__name__, kinds, tuple(sorted(compiled.items())), num_warps, num_stages)
        if key not in self.seen:
            self.seen.add(key)
            self.new.append(key)
        _triton.launch(kernel, grid, args, consts, num_warps=num_warps, num_stages=num_stages)


def chats(bench: Bench) -> None:
    """Two turns; branches that fork inside a page, few and many; an answer beside a prompt."""
    head = prompt(1, 70)
    bench.run(bench.request(head, 3))
    bench.run(bench.request(head + prompt(2, 9), 3))
    drawn = SamplingParams(top_p=0.95, temperature=0.7, seed=1, max_tokens=3)
    bench.run(Request("few", head[:41], drawn, n=3))
    bench.run(Request("many", head[:50] + array("I", [1, 2]), drawn, n=6))
    bench.engine.submit(bench.request(head + prompt(3, 3), 4))
    bench.engine.step()
    bench.run(bench.request(prompt(4, 50), 2))


def test_a_chat_launches_nothing_that_was_not_launched_before_it() -> None:
    launches = Variants()
    executor = TritonExecutor("cpu", launch=launches)
    small: dict[str, Any] = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    model = TinyModel("llama", torch.float32, executor, hidden_size=32, **small)
    bench = Bench(torch.float32, on=model)
    limits = executor.limits(heads_of(model.config), 4)
    heard: list[float] = []
    before = bench.pool.data.clone()
    warm_up(model.decoder, bench.pool, Device(), executor, limits, heard.append)
    assert len(heard) == len(STEPS)
    assert heard[-1] == pytest.approx(1)
    assert model.decoder.tokens_computed == 0
    changed = (bench.pool.data.view(torch.int32) != before.view(torch.int32)).sum((0, 1, 3, 4, 5))
    assert changed.nonzero().flatten().tolist() in ([], [0]), "page 0 is nobody's"
    assert launches.new
    launches.new.clear()
    chats(bench)
    assert launches.new == []


def test_an_engine_is_made_warm_and_made_all_the_same_where_the_gpu_is_full(tmp_path: Path) -> None:
    folder = converted(tmp_path, "tiny")
    launched: list[str] = []

    def counts(kernel: Any, *_: Any, **__: Any) -> None:
        launched.append(kernel.__name__)

    def is_full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")

    for launch, share in ((counts, 1), (is_full, 0)):
        heard = [0.0]
        loaded = load(folder, "fp32", executor=TritonExecutor("cpu", launch=launch))
        build_engine(loaded, kv_budget=Size(tokens=64), check=False, progress=heard.append)
        assert max(heard) == share
    assert {"copy_pages_kernel", "attend_kernel", "merge_kernel", "best_of_blocks_kernel"} <= set(
        launched
    )
