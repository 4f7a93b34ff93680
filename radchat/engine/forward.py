"""What runs a step, whichever way: our decoder, or a class of transformers (the general path)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from radchat.engine.kv_pool import KVPool
from radchat_kernels.executor import Heads
from radchat_kernels.plan import Plan


class ModelShape(Protocol):
    """What pool and engine are made for. Sizes are elements."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int: ...


def heads_of(shape: ModelShape) -> Heads:
    return Heads(shape.num_heads, shape.num_kv_heads, shape.head_dim)


@dataclass(frozen=True, slots=True)
class KVShape:
    """A token's KV: layers × (K and V) × heads × dim."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, shape: ModelShape) -> KVShape:
        return cls(shape.num_layers, shape.num_kv_heads, shape.head_dim)

    @classmethod
    def from_json(cls, value: Sequence[int]) -> KVShape:
        """As radchat.json holds it: the general path's is known only once a model was opened."""
        return cls(*map(int, value))

    def to_json(self) -> list[int]:
        return [self.num_layers, self.num_kv_heads, self.head_dim]

    @property
    def num_values(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


class Forward(Protocol):
    """``tokens_computed`` counts the rows that went through the layers."""

    tokens_computed: int
    dtype: torch.dtype

    @property
    def config(self) -> ModelShape: ...

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        """As ``Decoder.forward``."""
        ...
