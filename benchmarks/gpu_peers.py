"""Other ways to attend over the same tree, each at its best: what it needs is laid out beforehand.

What is not timed in them is told in their notes: gathering K and V, building masks, compiling.
"""

from __future__ import annotations

import sys
import time
import types
import warnings
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention, functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_cases import PAGE, Case, Work
from benchmarks.gpu_methods import Prepared

GATHERED = 40e9  # bytes that copies of K and V may take: 64 branches, 18 layers of Llama 3 8B


def contiguous(work: Work, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
    """K and V of ``slots`` [..., tokens] as [..., HKV, tokens, D]."""
    return tuple(each[slots].transpose(-3, -2).contiguous() for each in work.slots(layer))  # type: ignore[return-value]


def branch_slots(work: Work, begin: int = 0) -> Tensor:
    """Where the tokens from ``begin`` on of each branch lie, [B, path - begin]."""
    pages = torch.tensor(work.tree.tables, device=work.q.device)
    slots = pages[:, :, None] * PAGE + torch.arange(PAGE, device=work.q.device)
    return slots.flatten(1)[:, begin : work.case.path]


@dataclass(frozen=True, slots=True)
class Sdpa:
    """torch's scaled_dot_product_attention on each branch's K and V side by side."""

    name: str
    backend: attention.SDPBackend

    def suits(self, case: Case) -> bool:
        """The efficient one has no groups of query heads."""
        is_grouped = case.heads.num_heads > case.heads.num_kv_heads
        return not (is_grouped and self.backend == attention.SDPBackend.EFFICIENT_ATTENTION)

    def prepare(self, work: Work) -> Prepared:
        case = work.case
        copy_bytes = case.kv_bytes(case.branches * case.path, work.q.element_size())
        layers = max(1, min(case.layers, int(GATHERED // copy_bytes)))
        slots = branch_slots(work)
        began = time.perf_counter()
        copies = [contiguous(work, layer, slots) for layer in range(layers)]
        _wait(work)
        gather_ms = 1e3 * (time.perf_counter() - began) / layers

        def attend(layer: int) -> Tensor:
            k, v = copies[layer]
            q = work.q[layer][:, :, None]
            with attention.sdpa_kernel(self.backend):
                o = functional.scaled_dot_product_attention(
                    q, k, v, scale=work.scale, enable_gqa=True
                )
            return o[:, :, 0]

        return Prepared(attend, layers, {"gather_ms": gather_ms})


class Cascade:
    """Two levels in plain torch: flash over the root for all rows, over each one's rest, merged.

    A row's query heads on a KV head are rows of the root's call. The flash op gives lse in base e.
    """

    name = "torch cascade"

    def suits(self, case: Case) -> bool:
        return len(case.levels) > 1

    def prepare(self, work: Work) -> Prepared:
        case, heads = work.case, work.case.heads
        root = case.levels[0][1]
        rest = branch_slots(work, root)
        prefix = torch.tensor([work.tree.slots[0]], device=work.q.device)
        copies = [
            (contiguous(work, layer, prefix), contiguous(work, layer, rest))
            for layer in range(case.layers)
        ]
        group = heads.num_heads // heads.num_kv_heads
        shape = (case.branches, heads.num_kv_heads, group, heads.head_dim)

        def attend(layer: int) -> Tensor:
            q = work.q[layer].view(shape)
            packed = q.transpose(0, 1).reshape(1, heads.num_kv_heads, -1, heads.head_dim)
            o_root, lse_root = _flash(packed, *copies[layer][0], work.scale)
            o_rest, lse_rest = _flash(q, *copies[layer][1], work.scale)
            o_root = o_root.view(shape[1], shape[0], *shape[2:]).transpose(0, 1)
            lse_root = lse_root.view(shape[1], shape[0], group).transpose(0, 1)
            share = torch.sigmoid(lse_root - lse_rest)[..., None]  # e^a / (e^a + e^b)
            o = torch.lerp(o_rest.float(), o_root.float(), share)
            return o.to(q.dtype).flatten(1, 2)

        return Prepared(attend, case.layers)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """o [B, H, M, D] and lse [B, H, M] of q, k, v [B, H, M or N, D]."""
    ops = torch.ops.aten
    if q.device.type == "cpu":
        o, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
    else:
        o, lse = ops._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]
    return o, lse


class Flex:
    """FlexAttention: all rows against all tokens of the tree, a mask says who sees what."""

    name = "FlexAttention"

    def __init__(self, *, compiled: bool) -> None:
        self._is_compiled = compiled
        self._attend: Any = (
            torch.compile(flex_attention, dynamic=False) if compiled else _flex_uncompiled
        )

    def suits(self, case: Case) -> bool:
        """Compiling takes long for each shape, so only the largest trees."""
        is_large = case.branches == 64 and case.path > 8000
        return len(case.levels) > 1 and (is_large or not self._is_compiled)

    def prepare(self, work: Work) -> Prepared:
        case, device, nodes = work.case, work.q.device, work.tree.slots
        slots = torch.tensor([slot for own in nodes for slot in own], device=device)
        sizes = torch.tensor([len(own) for own in nodes])
        owner = torch.repeat_interleave(torch.arange(len(nodes)), sizes).to(device)
        sees = torch.zeros(case.branches, len(nodes), dtype=torch.bool)
        for row, path in enumerate(work.tree.paths):
            sees[row, path] = True
        sees = sees.to(device)

        def mask_mod(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return sees[q, owner[kv]]

        copies = [contiguous(work, layer, slots[None]) for layer in range(case.layers)]
        began = time.perf_counter()
        mask = create_block_mask(mask_mod, None, None, case.branches, len(slots), device.type)
        _wait(work)
        mask_ms = 1e3 * (time.perf_counter() - began)

        def attend(layer: int) -> Tensor:
            q = work.q[layer].transpose(0, 1)[None]
            o: Tensor = self._attend(
                q, *copies[layer], block_mask=mask, scale=work.scale, enable_gqa=True
            )
            return o[0].transpose(0, 1)

        began = time.perf_counter()
        attend(0)
        _wait(work)
        notes = {"mask_ms": mask_ms, "first_call_s": time.perf_counter() - began}
        return Prepared(attend, case.layers, notes)


def _flex_uncompiled(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow so
        return flex_attention(*args, **options)


@dataclass(frozen=True, slots=True)
class SGLang:
    """SGLang's Triton decode kernel, one sequence at a time, K and V read where they lie.

    ``kernel``: its decode_attention_fwd.
    """

    name: str
    kernel: Any
    splits: int
    page_size: int = PAGE

    def suits(self, case: Case) -> bool:
        return case.path >= self.splits

    def prepare(self, work: Work) -> Prepared:
        case, device = work.case, work.q.device
        shape = (case.branches, case.heads.num_heads, self.splits)
        indices = branch_slots(work).flatten()
        indptr = torch.arange(0, len(indices) + 1, case.path, device=device, dtype=torch.int32)
        parts = torch.empty(*shape, case.heads.head_dim, dtype=torch.float32, device=device)
        lse = torch.empty(shape, dtype=torch.float32, device=device)
        splits = torch.full((case.branches,), self.splits, dtype=torch.int32, device=device)

        def attend(layer: int) -> Tensor:
            q, o = work.q[layer], torch.empty_like(work.q[layer])
            self.kernel(
                *(q, *work.slots(layer), o, indptr, indices, parts, lse),
                *(splits, self.splits, work.scale, 1.0, 1.0),
                page_size=self.page_size,
            )
            return o

        return Prepared(attend, case.layers)


def sglang_kernel(folder: Path) -> Any:
    """``decode_attention_fwd`` of the files decode_attention.py and score_mod.py in ``folder``.

    They import four modules of their package, of which they need next to nothing: stand-ins.
    """
    for name in (
        *("sglang", "sglang.srt", "sglang.srt.environ", "sglang.srt.utils"),
        *("sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention"),
    ):
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules["sglang.srt.environ"])["envs"] = types.SimpleNamespace()
    vars(sys.modules["sglang.srt.utils"]).update(
        is_hip=lambda: False,
        is_cuda=lambda: True,
        is_gfx95_supported=lambda: False,
        is_gfx1250_supported=lambda: False,
        get_device_core_count=lambda index=0: (
            torch.cuda.get_device_properties(index).multi_processor_count
        ),
    )
    for name in ("score_mod", "decode_attention"):
        spec = util.spec_from_file_location(
            f"sglang.kernels.ops.attention.{name}", folder / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return vars(module)["decode_attention_fwd"]


def _wait(work: Work) -> None:
    if work.q.device.type == "cuda":
        torch.cuda.synchronize()
