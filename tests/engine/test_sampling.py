"""Philox against its published answers; filters against plain code; noise against the batch."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from radchat.engine import philox
from radchat.engine.request import SamplingParams
from radchat.engine.sampling import (
    NOISE_SPAN,
    Draw,
    Drawn,
    Seen,
    sample,
    survivors,
    token_logprobs,
)
from radchat.errors import InvalidInput, ModelBroken
from tests.engine.sampling_cases import mask_of

VOCAB = 512

# Random123's kat_vectors, "philox4x32 10": counter, key, answer
KNOWN_ANSWERS = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (" ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[NDArray[np.uint64]]:
    return [np.array([int(word, 16)], dtype=np.uint64) for word in text.split()]


def argmax_with_noise(scores: Tensor, seed: int, position: int, choice: int = 0) -> int:
    """Design section 5, word for word: over all of ``scores`` [vocab] float64."""
    u = torch.from_numpy(philox.uniforms_of_all(seed, position, choice, len(scores)))
    return int((scores - (-u.log()).log()).argmax())


def rows(*seeds: int) -> Tensor:
    """Random logits [rows, VOCAB], like a model's: a few units wide, no ties."""
    drawn = [torch.randn(VOCAB, generator=torch.Generator().manual_seed(s)) * 4 for s in seeds]
    return torch.stack(drawn)


def draw(row: int = 0, position: int = 7, choice: int = 0, **params: Any) -> Draw:
    return Draw(row, SamplingParams(**params), position, choice, Seen())


def one(logits: Tensor, each: Draw) -> int:
    (drawn,) = sample(logits, [each])
    assert isinstance(drawn, Drawn)
    return drawn.id


def tokens(logits: Tensor, draws: list[Draw]) -> list[int]:
    drawn = sample(logits, draws)
    return [each.id for each in drawn if isinstance(each, Drawn)]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter: str, key: str, answer: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    found = philox.philox((c0, c1, c2, c3), (k0, k1))
    assert [f"{int(word[0]):08x}" for word in found] == answer.split()


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_noise_of_the_whole_vocabulary_is_the_noise_of_each_id(seed: int) -> None:
    whole = philox.uniforms_of_all(seed, 123, 5, 403)
    ids = np.array([402, 0, 1, 2, 3, 4, 201, 77])
    assert np.array_equal(philox.uniforms(seed, 123, 5, ids), whole[ids])
    assert whole.shape == (403,)


def test_noise_is_uniform_and_strictly_inside_zero_and_one() -> None:
    u = torch.from_numpy(philox.uniforms_of_all(42, 0, 0, 200_000))
    assert 0 < float(u.min()) < float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.005
    shares = torch.histc(u, bins=10, min=0, max=1) / len(u)
    assert float((shares - 0.1).abs().max()) < 0.005
    extremes = philox._unit(np.array([0, 2**32 - 1], dtype=np.uint64))
    noise = -np.log(-np.log(extremes))
    assert float(noise.max() - noise.min()) < NOISE_SPAN


def test_noise_differs_by_seed_position_choice_and_id() -> None:
    base = philox.uniforms_of_all(1, 2, 3, VOCAB)
    for place in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (1 + 2**32, 2, 3)]:
        assert not np.array_equal(base, philox.uniforms_of_all(*place, VOCAB))
    assert len(set(base.tolist())) == VOCAB


def test_temperature_zero_is_the_exact_argmax_whatever_the_other_filters() -> None:
    logits = rows(1, 2)
    best = logits.argmax(-1).tolist()
    assert tokens(logits, [draw(0, temperature=0), draw(1, temperature=0)]) == best
    others = [draw(1, temperature=0, top_k=3, top_p=0.1, logprobs=2), draw(0, temperature=0.7)]
    assert tokens(logits, others)[0] == best[1]


def test_the_lowest_id_wins_a_tie_at_temperature_zero() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [300, 41, 77]] = 5.0
    assert one(logits, draw(temperature=0)) == 41
    assert one(logits, draw(temperature=0, logprobs=1)) == 41


