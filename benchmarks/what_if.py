"""What do N what-ifs cost beside one, where the conversation before them is warm?

N messages of 12 tokens behind one prefix, 32 tokens of answer each, sampled, all sent at once; in
this process on bf16 weights, sides in turn, medians of ``--repeat`` rounds. *together* is the
engine as it is: a step reads the shared KV once. *alone* is the same engine with the plan per
sequence. The peers have no notion of a prefix that several requests share: transformers'
``generate`` is given a batch of N whole prompts, and llama-server (where ``--llama-server`` and
``--gguf`` say what to run) N requests, the first of which finds the prefix in its slot.

The bounds, of a decode step: bytes of the weights, of the shared KV (once, or N times) and of N own
tails, each read once; flops, two a weight and row and four a row, token, query head and dimension.
A CPU is bound by bytes at few rows, so N branches could take hardly longer than one; what is
between is the attention's arithmetic, N rows of it over the whole prefix, and sampling.

    python benchmarks/what_if.py [--model smollm2-135m] [--prefix 1500] [--threads 2] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from array import array
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the daemon has it; read with torch

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.machine import report  # noqa: E402
from benchmarks.what_if_peers import LlamaServer, Transformers  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.request import Finished, Ids, Request, SamplingParams  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402
from radchat_kernels.executor import Heads  # noqa: E402
from radchat_kernels.plan import Limits  # noqa: E402
from radchat_kernels.torch_executor import TorchExecutor  # noqa: E402

OWN, NEW = 12, 32  # tokens of a what-if, and of its answer
BRANCHES = (1, 2, 4, 8)
TARGET = 2.0  # four branches / one, wall time


class Took(NamedTuple):
    wall_s: float
    cpu_s: float


class Side(Protocol):
    """``warm``: it has seen the prefix, as far as it keeps anything."""

    def warm(self, prefix: Ids) -> None: ...
    def run(self, prompts: list[Ids], new: int) -> object: ...


class Alone(TorchExecutor):
    """Each row reads by itself all that it sees."""

    def limits(self, heads: Heads, element_size: int) -> Limits:  # noqa: ARG002
        return Limits()


class Ours:
    def __init__(self, folder: Path, executor: TorchExecutor) -> None:
        model = load(folder, "bf16", executor=executor)
        self.engine = build_engine(model, kv_budget=Size(tokens=24_000))
        self.weight_bytes = model.num_bytes
        self.config = model.decoder.config
        self.num_requests = 0
        self.computed = 0  # tokens of the last prompts
        self.steps: list[float] = []  # seconds of the last run's

    def warm(self, prefix: Ids) -> None:
        self.engine.clear()
        self.run([prefix], 1)

    def run(self, prompts: list[Ids], new: int) -> None:
        for ids in prompts:
            self.num_requests += 1
            params = SamplingParams(temperature=0.8, seed=self.num_requests, max_tokens=new)
            self.engine.submit(Request(f"{self.num_requests}", array("I", ids), params))
        rows, self.steps = self.engine.rows_run, []
        while self.engine.has_work():
            began = time.perf_counter()
            events = self.engine.step()
            self.steps.append(time.perf_counter() - began)
            for event in events:
                if isinstance(event, Finished) and event.error:
                    raise RuntimeError(event.error)
        self.computed = self.engine.rows_run - rows - len(prompts) * (new - 1)

    def bytes_a_step(self, branches: int, prefix: int, *, together: bool) -> int:
        """In the middle of the answers."""
        tokens = prefix * (1 if together else branches) + branches * (OWN + NEW // 2)
        return self.weight_bytes + tokens * self.engine.pool.bytes_per_token

    def flops_a_step(self, branches: int, prefix: int) -> int:
        config, tokens = self.config, prefix + OWN + NEW // 2
        attention = 4 * tokens * config.num_heads * config.head_dim * config.num_layers
        return branches * (self.weight_bytes + attention)  # two bytes a weight, two flops


def timed(side: Side, prompts: list[Ids]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    side.run(prompts, NEW)
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def prompts_of(prefix: Ids, branches: int, seed: int) -> list[Ids]:
    return [prefix + words(OWN, seed + branch) for branch in range(branches)]


def measure(sides: dict[str, Side], prefix_len: int, repeat: int) -> dict[str, Any]:
    """Medians by side and number of branches; the first round warms up and is left out."""
    took: dict[tuple[str, int], list[Took]] = defaultdict(list)
    steps: dict[tuple[str, int], list[float]] = defaultdict(list)
    counts: dict[str, set[int]] = defaultdict(set)
    for number in range(repeat + 1):
        prefix = words(prefix_len, 1000 * number)
        for name, side in sides.items():
            side.warm(prefix)
            for branches in BRANCHES:
                one = timed(side, prompts_of(prefix, branches, 1000 * number + 10 * branches))
                if number:
                    took[name, branches].append(one)
                if isinstance(side, Ours):
                    counts[f"{name}, {branches} warm"].add(side.computed)
                    steps[name, branches] += side.steps[1:] if number else []
            if isinstance(side, Ours) and not number:  # counts are the same in every round
                for branches in BRANCHES:
                    side.engine.clear()
                    side.run(prompts_of(prefix, branches, 500 + 10 * branches), 1)
                    counts[f"{name}, {branches} cold"].add(side.computed)
    rows: dict[str, Any] = {}
    for (name, branches), times in took.items():
        pairs = list(zip(times, took[name, 1], strict=True))
        row = rows[f"{name}, {branches}"] = {
            "wall_s": median(each.wall_s for each in times),
            "ratio": median(some.wall_s / one.wall_s for some, one in pairs),
            "spread": max(times).wall_s / min(times).wall_s,
        }
        ours = zip(times, took["together", branches], strict=True)
        row["beside"] = median(their.wall_s / our.wall_s for their, our in ours)
        if not isinstance(sides[name], LlamaServer):  # which is another process
            row["cpu_ratio"] = median(some.cpu_s / one.cpu_s for some, one in pairs)
        if steps[name, branches]:
            row["step_s"] = median(steps[name, branches])
    return {"rows": rows, "computed": {name: sorted(each) for name, each in counts.items()}}


def show(found: dict[str, Any], sides: dict[str, Side], prefix_len: int) -> None:
    heads = ("wall ms", "/ one", "of CPU", "/ ours", "spread")
    heads += ("step ms", "MB a step", "GB/s", "GFLOP/s")
    print(f"{'side, branches':24}" + "".join(f"{head:>10}" for head in heads))
    for name, row in found["rows"].items():
        cpu = f"{row['cpu_ratio']:.2f}" if "cpu_ratio" in row else "-"
        cells = [f"{1000 * row['wall_s']:.0f}", f"{row['ratio']:.2f}", cpu]
        cells += [f"{row['beside']:.2f}", f"{row['spread']:.1f}x"]
        who, branches = name.split(", ")
        side = sides[who]
        if isinstance(side, Ours):
            step = row["step_s"]
            reads = side.bytes_a_step(int(branches), prefix_len, together=who == "together")
            flops = side.flops_a_step(int(branches), prefix_len)
            row |= {"bytes_a_step": reads, "flops_a_step": flops}
            cells += [f"{1000 * step:.1f}", f"{reads / 1e6:.0f}", f"{reads / step / 1e9:.1f}"]
            cells.append(f"{flops / step / 1e9:.0f}")
        print(f"{name:24}" + "".join(f"{cell:>10}" for cell in cells))
    print("\ntokens of prompts computed, the same in all rounds:")
    for name, counts in found["computed"].items():
        print(f"  {name:24}{', '.join(f'{count:,}' for count in counts):>8}")
    four = found["rows"]["together, 4"]["ratio"]
    print(f"\nfour what-ifs / one: {four:.2f} (target < {TARGET})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prefix", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--llama-server", metavar="BINARY")
    parser.add_argument("--gguf", metavar="FILE")
    args = parser.parse_args()
    if bool(args.llama_server) != bool(args.gguf):
        parser.error("--llama-server and --gguf go together")
    torch.set_num_threads(args.threads)
    folder = registry.resolve(Places.from_env(), args.model).folder
    sides: dict[str, Side] = {
        "together": Ours(folder, TorchExecutor()),
        "alone": Ours(folder, Alone()),
    }
    if not args.no_peers:
        sides["transformers"] = Transformers(folder)
    if args.llama_server:
        sides["llama-server"] = LlamaServer(args.llama_server, args.gguf, args.threads)
    found = measure(sides, args.prefix, args.repeat)
    show(found, sides, args.prefix)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    report(**versions, threads=args.threads, prefix=args.prefix, own=OWN, new=NEW, **found)


if __name__ == "__main__":
    main()
