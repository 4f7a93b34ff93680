"""What does a plan cost, and what does sharing save?

For steps of branches that decode over one tree: CPU time of ``plan()``, of ``pack()`` and of a step
that is served by the last plan (``Planner``), for a GPU's limits; K and V read a step with and
without sharing, in the shapes of Llama-3-8B in bf16 (131,072 B a token over 32 layers), and the
partial results of a layer, written and read. No model and no torch: bytes are counted in the plan,
each item's tokens once (the further row tiles of a wide item find them in the cache).

    python benchmarks/planner.py [--repeat 200]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels"):
    sys.path.insert(0, str(root))

from benchmarks.machine import report  # noqa: E402
from radchat_kernels.pack import pack  # noqa: E402
from radchat_kernels.plan import Limits, Plan, Segment, plan  # noqa: E402
from radchat_kernels.planner import Planner  # noqa: E402

PAGE, RESERVE = 16, 8  # tokens; pages a table has beyond its tokens
BYTES_A_TOKEN, HEADS, DIM = 131_072, 32, 128
LIMITS = Limits(
    shared=True,
    fold_below=32,
    chunk=(128, 2048),
    block_tokens=64,
    narrow=16,
    wide=64,
    group=4,
    num_kv_heads=8,
    programs=264,
    growing=True,
)
# levels of a tree, (nodes in all, tokens of each), the last one's nodes being the branches
CASES = {
    "1 over 8192 + 256": [(1, 8192), (1, 256)],
    "8 over 8192 + 256": [(1, 8192), (8, 256)],
    "32 over 8192 + 256": [(1, 8192), (32, 256)],
    "64 over 8192 + 256": [(1, 8192), (64, 256)],
    "4096, 8 x 3072, 64 x 1280": [(1, 4096), (8, 3072), (64, 1280)],
    "8192, 8 x 512, 64 x 128": [(1, 8192), (8, 512), (64, 128)],
    "256, 64 x 32": [(1, 256), (64, 32)],
    "128, 8 x 64": [(1, 128), (8, 64)],
    "2000, six levels of 40": [(1, 2000), *((2**n, 40) for n in range(1, 7))],
}


def branches(levels: list[tuple[int, int]]) -> list[Segment]:
    """A row at the end of each path; pages lie anywhere in the pool."""
    pages = list(range(1, 60_000))
    random.Random(0).shuffle(pages)
    tables, length, num_known = [list[int]()], 0, 0
    for num_nodes, num_tokens in levels:
        length += num_tokens
        more = -(-length // PAGE) - num_known
        shared = length % PAGE > 0  # a page that a fork inside it copies
        tables = [
            [*tables[node * len(tables) // num_nodes], *(pages.pop() for _ in range(more))]
            for node in range(num_nodes)
        ]
        num_known += more
        if shared and (num_nodes, num_tokens) != levels[-1]:
            tables = [table[:-1] for table in tables]
            num_known -= 1
    return [
        Segment(row, 1, length - 1, [*table, *(pages.pop() for _ in range(RESERVE))])
        for row, table in enumerate(tables)
    ]


def cpu_us(call: Callable[[], object], repeat: int) -> float:
    took = []
    for _ in range(repeat):
        began = time.thread_time()
        call()
        took.append(time.thread_time() - began)
    return 1e6 * median(took)


def hits_us(segments: list[Segment], repeat: int) -> float:
    planner, took = Planner(LIMITS, PAGE), []
    planner.plan(segments)
    for step in range(repeat):
        ahead = step % (RESERVE * PAGE)
        now = [Segment(s.row_begin, 1, s.start + ahead, s.table) for s in segments]
        began = time.thread_time()
        planner.plan(now)
        took.append(time.thread_time() - began)
    assert planner.plans_made == 1
    return 1e6 * median(took)


def bytes_read(made: Plan) -> int:
    tokens = 0
    for item in made.items:
        end = min(item.tok_end, made.positions[item.rows[0]] + 1) if item.grows else item.tok_end
        tokens += max(0, end - item.tok_begin)
    return tokens * BYTES_A_TOKEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=200)
    repeat = parser.parse_args().repeat
    alone = replace(LIMITS, shared=False)
    heads = ("plan", "pack", "hit", "plan alone", "items", "GB", "alone", "ratio", "partials")
    print("plan, pack, serve in µs of CPU; K and V in GB a step; parts in MB a layer")
    print(f"{'nodes x tokens, level by level':34}" + "".join(f"{head:>11}" for head in heads))
    figures = {}
    for name, levels in CASES.items():
        segments = branches(levels)
        made = plan(segments, PAGE, limits=LIMITS)
        work = pack(made, made.num_rows)
        read, read_alone = bytes_read(made), bytes_read(plan(segments, PAGE, limits=alone))
        partials = 2 * 4 * work.num_slots * HEADS * (DIM + 1)
        row = (
            cpu_us(lambda s=segments: plan(s, PAGE, limits=LIMITS), repeat),
            cpu_us(lambda m=made: pack(m, m.num_rows), repeat),
            hits_us(segments, repeat),
            cpu_us(lambda s=segments: plan(s, PAGE, limits=alone), repeat),
            float(work.num_items),
            read / 1e9,
            read_alone / 1e9,
            read_alone / read,
            partials / 1e6,
        )
        forms = (".0f", ".0f", ".0f", ".0f", ".0f", ".2f", ".2f", ".1f", ".1f")
        cells = "".join(f"{value:>11{form}}" for value, form in zip(row, forms, strict=True))
        print(f"{name:34}{cells}")
        figures[name] = dict(zip(heads, row, strict=True))
    report(**figures)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # its reader has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
