"""How much of its input does the cache spare, beside the most that anybody could?

Hit rate = cached / input tokens, with room for 60 % of the unique tokens.

*Programs* (``workloads.py``), through the real scheduler on simulated time: the order is the
scheduler's own. The offline optimum knows all requests and may run them in any order: it computes
each token of a prompt once, unless a request has generated it. That is a bound for any capacity,
and depth first attains it where the longest path fits; so the same requests are also run depth
first, one by one, through the same cache.

*Traces* (``radix.py``), in an order that is given: here only what is evicted can be chosen. The
bound evicts, token by token, what is read again last, and knows the future; that is optimal for
tokens one by one, and since a prompt reads its path from the root, what it keeps is whole paths.

    python benchmarks/hit_rate.py [--seeds 3]
"""

from __future__ import annotations

import argparse
import heapq
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

from benchmarks.machine import report  # noqa: E402
from benchmarks.radix import CAPACITY, TRACES, Ours, Trace  # noqa: E402
from benchmarks.scheduling import MEASURED, POLICIES  # noqa: E402
from benchmarks.simulator import PAGE, Simulation, hit_rate  # noqa: E402
from benchmarks.workloads import WORKLOADS, Workload  # noqa: E402
from radchat.engine.prefix_cache import PrefixCache  # noqa: E402
from radchat.engine.request import Ids  # noqa: E402
from radchat.engine.scheduler_options import SchedulerOptions  # noqa: E402

Said = list[tuple[Ids, Ids]]  # (prompt, prompt and answer) of each request


# ---- programs --------------------------------------------------------------------------------


def simulated(make: Workload, seed: int, policy: str, pool_tokens: int) -> tuple[float, Said]:
    program = make(seed)
    said: Said = []

    def then(arrival: Any, answer: Ids) -> Sequence[Any]:
        said.append((arrival.request.ids, arrival.request.ids + answer))
        return program.then(arrival, answer)

    simulation = Simulation(pool_tokens, MEASURED, SchedulerOptions(policy=policy))
    lives = simulation.run(program.at_first, then)
    return hit_rate(lives.values()), said


def one_by_one(cache: PrefixCache, said: Iterable[tuple[Ids, Ids]]) -> float:
    """The hit rate of requests that each have the cache to themselves."""
    cached = total = 0
    for prompt, whole in said:
        ids = array("I", prompt)
        lease = cache.admit(ids)
        assert lease is not None
        assert cache.reserve(lease, len(whole))
        cached, total = cached + lease.cached_len, total + len(prompt)
        lease.ids = array("I", whole)
        lease.computed_len = len(whole)
        cache.finish(lease)
    return cached / total


def depth_first(said: Said) -> Said:
    """What begins alike lies together, and a path before what continues it."""
    return sorted(said, key=lambda each: [*each[0], -1])


def program_rows(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    make = WORKLOADS[name]
    rows: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    rows |= {"depth first": [], "optimum": []}
    for seed in seeds:
        roomy = 1 << 18
        _, said = simulated(make, seed, "lpm", roomy)
        unlimited = PrefixCache(roomy, 1)
        rows["optimum"].append(one_by_one(unlimited, depth_first(said)))
        capacity = int(CAPACITY * (unlimited.total - unlimited.free))
        cache = PrefixCache(capacity // PAGE + 1, PAGE)
        rows["depth first"].append(one_by_one(cache, depth_first(said)))
        for policy in POLICIES:
            rows[policy].append(simulated(make, seed, policy, capacity)[0])
    shares = [ours / best for ours, best in zip(rows["lpm"], rows["optimum"], strict=True)]
    return {who: median(each) for who, each in rows.items()} | {
        "share_of_optimum": [median(shares), min(shares)]
    }


# ---- traces ----------------------------------------------------------------------------------


class Run:
    """Tokens of a path that are always read together; its first ``here`` are in the cache."""

    def __init__(self, depth: int, length: int) -> None:
        self.depth, self.length, self.here = depth, length, 0
        self.reads: list[int] = []  # numbers of the requests, last first

    def next_read(self, now: int) -> int:
        while self.reads and self.reads[-1] <= now:
            self.reads.pop()
        return self.reads[-1] if self.reads else 1 << 60


def paths_of(trace: Trace, grain: int) -> list[tuple[list[Run], int]]:
    """Each request's path as runs of ``grain`` tokens, shared where the ids are; and its prompt."""
    runs: dict[bytes, Run] = {}
    paths = []
    for number, (prompt, whole) in enumerate(trace):
        raw = whole.tobytes()
        path = []
        for start in range(0, len(whole), grain):
            end = min(start + grain, len(whole))
            run = runs.setdefault(raw[: 4 * end], Run(start, end - start))
            if start < len(prompt):
                run.reads.insert(0, number)
            path.append(run)
        paths.append((path, len(prompt)))
    return paths


def clairvoyant(trace: Trace, capacity: int, grain: int = 100) -> float:
    """The bound. All lengths in the traces are multiples of ``grain``, so runs are read whole."""
    paths = paths_of(trace, grain)
    held, cached, total = 0, 0, 0
    line: list[tuple[int, int, int, Run]] = []  # last read again first, deepest first
    order = 0
    for now, (path, prompt_len) in enumerate(paths):
        total += prompt_len
        cached += sum(run.here for run in path if run.depth < prompt_len)
        for run in path:
            held += run.length - run.here
            run.here = run.length
            order += 1
            heapq.heappush(line, (-run.next_read(now), -run.depth, order, run))
        while held > capacity:
            when, _, _, run = heapq.heappop(line)
            if -when != run.next_read(now) or run.here == 0:
                continue  # it has been read since: it stands elsewhere in the line
            gone = min(run.here, held - capacity)
            run.here -= gone
            held -= gone
            if run.here:
                heapq.heappush(line, (when, -run.depth, order, run))
    return cached / total


def trace_rows(name: str) -> dict[str, Any]:
    trace, unique = TRACES[name]()
    prompts = sum(len(prompt) for prompt, _ in trace)

    def ours(capacity: int) -> float:
        cache = Ours(capacity)
        return sum(cache.request(*each, lambda: 0)[1] for each in trace) / prompts

    return {
        "lru": ours(int(CAPACITY * unique)),
        "bound": clairvoyant(trace, int(CAPACITY * unique)),
        "unlimited": ours(2 * unique + 100_000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    programs, traces = {}, {}
    print(f"{'program':32}" + "".join(f"{p:>9}" for p in POLICIES), end="")
    print(f"{'depth first':>13}{'optimum':>9}   lpm / optimum (worst seed)")
    for name in WORKLOADS:
        row = programs[name] = program_rows(name, range(args.seeds))
        share = row["share_of_optimum"]
        print(f"{name:32}" + "".join(f"{row[p]:9.3f}" for p in POLICIES), end="")
        print(f"{row['depth first']:13.3f}{row['optimum']:9.3f}   ", end="")
        print(f"{share[0]:.3f} ({share[1]:.3f})", flush=True)
    print(f"\n{'trace':32}{'LRU':>9}{'bound':>9}{'unlimited':>13}")
    for name in TRACES:
        row = traces[name] = trace_rows(name)
        print(f"{name:32}{row['lru']:9.3f}{row['bound']:9.3f}{row['unlimited']:13.3f}", flush=True)
    report(capacity=CAPACITY, seeds=args.seeds, programs=programs, traces=traces)


if __name__ == "__main__":
    main()
