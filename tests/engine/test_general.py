"""The general path against transformers' own eager attention, and against itself cut and batched.

The models are tiny and random (``general_toys.py``), windows are 24 tokens and texts longer.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from radchat.engine.general import GeneralModel, open_general, open_module
from radchat.engine.general_check import check_against_transformers
from radchat.engine.kv_pool import KVPool
from tests.engine.general_toys import (
    KINDS,
    general_config,
    general_model,
    general_weights,
    their_logits,
)
from tests.engine.running import Running, run_step, some_ids

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOUND = {torch.float32: 1e-4, torch.float64: 1e-5}  # float64 models norm and turn in float32
EXACT = pytest.mark.parametrize("dtype", list(BOUND), ids=lambda d: str(d)[6:])


@EXACT
@EVERY_KIND
def test_logits_are_those_of_transformers(kind: str, dtype: torch.dtype) -> None:
    ids = some_ids(90)
    got = Running(general_model(kind, dtype)).extend(ids)
    want = their_logits(kind, ids, dtype).float()
    assert got.dtype == torch.float32
    assert want.std() > 0.5  # else close logits would say little
    torch.testing.assert_close(got, want, rtol=BOUND[dtype], atol=BOUND[dtype])
    assert torch.equal(got.argmax(-1), want.argmax(-1))


@EVERY_KIND
def test_logits_in_bf16_are_as_near_to_float32_as_those_of_transformers(kind: str) -> None:
    ids = some_ids(60, seed=2)
    exact = their_logits(kind, ids)
    ours = (Running(general_model(kind, torch.bfloat16)).extend(ids) - exact).abs().median()
    other = (their_logits(kind, ids, torch.bfloat16).float() - exact).abs().median()
    assert ours < 1.25 * other


@EVERY_KIND
def test_greedy_ids_are_those_of_transformers(kind: str) -> None:
    ids = some_ids(20, seed=3)
    sequence = Running(general_model(kind))
    sequence.extend(ids, rows=[])
    want = list(ids)
    for _ in range(16):
        want.append(int(their_logits(kind, want)[-1].argmax()))
    assert sequence.greedy(16) == want[20:]


@EXACT
@EVERY_KIND
def test_a_sequence_run_in_pieces_equals_the_whole(kind: str, dtype: torch.dtype) -> None:
    """Chunks, decode, and prefixes cut about the edges of pages and of the window."""
    ids = some_ids(70, seed=4)
    whole = their_logits(kind, ids, dtype).float()
    for cuts in (
        [0, 1, 16, 33, 70],
        [0, 15, 32, 32, 70],
        [0, 17, 70],
        [0, 23, 24, 25, 26, 70],
        [0, 40, *range(41, 71)],
    ):
        sequence = Running(general_model(kind, dtype))
        pieces = [sequence.extend(ids[a:b]) for a, b in pairwise(cuts)]
        torch.testing.assert_close(torch.cat(pieces), whole, rtol=BOUND[dtype], atol=BOUND[dtype])


@EVERY_KIND
def test_a_mixed_batch_equals_each_sequence_alone(kind: str) -> None:
    model = general_model(kind)
    prompts = [some_ids(n, seed=n) for n in (37, 16, 5, 52)]
    done = (36, 0, 4, 17)  # computed before the step: decode, cold, decode, extend
    config = model.config
    pool = KVPool(
        config.num_layers, 40, 16, config.num_kv_heads, config.head_dim, torch.float32, poison=True
    )
    pages = random.Random(1).sample(range(1, 40), 16)
    tables = [pages[i : i + 4] for i in range(0, 16, 4)]
    for prompt, table, n in zip(prompts, tables, done, strict=True):
        run_step(model, pool, [(table, 0, prompt[:n])], [])
    parts = [(t, n, p[n:]) for p, t, n in zip(prompts, tables, done, strict=True)]
    ends = torch.tensor([len(ids) for _, _, ids in parts]).cumsum(0) - 1
    got = run_step(model, pool, parts, ends.tolist())
    want = torch.stack([their_logits(kind, prompt)[-1] for prompt in prompts])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "qwen3_moe"])
def test_forks_of_a_shared_prefix_run_together_as_they_would_alone(kind: str) -> None:
    model = general_model(kind)
    sequence = Running(model)
    ids = some_ids(41, seed=8)  # cut inside a page
    sequence.extend(ids, rows=[])
    pool, table = sequence.pool, sequence.table
    parts, ends, row = [], [], 0
    for fork in range(3):
        own = table[10 + 4 * fork : 14 + 4 * fork]
        pool.copy_pages([(table[2], own[0])])
        new = some_ids(fork + 1 + 9 * fork, seed=30 + fork)
        parts.append((table[:2] + own, 41, new))
        row += len(new)
        ends.append(row - 1)
    got = run_step(model, pool, parts, ends)
    want = torch.stack([their_logits(kind, ids + new)[-1] for _, _, new in parts])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_rows_that_ask_for_no_logits_are_counted_and_write_their_kv() -> None:
    ids = some_ids(30, seed=6)
    config = general_config("phi3")
    weights = general_weights("phi3")
    model = GeneralModel(config, open_module(config, weights, torch.float32), torch.float32)
    assert model.tokens_computed == 0
    check_against_transformers(model)
    assert model.tokens_computed == 0, "a check is no work of the engine's"
    sequence = Running(model)
    assert sequence.extend(ids[:20], rows=[]).shape == (0, 256)
    assert sequence.extend([]).shape == (0, 256)
    assert model.tokens_computed == 20
    got = sequence.extend(ids[20:], rows=[9, 0])
    torch.testing.assert_close(got, their_logits("phi3", ids)[[29, 20]], rtol=1e-4, atol=1e-4)
    assert model.tokens_computed == 30


@EVERY_KIND
def test_opening_a_model_copies_no_weight_of_its_own_dtype(kind: str) -> None:
    weights = {n: t.bfloat16() for n, t in general_weights(kind).items()}
    module = open_module(general_config(kind), weights, torch.bfloat16)
    for name, parameter in module.state_dict().items():
        if name != "lm_head.weight":  # tied ones are one tensor, whichever was given
            assert parameter.data_ptr() == weights[name].data_ptr(), name


def test_a_model_opened_to_run_multiplies_as_the_plain_one_does() -> None:
    config, weights = general_config("phi3"), general_weights("phi3")
    packed = open_general(config, weights, torch.bfloat16)
    plain = GeneralModel(config, open_module(config, weights, torch.bfloat16), torch.bfloat16)
    ids = some_ids(40, seed=12)
    assert torch.equal(Running(packed).extend(ids), Running(plain).extend(ids))


@pytest.mark.parametrize(
    ("kind", "windows"),
    [
        ("gemma3", (24, None)),
        ("gpt_oss", (24, None)),
        ("qwen3_moe", (None, None)),
        ("starcoder2", (24, 24)),
    ],
)
def test_windows_are_read_off_the_masks_that_the_class_makes(
    kind: str, windows: tuple[int | None, ...]
) -> None:
    """starcoder2 tells its mask of a window, and not the attention function."""
    assert general_model(kind).config.windows == windows
