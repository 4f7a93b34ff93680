"""What a layer does to each of its rows by itself, in plain torch: the twins of K3, K5 and K6.

Numbers follow transformers: norms in float32 (float64 for float64), rounded to the rows' dtype
before the weight; rotations in the dtype of the angles, rounded once; activations in the rows'
dtype. The fewest torch operations that give them: a small model's decode step waits for dispatch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from radchat_kernels.executor import Activation, HeadNorm, Heads
from radchat_kernels.torch_exec import store


def rope_store(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    heads: Heads,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Norm and rotate q and k of qkv [T, (HQ + 2 HKV) D], store k and v; gives q [T, HQ, D].

    angles: cosine and signed sine [T, 1, D], the sine's first half negated, float32 (float64 for
    float64). norm: over each query and key head, before it is rotated.
    """
    num_heads, num_kv_heads, dim = heads.num_heads, heads.num_kv_heads, heads.head_dim
    num_rotated = num_heads + num_kv_heads
    qkv = qkv.view(-1, num_rotated + num_kv_heads, dim)
    qk = qkv.narrow(1, 0, num_rotated)
    if norm is not None:
        qk = _rms_norm(qk, norm.weight, norm.eps)
    cos, sin = angles
    qk = torch.addcmul(qk * cos, qk.roll(dim // 2, dims=-1), sin).to(qkv.dtype)
    k_new = qk.narrow(1, num_heads, num_kv_heads)
    store(k_new, qkv.narrow(1, num_rotated, num_kv_heads), k, v, slots)
    return qk.narrow(1, 0, num_heads)


def add_rmsnorm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x [T, H] to residual [T, H] in place; gives the sum's root-mean-square norm × weight."""
    if x is not None:
        residual.add_(x)
    return _rms_norm(residual, weight, eps)


def act_mul(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) × up of gate_up [T, 2 I], gate first; gives [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        gate = functional.silu(gate)
    else:
        gate = functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    return gate.mul_(up)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), None, eps) * weight
