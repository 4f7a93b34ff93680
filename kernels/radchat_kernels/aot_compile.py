"""Compile a captured launch for an architecture that need not be here, and read what came out.

Triton compiles without a driver. Its wheel brings NVIDIA's ``cuobjdump``, that reads registers and
instructions from the machine code; for AMD the assembly's own notes say them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radchat_kernels._triton import triton

SHARED_LIMITS = {  # bytes a block may have
    "sm80": 163 << 10,
    "sm86": 99 << 10,
    "sm89": 99 << 10,
    "sm90": 227 << 10,
    "sm100": 227 << 10,
    "sm120": 99 << 10,
    "gfx942": 64 << 10,
}
TARGETS = tuple(SHARED_LIMITS)

_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Captured:
    """One launch as the compiler sees it: types instead of values.

    types: run-time argument -> ``*bf16``, ``i32``, ``fp32``; consts: constexprs, and the numbers a
    launch makes constant because they are 1; aligned: arguments that are multiples of 16.
    """

    kernel: Any
    types: dict[str, str]
    consts: dict[str, Any]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


class Capture:
    """A ``Launcher`` that launches nothing: what it was called with is in ``launches``."""

    def __init__(self) -> None:
        self.launches: list[Captured] = []

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],  # noqa: ARG002 - the compiler never sees it
        args: Sequence[Any],
        consts: dict[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
    ) -> None:
        names = [name for name in kernel.arg_names if name not in consts]
        types: dict[str, str] = {}
        fixed = dict(consts)
        aligned: list[str] = []
        for name, value in zip(names, args, strict=True):
            is_special = name not in kernel.do_not_specialize
            if value is None or (is_special and type(value) is int and value == 1):
                fixed[name] = value
                continue
            types[name] = _type_of(value)
            if is_special and _is_aligned(value):
                aligned.append(name)
        self.launches.append(Captured(kernel, types, fixed, tuple(aligned), num_warps, num_stages))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one compiled kernel takes, and what its code consists of.

    registers: of a thread (NVIDIA), of a lane (AMD). spills: loads and stores of local memory in
    loops; stack: bytes of it a thread, which those outside of loops use. shared: bytes of a block.
    async16, load16: instructions that bring 16 bytes a thread from memory, into shared memory by
    themselves or into registers. matrix: those of the widest matrix unit there is: HGMMA on sm90,
    tcgen05 on sm100, mma and mfma elsewhere. tensor: those of any that takes less than fp32 of a
    number: NVIDIA's all do, AMD's only for xf32.
    """

    registers: int
    spills: int
    stack: int
    shared: int
    async16: int
    load16: int
    matrix: int
    tensor: int
    num_warps: int


def compile_for(captured: Captured, target: str) -> Any:
    """Whatever the compiler raises goes on."""
    kernel = captured.kernel
    signature = {name: captured.types.get(name, "constexpr") for name in kernel.arg_names}
    attrs = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in captured.aligned
    }
    source = triton.compiler.ASTSource(
        fn=kernel, signature=signature, constexprs=captured.consts, attrs=attrs
    )
    options = {
        "num_warps": captured.num_warps,
        "num_stages": captured.num_stages,
        "enable_fp_fusion": True,  # triton 3.10 would make it off
    }
    return triton.compile(source, target=_gpu_target(target), options=options)


