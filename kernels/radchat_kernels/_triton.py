"""The only module that imports triton, and the only place where a kernel is launched.

Kernel files import anywhere: without triton ``jit`` gives a stand-in that says why it can't run.
``TRITON_INTERPRET=1`` in the environment of the process, before this is imported, runs kernels in
Python on CPU tensors. Kernel bodies name ``tl`` from here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

WHY_NOT = ""
triton: Any
tl: Any
try:
    triton = import_module("triton")
    tl = import_module("triton.language")
except Exception as error:  # absent (macOS, Windows), or broken in whatever way
    triton = tl = None
    WHY_NOT = f"triton can't be imported ({type(error).__name__}: {error})"


class Launcher(Protocol):
    """Run ``kernel`` once for each point of ``grid``.

    ``args``: the run-time arguments in the kernel's order, tensors and numbers; ``consts``: its
    constexpr arguments by name. ``num_warps``, ``num_stages``: the compiler's.
    """

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
    ) -> None: ...


class _NotLaunchable:
    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = function.__name__

    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError(f"{self.__name__} can't run here: {WHY_NOT}")


class _Annotations:
    """What a kernel's def line needs of ``tl``."""

    constexpr = object()

    def __getattr__(self, name: str) -> None:
        return None


def _stand_in(function: Any = None, **_options: Any) -> Any:
    """Of ``triton.jit``: a decorator, with arguments or by itself."""
    return _NotLaunchable if function is None else _NotLaunchable(function)


# A number of rows, which every step may have another of, is in ``do_not_specialize``: for 1 and for
# each multiple of 16 there would be compiled code of its own, and a step would wait for it.
jit: Any = _stand_in if triton is None else triton.jit
if tl is None:
    tl = _Annotations()


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: Sequence[Any],
    consts: dict[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 2,
) -> None:
    """The ``Launcher`` that launches."""
    if INTERPRETED:
        kernel[grid](*args, **consts)
    else:
        kernel[grid](*args, **consts, num_warps=num_warps, num_stages=num_stages)


def why_not(device_type: str) -> str:
    """Why no kernel can run on ``cuda`` or ``cpu`` tensors here; empty: they can."""
    if WHY_NOT:
        return WHY_NOT
    if INTERPRETED:
        return ""
    if device_type != "cuda":
        return f"Triton has no kernels for {device_type}"
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # no driver, no compiler, no headers: each has its own class
        return f"Triton can't use the GPU ({type(error).__name__}: {error})"
    return ""


def power_of_two(number: int) -> int:
    """The least that is no smaller: what a block's length must be."""
    return 1 << (number - 1).bit_length()
