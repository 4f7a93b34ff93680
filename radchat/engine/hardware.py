"""What models run on here: the device and the executor, with the reason.

``auto`` takes what is there and says why it is not more; what is asked for by name and can't be had
is an error. Chosen when the first model is loaded: nothing is known before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from radchat.engine.device import Device, why_no_gpu
from radchat_kernels.executor import Executor, Heads, Unavailable
from radchat_kernels.executor import choose as choose_executor
from radchat_kernels.torch_executor import TorchExecutor


@dataclass(frozen=True, slots=True)
class Hardware:
    device: Device
    executor: Executor
    why: str  # this executor, and this device
    asked: str = "auto"  # of executors

    def fitting(self, heads: Heads, hidden: int) -> Hardware:
        """The same, with plain torch where the executor can't run layers of such a shape.

        Raises NotHere where it is asked for by name.
        """
        reason = self.executor.why_not(heads, hidden)
        if not reason:
            return self
        if self.asked != "auto":
            raise NotHere("executor", self.asked, reason)
        return replace(self, executor=TorchExecutor(reason), why=reason)


class NotHere(Exception):
    """A setting asks for what can't be had here; ``str`` says why, in a few words."""

    def __init__(self, setting: str, asked: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting
        self.asked = asked


def choose(device: str = "auto", executor: str = "auto", cuda: Any = torch.cuda) -> Hardware:
    """Raises NotHere. ``cuda``: torch's, or a test's."""
    found, no_gpu = _device(device, cuda)
    try:
        made = choose_executor(found.type, executor)
    except Unavailable as error:
        raise NotHere("executor", executor, str(error)) from error
    why = made.why
    if no_gpu and executor == "auto":
        why = no_gpu
    elif no_gpu and device == "auto":
        why += f"; {no_gpu}"
    return Hardware(found, made, why, executor)


def _device(asked: str, cuda: Any) -> tuple[Device, str]:
    """And why it is no GPU, where it is none."""
    if asked == "cpu":
        return Device("cpu"), "the CPU is asked for"
    try:
        found, reason = Device.best(cuda), why_no_gpu()
        found.try_out()
    except RuntimeError as error:  # torch sees one; its driver does not take it, or this torch
        words = str(error).partition("\n")[0]
        found, reason = Device("cpu"), f"the GPU can't be used ({words})"
    if found.type == "cuda":
        return found, ""
    if asked == "cuda":
        raise NotHere("device", asked, reason)
    return found, f"no GPU: {reason}"
