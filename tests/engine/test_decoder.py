"""Our forward against transformers' own classes, and against itself cut, batched and forked.

All models are tiny and random (``tiny.py``). transformers is imported by the comparing tests only
and each of its models is built once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.kv_pool import KVPool
from radchat.engine.linear import Linear
from radchat.engine.rope import RopeTable
from radchat.errors import ModelBroken
from tests.engine.running import Running, run_step, some_ids
from tests.engine.tiny import CLASSES, tiny_config, tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [9.0] * 8,  # for lengths past the original one, which are refused
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 7}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama without GQA": ("llama", {"num_key_value_heads": 4}),
    "llama one KV head for eight": (
        "llama",
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 8},
    ),
    "llama nine heads on three": (
        "llama",
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8},
    ),
    "llama head_dim of its own": ("llama", {"head_dim": 40}),
    "llama head_dim left out": ("llama", {"head_dim": None, "num_key_value_heads": None}),
    "llama gelu": ("llama", {"hidden_act": "gelu"}),
    "llama gelu tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama theta": ("llama", {"rope_theta": 500000.0}),
    "llama linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama yarn": ("llama", {"rope_scaling": YARN}),
    "llama yarn scaled": ("llama", {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}}),
    "llama yarn plain": (
        "llama",
        {"rope_scaling": YARN | {"truncate": False, "attention_factor": 1.2, "beta_fast": 16}},
    ),
    "llama longrope": ("llama", {"rope_scaling": LONGROPE}),
    "llama longrope with a longer long form": (
        "llama",
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 128}},
    ),
    "llama rope_parameters": (
        "llama",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    ),
    "mistral": ("mistral", {}),
    "mistral window": ("mistral", {"sliding_window": 7}),
    "mistral window of one": ("mistral", {"sliding_window": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window on the last layer": ("qwen2", WINDOWED | {"max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 window by layer_types": (
        "qwen3",
        WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)
FAMILIES = pytest.mark.parametrize("case", ["llama", "mistral window", "qwen2", "qwen3"])


@cache
def our(case: str, dtype: torch.dtype = torch.float32) -> Decoder:
    kind, overrides = CASES[case]
    config, weights, _ = tiny_model(kind, **overrides)
    return Decoder(config, weights, dtype)


@cache
def theirs(case: str, dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    kind, overrides = CASES[case]
    _, weights, hf_config = tiny_model(kind, **overrides)
    cls = getattr(transformers, CLASSES[kind])
    model = cls(cls.config_class(**hf_config, attn_implementation="eager"))
    if hf_config["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model.to(dtype).eval()


def their_logits(case: str, ids: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    with torch.no_grad():
        logits: Tensor = theirs(case, dtype)(torch.tensor([ids])).logits[0]
    return logits


# --- against transformers --------------------------------------------------------------------


@EVERY_CASE
def test_logits_are_those_of_transformers(case: str) -> None:
    ids = some_ids(90)
    got = Running(our(case)).extend(ids)
    want = their_logits(case, ids)
    assert got.dtype == torch.float32
    assert want.std() > 0.5  # else close logits would say little
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert torch.equal(got.argmax(-1), want.argmax(-1))


@FAMILIES
def test_logits_are_those_of_transformers_in_float64(case: str) -> None:
    ids = some_ids(40, seed=1)
    got = Running(our(case, torch.float64)).extend(ids)
    want = their_logits(case, ids, torch.float64).float()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@FAMILIES
def test_logits_in_bf16_are_as_near_to_float32_as_those_of_transformers(case: str) -> None:
    ids = some_ids(60, seed=2)
    exact = their_logits(case, ids)
    ours = (Running(our(case, torch.bfloat16)).extend(ids) - exact).abs().mean()
    other = (their_logits(case, ids, torch.bfloat16).float() - exact).abs().mean()
    assert ours < 1.25 * other


@FAMILIES
def test_greedy_ids_are_those_of_transformers(case: str) -> None:
    ids = some_ids(20, seed=3)
    sequence = Running(our(case))
    sequence.extend(ids, rows=[])
    want = list(ids)
    for _ in range(12):
        want.append(int(their_logits(case, want)[-1].argmax()))
    assert sequence.greedy(12) == want[20:]


# --- against itself --------------------------------------------------------------------------


@EVERY_CASE
def test_a_sequence_run_in_pieces_equals_the_whole(case: str) -> None:
    ids = some_ids(70, seed=4)
    whole = Running(our(case)).extend(ids)
    for cuts in ([0, 1, 16, 33, 70], [0, 40, *range(41, 71)], [0, 15, 32, 32, 70]):
        sequence = Running(our(case))
        pieces = [sequence.extend(ids[a:b]) for a, b in pairwise(cuts)]
        torch.testing.assert_close(torch.cat(pieces), whole, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
@FAMILIES
def test_float64_pieces_agree_with_the_whole_to_float32s_last_bit(
    case: str, page_size: int
) -> None:
    ids = some_ids(50, seed=5)
    decoder = our(case, torch.float64)
    whole = Running(decoder, 60, page_size).extend(ids)
    sequence = Running(decoder, 60, page_size)
    pieces = [sequence.extend(ids[a:b]) for a, b in pairwise([0, 3, 17, 18, 19, 50])]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=2e-7, atol=2e-7)


@FAMILIES
def test_a_mixed_batch_equals_each_sequence_alone(case: str) -> None:
    decoder = our(case)
    prompts = [some_ids(n, seed=n) for n in (37, 16, 5, 52)]
    done = (36, 0, 4, 17)  # computed before the step: decode, cold, decode, extend
    alone = [Running(decoder).extend(p)[-1] for p in prompts]
    config = decoder.config
    pool = KVPool(
        config.num_layers, 40, 16, config.num_kv_heads, config.head_dim, torch.float32, poison=True
    )
    pages = random.Random(1).sample(range(1, 40), 16)
    tables = [pages[i : i + 4] for i in range(0, 16, 4)]
    for prompt, table, n in zip(prompts, tables, done, strict=True):
        run_step(decoder, pool, [(table, 0, prompt[:n])], [])
    parts = [(t, n, p[n:]) for p, t, n in zip(prompts, tables, done, strict=True)]
    ends = torch.tensor([len(ids) for _, _, ids in parts]).cumsum(0) - 1
    got = run_step(decoder, pool, parts, ends.tolist())
    torch.testing.assert_close(got, torch.stack(alone), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda d: str(d)[6:])
@FAMILIES
def test_greedy_ids_are_the_same_cold_warm_forked_and_batched(
    case: str, dtype: torch.dtype
) -> None:
    decoder = our(case, dtype)
    prompts = [some_ids(n, seed=20 + n) for n in (37, 16, 50)]
    cold = []
    for prompt in prompts:
        sequence = Running(decoder)
        sequence.extend(prompt, rows=[])
        cold.append(sequence.greedy(16))
    for prompt, want in zip(prompts, cold, strict=True):
        warm = Running(decoder)
        for a, b in pairwise([0, 5, 6, len(prompt) - 1, len(prompt)]):
            warm.extend(prompt[a:b], rows=[])
        assert warm.greedy(16) == want
        forked = Running(decoder)  # the same text again in pages of its own, all but a copied page
        forked.pool.data.copy_(warm.pool.data)
        forked.pool.copy_pages([(forked.table[0], forked.table[20])])
        forked.table = [forked.table[20], *forked.table[1:20]]
        forked.ids = list(prompt)
        assert forked.greedy(16) == want
    config = decoder.config
    pool = KVPool(config.num_layers, 40, 16, config.num_kv_heads, config.head_dim, dtype)
    pages = random.Random(2).sample(range(1, 40), 15)
    tables = [pages[i : i + 5] for i in range(0, 15, 5)]
    new, starts = prompts, [0, 0, 0]
    found: list[list[int]] = [[], [], []]
    for _ in range(16):
        parts = list(zip(tables, starts, new, strict=True))
        ends = torch.tensor([len(ids) for ids in new]).cumsum(0) - 1
        best = run_step(decoder, pool, parts, ends.tolist()).argmax(-1).tolist()
        starts = [start + len(ids) for start, ids in zip(starts, new, strict=True)]
        new = [[i] for i in best]
        found = [have + more for have, more in zip(found, new, strict=True)]
    assert found == cold


def test_rows_that_ask_for_no_logits_still_write_their_kv_and_are_counted() -> None:
    ids = some_ids(30, seed=6)
    decoder = Decoder(*tiny_model("llama")[:2], torch.float32)
    whole = Running(decoder).extend(ids)
    assert decoder.tokens_computed == 30
    sequence = Running(decoder)
    assert sequence.extend(ids[:20], rows=[]).shape == (0, 256)
    assert decoder.tokens_computed == 50
    got = sequence.extend(ids[20:], rows=[9, 0])
    torch.testing.assert_close(got, whole[[29, 20]], rtol=2e-5, atol=2e-5)
    assert decoder.tokens_computed == 60


def test_a_step_of_no_rows_is_no_work() -> None:
    decoder = our("llama")
    before = decoder.tokens_computed
    assert Running(decoder).extend([]).shape == (0, 256)
    assert decoder.tokens_computed == before


def test_one_branchs_writes_leave_anothers_pages_and_answer_untouched() -> None:
    """A fork shares pages, so a write out of place would change a sibling's answer."""
    decoder = our("llama")
    sequence = Running(decoder)
    sequence.extend(some_ids(41, seed=8))
    pool, table = sequence.pool, sequence.table
    # a fork in the middle of page 2: that page is copied, the full ones are shared
    shared, own, sibling = table[:2], table[10:14], table[14:18]
    pool.copy_pages([(table[2], own[0]), (table[2], sibling[0])])

    def branch(pages: list[int], ids: list[int]) -> list[int]:
        found, at, new = [], 41, ids
        for _ in range(12):
            logits = run_step(decoder, pool, [(shared + pages, at, new)], [len(new) - 1])
            at += len(new)
            new = [int(logits[0].argmax())]
            found += new
        return found

    untouched = [p for p in range(pool.num_pages) if p not in own]
    before = pool.data[:, :, untouched].view(torch.int32).clone()
    first = branch(own, some_ids(9, seed=9))
    assert torch.equal(pool.data[:, :, untouched].view(torch.int32), before)
    other = branch(sibling, some_ids(5, seed=10))
    assert branch(own, some_ids(9, seed=9)) == first
    assert first[:5] != other[:5]