def figures(compiled: Any, target: str) -> Figures:
    if target.startswith("gfx"):
        return _figures_amd(compiled)
    bin_folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage, sass = (
            subprocess.run(
                [bin_folder / "cuobjdump", what, cubin], capture_output=True, text=True, check=True
            ).stdout
            for what in ("--dump-resource-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    lines = re.findall(
        r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)([^;]*);",
        sass,
        re.MULTILINE,
    )
    assert lines, "cuobjdump -sass shows no instruction"
    codes = [code for _, code, _ in lines]
    at = {int(address, 16): place for place, (address, _, _) in enumerate(lines)}
    jumps = [
        (place, at.get(int(goal[1], 16), place))
        for place, (_, code, rest) in enumerate(lines)
        if code.startswith("BRA") and (goal := re.search(r"0x([0-9a-f]+)", rest))
    ]
    local = [i for i, code in enumerate(codes) if code.split(".")[0] in {"LDL", "STL"}]
    matrix = {"sm90": "HGMMA", "sm100": "UTCHMMA"}.get(target, "HMMA")
    return Figures(
        registers=int(found[1]),
        spills=_in_loops(local, jumps),
        stack=int(found[2]),
        shared=compiled.metadata.shared,
        async16=_count(codes, "LDGSTS", ".128"),
        load16=_count(codes, "LDG", ".128"),
        matrix=_count(codes, matrix),
        tensor=sum("MMA" in code.split(".")[0] for code in codes),
        num_warps=compiled.metadata.num_warps,
    )


def _figures_amd(compiled: Any) -> Figures:
    text = compiled.asm["amdgcn"]

    def note(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        assert found, f"the assembly says no .{key}"
        return int(found[1])

    loads = re.findall(r"\b(?:global|buffer)_load_dwordx4\b[^\n]*", text)
    lines = text.splitlines()
    at = {line.split(":")[0]: place for place, line in enumerate(lines) if line.startswith(".LBB")}
    jumps = [
        (place, at[goal[1]])
        for place, line in enumerate(lines)
        if (goal := re.match(r"\s+s_c?branch\w*\s+(\.LBB\w+)", line))
    ]
    local = [i for i, line in enumerate(lines) if re.search("Folded (Spill|Reload)", line)]
    assert bool(local) == bool(note("vgpr_spill_count")), "spills and their notes disagree"
    return Figures(
        registers=note("vgpr_count"),
        spills=_in_loops(local, jumps),
        stack=note("private_segment_fixed_size"),
        shared=compiled.metadata.shared,
        async16=sum(" lds" in load for load in loads),
        load16=len(loads),
        matrix=text.count("v_mfma"),
        tensor=text.count("_xf32"),
        num_warps=compiled.metadata.num_warps,
    )


def most_registers(used: int, num_warps: int, target: str) -> int:
    """How many registers a thread may take before fewer blocks run side by side than with ``used``.

    NVIDIA: 65,536 a multiprocessor, given to a warp in units of 256, 255 at most a thread. AMD:
    512 a lane and SIMD, in units of 8.
    """
    if target.startswith("gfx"):
        waves = min(8, 512 // _round_up(used, 8))
        return 512 // waves // 8 * 8
    most_warps = 64 if target in {"sm80", "sm90", "sm100"} else 48
    blocks = min(most_warps // num_warps, 65536 // (_round_up(used * 32, 256) * num_warps))
    return min(255, 65536 // (blocks * num_warps) // 256 * 8)


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    assert isinstance(value, float), f"{value!r} is no argument of a kernel"
    return "fp32"


def _is_aligned(value: Any) -> bool:
    """As a launch finds out: memory begins at multiples of 256 bytes, views of it anywhere."""
    if isinstance(value, Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return type(value) is int and value % 16 == 0


def _gpu_target(target: str) -> Any:
    make = triton.backends.compiler.GPUTarget
    if target.startswith("gfx"):
        return make("hip", target, 64)
    return make("cuda", int(target.removeprefix("sm")), 32)


def _count(codes: list[str], head: str, tail: str = "") -> int:
    """Instructions ``head``, with ``tail`` among their modifiers."""
    return sum(code.split(".")[0] == head and tail in code for code in codes)


def _in_loops(places: list[int], jumps: list[tuple[int, int]]) -> int:
    """How many of ``places`` lie within a loop; jumps are (from, to), a loop's go back."""
    loops = [(to, here) for here, to in jumps if to < here]
    return sum(any(begin <= place <= end for begin, end in loops) for place in places)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
