"""Tokens a second of a whole model with random weights: branches that go on from one long prompt.

Ours is the engine's decoder on its pool, with the executor's plans, step by step as the engine
runs it: no CUDA graph, and every step's ids come to the host. The peer is transformers, where it
can be imported: ``generate`` (sdpa) and continuous batching, both of which keep a copy of the
prompt's KV for every branch. Prompts are not timed: a long answer less a short one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_cases import PAGE
from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.kv_pool import KVPool
from radchat_kernels.executor import Executor, Heads
from radchat_kernels.plan import Segment
from radchat_kernels.planner import Planner

LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16_384,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
TINY = LLAMA_3_8B | {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
Weights = dict[str, Tensor]


def random_weights(hf: dict[str, Any], dtype: torch.dtype, device: str) -> Weights:
    """Under Hugging Face's names, scaled so that activations keep their size."""
    hidden, inner, dim = hf["hidden_size"], hf["intermediate_size"], hf["head_dim"]
    q_dim, kv_dim = hf["num_attention_heads"] * dim, hf["num_key_value_heads"] * dim
    shapes = {
        "self_attn.q_proj": (q_dim, hidden),
        "self_attn.k_proj": (kv_dim, hidden),
        "self_attn.v_proj": (kv_dim, hidden),
        "self_attn.o_proj": (hidden, q_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(hf["num_hidden_layers"])
        for name, shape in shapes.items()
    }
    named["model.embed_tokens.weight"] = named["lm_head.weight"] = (hf["vocab_size"], hidden)
    named["model.norm.weight"] = (hidden,)
    weights = {}
    for name, shape in named.items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        weights[name] = tensor.fill_(1) if len(shape) == 1 else tensor.normal_(0, shape[1] ** -0.5)
    return weights


def step_bytes(hf: dict[str, Any], weights: Weights, tokens: int) -> int:
    """A decode step must read: all weights but the embedding, and the KV of so many tokens."""
    item = weights["model.norm.weight"].element_size()
    token: int = 2 * hf["num_hidden_layers"] * hf["num_key_value_heads"] * hf["head_dim"] * item
    held = sum(each.nbytes for name, each in weights.items() if "embed_tokens" not in name)
    return held + tokens * token


class Ours:
    """``rate(branches)``: one prompt computed once, so many branches on its pages."""

    def __init__(
        self, hf: dict[str, Any], weights: Weights, executor: Executor, device: str, prompt: int
    ) -> None:
        assert prompt % PAGE == 0, "branches share whole pages"
        dtype = next(iter(weights.values())).dtype
        self._config = DecoderConfig.from_hf(hf)
        self._decoder = Decoder(self._config, weights, dtype, device, executor)
        config = self._config
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        self._limits = executor.limits(heads, dtype.itemsize)
        self._device, self._dtype, self._prompt = device, dtype, prompt

    def rate(self, branches: int, steps: int) -> float:
        """Tokens a second of all branches."""
        config, num_shared, own = self._config, self._prompt // PAGE, -(-(steps + 3) // PAGE)
        pool = KVPool(
            config.num_layers,
            1 + num_shared + branches * own,
            PAGE,
            config.num_kv_heads,
            config.head_dim,
            self._dtype,
            self._device,
        )
        planner = Planner(self._limits, PAGE)
        shared = list(range(1, 1 + num_shared))
        ids = torch.arange(self._prompt) % config.vocab_size
        self._step(planner, pool, [Segment(0, self._prompt, 0, shared)], ids.tolist())
        tables = [
            [*shared, *range(1 + num_shared + row * own, 1 + num_shared + (row + 1) * own)]
            for row in range(branches)
        ]
        next_ids, began = list(range(branches)), 0.0
        for step in range(steps + 2):
            if step == 2:  # two have compiled whatever there was to compile
                began = time.perf_counter()
            start = self._prompt + step
            segments = [Segment(row, 1, start, table) for row, table in enumerate(tables)]
            next_ids = self._step(planner, pool, segments, next_ids)
        return branches * steps / (time.perf_counter() - began)

    def _step(
        self, planner: Planner, pool: KVPool, segments: list[Segment], ids: list[int]
    ) -> list[int]:
        """The next id of the last row of each segment; waits for the device."""
        positions = [s.start + i for s in segments for i in range(s.row_count)]
        slots = [
            s.table[t // PAGE] * PAGE + t % PAGE
            for s in segments
            for t in range(s.start, s.start + s.row_count)
        ]
        last = [s.row_begin + s.row_count - 1 for s in segments]
        tensors = (torch.tensor(v, device=self._device) for v in (ids, positions, slots, last))
        ids_t, positions_t, slots_t, last_t = tensors
        logits = self._decoder.forward(
            ids_t, positions_t, slots_t, planner.plan(segments), pool, last_t
        )
        found: list[int] = logits.argmax(-1).tolist()
        return found


class Transformers:
    """Raises ImportError where there is no transformers."""

    def __init__(self, hf: dict[str, Any], weights: Weights, device: str, prompt: int) -> None:
        transformers = importlib.import_module("transformers")
        config = transformers.LlamaConfig(**hf, bos_token_id=None, eos_token_id=None)
        dtype = next(iter(weights.values())).dtype
        with torch.device(device):
            self._model = transformers.LlamaForCausalLM(config).to(dtype).eval()
        self._model.load_state_dict(weights)
        self._config = transformers.GenerationConfig
        self._device, self._prompt, self._vocab = device, prompt, hf["vocab_size"]

    def generate_rate(self, branches: int, steps: int) -> float:
        ids = torch.arange(self._prompt, device=self._device)[None] % self._vocab

        def run(new: int) -> None:
            self._model.set_attn_implementation("sdpa")
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._config(
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=branches > 1,
                    num_return_sequences=branches,
                    pad_token_id=0,
                ),
            )

        return branches * steps / self._longer(run, steps)

    def batched_rate(self, branches: int, steps: int) -> float:
        ids = (torch.arange(self._prompt) % self._vocab).tolist()

        def run(new: int) -> None:
            self._model.set_attn_implementation("paged|sdpa")
            self._model.generate_batch(
                inputs=[ids] * branches,
                generation_config=self._config(max_new_tokens=new, do_sample=False),
            )

        return branches * steps / self._longer(run, steps)

    def _longer(self, run: Callable[[int], None], steps: int) -> float:
        """Seconds that ``steps`` more tokens take."""
        seconds = []
        with torch.inference_mode():
            run(2)
            for new in (2, steps + 2):
                began = time.perf_counter()
                run(new)
                if self._device == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
        return max(1e-9, seconds[1] - seconds[0])
