"""The executor whose operations are Triton kernels: on a GPU, or interpreted on CPU tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from radchat_kernels import attn, cache, fused, int4, sample
from radchat_kernels._triton import INTERPRETED, Launcher, launch
from radchat_kernels.executor import Activation, HeadNorm, Heads, Packed4, Unavailable
from radchat_kernels.plan import Limits, Plan
from radchat_kernels.tiles import MAX_DIM, MAX_GROUP, Gpu, Tiles

FOLD_BELOW = 32  # tokens: reading a run again for each branch costs less than a part of its own
CHUNK = (128, 2048)  # tokens of a narrow item; wide ones have twice as many, or more
PROGRAMS_PER_SM = 2  # as many of a launch with a wide path fit on an SM at once


class TritonExecutor:
    """Each method is the kernel's wrapper of the same name, given this one's launcher."""

    name = "triton"

    def __init__(
        self,
        device_type: str,
        tiles: Tiles | None = None,
        launch: Launcher = launch,
        gpu: Gpu | None = None,
    ) -> None:
        """``tiles``: for every head_dim, in place of the table's. ``gpu``: None asks the device.

        Raises Unavailable where the kernels don't fit it.
        """
        if gpu is None and device_type == "cpu" and INTERPRETED:
            gpu = Gpu("interpret", 2)
        self._gpu = gpu or Gpu.of(torch.cuda.get_device_properties(torch.cuda.current_device()))
        if reason := self._gpu.why_not():
            raise Unavailable(reason)
        self._arch = self._gpu.tiled_as()
        self._tiles = tiles
        self._launch = launch
        self.note = "" if self._arch == self._gpu.arch else f"{self._gpu.arch} as {self._arch}"
        self.why = self.note

    def why_not(self, heads: Heads, hidden: int) -> str:
        group = heads.num_heads // heads.num_kv_heads
        for what, most, has in (
            ("a head_dim", MAX_DIM, heads.head_dim),
            ("a number of query heads on a KV head", MAX_GROUP, group),
            ("a hidden size", fused.MAX_HIDDEN, hidden),
        ):
            if has > most:
                return f"the kernels take {what} of {most:,} at most, this model has {has:,}"
        return ""

    def limits(self, heads: Heads, element_size: int) -> Limits:
        group = heads.num_heads // heads.num_kv_heads
        tiles = self._tiles_of(heads.head_dim, element_size).holding(group)
        return Limits(
            shared=True,
            fold_below=FOLD_BELOW,
            chunk=CHUNK,
            block_tokens=tiles.narrow.block_n,
            narrow=tiles.narrow.block_m,
            wide=tiles.wide.block_m,
            extend=tiles.extend.block_m,
            group=group,
            num_kv_heads=heads.num_kv_heads,
            programs=PROGRAMS_PER_SM * self._gpu.num_sms,
            growing=True,
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: Plan,
        positions: Tensor,
        scale: float,
        *,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return attn.attend(
            q,
            k,
            v,
            plan,
            positions,
            scale,
            softcap=softcap,
            sinks=sinks,
            tiles=self._tiles_of(q.shape[2], q.element_size()),
            launch=self._launch,
        )

    def store(self, k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
        cache.store(k_new, v_new, k, v, slots, launch=self._launch)

    def rope_store(
        self,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor],
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        heads: Heads,
        norm: HeadNorm | None = None,
    ) -> Tensor:
        return cache.rope_store(qkv, angles, k, v, slots, heads, norm, launch=self._launch)

    def add_rmsnorm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return fused.add_rmsnorm(x, residual, weight, eps, launch=self._launch)

    def act_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return fused.act_mul(gate_up, activation, launch=self._launch)

    def copy_pages(self, pool: Tensor, pairs: list[tuple[int, int]]) -> None:
        cache.copy_pages(pool, pairs, launch=self._launch)

    def linear4(self, x: Tensor, weight: Packed4, bias: Tensor | None = None) -> Tensor:
        return int4.linear4(x, weight, bias, launch=self._launch)

    def draw(
        self, logits: Tensor, best: Tensor, temperature: Tensor, keep: Tensor, keys: Tensor
    ) -> Tensor:
        return sample.draw(logits, best, temperature, keep, keys, launch=self._launch)

    def _tiles_of(self, head_dim: int, element_size: int) -> Tiles:
        return self._tiles or Tiles.of(self._arch, head_dim, element_size)
