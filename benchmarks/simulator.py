"""The real engine on simulated time: only the model is a stand-in, and says what a step costs.

Scheduler, prefix cache, pages, delivery and sampling are those of the program. The clock moves only
in the model's ``forward``, by the cost of the rows it is given, and where nothing is to be done, to
the next arrival. So a run depends on its load and its policy alone, and two runs are alike.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from radchat.engine.detokenize import ByteDetokenizer, StopChecker
from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, Finished, Ids, Priority, Request, SamplingParams, Tokens
from radchat.engine.scheduler_options import SchedulerOptions
from radchat_kernels.plan import Plan

PAGE = 16
VOCAB = 1024
_TABLE = [b"x"] * VOCAB


def some_ids(dice: random.Random, count: int) -> Ids:
    return array("I", [dice.randrange(VOCAB) for _ in range(count)])


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: fixed (the weights are read once), and for each row of either kind."""

    fixed_s: float
    token_s: float  # of a prompt
    row_s: float  # of an answer

    def of(self, tokens: int, rows: int) -> float:
        return self.fixed_s + tokens * self.token_s + rows * self.row_s


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CostlyModel:
    """Answers with ids that depend on their place alone, and moves the clock on."""

    vocab_size = VOCAB
    context_length = 1 << 20

    def __init__(self, clock: Clock, costs: StepCosts) -> None:
        self._clock, self._costs = clock, costs
        self.tokens_run = 0

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,  # noqa: ARG002 - no KV is written: what is in a page is not looked at
        plan: Plan,
        pool: KVPool,  # noqa: ARG002
        logit_rows: Tensor,
    ) -> Tensor:
        lone = sum(segment.row_count == 1 for segment in plan.segments)
        self._clock.now += self._costs.of(len(ids) - lone, lone)
        self.tokens_run += len(ids)
        logits = torch.zeros(len(logit_rows), VOCAB)
        following = (ids[logit_rows] * 31 + positions[logit_rows] * 17 + 7) % VOCAB
        logits[torch.arange(len(logit_rows)), following] = 1.0
        return logits


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds
    request: Request
    kind: str


@dataclass(slots=True)
class Life:
    """What became of a request: times are simulated seconds, counted from its arrival."""

    arrival: Arrival
    first_token_s: float = -1.0
    total_s: float = -1.0
    input_tokens: int = 0
    cached_tokens: int = 0
    waits: list[float] = field(default_factory=list)  # between the tokens of its first choice
    skipped: int = 0  # steps between two of its tokens in which it had none


class Simulation:
    """An engine with its clock. ``then``: what a request's end brings (the next turn, children)."""

    def __init__(
        self,
        pool_tokens: int,
        costs: StepCosts,
        options: SchedulerOptions,
        *,
        make_cache: Callable[[int, int], PrefixCache] = PrefixCache,
    ) -> None:
        self.clock = Clock()
        self.model = CostlyModel(self.clock, costs)
        num_pages = -(-pool_tokens // PAGE) + 1
        self.cache = make_cache(num_pages, PAGE)
        self.engine = Engine(
            self.model,
            KVPool(1, num_pages, PAGE, 1, 1, torch.float32),
            self.cache,
            lambda _: (ByteDetokenizer(_TABLE, array("I")), StopChecker(())),
            options=options,
            clock=self.clock,
            check=False,
        )
        self.lives: dict[str, Life] = {}
        self.steps = self.retractions = 0  # of the last run
        self._last: dict[str, tuple[float, int]] = {}  # of the newest token: time, step

    def run(
        self,
        arrivals: Iterable[Arrival],
        then: Callable[[Arrival, Ids], Sequence[Arrival]] = lambda *_: (),
    ) -> dict[str, Life]:
        """Until all have ended. ``then`` gets an arrival that has ended, and its first answer."""
        coming = sorted(arrivals, key=lambda each: each.at)
        answers: dict[str, Ids] = {}
        engine, step = self.engine, 0
        before = engine.stats()
        while coming or engine.has_work():
            if not engine.has_work():
                self.clock.now = max(self.clock.now, coming[0].at)
            while coming and coming[0].at <= self.clock.now:
                self._submit(coming.pop(0))
            step += 1
            for event in engine.step():
                self._hear(event, step, answers)
                if isinstance(event, Finished) and event.last:
                    life = self.lives[event.request_id]
                    new = then(life.arrival, answers.pop(event.request_id, array("I")))
                    coming = sorted([*coming, *new], key=lambda each: each.at)
        engine.check_idle()
        after = engine.stats()
        self.steps = after["steps"] - before["steps"]
        self.retractions = after["retractions"] - before["retractions"]
        return self.lives

    def _submit(self, arrival: Arrival) -> None:
        self.lives[arrival.request.id] = Life(arrival)
        self.engine.submit(arrival.request)

    def _hear(self, event: Event, step: int, answers: dict[str, Ids]) -> None:
        life = self.lives[event.request_id]
        age = self.clock.now - life.arrival.at
        if isinstance(event, Tokens):
            if life.first_token_s < 0:
                life.first_token_s = age
            if event.choice == 0:
                answers.setdefault(event.request_id, array("I")).extend(event.ids)
                if event.request_id in self._last:
                    then, at = self._last[event.request_id]
                    life.waits.append(self.clock.now - then)
                    life.skipped += step - at - 1
                self._last[event.request_id] = self.clock.now, step
        elif isinstance(event, Finished):
            assert event.error is None, event.error
            life.total_s = age
            life.input_tokens = event.usage.input_tokens
            life.cached_tokens = event.usage.cached_tokens


def ask(
    name: str,
    ids: Ids,
    max_tokens: int,
    priority: Priority = Priority.FOREGROUND,
    n: int = 1,
    seed: int = 0,
) -> Request:
    """Drawn at temperature 1 from nearly even odds: answers of different seeds differ."""
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens)
    return Request(name, array("I", ids), params, n=n, priority=priority)


def hit_rate(lives: Iterable[Life]) -> float:
    """Cached tokens / input tokens."""
    lives = list(lives)
    return sum(life.cached_tokens for life in lives) / sum(life.input_tokens for life in lives)
