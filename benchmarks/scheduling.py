"""How long until a request's first token, by the order of the queue? lpm with ageing, fcfs, random.

100 requests a run, on simulated time (``simulator.py``), steps at the costs that ``step_costs.py``
measured; what comes is ``hot_and_cold`` and ``mixed``. All policies get the same requests at the
same times, put background behind foreground and share prefixes that are being computed: they
differ in the order alone.

    python benchmarks/scheduling.py [--seeds 9] [--row-ms MS]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

from benchmarks.machine import report  # noqa: E402
from benchmarks.simulator import (  # noqa: E402
    Arrival,
    Life,
    Simulation,
    StepCosts,
    ask,
    hit_rate,
    some_ids,
)
from radchat.engine.prefix_cache import PrefixCache  # noqa: E402
from radchat.engine.request import Ids, Priority  # noqa: E402
from radchat.engine.scheduler_options import SchedulerOptions  # noqa: E402

# step_costs.py, 2026-11-30: SmolLM2-135M in bf16, one thread of a Xeon with AMX, contexts of 1,024
MEASURED = StepCosts(fixed_s=0.0410, token_s=0.000856, row_s=0.00488)
POLICIES = ("fcfs", "random", "lpm")
CHATS, TURNS = 12, 60
DOCUMENTS, BURSTS, BURST = 8, 6, 4
HEADS = 6


@dataclass(frozen=True, slots=True)
class Load:
    warm: list[Ids]  # in the cache before the first arrival
    arrivals: list[Arrival]

    @property
    def num_tokens(self) -> int:
        """All that is different, answers included."""
        cache = PrefixCache(1 << 20, 1)
        for ids in self.warm + [each.request.ids for each in self.arrivals]:
            lease = cache.admit(ids)
            assert lease is not None
            lease.computed_len = len(ids)
            cache.finish(lease)
        answers = sum(each.request.params.max_tokens or 0 for each in self.arrivals)
        return cache.total - cache.free + answers


@dataclass(frozen=True, slots=True)
class Case:
    """``window``: seconds in which all arrive; ``pool``: its share of the load's tokens."""

    name: str
    load: Callable[[int, float], Load]
    window: float
    pool: float = 2.0


class _Maker:
    """Requests numbered as they are made, with answers of ``answers`` tokens."""

    def __init__(self, seed: int, answers: tuple[int, int]) -> None:
        self._answers = answers
        self.dice = random.Random(seed)
        self.arrivals: list[Arrival] = []

    def words(self, fewest: int, most: int) -> Ids:
        return some_ids(self.dice, self.dice.randint(fewest, most))

    def add(self, kind: str, at: float, ids: Ids, priority: Priority = Priority.FOREGROUND) -> None:
        number = len(self.arrivals)
        request = ask(f"{number}", ids, self.dice.randint(*self._answers), priority, seed=number)
        self.arrivals.append(Arrival(at, request, kind))


def hot_and_cold(seed: int, window: float) -> Load:
    """65 turns of 20 to 60 tokens on one of 6 warm heads of 1,500; 25 cold prompts of 400 tokens
    and 10 of 3,000. All from people who wait, for 8 to 32 tokens.
    """
    make = _Maker(seed, (8, 32))
    heads = [some_ids(make.dice, 1500) for _ in range(HEADS)]
    kinds = ["hot"] * 65 + ["cold"] * 25 + ["long"] * 10
    for kind in kinds:
        at = make.dice.uniform(0, window)
        if kind == "hot":
            make.add(kind, at, make.dice.choice(heads) + make.words(20, 60))
        else:
            make.add(kind, at, some_ids(make.dice, 400 if kind == "cold" else 3000))
    return Load(heads, make.arrivals)


def mixed(seed: int, window: float) -> Load:
    """60 chat turns of 20 to 80 tokens on one of 12 warm histories of 300 to 2,500; 8 cold
    documents of 800 to 3,000, each with a fork: another question on it within 2 s, as it is being
    read; and, in the background, 6 bursts of 4 what-ifs or votes of 10 to 40 tokens on a history.
    Answers of 16 to 96 tokens.
    """
    make = _Maker(seed, (16, 96))
    dice = make.dice
    histories = [make.words(300, 2500) for _ in range(CHATS)]
    for _ in range(TURNS):
        make.add("turn", dice.uniform(0, window), dice.choice(histories) + make.words(20, 80))
    for _ in range(DOCUMENTS):
        at, text = dice.uniform(0, window), make.words(800, 3000)
        make.add("document", at, text + make.words(10, 40))
        make.add("fork", at + dice.uniform(0, 2.0), text + make.words(10, 40))
    for _ in range(BURSTS):
        at, head = dice.uniform(0, window), dice.choice(histories)
        for _ in range(BURST):
            make.add("what-if", at, head + make.words(10, 40), Priority.BACKGROUND)
    return Load(histories, make.arrivals)


