"""Memory with room for offsets beyond 2^31 elements: promised, and hardly touched."""

from __future__ import annotations

import functools
import mmap

import torch
from torch import Tensor

ROW = 2**30 + 2**21  # elements between rows (slots, pages): the third is beyond 2^31
ROOM = 2**31  # before the first: where an offset leads that is cut to 32 bits
_NORESERVE = 0x4000  # Linux's, which Python has no name for before 3.13: not counted as used


@functools.cache
def far_memory() -> Tensor:
    """Floats, zero; pages that nobody touches are never there."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, 4 * (ROOM + 3 * ROW), flags), dtype=torch.float32)
