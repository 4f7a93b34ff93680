"""A launcher that lets no kernel read or write beside its tensors unseen, and remembers its calls.

Each tensor is copied into the middle of a buffer of its own whose other elements, those between its
rows as well, are a trap: NaN for floats, 0 for integers. Afterwards the traps must be as they were.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from radchat_kernels._triton import launch

BAND = 4096  # elements before and after, at least


class Call(NamedTuple):
    """All of a launch but its tensors: where they lie may differ, nothing else."""

    kernel: str
    grid: tuple[int, ...]
    numbers: tuple[float, ...]
    consts: dict[str, Any]
    num_warps: int
    num_stages: int


class Banded:
    """``fills``: arguments that the kernel only writes, all of them: NaN among 7 when it starts, so
    that what it leaves out shows, and so does NaN it writes beside them.

    kernels: a module whose kernels of the same names run instead; None: those given.
    """

    def __init__(self, *fills: str, kernels: ModuleType | None = None) -> None:
        self._fills = fills
        self._kernels = kernels
        self.calls: list[Call] = []

    @property
    def grids(self) -> list[tuple[int, ...]]:
        return [call.grid for call in self.calls]

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
        numbers = tuple(arg for arg in args if not isinstance(arg, Tensor))
        self.calls.append(Call(kernel.__name__, grid, numbers, dict(consts), num_warps, num_stages))
        names = [name for name in kernel.arg_names if name not in consts]
        given = dict(zip(names, args, strict=True))
        self.prepare(kernel.__name__, given)
        copies: dict[int, _Copy] = {}  # one tensor may be given under two names
        for name, arg in given.items():
            if isinstance(arg, Tensor) and id(arg) not in copies:
                is_filled = name in self._fills
                copies[id(arg)] = _Copy(arg, self.beside(name, given), is_filled=is_filled)
        inside = [copies[id(arg)].inside if isinstance(arg, Tensor) else arg for arg in args]
        run = kernel if self._kernels is None else getattr(self._kernels, kernel.__name__)
        launch(run, grid, inside, consts, num_warps=num_warps, num_stages=num_stages)
        for copy in copies.values():
            assert copy.is_trap_whole(), f"{kernel.__name__} wrote beside a tensor"
            copy.take_back()

    def prepare(self, kernel: str, given: dict[str, Any]) -> None:
        """What is done to the arguments before."""

    def beside(self, name: str, given: dict[str, Any]) -> Sequence[int]:
        """What stands beside integers."""
        return (0,)


class _Copy:
    def __init__(self, given: Tensor, beside: Sequence[int], *, is_filled: bool) -> None:
        self._given = given
        span = 1 + sum((n - 1) * by for n, by in zip(given.shape, given.stride(), strict=True))
        span = span if given.numel() else 0
        band = BAND + 2 * max(given.stride(), default=0)
        band += -band % len(beside)
        trap = torch.empty(band + span + band, dtype=given.dtype)
        if is_filled:
            trap.fill_(7)
        elif trap.is_floating_point():
            trap.fill_(torch.nan)
        else:
            pattern = torch.tensor(beside, dtype=trap.dtype)
            trap.copy_(pattern.repeat(-(-len(trap) // len(beside)))[: len(trap)])
        self.inside = trap.as_strided(given.shape, given.stride(), band)
        self._trap, self._before = trap, trap.clone()
        if is_filled:
            self.inside.fill_(torch.nan if trap.is_floating_point() else 99)
        else:
            self.inside.copy_(given)

    def is_trap_whole(self) -> bool:
        now = self._trap.clone()
        place = self.inside.shape, self.inside.stride(), self.inside.storage_offset()
        now.as_strided(*place).copy_(self._before.as_strided(*place))
        return torch.allclose(now, self._before, rtol=0, atol=0, equal_nan=True)

    def take_back(self) -> None:
        self._given.copy_(self.inside)


def edited(module: ModuleType, right: str, wrong: str, folder: Path) -> ModuleType:
    """A second ``module``, from its source with ``wrong`` wherever it says ``right``."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert right in source
    path = folder / f"edited_{Path(module.__file__).name}"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made
