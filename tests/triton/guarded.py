"""A launcher that lets no kernel read or write beside its tensors unseen, and remembers its calls.

Each tensor is copied into the middle of a buffer of its own whose other elements are a trap: NaN
where floats are read, an index that leads to NaN or to a wrong result where integers are. What a
kernel is to write begins as NaN. Afterwards the traps must be as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from radchat_kernels._triton import launch

# what lies beside an attention kernel's integers
BESIDE = {
    "items_ptr": (0, 1, 0, 0, 0, 0, -1, -1),  # an item that would zero the first row's output
    "pages_ptr": (0,),  # the poison page
    "positions_ptr": (2**31 - 1,),  # sees everything
}


class Call(NamedTuple):
    """All of a launch but its tensors: where they lie may differ, nothing else."""

    kernel: str
    grid: tuple[int, ...]
    numbers: tuple[float, ...]
    consts: dict[str, Any]
    num_warps: int
    num_stages: int


class Launches:
    """kernels: a module whose kernels of the same names run instead; None: those given."""

    def __init__(self, kernels: ModuleType | None = None) -> None:
        self.calls: list[Call] = []
        self._kernels = kernels

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
        numbers = tuple(a for a in args if not isinstance(a, Tensor))
        self.calls.append(Call(kernel.__name__, grid, numbers, dict(consts), num_warps, num_stages))
        names = [name for name in kernel.arg_names if name not in consts]
        given = dict(zip(names, args, strict=True))
        if kernel.__name__ == "attend_kernel":
            _poison(given)
            _turn(given)
        bands = {
            id(value): _Banded(value, BESIDE.get(name, (len(given["q_ptr"]),)))
            if name in BESIDE or "q_ptr" in given
            else _Banded(value, (len(given["mid_o_ptr"]),))
            for name, value in given.items()
            if isinstance(value, Tensor)
        }
        inside = [bands[id(a)].inside if isinstance(a, Tensor) else a for a in args]
        if self._kernels is not None:
            kernel = getattr(self._kernels, kernel.__name__)
        launch(kernel, grid, inside, consts)
        for value in given.values():
            if isinstance(value, Tensor):
                bands[id(value)].leave(value)


def _poison(given: dict[str, Any]) -> None:
    """Outputs that the work list promises to write."""
    given["mid_o_ptr"].fill_(torch.nan)
    given["mid_lse_ptr"].fill_(torch.nan)
    given["o_ptr"][given["rows_ptr"].long()] = torch.nan


def _turn(given: dict[str, Any]) -> None:
    """Last item first: a device promises no order, the interpreter keeps it."""
    count = int(given["n_items_ptr"])
    items = given["items_ptr"].view(-1, 8)[:count]
    items.copy_(items.flip(0))


class _Banded:
    def __init__(self, value: Tensor, beside: Sequence[int]) -> None:
        span = 1 + sum((n - 1) * by for n, by in zip(value.shape, value.stride(), strict=True))
        span = span if value.numel() else 0
        band = 512 + 2 * value.stride(0)
        band += -band % len(beside)
        self._trap = torch.empty(band + span + band, dtype=value.dtype)
        if value.is_floating_point():
            self._trap.fill_(torch.nan)
        else:
            pattern = torch.tensor(beside, dtype=value.dtype)
            self._trap.copy_(pattern.repeat(-(-len(self._trap) // len(beside)))[: len(self._trap)])
        self.inside = self._trap.as_strided(value.shape, value.stride(), band)
        self._before = self._trap.clone()
        self._before.as_strided(value.shape, value.stride(), band).fill_(0)
        self.inside.copy_(value)

    def leave(self, value: Tensor) -> None:
        value.copy_(self.inside)
        self.inside.fill_(0)
        assert torch.allclose(self._trap, self._before, rtol=0, atol=0, equal_nan=True), "beside"
        self.inside.copy_(value)