def test_the_same_seed_gives_the_same_token_whatever_else_is_in_the_batch() -> None:
    logits = rows(1, 2, 3)
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.2, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 40, "min_p": 0.01},
        {"temperature": 3.0},
    ]
    for params in settings:
        alone = [one(logits[:1], draw(0, position=p, seed=9, **params)) for p in range(20)]
        for p in range(20):
            crowd = [
                draw(1, temperature=0),
                draw(2, position=p, seed=9, temperature=0.8, top_k=5),
                draw(0, position=p, seed=9, **params),
                draw(1, position=p, seed=9, temperature=50.0),
            ]
            assert tokens(logits, crowd)[2] == alone[p]
        assert len(set(alone)) > 1


def test_a_token_is_the_argmax_of_logit_over_temperature_plus_gumbel_noise() -> None:
    logits = rows(5)
    for position in range(30):
        want = argmax_with_noise(logits[0].double() / 0.9, 11, position, 2)
        assert one(logits, draw(position=position, choice=2, seed=11, temperature=0.9)) == want


def test_choices_of_one_row_differ_and_repeat() -> None:
    logits = rows(4)
    draws = [draw(choice=c, seed=42, temperature=2.0) for c in range(16)]
    assert tokens(logits, draws) == tokens(logits, draws)
    assert len(set(tokens(logits, draws))) > 4


def test_drawn_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    found = Counter(
        token
        for start in range(0, 3_000, 500)
        for token in tokens(logits, [draw(position=p) for p in range(start, start + 500)])
    )
    for token, want in enumerate(logits[0].softmax(0).tolist()):
        assert abs(found[token] / 3_000 - want) < 4 * math.sqrt(want * (1 - want) / 3_000)


def kept(logits: Tensor, **params: Any) -> set[int]:
    scores = survivors(logits[0].numpy(), float(logits[0].max()), SamplingParams(**params))
    assert float(scores.max()) == 0.0
    return set(np.flatnonzero(scores > -math.inf).tolist())


def test_top_k_keeps_the_k_best_and_ties_at_the_edge() -> None:
    logits = rows(3)
    assert kept(logits, top_k=5) == set(logits[0].topk(5).indices.tolist())
    assert kept(logits, top_k=1) == {int(logits[0].argmax())}
    assert kept(logits, top_k=VOCAB + 1) == kept(logits)
    tied = torch.tensor([[3.0, 1.0, 1.0, 0.0]])
    assert kept(tied, top_k=2) == {0, 1, 2}


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_smallest_set_that_holds_the_probability(top_p: float) -> None:
    for seed in range(10):
        logits = rows(seed) / 4  # flat: a big nucleus
        order = logits[0].double().sort(descending=True)
        held, want = 0.0, set()
        for token, p in zip(order.indices.tolist(), order.values.softmax(0).tolist(), strict=True):
            want.add(token)
            held += p
            if held >= top_p:
                break
        assert kept(logits, top_p=top_p) == want


BIG = 20_000
# how a vocabulary's scores may lie: flat, spread, in few heaps of ties, one far ahead
SHAPES = {
    "even": torch.linspace(0, 1, BIG),
    "flat": torch.randn(BIG, generator=torch.Generator().manual_seed(1)) * 0.3,
    "wide": torch.randn(BIG, generator=torch.Generator().manual_seed(2)) * 6,
    "heaps": torch.randint(0, 5, (BIG,), generator=torch.Generator().manual_seed(3)).float(),
    "ties": torch.zeros(BIG),
    "ahead": torch.cat([torch.tensor([30.0]), torch.zeros(BIG - 1)]),
}


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.95, 0.9999])
@pytest.mark.parametrize("name", SHAPES)
def test_a_nucleus_of_a_big_vocabulary_is_the_one_a_full_sort_finds(
    name: str, top_p: float
) -> None:
    logits = SHAPES[name][torch.randperm(BIG, generator=torch.Generator().manual_seed(4))]
    scores = (logits - logits.max()).double()
    ordered = scores.sort(descending=True).values
    # in parts, so that equal scores have equal sums before them whatever their order
    inside = int((ordered.softmax(0).cumsum(0) < top_p).sum())
    edge = float(ordered[min(inside, BIG - 1)])
    assert kept(logits[None], top_p=top_p) == set((scores >= edge).nonzero().flatten().tolist())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "params",
    [{}, {"top_p": 0.95}, {"top_k": 300}, {"min_p": 0.3}, {"top_k": 5000, "top_p": 0.9}],
    ids=str,
)
def test_a_draw_is_the_argmax_over_the_survivors_whichever_way_it_is_found(
    name: str, params: dict[str, Any]
) -> None:
    logits = SHAPES[name][None]
    for temperature in (0.2, 1.0):
        ids = torch.tensor(sorted(kept(logits, temperature=temperature, **params)))
        scores = torch.full((BIG,), -math.inf, dtype=torch.float64)
        scores[ids] = logits[0][ids].double() / temperature
        for position in range(3):
            want = argmax_with_noise(scores, 5, position)
            each = draw(position=position, seed=5, temperature=temperature, **params)
            assert one(logits, each) == want


