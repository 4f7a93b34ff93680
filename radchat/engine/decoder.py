"""The forward pass of a Llama-shaped model over a paged pool: our own, static, one for a family.

Rows come in flat: any mix of extends and decodes is [T] ids with [T] positions and [T] slots, and
the plan says which rows attend which pages. Each layer writes its K and V to the pool, then
attends. What does not change between layers (angles, plans, index tensors) is made once a step.

Numbers follow transformers: norms in float32 (float64 for float64 models) rounded before the
weight, activations in the model's dtype. Rotations use float32 tables and round once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from radchat.engine.kv_pool import KVPool
from radchat.engine.linear import Linear
from radchat.engine.model_config import Activation, DecoderConfig
from radchat.engine.rope import RopeTable
from radchat.errors import ModelBroken
from radchat_kernels import Plan, attend, store

__all__ = ["Decoder", "DecoderConfig"]


class Decoder:
    """Weights and arithmetic. ``tokens_computed`` counts the rows that went through the layers."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor], dtype: torch.dtype
    ) -> None:
        """Take ``weights`` under Hugging Face's names. Raises ModelBroken naming a tensor."""
        self.config = config
        self.dtype = dtype
        self.tokens_computed = 0
        taken = _Weights(weights, dtype)
        hidden, vocab = config.hidden_size, config.vocab_size
        self._embedding = taken.get("model.embed_tokens.weight", vocab, hidden)
        self._layers = [_Layer(config, taken, index) for index in range(config.num_layers)]
        self._norm = taken.get("model.norm.weight", hidden)
        head = self._embedding
        if config.tie_word_embeddings:
            taken.ignore("lm_head.weight")
        else:
            head = taken.get("lm_head.weight", vocab, hidden)
        self._head = Linear(head)
        taken.check_all_used()
        self._rope = RopeTable(config.rope, dtype)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        """Run ids [T] at positions [T], write their KV to slots [T]; all int64.

        Gives float32 logits [R, vocab] of the rows logit_rows [R].
        """
        self.tokens_computed += len(ids)
        logits = torch.empty(len(logit_rows), self.config.vocab_size)
        if len(ids) > 0:
            # 6 % of a small model's decode step; its tensors must not be changed outside of it,
            # which samplers do to logits, so those are copied to one that may
            with torch.inference_mode():
                self._run(ids, positions, slots, plan, pool, logit_rows, logits)
        return logits

    def _run(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
        logits: Tensor,
    ) -> None:
        x = self._embedding.index_select(0, ids)
        angles = self._rope.rows(positions)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            # the last layer's rows go no further than the logits asked for
            rows = logit_rows if index == last else None
            x = layer.forward(x, angles, slots, plan, pool.layer(index), rows)
        if len(logit_rows) > 0:
            logits.copy_(self._head(_rms_norm(x, self._norm, self.config.norm_eps)))


class _Layer:
    """One block: attention and MLP, each normed first and added to its input."""

    def __init__(self, config: DecoderConfig, weights: _Weights, index: int) -> None:
        at = f"model.layers.{index}."
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_dim, kv_dim = config.num_heads * dim, config.num_kv_heads * dim
        self._config = config
        self._window = config.windows[index]
        self._attn_norm = weights.get(f"{at}input_layernorm.weight", hidden)
        self._mlp_norm = weights.get(f"{at}post_attention_layernorm.weight", hidden)
        qkv = [("q", q_dim), ("k", kv_dim), ("v", kv_dim)]
        self._qkv = weights.linear(
            [(f"{at}self_attn.{n}_proj", out) for n, out in qkv], hidden, config.qkv_bias
        )
        self._o = weights.linear([(f"{at}self_attn.o_proj", hidden)], q_dim, config.o_bias)
        self._gate_up = weights.linear(
            [(f"{at}mlp.{n}_proj", inner) for n in ("gate", "up")], hidden, config.mlp_bias
        )
        self._down = weights.linear([(f"{at}mlp.down_proj", hidden)], inner, config.mlp_bias)
        self._qk_norm: Tensor | None = None  # [query and KV heads, D]: one norm for both
        if config.qk_norm:
            q_norm = weights.get(f"{at}self_attn.q_norm.weight", dim)
            k_norm = weights.get(f"{at}self_attn.k_norm.weight", dim)
            self._qk_norm = torch.cat(
                [q_norm.expand(config.num_heads, dim), k_norm.expand(config.num_kv_heads, dim)]
            )

    def forward(
        self,
        x: Tensor,  # [T, hidden]; written over
        angles: tuple[Tensor, Tensor],
        slots: Tensor,
        plan: Plan,
        kv: tuple[Tensor, Tensor],
        rows: Tensor | None,
    ) -> Tensor:
        """Give [T, hidden], or only its ``rows`` [R, hidden]; with no rows only KV is written."""
        config = self._config
        num_heads, num_kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        num_rotated = num_heads + num_kv_heads
        qkv = self._qkv(_rms_norm(x, self._attn_norm, config.norm_eps))
        qkv = qkv.view(-1, num_rotated + num_kv_heads, dim)
        qk = qkv.narrow(1, 0, num_rotated)
        if self._qk_norm is not None:
            qk = _rms_norm(qk, self._qk_norm, config.norm_eps)
        qk = _rotate(qk, angles)
        v = qkv.narrow(1, num_rotated, num_kv_heads)
        store(qk.narrow(1, num_heads, num_kv_heads), v, *kv, slots)
        if rows is not None and len(rows) == 0:
            return x.narrow(0, 0, 0)
        q = qk.narrow(1, 0, num_heads)
        o = attend(q, *kv, plan.windowed(self._window), dim**-0.5).reshape(len(x), -1)
        if rows is not None:
            o, x = o.index_select(0, rows), x.index_select(0, rows)
        x = x.add_(self._o(o))
        gate_up = self._gate_up(_rms_norm(x, self._mlp_norm, config.norm_eps))
        gate, up = gate_up.chunk(2, dim=-1)
        return x.add_(self._down(_activate(gate, config.activation).mul_(up)))


class _Weights:
    """The tensors of a model by name, cast and checked; remembers which were used."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._used: set[str] = set()

    def get(self, name: str, *shape: int) -> Tensor:
        if name not in self._tensors:
            raise ModelBroken(f"the weights hold no {name}")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise ModelBroken(f"{name} is {list(tensor.shape)}, config.json asks {list(shape)}")
        self._used.add(name)
        return tensor.to(self._dtype)

    def ignore(self, name: str) -> None:
        self._used.add(name)

    def linear(self, parts: list[tuple[str, int]], in_dim: int, has_bias: bool) -> Linear:
        """One layer of several that read the same input; parts are (name, out size)."""
        weight = [self.get(f"{name}.weight", out, in_dim) for name, out in parts]
        bias = [self.get(f"{name}.bias", out) for name, out in parts] if has_bias else []
        return Linear(
            torch.cat(weight) if len(weight) > 1 else weight[0],
            torch.cat(bias) if bias else None,
        )

    def check_all_used(self) -> None:
        """A tensor we would not use means arithmetic we do not do: better no answer."""
        left = [n for n in self._tensors if n not in self._used and not n.endswith(".inv_freq")]
        if left:
            raise ModelBroken(f"the weights hold {left[0]}, which this architecture has no use for")


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the last dimension; rounded to x's dtype, then times weight."""
    return functional.rms_norm(x, (x.shape[-1],), None, eps) * weight


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn x [T, heads, D] by its rows' angles (``RopeTable.rows``), in the tables' dtype."""
    cos, sin = angles
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)


def _activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
