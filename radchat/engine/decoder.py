"""The forward pass of a Llama-shaped model over a paged pool: our own, static, one for a family.

Rows come in flat: any mix of extends and decodes is [T] ids with [T] positions and [T] slots, and
the plan says which rows attend which pages. Each layer writes its K and V to the pool, then
attends. What does not change between layers (angles, plans, index tensors) is made once a step.
All but the matrix products is the executor's: plain torch, or kernels.

Numbers follow transformers: norms in float32 (float64 for float64 models) rounded before the
weight, activations in the model's dtype. Rotations use float32 tables and round once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from radchat.engine.forward import heads_of
from radchat.engine.kv_pool import KVPool
from radchat.engine.linear import Linear, Linear4
from radchat.engine.model_config import DecoderConfig
from radchat.engine.rope import RopeTable
from radchat.errors import ModelBroken
from radchat_kernels.executor import Executor, HeadNorm, Packed4, choose
from radchat_kernels.plan import Plan

__all__ = ["Decoder", "DecoderConfig"]


class Decoder:
    """Weights and arithmetic. ``tokens_computed`` counts the rows that went through the layers."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: str = "cpu",
        executor: Executor | None = None,
        packed: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take ``weights`` under Hugging Face's names to ``device``.

        packed: matrices in 4 bits (``weights.load_packed``), used in place of those in ``weights``.
        Raises ModelBroken naming a tensor.
        """
        self.config = config
        self.dtype = dtype
        self.tokens_computed = 0
        self._device = device
        self._executor = executor or choose("cpu")
        taken = _Weights(weights, dtype, device, self._executor, packed or {})
        hidden, vocab = config.hidden_size, config.vocab_size
        self._embedding = taken.get("model.embed_tokens.weight", vocab, hidden)
        self._layers = [
            _Layer(config, taken, index, self._executor) for index in range(config.num_layers)
        ]
        self._norm = taken.get("model.norm.weight", hidden)
        self._head: Linear | Linear4
        if config.tie_word_embeddings:
            taken.ignore("lm_head.weight")
            self._head = Linear(self._embedding)
        else:
            self._head = taken.linear([("lm_head", vocab)], hidden, has_bias=False)
        taken.check_all_used()
        self._rope = RopeTable(config.rope, dtype, device)

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

        Gives float32 logits [R, vocab] of the rows logit_rows [R]. All on the model's device.
        """
        logits = torch.empty(len(logit_rows), self.config.vocab_size, device=self._device)
        if len(ids) > 0:
            # 6 % of a small model's decode step; its tensors must not be changed outside of it,
            # which samplers do to logits, so those are copied to one that may
            with torch.inference_mode():
                self._run(ids, positions, slots, plan, pool, logit_rows, logits)
        self.tokens_computed += len(ids)
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
        step = _Step(positions, slots, plan, self._rope.rows(positions, plan.num_tokens))
        added: Tensor | None = None
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            # the last layer's rows go no further than the logits asked for
            rows = logit_rows if index == last else None
            x, added = layer.forward(x, added, step, pool.layer(index), rows)
        if len(logit_rows) > 0:
            normed = self._executor.add_rmsnorm(added, x, self._norm, self.config.norm_eps)
            logits.copy_(self._head(normed))


@dataclass(slots=True)
class _Step:
    """What the layers of one forward share. ``angles``: cosine and sine of the rows' positions."""

    positions: Tensor
    slots: Tensor
    plan: Plan
    angles: tuple[Tensor, Tensor]


