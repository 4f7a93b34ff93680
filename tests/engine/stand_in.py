"""A GPU for tests: tensors on torch's ``meta`` device stand for those on one.

Within ``StandIn`` every operation is looked at. One that mixes tensors of the CPU and of the device
raises ``Misplaced``, as it would on a GPU; what may mix them, a transfer, is counted. What comes
back from the device is all ones, as nothing was computed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from radchat_kernels.tiles import Gpu
from radchat_kernels.triton_executor import TritonExecutor

DEVICE = "meta"
_MOVES = ("aten::_to_copy", "aten::to", "aten::copy_")
_VALUES = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")


class Misplaced(Exception):
    """An operation on tensors of two devices, or one that a GPU does not have."""


class StandIn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``up`` and ``down``: transfers to the device and from it, by shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.up: list[tuple[int, ...]] = []
        self.down: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        on_device = [is_on_device(each) for each in tensors]
        name = func.name().split(".")[0]
        if name in _VALUES and on_device[0]:
            self.down.append(())
            one = torch.ones(1, dtype=args[0].dtype).item()
            return bool(one) if name == "aten::is_nonzero" else one
        if name == "aten::nonzero" and on_device[0]:
            self.down.append(())  # how many there are: here it is one
            return torch.empty(1, args[0].ndim, dtype=torch.int64, device=DEVICE)
        if name in _MOVES:
            return self._moved(func, args, kwargs)
        if any(on_device):
            apart = [each for each in tensors if not is_on_device(each) and each.ndim > 0]
            if apart:  # a single number of the CPU goes along with a launch
                raise Misplaced(f"{func} of tensors on {[str(each.device) for each in tensors]}")
            if "cpu" in name or name.startswith("mkldnn"):
                raise Misplaced(f"{func} is the CPU's alone")
        return func(*args, **kwargs)

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [each for each in args if isinstance(each, Tensor)]
        source = is_on_device(tensors[-1])
        if len(tensors) == 2:
            target = is_on_device(tensors[0])
        else:
            devices = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.device)]
            target = devices[0].type == DEVICE if devices else source
        if source and not target:
            self.down.append(tuple(tensors[-1].shape))
            if len(tensors) == 2:
                return tensors[0].fill_(1)
            return torch.ones(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if target and not source:
            self.up.append(tuple(tensors[-1].shape))
        return func(*args, **kwargs)


def is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type == DEVICE


class Checked:
    """A launcher that runs nothing: every tensor must be on the device. ``names`` of kernels."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        **options: Any,
    ) -> None:
        name = str(kernel.fn.__name__)
        self.names.append(name)
        for index, each in enumerate(args):
            if isinstance(each, Tensor) and not is_on_device(each):
                raise Misplaced(f"argument {index} of {name} is on the {each.device}")


def executor(launches: Checked | None = None) -> TritonExecutor:
    """With kernels as for a GPU of 132 multiprocessors."""
    return TritonExecutor(DEVICE, launch=launches or Checked(), gpu=Gpu("sm90", 132))
