"""How much time does the prefix cache take of a request, and how long is one eviction?

Four traces: many conversations over one system prompt, in random order and round robin (the worst
case of LRU), and a tree of thoughts, breadth and depth first, every leaf read again at the end.
The pool holds 60 % of the unique tokens, so there is eviction all along. Time is this thread's CPU
time in all calls of one request: match, lock, pages, evict, insert, unlock. Beside it, in the
same run, SGLang's trees, if told where its unzipped wheel is (``peers_radix.py``): theirs at page
size 1 without an allocator, ours at 16 with page tables and copies.

    python benchmarks/radix.py [--sglang DIR] [--rust] [--repeat 5]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import random
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.machine import report  # noqa: E402
from radchat.engine.prefix_cache import PrefixCache  # noqa: E402
from radchat.engine.request import Ids  # noqa: E402

P = 16
CAPACITY = 0.6  # of the unique tokens
NUM_LEAVES = (600, 2400, 20_000)
EVICT_TOKENS = 13 * P  # about one leaf of the eviction question
Trace: TypeAlias = list[tuple[Ids, Ids]]  # (prompt, all that is in the cache when it has ended)

clock = time.thread_time_ns


def some_ids(rng: random.Random, count: int) -> Ids:
    return array("I", array("H", rng.randbytes(2 * count)))


# ---- traces --------------------------------------------------------------------------------


def conversations(order: str, *, count: int = 200, turns: int = 20) -> tuple[Trace, int]:
    """200 tokens a turn, half of them the answer, after 500 of system prompt."""
    rng = random.Random(7)
    system = some_ids(rng, 500)
    history = [system] * count
    turn_of = list(range(count)) * turns
    if order == "random":
        rng.shuffle(turn_of)
    trace: Trace = []
    for each in turn_of:
        prompt = history[each] + some_ids(rng, 100)
        history[each] = prompt + some_ids(rng, 100)
        trace.append((prompt, history[each]))
    return trace, 500 + count * turns * 200


def thoughts(order: str, *, levels: int = 3, branching: int = 8) -> tuple[Trace, int]:
    """300 tokens a node; each is made from its parent's path, and every leaf is read again."""
    rng = random.Random(7)
    root = some_ids(rng, 300)
    made: Trace = [(root, root)]
    leaves: list[Ids] = []
    waiting = [(root, 0)]
    while waiting:
        path, level = waiting.pop(0 if order == "bfs" else -1)
        if level == levels:
            leaves.append(path)
            continue
        children = [path + some_ids(rng, 300) for _ in range(branching)]
        made += [(path, child) for child in children]
        waiting += [(child, level + 1) for child in children]
    return made + [(leaf, leaf) for leaf in leaves], 300 * len(made)


TRACES: dict[str, Callable[[], tuple[Trace, int]]] = {
    "multi-turn, random": lambda: conversations("random"),
    "multi-turn, round robin": lambda: conversations("round robin"),
    "tree of thought, breadth first": lambda: thoughts("bfs"),
    "tree of thought, depth first": lambda: thoughts("dfs"),
}


# ---- who is measured -----------------------------------------------------------------------


