"""4-bit weights in plain torch: what the Triton kernels must compute, and what runs without them.

A product unpacks its weight and multiplies, a piece of the rows at a time, so that little more than
the packed form is ever in memory: slower than weights that lie unpacked, at a quarter of bf16's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from radchat_kernels.executor import Packed4

GROUP = 32  # columns that share a scale and a zero
PIECE_BYTES = 64 << 20  # of unpacked weights at a time


def unpack(weight: Packed4, dtype: torch.dtype) -> Tensor:
    """The weight [out, in]: scale × q + zero in float32, then rounded to ``dtype``.

    scale × q is exact in float32 (11 bits × 4), so a fused multiply-add gives the same values.
    """
    out, half = weight.nibbles.shape
    pairs = weight.nibbles.view(out, -1, GROUP // 2)
    scales, zeros = (part.float().unsqueeze(-1) for part in (weight.scales, weight.zeros))
    values = torch.empty(*pairs.shape, 2, dtype=dtype, device=pairs.device)
    values[..., 0] = torch.addcmul(zeros, (pairs & 15).float(), scales)
    values[..., 1] = torch.addcmul(zeros, (pairs >> 4).float(), scales)
    return values.view(out, 2 * half)


def linear4(
    x: Tensor,
    weight: Packed4,
    bias: Tensor | None = None,
    *,
    unpack: Callable[[Packed4, torch.dtype], Tensor] = unpack,
    piece_bytes: int = PIECE_BYTES,
) -> Tensor:
    """Give x [..., in] times the weight, plus bias [out]: [..., out] in x's dtype."""
    done = []
    for rows in pieces(weight, x.dtype, piece_bytes):
        part = Packed4(weight.nibbles[rows], weight.scales[rows], weight.zeros[rows])
        add = None if bias is None else bias[rows]
        done.append(functional.linear(x, unpack(part, x.dtype), add))
    return done[0] if len(done) == 1 else torch.cat(done, dim=-1)


def pieces(weight: Packed4, dtype: torch.dtype, piece_bytes: int) -> Iterator[slice]:
    """The weight's rows in runs of at most ``piece_bytes`` unpacked (but at least a row)."""
    out, half = weight.nibbles.shape
    step = max(1, piece_bytes // (2 * half * dtype.itemsize))
    for begin in range(0, out, step):
        yield slice(begin, min(begin + step, out))
