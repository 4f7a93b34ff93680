"""A linear layer in the form its device multiplies fastest, or in the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from radchat_kernels.executor import Executor, Packed4


class Linear:
    """``x @ weight.T + bias``; weight [out, in], x [..., in].

    bf16 weights on a CPU with bf16 instructions are kept in oneDNN's blocked order, made here
    once: a decode step then reads them in 60-75 % of the time, and prefill is the same. The
    blocked copy replaces the weight; its layout depends on the CPU, so it is never stored.

    A product of other many rows may differ in the last bits (the library picks its blocking by
    size): rounding, which exact mode's float32 keeps far below what decides a token.
    """

    __slots__ = ("_bias", "_is_packed", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._is_packed = can_pack(weight)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001
            if self._is_packed
            else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self._is_packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise.default(  # noqa: SLF001
                x, self._weight, self._bias, "none", [], ""
            )
            return out
        return functional.linear(x, self._weight, self._bias)


class Linear4:
    """``Linear`` of a weight in 4 bits (docs/adr/0022): what multiplies it is the executor's.

    parts: weights that read the same x, [out, in] each; their rows become one weight's.
    """

    __slots__ = ("_bias", "_linear4", "_weight")

    def __init__(
        self, parts: Sequence[Packed4], executor: Executor, bias: Tensor | None = None
    ) -> None:
        self._bias = bias
        self._linear4 = executor.linear4
        tensors = zip(*[(each.nibbles, each.scales, each.zeros) for each in parts], strict=True)
        self._weight = Packed4(*(torch.cat(t) if len(t) > 1 else t[0] for t in tensors))

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear4(x, self._weight, self._bias)


def can_pack(weight: Tensor) -> bool:
    """Whether this CPU has a faster form for ``weight``."""
    ops = torch.ops.mkldnn
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
        and bool(ops._is_mkldnn_bf16_supported())  # noqa: SLF001
    )
