"""What ``--dtype`` names: how weights are held, and what activations and KV beside them are.

int4 is the packed matrices of a 4-bit source (docs/adr/0022); its embedding, norms and whatever
else is not packed are held as its activations are.
"""

from __future__ import annotations

import torch

from radchat.engine.device import CPU, Device
from radchat.engine.memory import Need
from radchat.errors import UsageError

_VALUES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPES = (*_VALUES, "int4")


def values_dtype(dtype: str, device: Device = CPU) -> torch.dtype:
    """Of activations and KV. Beside int4: bf16 where ``device`` multiplies it, else fp32."""
    return _VALUES[("bf16" if device.multiplies_bf16 else "fp32") if dtype == "int4" else dtype]


def resolve_dtype(name: str, device: Device = CPU) -> str:
    """``auto`` where all fits: bf16 where the device multiplies it natively, else fp32."""
    if name not in ("auto", *DTYPES):
        raise UsageError(f"dtype {name!r}: want auto, {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    if name != "auto":
        return name
    return "bf16" if device.multiplies_bf16 else "fp32"


def auto_dtype(free: int, plain: Need, in_4_bits: Need | None, device: Device) -> str:
    """``auto`` by what is free on the device, where ``plain`` is the need of ``resolve_dtype``'s.

    On a GPU weights that don't fit beside KV for a conversation are taken in 4 bits, if the model
    has them so. On a CPU products with those are slow: never unasked.
    """
    is_tight = device.type != "cpu" and in_4_bits is not None and plain.good > free
    return "int4" if is_tight else resolve_dtype("auto", device)