CASES = (
    Case("hot and cold, rush", hot_and_cold, 10.0),
    Case("hot and cold", hot_and_cold, 30.0),
    Case("mixed, rush", mixed, 10.0),
    Case("mixed", mixed, 30.0),
    Case("mixed, small pool", mixed, 30.0, 0.4),
)


def simulate(
    load: Load, policy: str, pool_tokens: int, costs: StepCosts = MEASURED, **options: Any
) -> tuple[Simulation, list[Life]]:
    """Warm the histories, then let the load come."""
    simulation = Simulation(pool_tokens, costs, SchedulerOptions(policy=policy, **options))
    warm = [Arrival(0.0, ask(f"warm {n}", h, 1), "warm") for n, h in enumerate(load.warm)]
    simulation.run(warm)
    start = simulation.clock.now
    later = [Arrival(start + each.at, each.request, each.kind) for each in load.arrivals]
    lives = simulation.run(later)
    return simulation, [lives[each.request.id] for each in later]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]


def figures(simulation: Simulation, lives: Sequence[Life]) -> dict[str, float]:
    front = [each for each in lives if each.arrival.request.priority is Priority.FOREGROUND]
    first = [life.first_token_s for life in lives]
    return {
        "mean_s": mean(first),
        "p50_s": percentile(first, 0.5),
        "p99_s": percentile(first, 0.99),
        "front_mean_s": mean(life.first_token_s for life in front),
        "front_p99_s": percentile([life.first_token_s for life in front], 0.99),
        "whole_mean_s": mean(life.total_s for life in lives),
        "hit_rate": hit_rate(lives),
        "steps": simulation.steps,
        "retractions": simulation.retractions,
        "longest_gap_s": max(gap for life in front if not life.skipped for gap in life.waits),
    }


def compare(case: Case, seeds: Sequence[int], costs: StepCosts = MEASURED) -> dict[str, Any]:
    """For each policy the median over the seeds of each figure, and the ratios to fcfs."""
    runs: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for seed in seeds:
        load = case.load(seed, case.window)
        pool = int(case.pool * load.num_tokens)
        for policy, seen in runs.items():
            seen.append(figures(*simulate(load, policy, pool, costs)))
    result: dict[str, Any] = {}
    for policy, seen in runs.items():
        result[policy] = {name: median(run[name] for run in seen) for name in seen[0]}
        for name in ("mean_s", "p99_s", "front_mean_s", "front_p99_s", "whole_mean_s"):
            ratios = [run[name] / base[name] for run, base in zip(seen, runs["fcfs"], strict=True)]
            result[policy][f"{name[:-2]}_ratio"] = [median(ratios), max(ratios)]
    return result


def table(case: Case, result: dict[str, Any]) -> None:
    print(f"\n{case.name}: 100 requests in {case.window:.0f} s, pool {case.pool} of their tokens")
    print(
        f"{'':7}{'mean':>8}{'p50':>9}{'p99':>9}   {'mean/fcfs':>11} {'p99/fcfs':>11}"
        f" {'hit rate':>8} {'steps':>5} {'put back':>8}"
    )
    for policy, row in result.items():
        ratios = [f"{row[n][0]:.2f} ({row[n][1]:.2f})" for n in ("mean_ratio", "p99_ratio")]
        print(
            f"{policy:7}{row['mean_s']:6.2f} s{row['p50_s']:7.2f} s{row['p99_s']:7.2f} s"
            f"   {ratios[0]:>11} {ratios[1]:>11} {row['hit_rate']:8.3f} {row['steps']:5.0f}"
            f" {row['retractions']:8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--row-ms", type=float, help="another cost of a row of an answer")
    args = parser.parse_args()
    costs = MEASURED if args.row_ms is None else replace(MEASURED, row_s=args.row_ms / 1000)
    print("time to first token; median of the seeds, in brackets the worst seed's ratio")
    results: dict[str, Any] = {}
    for case in CASES:
        results[case.name] = compare(case, range(args.seeds), costs)
        table(case, results[case.name])
    report(seeds=args.seeds, **asdict(costs), cases=results)


if __name__ == "__main__":
    main()