class _Layer:
    """One block: attention and MLP, each normed first and added to its input."""

    def __init__(
        self, config: DecoderConfig, weights: _Weights, index: int, executor: Executor
    ) -> None:
        at = f"model.layers.{index}."
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        self._heads = heads_of(config)
        q_dim, kv_dim = config.num_heads * dim, config.num_kv_heads * dim
        self._config = config
        self._executor = executor
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
        self._qk_norm: HeadNorm | None = None
        if config.qk_norm:
            q_norm = weights.get(f"{at}self_attn.q_norm.weight", dim)
            k_norm = weights.get(f"{at}self_attn.k_norm.weight", dim)
            both = [q_norm.expand(config.num_heads, dim), k_norm.expand(config.num_kv_heads, dim)]
            self._qk_norm = HeadNorm(torch.cat(both), config.norm_eps)

    def forward(
        self,
        x: Tensor,  # [T, hidden]; written over
        added: Tensor | None,  # [T, hidden], still to be added to x
        step: _Step,
        kv: tuple[Tensor, Tensor],
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Give (x, added) [T, hidden], or only their ``rows`` [R, hidden].

        With no rows at all only KV is written, and what is given means nothing.
        """
        config, executor, eps = self._config, self._executor, self._config.norm_eps
        qkv = self._qkv(executor.add_rmsnorm(added, x, self._attn_norm, eps))
        q = executor.rope_store(qkv, step.angles, *kv, step.slots, self._heads, self._qk_norm)
        if rows is not None and len(rows) == 0:
            return x, None
        plan, scale = step.plan.windowed(self._window), self._heads.head_dim**-0.5
        o = executor.attend(q, *kv, plan, step.positions, scale).reshape(len(x), -1)
        if rows is not None:
            o, x = o.index_select(0, rows), x.index_select(0, rows)
        gate_up = self._gate_up(executor.add_rmsnorm(self._o(o), x, self._mlp_norm, eps))
        return x, self._down(executor.act_mul(gate_up, config.activation))


class _Weights:
    """The tensors of a model by name, checked, moved and cast; remembers which were used."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: str,
        executor: Executor,
        packed: Mapping[str, Tensor],
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._device = device
        self._executor = executor
        self._packed = packed
        self._used: set[str] = set()

    def get(self, name: str, *shape: int) -> Tensor:
        if name not in self._tensors:
            raise ModelBroken(f"the weights hold no {name}")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != shape:
            raise ModelBroken(f"{name} is {list(tensor.shape)}, config.json asks {list(shape)}")
        self._used.add(name)
        return tensor.to(device=self._device, dtype=self._dtype)

    def ignore(self, name: str) -> None:
        self._used.add(name)

    def linear(self, parts: list[tuple[str, int]], in_dim: int, has_bias: bool) -> Linear | Linear4:
        """One layer of several that read the same input; parts are (name, out size).

        In 4 bits where all of them are there in 4 bits.
        """
        biases = [self.get(f"{name}.bias", out) for name, out in parts] if has_bias else []
        bias = torch.cat(biases) if biases else None
        if all(f"{name}.weight.nibbles" in self._packed for name, _ in parts):
            weights = [self._in_4_bits(f"{name}.weight", out, in_dim) for name, out in parts]
            return Linear4(weights, self._executor, bias)
        weight = [self.get(f"{name}.weight", out, in_dim) for name, out in parts]
        return Linear(torch.cat(weight) if len(weight) > 1 else weight[0], bias)

    def _in_4_bits(self, name: str, out: int, in_dim: int) -> Packed4:
        self.ignore(name)
        found = (self._packed[f"{name}.{part}"] for part in ("nibbles", "scales", "zeros"))
        nibbles, scales, zeros = (tensor.to(self._device) for tensor in found)
        if tuple(nibbles.shape) != (out, in_dim // 2):
            raise ModelBroken(f"{name} has {len(nibbles)} rows in 4 bits, config.json asks {out}")
        return Packed4(nibbles, scales, zeros)

    def check_all_used(self) -> None:
        """A tensor we would not use means arithmetic we do not do: better no answer."""
        left = [n for n in self._tensors if n not in self._used and not n.endswith(".inv_freq")]
        if left:
            raise ModelBroken(f"the weights hold {left[0]}, which this architecture has no use for")
