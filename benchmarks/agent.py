"""What does a step of an agent compute beside its tail, and what does it cost to go back to one?

A trace of 20 steps under the grammar of the agent's tools, then back to the 8th, two steps from
there, and one more at the end (``agent_runs.py``). *On* must compute the tail of each step and
nothing else: what closes the answer before it, results, the next opening; checked against the ids
stored. The first finds the tools of an earlier session. *Off* finds no cache at any step.
llama-server (``--llama-bin``, ``--gguf``; both settings of flash attention, four slots over one
pool, ``cache_prompt``) is given the same tails after answers of its own, as many tokens as ours
had, and says itself what it computed; it samples freely, without a grammar.

Sides in turn, a task of its own each round, medians of walls. Ours goes through the socket and is
stored. No tool runs.

    python benchmarks/agent.py [--rounds 3] [--minutes 20] [--quick] [--record]
        [--llama-bin DIR --gguf FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the daemon has it; read with torch

from benchmarks.agent_runs import STEPS, Asked, Ours, Took, totals  # noqa: E402
from benchmarks.machine import machine, report  # noqa: E402
from benchmarks.what_if_peers import LlamaServer  # noqa: E402
from radchat.engine.request import Ids  # noqa: E402

SLOTS = 4
SAYS = {
    "first": "the first step",
    "steps": f"the {STEPS - 1} steps after it",
    "back": "back to step 8, two steps",
    "end": "at the end again, one step",
}
HEADS = ("wall", "/ on", "prompt read", "computed", "/ tail", "made")
Totals = dict[str, dict[str, float]]  # by part


def peer(server: LlamaServer, asked: Sequence[Asked]) -> list[Took]:
    """Each step after the ids that the base of it had there."""
    paths: list[Ids] = []
    took = []
    for step in asked:
        prompt = step.tail if step.base is None else paths[step.base][:-1] + step.tail
        began = time.perf_counter()
        out, computed = server.complete(prompt, step.output)
        wall = time.perf_counter() - began
        took.append(Took(step.part, len(prompt), computed, len(out), wall, 0))
        paths.append(prompt + out)
    return took


def check(took: Sequence[Took], asked: Sequence[Asked]) -> None:
    """AssertionError where a step computed more than what follows what was computed before it."""
    for number, (row, step) in enumerate(zip(took, asked, strict=True)):
        assert row.computed <= len(step.tail), f"step {number}: {row}, a tail of {len(step.tail)}"


def medians(rounds: Sequence[Totals]) -> Totals:
    """Walls; counts are of the last round."""
    return {
        part: {**last, "wall_s": median(each[part]["wall_s"] for each in rounds)}
        for part, last in rounds[-1].items()
    }


def rows_of(found: dict[str, list[Totals]], tails: dict[str, int]) -> dict[str, Totals]:
    rows = {side: medians(rounds) for side, rounds in found.items()}
    for side in rows.values():
        for part, row in side.items():
            row["ratio"] = row["wall_s"] / rows["on"][part]["wall_s"]
            row["of_tail"] = row["computed"] / tails[part]
    return rows


def cells(row: dict[str, float]) -> list[str]:
    return [
        f"{row['wall_s']:.2f} s",
        f"{row['ratio']:.2f}x",
        f"{row['input']:,.0f}",
        f"{row['computed']:,.0f}",
        f"{row['of_tail']:.2f}",
        f"{row['output']:,.0f}",
    ]


def show(rows: dict[str, Totals]) -> None:
    for part, says in SAYS.items():
        print(f"\n{says:28}" + "".join(f"{head:>13}" for head in HEADS))
        for side, parts in rows.items():
            print(f"  {side:26}" + "".join(f"{cell:>13}" for cell in cells(parts[part])))


def written(rows: dict[str, Totals], about: dict[str, Any], flags: str) -> str:
    on = (
        f"`benchmarks/agent.py {flags}`, commit {about['commit']}; {about['cores']} cores, "
        f"{about['cpu']}, Python {about['python']}, SmolLM2-135M in bf16 on all sides, "
        f"{about['threads']} threads, load {about['load_before']} at the beginning. Walls are "
        "medians of rounds in turn. Tail: what closes the answer before, results, the next "
        "opening. Ours is held to the grammar of the tools, goes through the socket and is stored; "
        "*off*: no step finds any cache."
    )
    parts = [f"# Steps of an agent, {about['date']}", on]
    for part, says in SAYS.items():
        lines = [["side", *HEADS], ["---"] * (len(HEADS) + 1)]
        lines += [[side, *cells(found[part])] for side, found in rows.items()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {says[0].upper()}{says[1:]}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20.0, help="no round begins after")
    parser.add_argument("--quick", action="store_true", help="three steps, one round")
    parser.add_argument("--record", action="store_true", help="write results/DATE-agent.md")
    parser.add_argument("--llama-bin", metavar="DIR")
    parser.add_argument("--gguf", metavar="FILE")
    args = parser.parse_args()
    if bool(args.llama_bin) != bool(args.gguf):
        parser.error("--llama-bin and --gguf go together")
    if args.record and args.quick:
        parser.error("--record wants the whole trace: leave out --quick")
    return args


def main() -> None:
    args = arguments()
    before = machine()  # before we are the load
    found: dict[str, list[Totals]] = defaultdict(list)
    end = time.monotonic() + 60 * args.minutes
    with Ours(args.model, 3 if args.quick else STEPS) as ours:
        ours.run(0, cache=True)  # warms up
        for number in range(1, 2 if args.quick else args.rounds + 1):
            if number > 1 and time.monotonic() > end:
                break
            for side in ("on", "off"):
                print(f"round {number}: {side} …", end="\r", file=sys.stderr)
                trace = ours.run(number, cache=side == "on")
                found[side].append(totals(trace.took))
        asked = ours.asked()
        for trace, steps in zip(ours.traces[1::2], asked[1::2], strict=True):
            check(trace.took, steps)
    for flash in ("on", "off") if args.llama_bin else ():
        binary = str(Path(args.llama_bin) / "llama-server")
        server = LlamaServer(binary, args.gguf, args.threads, slots=SLOTS, flash=flash)
        for number, steps in enumerate([asked[0], *asked[1::2]]):
            took = peer(server, steps)
            if number:
                found[f"llama-server, -fa {flash}"].append(totals(took))
        server.close()
    print(" " * 78, end="\r", file=sys.stderr)
    tails = {part: sum(len(step.tail) for step in asked[-2] if step.part == part) for part in SAYS}
    rows = rows_of(found, tails)
    show(rows)
    about = {"threads": args.threads, "load_before": before["load"]}
    if args.record:
        page = HERE / "results" / f"{before['date']}-agent.md"
        page.write_text(written(rows, {**before, **about}, " ".join(sys.argv[1:])))
        print(f"\nwritten: {page}")
    report(**about, tails=tails, **rows)


if __name__ == "__main__":
    main()