class Counted(array):  # type: ignore[type-arg]
    """A prompt that counts how often it is gone through."""

    num_readings = 0

    def __iter__(self) -> Iterator[int]:
        self.num_readings += 1
        return super().__iter__()


def test_a_repetition_penalty_reads_the_prompt_once_and_not_at_each_step() -> None:
    prompt = Counted("I", [5, 5, 9, 500])
    seen = Seen(prompt, output=[9, 30])
    assert prompt.num_readings == 0  # nobody has asked for it yet
    logits = rows(1)
    params = SamplingParams(temperature=0, repetition_penalty=1.3)
    put_out = [9, 30]
    for position in range(150):
        token = one(logits, Draw(0, params, position, 0, seen))
        want = logits[0].clone()
        ids = torch.tensor(sorted({5, 9, 500, *put_out}))
        want[ids] = torch.where(want[ids] < 0, want[ids] * 1.3, want[ids] / 1.3)
        assert token == int(want.argmax())
        put_out.append((position * 7) % VOCAB)
        seen.add(put_out[-1])
    assert prompt.num_readings == 1
    assert sorted(seen.all.ids.tolist()) == sorted({5, 9, 500, *put_out})
    counts = dict(zip(seen.output.ids.tolist(), seen.output.times.tolist(), strict=True))
    assert counts == Counter(put_out)


def test_min_p_keeps_what_is_likely_enough_compared_with_the_best() -> None:
    logits = rows(6)
    ratio = (logits[0].double() - logits[0].double().max()).exp()
    assert kept(logits, min_p=0.05) == set((ratio >= 0.05).nonzero().flatten().tolist())


def test_filters_work_on_the_tempered_logits_in_order() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    # at T=0.5 the scores are 2 apart: p = .865 .117 .016 .002
    assert kept(logits, temperature=0.5, top_p=0.9) == {0, 1}
    assert kept(logits, temperature=2.0, top_p=0.9) == {0, 1, 2, 3}
    # top-p counts within what top-k left: of two, the best holds .73
    assert kept(logits, top_k=2, top_p=0.72) == {0}
    assert kept(logits, top_p=0.72) == {0, 1}


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = rows(1)
    for temperature in (1e-4, 1e-300):
        assert one(logits, draw(temperature=temperature)) == int(logits[0].argmax())


def test_tokens_beyond_the_reach_of_the_noise_are_left_out_without_changing_a_draw() -> None:
    logits = rows(8) * 20
    assert len(kept(logits)) < VOCAB
    for position in range(50):
        want = argmax_with_noise(logits[0].double(), 0, position)
        assert one(logits, draw(position=position)) == want


def test_bias_moves_one_token_and_harms_no_neighbour() -> None:
    logits = rows(1)
    before = logits.clone()
    assert one(logits, draw(temperature=0, logit_bias={17: 100})) == 17
    best = int(logits[0].argmax())
    assert one(logits, draw(temperature=0, logit_bias={best: -100})) != best
    assert torch.equal(logits, before)


def test_repetition_penalty_is_transformers_rule_over_prompt_and_output() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]])
    seen = Seen(array("I", [0]))
    params = SamplingParams(temperature=0, repetition_penalty=1.5)
    assert one(logits, Draw(0, params, 1, 0, seen)) == 1  # 2 / 1.5 < 1.9
    seen.add(1)
    assert one(logits, Draw(0, params, 1, 0, seen)) == 0
    low = torch.tensor([[-1.0, -1.2]])
    assert one(low, Draw(0, params, 1, 0, Seen(array("I", [0])))) == 1  # -1.5 < -1.2


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    logits = torch.tensor([[2.0, 1.6, 0.0]])
    seen = Seen(array("I", [0, 0, 0]))
    presence = SamplingParams(temperature=0, presence_penalty=0.5)
    frequency = SamplingParams(temperature=0, frequency_penalty=0.3)
    assert one(logits, Draw(0, presence, 1, 0, seen)) == 0  # the prompt does not count
    seen.add(0)
    assert one(logits, Draw(0, presence, 1, 0, seen)) == 1
    assert one(logits, Draw(0, frequency, 1, 0, seen)) == 0
    seen.add(0)
    assert one(logits, Draw(0, frequency, 1, 0, seen)) == 1


