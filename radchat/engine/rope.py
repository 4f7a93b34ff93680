"""Rotary positions: which angles a config asks for, and the table of cosines and sines.

A ``Rope`` is the answer to "what does this config mean": one inverse frequency for each pair of
dimensions and one scale on the table. How it came about (default, linear, llama3, yarn, longrope
within its limit) is settled here, once, when the model is opened. What changes the keys already
written when the text grows is not run, as pages of KV are reused at other lengths than they were
made at: dynamic NTK is refused, and with longrope a text ends where its keys would change.

Values follow transformers' ``modeling_rope_utils`` to the bit: inverse frequencies and angles in
float32, which is what the models were trained with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from radchat.errors import ModelBroken

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rope:
    """Pair i of a head turns by ``position * inv_freq[i]``; cos and sin are times ``scale``."""

    kind: str
    inv_freq: tuple[float, ...]  # head_dim / 2 float32 values
    scale: float = 1.0

    @classmethod
    def from_hf(cls, config: Params, head_dim: int, max_position: int) -> Rope:
        """Read ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of older files."""
        given = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ModelBroken(f"the RoPE parameters of config.json are not an object: {given!r}")
        params = dict(given)
        kind = str(params.get("rope_type") or params.get("type") or "default")
        partial = params.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise ModelBroken(f"RoPE over a part of the head ({partial}) is not supported")
        theta = params.get("rope_theta", config.get("rope_theta"))
        base = 10_000.0 if theta is None else float(theta)
        powers = base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if kind in ("llama3", "yarn", "longrope"):
            outer = config.get("original_max_position_embeddings")
            if outer is not None:
                params["original_max_position_embeddings"] = outer
            params.setdefault("original_max_position_embeddings", max_position)
        try:
            inv_freq, scale = _frequencies(kind, powers, base, params, max_position)
        except (KeyError, TypeError, ValueError) as err:
            raise ModelBroken(f"RoPE {kind!r}: bad or missing parameter {err}") from err
        return cls(kind, tuple(inv_freq.tolist()), scale)


def _frequencies(
    kind: str, powers: Tensor, base: float, params: Params, max_position: int
) -> tuple[Tensor, float]:
    if kind == "default":
        return 1.0 / powers, 1.0
    if kind == "linear":
        return (1.0 / powers) / float(params["factor"]), 1.0
    if kind == "llama3":
        return _llama3(1.0 / powers, params), 1.0
    if kind == "yarn":
        return _yarn(powers, base, params, max_position)
    if kind == "longrope":
        return _longrope(powers, params, max_position)
    if kind in ("dynamic", "ntk"):
        raise ModelBroken(
            "RoPE 'dynamic' (NTK) changes the keys of earlier tokens when the text grows, "
            "so their KV can't be reused; set another rope_scaling in config.json"
        )
    raise ModelBroken(f"RoPE {kind!r} is not known; known: default, linear, llama3, yarn, longrope")


def _llama3(inv_freq: Tensor, params: Params) -> Tensor:
    """Long waves are slowed by ``factor``, short ones kept, those between blended (Llama 3.1)."""
    factor = float(params["factor"])
    low, high = float(params["low_freq_factor"]), float(params["high_freq_factor"])
    old_len = int(params["original_max_position_embeddings"])
    wavelen = 2 * math.pi / inv_freq
    blend = (old_len / wavelen - low) / (high - low)
    slowed = torch.where(wavelen > old_len / low, inv_freq / factor, inv_freq)
    blended = (1 - blend) * slowed / factor + blend * slowed
    between = (wavelen >= old_len / high) & (wavelen <= old_len / low)
    return torch.where(between, blended, slowed)


def _yarn(powers: Tensor, base: float, params: Params, max_position: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): a ramp over the dimensions from kept to interpolated."""
    old_len = int(params["original_max_position_embeddings"])
    given = params.get("factor")
    factor = max_position / old_len if given is None else float(given)
    dim = 2 * len(powers)

    def dim_of(rotations: float) -> float:
        return dim * math.log(old_len / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = dim_of(float(params.get("beta_fast") or 32))
    high = dim_of(float(params.get("beta_slow") or 1))
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    inv_freq = (1.0 / (factor * powers)) * (1 - keep) + (1.0 / powers) * keep

    scale = params.get("attention_factor")
    if scale is None:
        mscale, mscale_all = params.get("mscale"), params.get("mscale_all_dim")
        if mscale and mscale_all:
            scale = _mscale(factor, float(mscale)) / _mscale(factor, float(mscale_all))
        else:
            scale = _mscale(factor, 1.0)
    return inv_freq, float(scale)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(powers: Tensor, params: Params, max_position: int) -> tuple[Tensor, float]:
    """Within the original length only (``longest_text``): past it all keys would be other ones."""
    old_len = int(params["original_max_position_embeddings"])
    factors = torch.tensor([float(x) for x in params["short_factor"]], dtype=torch.float32)
    if len(factors) != len(powers):
        raise ValueError(f"short_factor has {len(factors)} values, want {len(powers)}")
    factor, scale = params.get("factor"), params.get("attention_factor")
    if scale is None:
        stretch = max_position / old_len if factor is None else float(factor)
        scale = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(old_len))
    return 1.0 / (factors * powers), float(scale)


def longest_text(config: Params, max_position: int) -> tuple[int, str | None]:
    """Tokens a text may have, and why fewer than ``max_position``, where RoPE changes with it."""
    for key in ("rope_scaling", "rope_parameters"):
        given = config.get(key)
        ropes = [given, *given.values()] if isinstance(given, Mapping) else []
        for rope in ropes:  # one, or one for each type of layer
            if not isinstance(rope, Mapping):
                continue
            if str(rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
                continue
            outer = config.get("original_max_position_embeddings")
            old_len = outer or rope.get("original_max_position_embeddings")
            if old_len and int(old_len) < max_position:
                return int(old_len), (
                    f"{int(old_len):,} of {max_position:,} tokens: past them RoPE 'longrope' "
                    "changes the keys of earlier tokens, so their KV can't be reused"
                )
    return max_position, None


class RopeTable:
    """Cosines and signed sines by position, float32 (float64 holds the same values).

    Grows by doubling to the highest position asked for, so that a position's values are computed
    the same way whatever step asks: cold, warm and batched runs rotate by the same bits.
    """

    def __init__(self, rope: Rope, dtype: torch.dtype, device: str = "cpu") -> None:
        self._rope = rope
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._device = device
        self._cos = torch.empty(0, 0)
        self._sin = torch.empty(0, 0)

    def rows(self, positions: Tensor, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine for positions [T], each [T, 1, head_dim]; all < ``num_positions``.

        The sine's first half is negated: ``rotated = x * cos + roll(x, head_dim / 2) * sin``.
        """
        if num_positions > len(self._cos):
            self._grow(max(256, 1 << (num_positions - 1).bit_length()))
        return (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._sin.index_select(0, positions).unsqueeze(1),
        )

    def _grow(self, num_positions: int) -> None:
        """Made on the CPU whatever the device: the same bits everywhere. Both or, where the device
        is full, neither: the step is run again.
        """
        inv_freq = torch.tensor(self._rope.inv_freq, dtype=torch.float32)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inv_freq
        cos = (angles.cos() * self._rope.scale).to(self._dtype)
        sin = (angles.sin() * self._rope.scale).to(self._dtype)
        self._cos, self._sin = (
            torch.cat(halves, dim=-1).to(self._device) for halves in ([cos, cos], [-sin, sin])
        )
