"""Where the model runs: on the CPU, or on the GPU that is torch's current one.

What differs between them besides the tensors' place is here: transfers, waiting, free memory.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from typing import Any

import psutil
import torch
from torch import Tensor

from radchat.engine.memory import available
from radchat_kernels.upload import upload_all

# what torch's allocators, drivers and libraries say; the last: no room for cuBLAS' own things
_FULL = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
)
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGTPE]i?B)", re.IGNORECASE)
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("bKMGTPE")}


class DeviceFull(Exception):
    """The device has no memory left for a step. Nothing of the step has been counted.

    ``is_possible``: it might have had, were it empty.
    """

    def __init__(self, reason: str, *, is_possible: bool = True) -> None:
        super().__init__(reason)
        self.is_possible = is_possible


class Device:
    """``type``: as torch takes it, ``cpu`` or ``cuda``. ``name``: the GPU's, else nothing."""

    def __init__(self, type: str = "cpu", cuda: Any = torch.cuda) -> None:  # noqa: A002
        """``cuda``: torch's, or a stand-in for tests."""
        self.type = type
        self._cuda = cuda if type == "cuda" else None
        self.name = ""
        self._place = torch.device(type)
        if self._cuda is not None:
            self.name = str(cuda.get_device_name())
            self._place = torch.device(type, cuda.current_device())

    @classmethod
    def best(cls, cuda: Any = torch.cuda) -> Device:
        """The GPU if torch sees one, else the CPU."""
        return cls("cuda" if cuda.is_available() else "cpu", cuda)

    @property
    def multiplies_bf16(self) -> bool:
        """Natively: a GPU from before it emulates that, slower than it multiplies fp32."""
        if self._cuda is None:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
        return bool(self._cuda.is_bf16_supported(including_emulation=False))

    def __str__(self) -> str:
        return f"{self.type} ({self.name})" if self.name else self.type

    def upload(self, *lists: Sequence[int]) -> list[Tensor]:
        """Each as int64 on the device, all in one transfer that nobody waits for; not all empty."""
        return upload_all(lists, self._place)

    def free_bytes(self) -> int:
        """What can be taken without swapping or failing; what torch keeps for later is free."""
        if self._cuda is None:
            return available()
        kept = self._cuda.memory_reserved() - self._cuda.memory_allocated()
        return int(self._cuda.mem_get_info()[0] + kept)

    def try_out(self) -> None:
        """One operation: a GPU may be there that torch has no kernels for. Raises RuntimeError."""
        torch.zeros(1, device=self._place).add_(1)
        self.wait()

    def has_at_all(self, error: BaseException) -> bool:
        """False: more was asked for at once than the whole device has, which is a mistake."""
        asked = _ASKED.search(str(error))
        if asked is None:
            return True
        if self._cuda is None:
            total = psutil.virtual_memory().total + psutil.swap_memory().total
        else:
            total = int(self._cuda.mem_get_info()[1])
        return float(asked[1]) * _UNITS[asked[2][0]] <= int(total)

    def wait(self) -> None:
        """Until the device has done all that it was given, so that times mean something."""
        if self._cuda is not None:
            self._cuda.synchronize()

    def release(self) -> None:
        """Give back to the device what no tensor uses any more."""
        gc.collect()
        if self._cuda is not None:
            self._cuda.empty_cache()

    @staticmethod
    def is_full(error: BaseException) -> bool:
        """Whether ``error`` says that a device has no memory left: torch's allocators have a class
        or words for it, drivers and libraries theirs.
        """
        says = isinstance(error, RuntimeError) and any(words in str(error) for words in _FULL)
        return says or isinstance(error, torch.OutOfMemoryError)

    @staticmethod
    def is_lost(error: BaseException) -> bool:
        """Whether nothing can be run on the device any more, whatever that is: the process has to
        end. Not where torch's build has no kernels for the GPU: all is as it was then.
        """
        is_its = isinstance(error, torch.AcceleratorError) and "no kernel image" not in str(error)
        return is_its and not Device.is_full(error)


CPU = Device()


def why_no_gpu() -> str:
    """In a few words, where torch sees none."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for CPUs only"
    return "torch sees no GPU (is its driver installed?)"