def test_a_mask_is_the_first_filter() -> None:
    logits = rows(2)
    mask = mask_of([5, 6], VOCAB)
    greedy = replace(draw(temperature=0), mask=mask)
    assert one(logits, greedy) == 5 + int(logits[0, 6] > logits[0, 5])
    hot = draw(temperature=9.0, top_p=0.9)
    assert {one(logits, replace(hot, position=p, mask=mask)) for p in range(40)} == {5, 6}


def test_a_mask_is_of_its_row_alone_and_leaves_the_logits() -> None:
    logits = rows(1, 2, 3)
    before = logits.clone()
    draws = [draw(row, temperature=t) for row in range(3) for t in (0, 1.0)]
    plain = tokens(logits, draws)
    best = int(logits[1].argmax())
    masked = [
        replace(each, mask=mask_of(set(range(VOCAB)) - {best}, VOCAB)) if each.row == 1 else each
        for each in draws
    ]
    found = tokens(logits, masked)
    assert (found[:2], found[4:]) == (plain[:2], plain[4:])
    assert found[2] == int(logits[1].topk(2).indices[1]) != plain[2]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_fail_their_own_row_only(bad: float) -> None:
    logits = rows(1, 2)
    if bad == -math.inf:
        logits[0] = bad
    else:
        logits[0, 9] = bad
    for temperature in (0.0, 1.0):
        draws = [draw(row, temperature=temperature) for row in (0, 1)]
        first, second = sample(logits, draws)
        assert isinstance(first, ModelBroken)
        assert isinstance(second, Drawn)


def test_log_probabilities_are_the_models_own_with_the_best_first() -> None:
    logits = rows(3)
    want = logits[0].log_softmax(0)
    (drawn,) = sample(logits, [draw(temperature=0.3, top_k=2, logprobs=4)])
    assert isinstance(drawn, Drawn)
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(float(want[drawn.id]), abs=1e-6)
    assert [token for token, _ in drawn.logprob.top] == want.topk(4).indices.tolist()
    (chosen,) = sample(logits, [draw(temperature=0, logprobs=0)])
    assert isinstance(chosen, Drawn)
    assert chosen.logprob is not None
    assert chosen.logprob.top == ()
    assert chosen.logprob.logprob == pytest.approx(float(want.max()), abs=1e-6)
    scores = token_logprobs(rows(3, 4), [7, 8], 0)
    assert scores[0].logprob == pytest.approx(float(want[7]), abs=1e-6)


BAD_PARAMETERS: list[tuple[str, Any]] = [
    ("logit_bias", {"word": 1}),
    ("logit_bias", {VOCAB: 1}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: "much"}),
    ("logit_bias", dict.fromkeys(range(5000), 1)),
    ("top_k", 0.01),
    ("top_k", -1),
    ("top_k", True),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("min_p", -0.1),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("frequency_penalty", math.nan),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 1.5),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("stop", ("",)),
    ("stop", ("x",) * 1000),
    ("stop_ids", frozenset({VOCAB})),
    ("logprobs", 21),
]


@pytest.mark.parametrize(("name", "value"), BAD_PARAMETERS)
def test_a_bad_parameter_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        SamplingParams(**{name: value}).validate(VOCAB)
    assert refused.value.data["field"] == name
    assert refused.value.message.startswith(name)


@pytest.mark.parametrize("params", [{"temperature": 1e-4}, {"temperature": 0}, {"top_k": 10**9}])
def test_an_unusual_but_sound_parameter_works(params: dict[str, Any]) -> None:
    SamplingParams(**params).validate(VOCAB)
    assert one(rows(1), draw(**params)) in range(VOCAB)
