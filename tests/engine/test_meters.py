"""What prompts cost, told from steps whose costs are planted."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from radchat.engine.kv_pool import KVPool
from radchat.engine.meters import Meters, PromptCost
from radchat_kernels.executor import Executor
from radchat_kernels.plan import Plan
from radchat_kernels.torch_executor import TorchExecutor
from tests.engine.bench import Bench, TinyModel, prompt
from tests.fakes import LogicalClock

CHUNK = 512
STEP_S, TOKEN_S = 0.041, 0.00033  # as of SmolLM2-135M on two cores: 512 tokens in 210 ms
TRUTH = PromptCost(STEP_S, TOKEN_S, CHUNK)


def seen(*lengths: int, noise: float = 0.0, meters: Meters | None = None) -> Meters:
    """After steps of these lengths, each slower by at most this share of its time."""
    dice = random.Random(str(lengths))
    meters = meters or Meters(lambda: 0.0, CHUNK)
    for tokens in lengths:
        seconds = TRUTH.of(tokens) * (1 + noise * dice.random())
        meters.ran(tokens if tokens > 1 else 0, int(tokens == 1), seconds)
    return meters


def assert_sound(
    meters: Meters, within: float, lengths: Iterable[int] = (16, 31, 424, 3000)
) -> None:
    cost = meters.prompt_cost
    assert cost is not None
    for tokens in lengths:
        assert cost.of(tokens) == pytest.approx(TRUTH.of(tokens), rel=within)
        assert cost.saved(tokens + 20, tokens) == pytest.approx(
            TRUTH.saved(tokens + 20, tokens), rel=within
        )


@pytest.mark.parametrize("lengths", [(), (31,), (31, 31, 40), (1, 31), (1, 16, 31, 60), (500, 512)])
def test_nothing_is_said_while_the_steps_seen_do_not_tell(lengths: tuple[int, ...]) -> None:
    meters = seen(*lengths)
    assert meters.prompt_cost is None
    assert meters.prefill_tokens_per_s is None
    assert meters.guessed_tokens_per_s > 0  # the queue's order needs a number


def test_a_steps_own_cost_is_told_from_its_tokens() -> None:
    assert_sound(seen(31, 512), within=0.001)
    assert_sound(seen(31, 1, 1, 1, 439, 1, 1, 16), within=0.001)
    assert seen(31, 512).prefill_tokens_per_s == pytest.approx(512 / TRUTH.of(512))


def test_what_is_cached_saves_its_tokens_and_the_steps_they_would_have_filled() -> None:
    assert TRUTH.saved(439, 424) == pytest.approx(424 * TOKEN_S)
    assert TRUTH.saved(1040, 1030) == pytest.approx(2 * STEP_S + 1030 * TOKEN_S)
    assert TRUTH.saved(439, 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_prompts_of_several_lengths_on_a_busy_machine_tell_within_30_percent(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [dice.choice([1, 20, 31, 60, 200, 439, 512]) for _ in range(40)]
    assert_sound(seen(*lengths, 300, 25, 1, noise=0.3), within=0.3)


@pytest.mark.parametrize("tokens", [1, 31, 439])
def test_a_step_that_was_stopped_spoils_nothing_once_another_of_its_length_has_run(
    tokens: int,
) -> None:
    meters = seen(1, 1, 20, 31, 100, 439, 512)
    meters.ran(tokens if tokens > 1 else 0, int(tokens == 1), 60.0)
    assert_sound(meters, within=0.05)
    fresh = Meters(lambda: 0.0, CHUNK)
    fresh.ran(tokens if tokens > 1 else 0, int(tokens == 1), 60.0)
    assert_sound(seen(tokens, 31, 512, meters=fresh), within=0.05)


def test_a_stopped_step_beside_one_other_is_not_believed() -> None:
    for lengths, stopped in (((31,), 512), ((512,), 31), ((1, 31), 512)):
        meters = seen(*lengths)
        meters.ran(stopped, 0, 60.0)
        assert meters.prompt_cost is None


def test_another_speed_is_believed_when_it_stays() -> None:
    meters = seen(*[1, 31, 100, 439] * 5)
    for tokens in [1, 31, 100, 439] * 5:
        meters.ran(tokens if tokens > 1 else 0, int(tokens == 1), 4 * TRUTH.of(tokens))
    cost = meters.prompt_cost
    assert cost is not None
    assert cost.of(1000) == pytest.approx(4 * TRUTH.of(1000))


def test_steps_with_many_rows_of_answers_tell_nothing_of_prompts() -> None:
    meters = seen(31, 512)
    before = meters.prompt_cost
    meters.ran(64, 8, 5.0)
    meters.ran(0, 8, 5.0)
    assert meters.prompt_cost == before


class Compiling(TinyModel):
    """The first step of each number of rows takes 5 s, others what ``TRUTH`` says."""

    def __init__(self, clock: LogicalClock, executor: Executor) -> None:
        super().__init__("llama", torch.float32, executor)
        self._clock = clock
        self._compiled: set[int] = set()

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        rows = len(ids)
        self._clock.now += TRUTH.of(rows) + (0 if rows in self._compiled else 5)
        self._compiled.add(rows)
        return super().forward(ids, positions, slots, plan, pool, logit_rows)


def test_the_time_that_kernels_took_to_compile_is_no_speed_of_prompts() -> None:
    class Kernels(TorchExecutor):
        name = "triton"

    clock = LogicalClock()
    bench = Bench(torch.float32, on=Compiling(clock, Kernels()), clock=clock, chunk_tokens=CHUNK)
    bench.run(bench.request(prompt(1, 400), 40))
    assert bench.engine.prompt_cost is None
    bench.run(bench.request(prompt(2, 400), 40))
    cost = bench.engine.prompt_cost
    assert cost is not None
    assert cost.of(8371) == pytest.approx(TRUTH.of(8371), rel=0.05)
