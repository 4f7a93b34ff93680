"""A launcher that shows what a kernel reads and writes beside what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from radchat_kernels._triton import launch

BAND = 4096  # elements before and after


class Banded:
    """Runs kernels on copies that lie between bands of NaN (of 0, for integers).

    A read of a band poisons the result; a write to one fails here. ``fills``: arguments that the
    kernel only writes, all of them: NaN between bands of 7 when it starts, so that what it leaves
    out shows, and so does NaN it writes beside them.
    """

    def __init__(self, *fills: str) -> None:
        self._fills = fills
        self.grids: list[tuple[int, ...]] = []  # of its launches

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
        self.grids.append(grid)
        copies: dict[int, _Copy] = {}  # by storage: some arguments are views of one
        given: list[Any] = []
        for name, arg in zip(kernel.arg_names, args, strict=False):
            if not isinstance(arg, Tensor):
                given.append(arg)
                continue
            key = arg.untyped_storage().data_ptr()
            if key not in copies:
                copies[key] = _Copy(arg, is_filled=name in self._fills)
            given.append(copies[key].view(arg))
        launch(kernel, grid, given, consts, num_warps=num_warps, num_stages=num_stages)
        for copy in copies.values():
            assert copy.is_band_whole(), f"{kernel.__name__} wrote beside a tensor"
            copy.take_back()


class _Copy:
    """Of all the storage that a tensor is a view of."""

    def __init__(self, tensor: Tensor, *, is_filled: bool) -> None:
        count = tensor.untyped_storage().size() // tensor.itemsize
        self._storage = tensor.as_strided((count,), (1,), 0)
        wrong = torch.nan if tensor.is_floating_point() else 0
        beside = 7 if is_filled else wrong
        self._whole = torch.full((count + 2 * BAND,), beside, dtype=tensor.dtype)
        self._before = self._whole.clone()
        self._inside = self._whole.narrow(0, BAND, count)
        if is_filled:
            self._inside.fill_(wrong or 99)
        else:
            self._inside.copy_(self._storage)

    def view(self, tensor: Tensor) -> Tensor:
        at = BAND + tensor.storage_offset()
        return self._whole.as_strided(tensor.shape, tensor.stride(), at)

    def is_band_whole(self) -> bool:
        ends = [slice(0, BAND), slice(len(self._whole) - BAND, None)]
        return all(
            torch.allclose(self._whole[end], self._before[end], rtol=0, atol=0, equal_nan=True)
            for end in ends
        )

    def take_back(self) -> None:
        self._storage.copy_(self._inside)
