"""The executor in plain torch: each operation's specification, and what runs on CPUs."""

from __future__ import annotations

from torch import Tensor

from radchat_kernels import torch_exec, torch_int4, torch_rows, torch_sample
from radchat_kernels.executor import Heads
from radchat_kernels.plan import Limits, Plan
from radchat_kernels.torch_prepare import PADDED_MAX_TOKENS
from radchat_kernels.upload import upload_all

# Measured: benchmarks/LOG.md, 2026-11-30. As many tokens as lone rows read in one padded call.
SHARE_FROM = PADDED_MAX_TOKENS
MOST_BYTES = 2  # of an element of shared plans: 16 bits, where rounding is far above a merge's


class TorchExecutor:
    """As ``Executor`` says; ``why`` it is this one."""

    name = "torch"

    def __init__(self, why: str = "asked for") -> None:
        self.why = why

    # the twins as they are: a small model's decode step has no time for a call around each
    store = staticmethod(torch_exec.store)
    rope_store = staticmethod(torch_rows.rope_store)
    add_rmsnorm = staticmethod(torch_rows.add_rmsnorm)
    act_mul = staticmethod(torch_rows.act_mul)
    linear4 = staticmethod(torch_int4.linear4)
    draw = staticmethod(torch_sample.draw)

    def why_not(self, heads: Heads, hidden: int) -> str:  # noqa: ARG002 - all can be run
        return ""

    def limits(self, heads: Heads, element_size: int) -> Limits:  # noqa: ARG002 - of whatever shape
        """Plans as a CPU's caches like them: only long runs are worth an item of their own.

        Of 32 and 64 bits (``--exact``) each sequence by itself: what an answer is must not hang on
        who runs beside it, and a merge rounds (docs/adr/0024).
        """
        return Limits(shared=element_size <= MOST_BYTES, share_from=SHARE_FROM)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: Plan,
        positions: Tensor,  # noqa: ARG002 - its plans are never older than their rows
        scale: float,
        *,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return torch_exec.attend(q, k, v, plan, scale, softcap=softcap, sinks=sinks)

    def copy_pages(self, pool: Tensor, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            source, target = upload_all(list(zip(*pairs, strict=True)), pool.device)
            pool[:, :, target] = pool[:, :, source]