class Ours:
    def __init__(self, num_tokens: int) -> None:
        self.cache = PrefixCache(num_tokens // P + 1, P)

    def request(self, prompt: Ids, full: Ids, clock: Callable[[], int]) -> tuple[int, int]:
        """One request's life. Returns (nanoseconds in the cache, cached tokens)."""
        cache, ids = self.cache, prompt[:]
        began = clock()
        lease = cache.admit(ids)
        assert lease is not None
        assert cache.reserve(lease, len(full))
        spent = clock() - began
        lease.ids = full[:]  # the model has run
        lease.computed_len = len(full)
        began = clock()
        cache.finish(lease)
        return spent + clock() - began, lease.cached_len

    def check(self) -> None:
        self.cache.check([])

    def evict(self, num_tokens: int, clock: Callable[[], int]) -> int:
        began = clock()
        self.cache.evict(num_tokens // P)
        return clock() - began


Makers: TypeAlias = dict[str, Callable[[int, int], Any]]  # (capacity, longest request) -> one


def contenders(sglang: Path | None, rust: bool) -> tuple[Makers, dict[str, str]]:
    makers: Makers = {"radchat": lambda capacity, _: Ours(capacity)}
    if sglang is None:
        return makers, {}
    sys.path.insert(0, str(HERE))
    peers_radix = importlib.import_module("peers_radix")
    import torch

    versions = {"sglang": peers_radix.load(sglang), "torch": torch.__version__}
    makers["sglang"] = peers_radix.SGLang
    if rust:
        makers["sglang-rust"] = lambda capacity, n: peers_radix.SGLang(capacity, n, rust=True)
    return makers, versions


# ---- the two questions ---------------------------------------------------------------------


def percentile(times: list[int], share: float) -> float:
    """In microseconds."""
    return round(sorted(times)[min(len(times) - 1, int(share * len(times)))] / 1e3, 2)


def per_request(name: str, makers: Makers, repeat: int) -> dict[str, Any]:
    """Median over the repeats of p50 and p99; all take turns, so that noise falls on all."""
    trace, unique = TRACES[name]()
    capacity = int(unique * CAPACITY)
    longest = max(len(full) for _, full in trace)
    runs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    hits: dict[str, int] = {}
    for _ in range(repeat):
        for who, make in makers.items():
            one = make(capacity, longest)
            gc.collect()
            results = [one.request(prompt, full, clock) for prompt, full in trace]
            one.check()
            times = [spent for spent, _ in results]
            hits[who] = sum(cached for _, cached in results)
            runs[who].append((percentile(times, 0.5), percentile(times, 0.99), sum(times)))
    prompts = sum(len(prompt) for prompt, _ in trace)
    return {
        who: {
            "p50_us": median(p50 for p50, _, _ in each),
            "p50_spread_us": [min(p50 for p50, _, _ in each), max(p50 for p50, _, _ in each)],
            "p99_us": median(p99 for _, p99, _ in each),
            "prompt_tokens_per_s": round(prompts / median(total for *_, total in each) * 1e9),
            "hit_rate": round(hits[who] / prompts, 4),
        }
        for who, each in runs.items()
    }


def per_eviction(num_leaves: int, makers: Makers, samples: int) -> dict[str, Any]:
    """One eviction of about a leaf, out of many; the leaf is put back each time."""
    rng = random.Random(7)
    system = some_ids(rng, 500)

    def leaves() -> Iterator[Ids]:
        while True:
            yield system + some_ids(rng, 200)

    times: dict[str, list[int]] = {}
    for who, make in makers.items():
        one = make((num_leaves + 100) * 14 * P, 700)
        source = leaves()
        for _ in range(num_leaves):
            leaf = next(source)
            one.request(leaf, leaf, clock)
        gc.collect()
        times[who] = []
        for _ in range(samples):
            times[who].append(one.evict(EVICT_TOKENS, clock))
            leaf = next(source)
            one.request(leaf, leaf, clock)
        del one
    return {
        who: {"p50_us": percentile(each, 0.5), "p99_us": percentile(each, 0.99)}
        for who, each in times.items()
    }


# ---- what is printed -----------------------------------------------------------------------


def table(rows: dict[str, dict[str, Any]]) -> None:
    for name, by_who in rows.items():
        ours = by_who["radchat"]
        for who, each in by_who.items():
            line = f"{name:32} {who:12} p50 {each['p50_us']:9.2f} us   p99 {each['p99_us']:9.2f} us"
            if who != "radchat":
                p50, p99 = (ours[key] / each[key] for key in ("p50_us", "p99_us"))
                line += f"   ours is {p50:.3f}x / {p99:.3f}x"
            if "hit_rate" in each:
                line += f"   hit rate {each['hit_rate']:.3f}"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang", type=Path, help="folder of SGLang's unzipped wheel")
    parser.add_argument("--rust", action="store_true", help="its Rust core too (needs msgspec)")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    makers, versions = contenders(args.sglang, args.rust)
    requests, evictions = {}, {}
    for name in TRACES:
        requests[name] = per_request(name, makers, args.repeat)
        table({name: requests[name]})
    for num_leaves in NUM_LEAVES:
        name = f"one eviction, {num_leaves:,} leaves"
        evictions[name] = per_eviction(num_leaves, makers, 40 * args.repeat)
        table({name: evictions[name]})
    report(**versions, requests=requests, evictions=evictions)


if __name__ == "__main__":
    main()
