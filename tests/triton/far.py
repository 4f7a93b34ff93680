"""Memory with room for offsets beyond 2^31 elements, of which hardly any is touched."""

from __future__ import annotations

import mmap
import tempfile

import torch
from torch import Tensor

ROW, ROWS = 2**30 + 2**21, 8  # elements between rows (slots, pages): the third's are beyond 2^31
ROOM = 2**31  # before the first: where an offset leads that is cut to 32 bits


def far_memory() -> Tensor:
    """Floats of a file without content: what nobody touches is nowhere."""
    size = 4 * (ROOM + ROWS * ROW)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.float32)
