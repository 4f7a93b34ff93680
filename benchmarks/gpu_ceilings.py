"""What the device can do at all, and the kernels that are bound by plain reading and writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_cases import LLAMA_3_8B, PAGE
from benchmarks.gpu_timing import Timer
from radchat_kernels.executor import Executor, Heads, Packed4

T = TypeVar("T")

L2_BYTES = 60 << 20  # of an H200; what is to come from memory is several times larger


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes and flops a second; ``node``: seconds of an empty kernel in a graph."""

    copy: float
    read: float
    l2: float
    matmul: float
    node: float


def ceilings(timer: Timer, device: str, *, tiny: bool) -> Ceilings:
    """copy counts the bytes read and those written."""
    dtype = torch.float32 if tiny else torch.bfloat16
    gigabyte = 1 << 14 if tiny else 1 << 30
    copy = _copied(timer, 2 * gigabyte, device)
    read = _read(timer, 8 * gigabyte, device)
    small = torch.zeros(20 * gigabyte // 1024 // 4, dtype=torch.float32, device=device)
    rounds = 2 if tiny else 50
    l2 = small.nbytes * rounds / timer.seconds(lambda: [small.sum() for _ in range(rounds)])
    side = 64 if tiny else 8192
    a = torch.randn(side, side, dtype=dtype, device=device)
    matmul = 2 * side**3 / timer.seconds(lambda: a @ a)
    one, nodes = torch.zeros(1, device=device), 10 if tiny else 1000
    node = timer.seconds(lambda: [one.zero_() for _ in range(nodes)]) / nodes
    return Ceilings(copy, read, l2, matmul, node)


def _copied(timer: Timer, size: int, device: str) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / timer.seconds(lambda: target.copy_(source))


def _read(timer: Timer, size: int, device: str) -> float:
    return size / timer.seconds(torch.zeros(size // 4, dtype=torch.float32, device=device).sum)


@dataclass(frozen=True, slots=True)
class Small:
    """Seconds a call; ``least``: bytes a call must move; ``peer``: torch's way, where timed."""

    name: str
    seconds: float
    least: int
    peer: float | None = None


Jobs = Iterator[tuple[str, Callable[[], Small]]]


def small_kernels(executor: Executor, timer: Timer, device: str, *, tiny: bool) -> Jobs:
    """(what, its measurement) of 4-bit products, sampling and the layers' row work."""
    dtype = torch.float32 if tiny else torch.bfloat16
    hidden, inner = (64, 96) if tiny else (4096, 14336)
    heads = Heads(4, 2, 16) if tiny else LLAMA_3_8B
    qkv = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    products = [("qkv", qkv, hidden), ("o", hidden, hidden)]
    products += [("gate, up", 2 * inner, hidden), ("down", hidden, inner)]
    for rows in (1, 5) if tiny else (1, 8, 64):
        for name, out, into in products[:1] if tiny else products:
            what = f"int4 {name} {out} x {into}, {rows} rows"
            yield what, _int4(executor, timer, (rows, out, into), dtype, device, what, tiny=tiny)
    few, many = 1, 4 if tiny else 64
    for rows in (few, many):
        vocab = 256 if tiny else 128_256
        what = f"draw from {vocab} ids, {rows} rows"
        yield what, _draw(executor, timer, rows, vocab, device, what)
    for rows in (few, many):
        x = torch.randn(rows, hidden, dtype=dtype, device=device)
        yield from _row_work(executor, timer, x, heads, inner)


def _int4(
    executor: Executor,
    timer: Timer,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: str,
    what: str,
    *,
    tiny: bool,
) -> Callable[[], Small]:
    """Beside the same product of bf16 weights; as many weights in turn as L2 can't hold."""
    rows, out, into = shape

    def run() -> Small:
        least = out * into // 2 + out * into // 8
        copies = 1 if tiny else 1 + 4 * L2_BYTES // least
        x = torch.randn(rows, into, dtype=dtype, device=device)
        ours = _each(
            timer,
            [_packed(out, into, device) for _ in range(copies)],
            lambda weight: executor.linear4(x, weight),
        )
        peer = _each(
            timer,
            [torch.randn(out, into, dtype=dtype, device=device) for _ in range(copies)],
            lambda weight: functional.linear(x, weight),
        )
        moved = least + rows * (into + out) * x.element_size()
        return Small(what, ours, moved, peer)

    return run


def _each(timer: Timer, weights: list[T], use: Callable[[T], object]) -> float:
    """Seconds that one of them takes."""
    return timer.seconds(lambda: [use(weight) for weight in weights]) / len(weights)


def _packed(out: int, into: int, device: str) -> Packed4:
    nibbles = torch.randint(0, 256, (out, into // 2), dtype=torch.uint8, device=device)
    scales = torch.rand(out, into // 32, dtype=torch.float32, device=device) / 64
    return Packed4(nibbles, scales.half(), (-8 * scales).half())


def _draw(
    executor: Executor, timer: Timer, rows: int, vocab: int, device: str, what: str
) -> Callable[[], Small]:
    """Beside torch's softmax and a race of exponentials: the same distribution, one draw each."""

    def run() -> Small:
        logits = torch.randn(rows, vocab, device=device) * 3
        best = logits.max(-1).values.double()
        temperature = torch.full_like(best, 0.8)
        keep = torch.full_like(best, -26.01)
        keys = torch.arange(rows * 3, device=device).view(rows, 3)
        ours = timer.seconds(lambda: executor.draw(logits, best, temperature, keep, keys))
        peer = timer.seconds(
            lambda: (
                (logits / 0.8).softmax(-1).div_(torch.empty_like(logits).exponential_()).argmax(-1)
            )
        )
        return Small(what, ours, logits.nbytes, peer)

    return run


def _row_work(executor: Executor, timer: Timer, x: Tensor, heads: Heads, inner: int) -> Jobs:
    rows, device = len(x), x.device
    ones = torch.ones(x.shape[1], dtype=x.dtype, device=device)
    gate_up = torch.randn(rows, 2 * inner, dtype=x.dtype, device=device)
    all_heads = heads.num_heads + 2 * heads.num_kv_heads
    qkv = torch.randn(rows, all_heads * heads.head_dim, dtype=x.dtype, device=device)
    pool = torch.zeros(
        *(1, 2, 2 + rows, PAGE, heads.num_kv_heads, heads.head_dim), dtype=x.dtype, device=device
    )
    slots = torch.arange(rows, device=device) + PAGE
    turn = torch.zeros(rows, 1, heads.head_dim, dtype=torch.float32, device=device)
    for name, least, call in (
        ("add, norm", 4 * x.nbytes, lambda: executor.add_rmsnorm(x, x.clone(), ones, 1e-5)),
        ("gate x up", 3 * gate_up.nbytes // 2, lambda: executor.act_mul(gate_up, "silu")),
        (
            "rope, store",
            2 * qkv.nbytes,
            lambda: executor.rope_store(qkv, (turn, turn), pool[0, 0], pool[0, 1], slots, heads),
        ),
    ):
        what = f"{name}, {rows} rows"

        def run(what: str = what, least: int = least, call: Callable[[], Tensor] = call) -> Small:
            return Small(what, timer.seconds(call), least)

        yield what, run