def test_packed_bf16_products_are_the_plain_ones_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16()
    for rows in (1, 2, 5, 33):
        x = torch.randn(rows, 64, generator=generator).bfloat16()
        want = torch.nn.functional.linear(x, weight, bias)
        assert torch.equal(Linear(weight, bias)(x), want)


def test_a_positions_angles_are_the_same_bits_whatever_was_asked_before() -> None:
    rope = our("llama yarn").config.rope
    grown, fresh = RopeTable(rope, torch.float32), RopeTable(rope, torch.float32)
    early = [t.clone() for t in grown.rows(torch.tensor([3, 200]), 201)]
    grown.rows(torch.tensor([5000]), 5001)
    for table in (grown, fresh):
        for a, b in zip(table.rows(torch.tensor([3, 200]), 201), early, strict=True):
            assert torch.equal(a, b)


class FullAt(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The device has no room for what this call of ``aten.cat`` gives."""

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.cat.default:
            self._left -= 1
            if self._left == 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("number", [1, 2])
def test_a_table_that_found_no_room_to_grow_is_as_it_was_and_grows_later(number: int) -> None:
    rope = our("llama yarn").config.rope
    table, fresh = RopeTable(rope, torch.float32), RopeTable(rope, torch.float32)
    table.rows(torch.tensor([3]), 4)
    with FullAt(number), pytest.raises(torch.OutOfMemoryError):
        table.rows(torch.tensor([3, 300]), 301)
    for a, b in zip(*(t.rows(torch.tensor([3, 300]), 301) for t in (table, fresh)), strict=True):
        assert torch.equal(a, b)


# --- the pool --------------------------------------------------------------------------------


def test_copied_pages_are_equal_and_others_stay() -> None:
    pool = KVPool(2, 5, 3, 1, 4, torch.float32)
    pool.data.copy_(torch.randn(pool.data.shape, generator=torch.Generator().manual_seed(4)))
    before = pool.data.clone()
    pool.copy_pages([(1, 3), (2, 4)])
    assert torch.equal(pool.data[:, :, 3], before[:, :, 1])
    assert torch.equal(pool.data[:, :, 4], before[:, :, 2])
    assert torch.equal(pool.data[:, :, :3], before[:, :, :3])
    pool.copy_pages([])
    assert pool.bytes_per_token == 2 * 2 * 4 * 4


def test_poisoned_pages_are_nan_and_no_others() -> None:
    pool = KVPool(2, 5, 3, 1, 4, torch.float32)
    pool.data.zero_()
    pool.poison([1, 4])
    nan_pages = pool.data.isnan().flatten(3).all(-1).all(0).all(0)
    assert nan_pages.tolist() == [False, True, False, False, True]
    assert not pool.data[:, :, [0, 2, 3]].isnan().any()


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "overrides", "reason"),
    [
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic.*earlier tokens"),
        ("llama", {"rope_scaling": {"type": "su"}}, "'su' is not known"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "bad or missing parameter 'factor'"),
        ("llama", {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor has 1"),
        ("llama", {"partial_rotary_factor": 0.5}, "part of the head"),
        ("llama", {"rope_parameters": 3}, "not an object"),
        ("llama", {"model_type": "mamba", "state_size": 16}, "recurrent state"),
        ("llama", {"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "recurrent"),
        ("llama", {"model_type": "qwen3_moe", "num_experts": 8}, "mixture of experts"),
        ("llama", {"model_type": "gpt2"}, "'gpt2' is not known; known: llama"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "not a text model"),
        ("llama", {"hidden_act": "relu2"}, "'relu2' is not known"),
        ("llama", {"num_key_value_heads": 3}, "4 heads can't share 3"),
        ("llama", {"head_dim": 15}, "is odd"),
        ("llama", {"vocab_size": None}, "vocab_size should be a positive whole number"),
        ("llama", {"hidden_size": "64"}, "hidden_size should be"),
        ("mistral", {"sliding_window": -1}, "sliding_window: want a positive"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types: want 2"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "no sliding_window is set"),
    ],
)
def test_what_cannot_be_run_right_is_refused_by_name(
    kind: str, overrides: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelBroken, match=reason):
        DecoderConfig.from_hf(tiny_config(kind, **overrides))


def test_a_longrope_text_ends_where_earlier_keys_would_change() -> None:
    config = our("llama longrope with a longer long form").config
    assert config.max_position_embeddings == 128
    assert our("llama longrope").config.max_position_embeddings == 512


def test_missing_misshapen_and_unknown_tensors_are_refused_by_name() -> None:
    config, weights, _ = tiny_model("llama")
    name = "model.layers.1.mlp.up_proj.weight"
    missing = {n: t for n, t in weights.items() if n != name}
    with pytest.raises(ModelBroken, match=f"hold no {name}"):
        Decoder(config, missing, torch.float32)
    with pytest.raises(ModelBroken, match=f"{name} is .* asks"):
        Decoder(config, weights | {name: torch.zeros(2, 2)}, torch.float32)
    unknown = "model.layers.0.self_attn.q_norm.weight"
    with pytest.raises(ModelBroken, match=f"hold {unknown}, which"):
        Decoder(config, weights | {unknown: torch.zeros(16)}, torch.float32)


@pytest.mark.parametrize("kind", CLASSES)
def test_fields_left_out_mean_what_transformers_takes_them_for(kind: str) -> None:
    import transformers

    sizes = ("vocab_size", "hidden_size", "intermediate_size")
    counts = ("num_hidden_layers", "num_attention_heads")
    given = {"hidden_size": 4096, "num_attention_heads": 32}
    full = tiny_config(kind, **given)
    bare = {k: full[k] for k in ("model_type", *sizes, *counts)}
    config = DecoderConfig.from_hf(bare)
    hf = getattr(transformers, CLASSES[kind]).config_class(**bare)
    assert config.num_kv_heads == hf.num_key_value_heads
    assert config.head_dim == (getattr(hf, "head_dim", None) or 4096 // 32)
    assert config.norm_eps == hf.rms_norm_eps
    assert config.max_position_embeddings == hf.max_position_embeddings
    assert config.tie_word_embeddings == hf.tie_word_embeddings
    window = hf.sliding_window if kind == "mistral" else None
    assert config.windows == (window,) * 2
    base = hf.rope_parameters["rope_theta"]
    assert config.rope.inv_freq[1] == pytest.approx(base ** (-2 / config.head_dim))
