"""From Python's numbers to a device: in one transfer that nobody waits for.

A GPU copies by itself only from pinned memory; from any other the host waits, and first for all
that it gave the GPU to do.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

_DTYPES = {"i": torch.int32, "q": torch.int64}
_ALIGNED = 2  # int64 values: kernels read from addresses divisible by 16 in larger words


def upload(values: array[int], device: torch.device) -> Tensor:
    """``values``: int32 or int64, at least one. On a CPU the tensor is their own memory."""
    host = torch.frombuffer(values, dtype=_DTYPES[values.typecode])
    if device.type == "cuda":
        host = torch.empty(len(values), dtype=host.dtype, pin_memory=True).copy_(host)
    return host.to(device, non_blocking=True)


def upload_all(lists: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
    """Each as int64, beginning where kernels read in 16 bytes; not all empty."""
    joined = array("q")
    spans = []
    for values in lists:
        joined.extend([0] * (-len(joined) % _ALIGNED))
        spans.append((len(joined), len(values)))
        joined.extend(values)
    there = upload(joined, device)
    return [there.narrow(0, *span) for span in spans]
