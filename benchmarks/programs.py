"""What is each part worth to language-model programs? Four workloads, one part taken away a time.

The workloads are those of ``workloads.py``, of random words; the model is real. *Parts*: in this
process, with a pool that holds all of it (``program_runs.py`` says what each side lacks).
*Orders*: more programs at once than the pool has room for (``ROOM`` of their different tokens),
lengths a quarter. *Language*: the same four as programs of ``radchat.programs`` on a private
daemon, cache on and off, all told (``program_language.py``). *JSON*: answers under a schema, with
and without jump-forward (``jump.py``). The peers have no tree: transformers' ``generate`` gets
whole prompts, each wave a batch; llama-server (``--llama-bin``, ``--gguf``) a request each, with
flash attention on and off.

Everything is run once, then again in turn while ``--minutes`` last, up to five times; medians.

    python benchmarks/programs.py [--minutes 11] [--quick]
        [--parts parts,orders,language,json,peers] [--llama-bin DIR --gguf FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the daemon has it; read with torch

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.jump import Jumping  # noqa: E402
from benchmarks.jump import show as show_jumping  # noqa: E402
from benchmarks.machine import report  # noqa: E402
from benchmarks.program_language import Language  # noqa: E402
from benchmarks.program_runs import (  # noqa: E402
    NO_CACHE,
    ORDERS,
    PARTS,
    WHOLE,
    Ours,
    Peer,
    Run,
    Side,
    by_waves,
)
from benchmarks.what_if_peers import LlamaServer, Transformers  # noqa: E402
from benchmarks.workloads import WORKLOADS, Program  # noqa: E402
from radchat.engine.model import LoadedModel, load  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402

ALL = ("parts", "orders", "language", "json", "peers")
ORDINARY = range(300, 40_000)  # ids of words
POOL = 50_000  # tokens: more than 64 branches of any workload take
AT_ONCE = {"few-shot": 1, "self-consistency": 1, "tree of thought": 1, "multi-turn": 4}
CROWD = {"few-shot": 8, "self-consistency": 6, "tree of thought": 4, "multi-turn": 12}
ROOM = 0.25  # of a crowd's different tokens
MOST_ROUNDS = 5

Runs = dict[str, dict[str, list[Run]]]  # by workload, by side


class Job(NamedTuple):
    name: str
    run: Callable[[], None]
    again: bool = False  # worth more rounds


def work_off(jobs: list[Job], minutes: float) -> None:
    """Each once; then those that are worth it in turn, while what one took last still fits."""
    end = time.monotonic() + 60 * minutes
    took: dict[str, float] = {}
    for number in range(MOST_ROUNDS):
        for job in jobs:
            began = time.monotonic()
            if number == 0 or (job.again and began + took[job.name] < end):
                print(f"{job.name} …", end="\r", file=sys.stderr, flush=True)
                job.run()
                took[job.name] = time.monotonic() - began


class InProcess:
    """``parts``: all of it and no cache, round after round; the other parts once."""

    def __init__(self, model: LoadedModel, *, quick: bool) -> None:
        self.model, self.scale, self.crowd_scale = model, *((10, 10) if quick else (1, 4))
        self.ours = Ours(model, POOL)
        self.parts: Runs = defaultdict(lambda: defaultdict(list))
        self.orders: Runs = defaultdict(lambda: defaultdict(list))
        self.ours.run(self.made("few-shot", -1), WHOLE)  # warms up

    def made(self, name: str, number: int) -> Program:
        return WORKLOADS[name](number, count=AT_ONCE[name], ids=ORDINARY, scale=self.scale)

    def measure(self, name: str, sides: Iterable[Side]) -> None:
        for side in sides:
            seen = self.parts[name][side.name]
            seen.append(self.ours.run(self.made(name, len(seen)), side))

    def order(self, name: str) -> None:
        def crowd() -> Program:
            count = CROWD[name]
            return WORKLOADS[name](0, count=count, ids=ORDINARY, scale=self.crowd_scale)

        self.ours.run(crowd(), WHOLE)
        small = Ours(self.model, int(ROOM * self.ours.cached_tokens))
        for side in ORDERS:
            self.orders[name][side.name].append(small.run(crowd(), side))

    def ask(self, name: str, peer: Peer, workload: str) -> None:
        self.parts[workload][name].append(by_waves(peer, self.made(workload, 0)))

    def jobs(self, wanted: Collection[str]) -> list[Job]:
        jobs: list[Job] = []
        for name in WORKLOADS if "parts" in wanted or "peers" in wanted else ():
            pair = (WHOLE, NO_CACHE) if "parts" in wanted else (WHOLE,)
            jobs.append(Job(name, partial(self.measure, name, pair), again=True))
        for name in WORKLOADS if "parts" in wanted else ():
            # chats have no branches that could run one after the other
            others = [each for each in PARTS if name != "multi-turn" or each.parallel]
            jobs.append(Job(f"{name}, parts", partial(self.measure, name, others)))
        crowds = WORKLOADS if "orders" in wanted else ()
        return jobs + [Job(f"{name}, orders", partial(self.order, name)) for name in crowds]


def show_runs(name: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    base = median(run.wall_s for run in next(iter(runs.values())))
    rows: dict[str, Any] = {}
    for side, each in runs.items():
        wall, last = median(run.wall_s for run in each), each[-1]
        spread = max(run.wall_s for run in each) / min(run.wall_s for run in each)
        rows[side] = last._asdict() | {
            "wall_s": wall,
            "ratio": wall / base,
            "spread": spread,
            "rounds": len(each),
            "hit_rate": last.hit_rate,
        }
        if last.computed is None:
            counts = f"{'?':>9}{last.input:9,}{'?':>9}"
        else:
            counts = f"{last.computed:9,}{last.input:9,}{last.hit_rate:9.3f}"
        print(
            f"{name:18}{side:22}{wall:8.2f} s{wall / base:7.2f}x{last.steps:7,}{counts}"
            f"{last.output:8,}{last.retractions:6}"
            f"{len(each):7}{spread:8.2f}x",
            flush=True,
        )
        name = ""
    return rows


def table(title: str, runs: Runs) -> dict[str, Any]:
    if runs:
        counts = f"{'steps':>7}{'computed':>9}{'input':>9}{'hit rate':>9}{'out':>8}{'back':>6}"
        print(f"\n{title}\n{'':40}{'wall':>10}{'/ first':>8}{counts}{'rounds':>7}{'spread':>9}")
    return {name: show_runs(name, each) for name, each in runs.items()}


def peers_of(args: argparse.Namespace, folder: Path) -> dict[str, Peer]:
    peers: dict[str, Peer] = {"transformers": Transformers(folder)}
    for flash in ("on", "off") if args.llama_bin else ():
        server = str(Path(args.llama_bin) / "llama-server")
        asked = LlamaServer(server, args.gguf, args.threads, slots=16, flash=flash)
        peers[f"llama-server, -fa {flash}"] = asked
    return peers


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--parts", default=",".join(ALL))
    parser.add_argument("--quick", action="store_true", help="a tenth of all lengths, one round")
    parser.add_argument("--llama-bin", metavar="DIR")
    parser.add_argument("--gguf", metavar="FILE")
    args = parser.parse_args()
    if bool(args.llama_bin) != bool(args.gguf):
        parser.error("--llama-bin and --gguf go together")
    args.parts = args.parts.split(",")
    if unknown := set(args.parts) - set(ALL):
        parser.error(f"--parts: want some of {', '.join(ALL)} (got {', '.join(sorted(unknown))})")
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    folder = registry.resolve(Places.from_env(), args.model).folder
    here = InProcess(load(folder, "bf16"), quick=args.quick)
    spoken: Runs = defaultdict(lambda: defaultdict(list))
    jobs: list[Job] = []
    with ExitStack() as closing:
        jumping = Jumping(folder) if "json" in args.parts else None
        if jumping:
            jobs.append(Job("json", jumping.round, again=True))
        jobs += here.jobs(args.parts)
        if "language" in args.parts:
            asked = (args.model, here.scale, AT_ONCE["multi-turn"])
            language = closing.enter_context(Language(*asked))
            for name in WORKLOADS:
                job = partial(language.measure, name, spoken[name])
                jobs.append(Job(f"{name}, language", job, again=True))
        for peer, side in peers_of(args, folder).items() if "peers" in args.parts else ():
            for name in WORKLOADS:
                jobs.append(Job(f"{name}, {peer}", partial(here.ask, peer, side, name)))
        work_off(jobs, 0.0 if args.quick else args.minutes)
    found: dict[str, Any] = {
        "parts": table("one part taken away, room for all of it; and others", here.parts),
        "orders": table(f"the queue's order; room for {ROOM:.0%}, lengths / 4", here.orders),
        "language": table("programs on the daemon", spoken),
    }
    if jumping:
        found["json"] = jumping.found()
        show_jumping(found["json"])
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    report(**versions, threads=args.threads, at_once=AT_ONCE, **found)


if __name__ == "__main__":
    main()
