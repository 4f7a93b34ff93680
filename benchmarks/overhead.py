"""What do tree, scheduler and planner cost beside the model?

*Zero reuse*: prompts that share nothing, on the real model: CPU time in all calls of the prefix
cache, as a share of the whole run. That is the price of the tree for who gains nothing by it.
*A step of 8 branches* over 2,048 shared tokens: CPU time of scheduler and planner a step; the model
is a stand-in here, since neither looks at it.

    python benchmarks/overhead.py [--model smollm2-135m] [--repeat 3]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402

from benchmarks.machine import report  # noqa: E402
from benchmarks.scheduling import MEASURED  # noqa: E402
from benchmarks.simulator import PAGE, CostlyModel, Simulation, ask, some_ids  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.engine.engine import Engine  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.prefix_cache import PrefixCache  # noqa: E402
from radchat.engine.request import Request, SamplingParams  # noqa: E402
from radchat.engine.scheduler_options import SchedulerOptions  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402
from radchat_kernels.plan import plan  # noqa: E402

T = TypeVar("T")
PROMPTS, LENGTH, ANSWER = 12, 512, 16
BRANCHES, SHARED, STEPS = 8, 2048, 200
CALLS = ("admit", "reserve", "show", "finish", "fork", "match_raw", "evict")


class Timed:
    """CPU time of this thread in calls that do not call each other."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def around(self, call: Callable[..., T]) -> Callable[..., T]:
        def timed(*args: Any, **kwargs: Any) -> T:
            if self._inside:
                return call(*args, **kwargs)
            self._inside, began = True, time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - began
                self._inside = False

        return timed


def timed_calls(cache: PrefixCache) -> Timed:
    timed = Timed()
    for name in CALLS:
        setattr(cache, name, timed.around(getattr(cache, name)))
    return timed


def zero_reuse(engine: Engine, seed: int) -> tuple[float, float]:
    """CPU seconds: (in the prefix cache, in all) of prompts that share nothing, one by one."""
    engine.clear()
    timed = timed_calls(engine.cache)
    began = time.process_time()
    for number in range(PROMPTS):
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER)
        engine.submit(Request(f"{seed}.{number}", words(LENGTH, 1000 * seed + number), params))
        while engine.has_work():
            engine.step()
    spent = time.process_time() - began
    for name in CALLS:
        delattr(engine.cache, name)
    return timed.seconds, spent


class Recording(CostlyModel):
    """Keeps the segments of the last step, to plan them again."""

    segments: tuple[Any, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = kwargs.get("plan", args[3] if len(args) > 3 else None)
        assert given is not None
        self.segments = given.segments
        return super().forward(*args, **kwargs)


def steps_of_branches(seed: int) -> tuple[list[float], list[float]]:
    """CPU seconds a step of (scheduler, planner), branches decoding over a shared prefix."""
    import random

    simulation = Simulation(8192, MEASURED, SchedulerOptions())
    engine = simulation.engine
    model = engine.model = Recording(simulation.clock, MEASURED)
    engine._runner._model = model
    head = some_ids(random.Random(seed), SHARED)
    engine.submit(ask("head", head, STEPS + 10, n=BRANCHES, seed=seed))
    for _ in range(SHARED // engine.options.chunk_tokens + 2):
        engine.step()
    schedule, scheduled, planned = engine._scheduler.schedule, Timed(), []
    engine._scheduler.schedule = scheduled.around(schedule)  # type: ignore[method-assign]
    per_step = []
    for _ in range(STEPS):
        before = scheduled.seconds
        engine.step()
        per_step.append(scheduled.seconds - before)
        assert len(model.segments) == BRANCHES
        began = time.thread_time()
        plan(model.segments, PAGE)
        planned.append(time.thread_time() - began)
    return per_step, planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(registry.resolve(Places.from_env(), args.model).folder, "auto")
    engine = build_engine(model, kv_budget=Size(tokens=8192))
    shares = []
    for seed in range(args.repeat + 1):  # the first warms up
        tree, whole = zero_reuse(engine, seed)
        if seed:
            shares.append(tree / whole)
    print(f"tree, {PROMPTS} prompts of {LENGTH} that share nothing, {ANSWER} out:", end=" ")
    print(f"{100 * median(shares):.3f} % of CPU time (worst {100 * max(shares):.3f} %)")
    schedules, plans = [], []
    for seed in range(args.repeat):
        per_step, planned = steps_of_branches(seed)
        schedules.append(1e3 * median(per_step))
        plans.append(1e3 * median(planned))
    both = median(schedules) + median(plans)
    print(f"a step of {BRANCHES} branches over {SHARED:,} shared tokens:", end=" ")
    print(f"scheduler {median(schedules):.3f} ms + planner {median(plans):.3f} ms = {both:.3f} ms")
    report(
        torch=torch.__version__,
        tree_share=[median(shares), max(shares)],
        scheduler_ms=median(schedules),
        planner_ms=median(plans),
    )


if __name__ == "__main__":
    main()
