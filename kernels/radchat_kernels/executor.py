"""What runs the steps' arithmetic besides matrix products: one interface, two executors.

``torch`` is plain torch and the specification of each operation; ``triton`` has a kernel for each.
Both run the same plan on the same pool. Choosing imports what is chosen, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from radchat_kernels.plan import Limits, Plan

if TYPE_CHECKING:
    from radchat_kernels.tiles import Gpu

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Of one attention layer: query heads, KV heads (a divisor), dimension of each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """An RMSNorm over each query and key head: weight [query and KV heads, D]."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Packed4:
    """A 4-bit weight [out, in] in groups of 32: w[o, i] = scales[o, g] q[o, i] + zeros[o, g].

    nibbles uint8 [out, in / 2]: byte j holds q of column 2j in its low half, of 2j + 1 in the high.
    scales, zeros float16 [out, in / 32].
    """

    nibbles: Tensor
    scales: Tensor
    zeros: Tensor


class Executor(Protocol):
    """T rows of a step; D = head_dim; HQ query heads on HKV KV heads; H = hidden size."""

    name: str  # torch, triton
    why: str  # it is this one, in a few words

    def why_not(self, heads: Heads, hidden: int) -> str:
        """Why layers of this shape can't be run; empty: they can. hidden 0: no row is normed."""
        ...

    def limits(self, heads: Heads, element_size: int) -> Limits:
        """What plans for attention of this shape, of elements of so many bytes, look like here."""
        ...

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: Plan,
        positions: Tensor,
        scale: float,
        *,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Give o [T, HQ, D] of q [T, HQ, D] over the pool k, v [NP, P, HKV, D].

        positions [T] int64: of the rows now; a plan may be older than they are (``Planner``).
        """
        ...

    def store(self, k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Write k_new, v_new [T, HKV, D] into the pool at slots [T] int64."""
        ...

    def rope_store(
        self,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor],
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        heads: Heads,
        norm: HeadNorm | None = None,
    ) -> Tensor:
        """Norm and rotate q and k of qkv [T, (HQ + 2 HKV) D], store k and v; gives q [T, HQ, D].

        angles: cosine and signed sine, [T, 1, D] each: rotated = x cos + roll(x, D / 2) sin.
        """
        ...

    def add_rmsnorm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Do residual += x (in place, rounded to its dtype); gives its RMSNorm × weight, [T, H]."""
        ...

    def act_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """activation(gate) × up of gate_up [T, 2 I], gate first; gives [T, I]."""
        ...

    def copy_pages(self, pool: Tensor, pairs: list[tuple[int, int]]) -> None:
        """Copy pages (from, to) of pool [L, 2, NP, P, HKV, D]; none is both."""
        ...

    def draw(
        self,
        logits: Tensor,
        best: Tensor,
        temperature: Tensor,
        keep: Tensor,
        keys: Tensor,
    ) -> Tensor:
        """The id with the highest (logit - best) / T + noise, of those whose score is ≥ keep.

        logits [R, V] float32; best, temperature, keep [R] float64; keys [R, 3] int64: seed,
        position, choice of the noise (docs: radchat/engine/philox.py). Gives [R] int64; the
        lowest id where several are equal.
        """
        ...

    def linear4(self, x: Tensor, weight: Packed4, bias: Tensor | None = None) -> Tensor:
        """Give x [..., in] times the weight, plus bias [out]: [..., out] in x's dtype."""
        ...


class Unavailable(Exception):
    """What was asked for can't be had here; the message says why, in a few words."""


def choose(device_type: str, asked: str = "auto", gpu: Gpu | None = None) -> Executor:
    """The executor for tensors on ``cpu`` or ``cuda``.

    auto: on a GPU the kernels where Triton can run them, else torch. ``gpu``: None asks the
    device. Raises Unavailable.
    """
    if asked not in ("auto", "torch", "triton"):
        raise Unavailable(f"executor {asked!r}: want auto, torch or triton")
    if asked == "torch":
        return _torch("asked for")
    if asked == "auto" and device_type != "cuda":
        return _torch("the device is the CPU")
    from radchat_kernels import _triton

    reason = _triton.why_not(device_type)
    if not reason:
        from radchat_kernels.triton_executor import TritonExecutor

        try:
            made = TritonExecutor(device_type, gpu=gpu)
        except Unavailable as error:
            reason = str(error)
        else:
            words = ["asked for" if asked == "triton" else "a GPU"]
            words += ["interpreted"] if _triton.INTERPRETED else []
            words += [made.why] if made.why else []
            made.why = ", ".join(words)
            return made
    if asked == "triton":
        raise Unavailable(reason)
    return _torch(reason)


def _torch(why: str) -> Executor:
    from radchat_kernels.torch_executor import TorchExecutor

    return TorchExecutor(why)
