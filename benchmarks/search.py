"""What are sharing and the cache worth to a search, and to a vote? And what do others take for one?

*Think*: 3 deep, 5 thoughts on each of 5, 40 tokens a thought, each judged by three ratings, over a
problem of 600 tokens: 55 thoughts and 165 ratings. *Vote*: 16 answers of 48 tokens to a question of
1,000. Through our own socket, what is stored along the way included; *off* shares and reuses
nothing (``search_runs.py``). The others answer the vote's question: transformers' ``generate`` with
``num_return_sequences=16``, bf16, in this process; llama-server (``--llama-bin``, ``--gguf``), at
both settings of flash attention, as one request (``n_cmpl``) and as 16.

Sides in turn, a problem of its own each round, medians. The bounds beside them: flops of products,
two a weight and row (attention comes on top), and bytes of weights, once a step. At the end the
counts are checked against the ids of the trees that were made: on, nothing is computed twice, but
a token a request; off, everything is.

    python benchmarks/search.py [--rounds 5] [--minutes 25] [--quick]
        [--parts think,vote,peers] [--record] [--llama-bin DIR --gguf FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the daemon has it; read with torch

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.machine import machine, report  # noqa: E402
from benchmarks.search_report import Rows, rows_of, show, written  # noqa: E402
from benchmarks.search_runs import ANSWER, SAMPLES, Ours, Run  # noqa: E402
from benchmarks.what_if_peers import LlamaServer, Transformers  # noqa: E402
from radchat.engine.request import Ids  # noqa: E402

ALL = ("think", "vote", "peers")
Took = dict[str, list[Run | float]]  # by side: a round's run, or the seconds it took
Sides = dict[str, Callable[[int], Run | float]]


def sides_of(args: argparse.Namespace, ours: Ours) -> dict[str, Sides]:
    """By workload. Both of ours have the same problem in a round, others one of their own."""
    sides: dict[str, Sides] = {}
    for name, run in (("think", ours.think), ("vote", ours.vote)):
        if name in args.parts:
            sides[name] = {
                "on": partial(run, cache=True),
                "off": partial(run, cache=False),
            }
    if "peers" in args.parts:
        sides.setdefault("vote", {}).update(peers_of(args, ours))
    return sides


def peers_of(args: argparse.Namespace, ours: Ours) -> Sides:
    new = ours.tokens(ANSWER)
    others = Transformers(ours.folder)
    asked: dict[str, Callable[[Ids], object]] = {
        "transformers": lambda ids: others.sample(ids, SAMPLES, new)
    }
    for flash in ("on", "off") if args.llama_bin else ():
        binary = str(Path(args.llama_bin) / "llama-server")
        server = LlamaServer(binary, args.gguf, args.threads, slots=SAMPLES, flash=flash)
        asked[f"llama-server, n_cmpl, -fa {flash}"] = partial(one, server, new)
        asked[f"llama-server, {SAMPLES} requests, -fa {flash}"] = partial(each, server, new)

    def timed(run: Callable[[Ids], object], own: int, number: int) -> float:
        ids = ours.question_ids(1000 * own + number)
        began = time.perf_counter()
        run(ids)
        return time.perf_counter() - began

    return {
        name: partial(timed, run, own) for own, (name, run) in enumerate(asked.items(), start=1)
    }


def one(server: LlamaServer, new: int, ids: Ids) -> None:
    server.sample(ids, SAMPLES, new)


def each(server: LlamaServer, new: int, ids: Ids) -> None:
    server.run([ids] * SAMPLES, new)


def measure(sides: dict[str, Sides], rounds: int, minutes: float) -> dict[str, Took]:
    """Each once, to warm up; then in turn, at least once, ``rounds`` times where time allows."""
    took: dict[str, Took] = {name: defaultdict(list) for name in sides}
    end = time.monotonic() + 60 * minutes
    last = 0.0
    for number in range(rounds + 1):
        began = time.monotonic()
        if number > 1 and began + last > end:
            break
        for name, each_of in sides.items():
            for side, run in each_of.items():
                print(f"round {number} of {rounds}: {name}, {side} …", end="\r", file=sys.stderr)
                found = run(number)
                if number:
                    took[name][side].append(found)
        last = time.monotonic() - began
    print(" " * 78, end="\r", file=sys.stderr)
    return took


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=25.0, help="no round begins after")
    parser.add_argument("--parts", default=",".join(ALL))
    parser.add_argument("--quick", action="store_true", help="a tenth of all lengths, one round")
    parser.add_argument("--record", action="store_true", help="write results/DATE-search.md")
    parser.add_argument("--llama-bin", metavar="DIR")
    parser.add_argument("--gguf", metavar="FILE")
    args = parser.parse_args()
    if bool(args.llama_bin) != bool(args.gguf):
        parser.error("--llama-bin and --gguf go together")
    if args.record and args.quick:
        parser.error("--record wants whole lengths: leave out --quick")
    args.parts = args.parts.split(",")
    if unknown := set(args.parts) - set(ALL):
        parser.error(f"--parts: want some of {', '.join(ALL)} (got {', '.join(sorted(unknown))})")
    return args


def main() -> None:
    args = arguments()
    before = machine()  # before we are the load
    torch.set_num_threads(args.threads)
    with Ours(args.model, 10 if args.quick else 1) as ours:
        sides = sides_of(args, ours)
        took = measure(sides, 1 if args.quick else args.rounds, args.minutes)
        trees = ours.check()
        weights = (ours.folder / "model.safetensors").stat().st_size
    found: dict[str, Rows] = {}
    for name, runs in took.items():
        found[name] = rows_of(runs, trees, weights)
        show(name, found[name])
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {**versions, "threads": args.threads, "load_before": before["load"]}
    if args.record:
        page = HERE / "results" / f"{before['date']}-search.md"
        page.write_text(written(found, {**before, **about}, " ".join(sys.argv[1:])))
        print(f"\nwritten: {page}")
    report(**about, **found)


if __name__ == "__main__":
    main()
