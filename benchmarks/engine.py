"""How fast are prompts, answers, second turns and forks, beside transformers on the same weights?

Both run in this process on the same bf16 weights and threads, in turn, the median of ``--repeat``
rounds; sampling is greedy and included. The bounds: a prompt is bound by multiplications (two flops
a weight and token), an answer by reading every weight once a step. So the table gives tokens per
second, the share of the weights' bytes a decode step reads per second, and the ratio to the peer.

The peer is transformers' ``generate`` (default cache, no compilation); what it has no notion of,
a second turn on kept KV and forks of one prefix, it does the way its users do: all of it again.

    python benchmarks/engine.py [--model smollm2-135m] [--threads 2] [--repeat 5]
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from benchmarks.machine import report  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.request import Finished, Ids, Request, SamplingParams  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402

NEW = 32  # tokens of an answer
PROMPTS = (512, 2048)
TURN_ONE, TURN_TWO, FORKS = 1564, 41, 8
Rows = dict[str, dict[str, float]]


class Ours:
    """The engine, emptied before each question that is to be cold."""

    def __init__(self, folder: Path) -> None:
        model = load(folder, "bf16")
        self.engine = build_engine(model, kv_budget=Size(tokens=24_000))
        self.num_requests = 0
        self.weight_bytes = model.num_bytes

    def run(self, prompts: list[Ids], new: int) -> float:
        """Seconds until all prompts, sent at once, have ``new`` more tokens each."""
        began = time.perf_counter()
        for ids in prompts:
            self.num_requests += 1
            params = SamplingParams(temperature=0.0, max_tokens=new)
            self.engine.submit(Request(str(self.num_requests), array("I", ids), params))
        while self.engine.has_work():
            for event in self.engine.step():
                if isinstance(event, Finished) and event.error:
                    raise RuntimeError(event.error)
        return time.perf_counter() - began

    def cold(self) -> None:
        self.engine.clear()


class Theirs:
    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def run(self, prompts: list[Ids], new: int) -> float:
        ids = torch.tensor([list(each) for each in prompts])
        began = time.perf_counter()
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - began

    def cold(self) -> None:
        """It keeps nothing."""


def prefill(who: Ours | Theirs, count: int, seed: int) -> float:
    who.cold()
    return who.run([words(count, seed)], 1)


def decode(who: Ours | Theirs, batch: int, context: int, seed: int) -> float:
    """Seconds per step: the difference of a long and a short answer, so the prompt cancels."""
    prompts = [words(context, seed + row) for row in range(batch)]
    who.cold()
    short = who.run(prompts, 2)
    who.cold()
    return (who.run(prompts, NEW + 2) - short) / NEW


def second_turn(who: Ours | Theirs, seed: int) -> float:
    first = words(TURN_ONE, seed)
    who.cold()
    who.run([first], 1)
    return who.run([first + words(TURN_TWO, seed + 1)], 1)


def forks(who: Ours | Theirs, seed: int) -> float:
    prefix = words(1500, seed)
    who.cold()
    who.run([prefix], 1)
    return who.run([prefix + words(16, seed + row) for row in range(FORKS)], NEW)


def measure(
    name: str, ask: Callable[[Ours | Theirs, int], float], sides: dict[str, Any], repeat: int
) -> dict[str, float]:
    times: dict[str, list[float]] = {who: [] for who in sides}
    for round_number in range(repeat + 1):  # the first warms up
        for who, side in sides.items():
            spent = ask(side, 1000 * round_number)
            if round_number:
                times[who].append(spent)
    row = {who: median(each) for who, each in times.items()}
    spread = max(max(each) / min(each) for each in times.values())
    row["ratio"] = row["transformers"] / row["radchat"]
    line = "   ".join(f"{who} {1000 * row[who]:8.1f} ms" for who in sides)
    print(f"{name:34} {line}   {row['ratio']:.2f}x faster   (spread {spread:.1f}x)", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = registry.resolve(Places.from_env(), args.model).folder
    ours, theirs = Ours(folder), Theirs(folder)
    sides = {"radchat": ours, "transformers": theirs}
    rows: Rows = {}
    for count in PROMPTS:
        name = f"prompt of {count:,}"
        rows[name] = measure(name, lambda w, s, n=count: prefill(w, n, s), sides, args.repeat)
        print(f"{'':34} radchat {count / rows[name]['radchat']:,.0f} tok/s")
    for batch, context in ((1, 128), (1, 2048), (8, 128)):
        name = f"a step of {batch} at {context:,}"
        row = measure(name, lambda w, s, b=batch, c=context: decode(w, b, c, s), sides, args.repeat)
        rows[name] = row
        reads = ours.weight_bytes / row["radchat"] / 1e9
        print(f"{'':34} radchat {batch / row['radchat']:,.0f} tok/s, {reads:.1f} GB/s of weights")
    name = f"second turn, +{TURN_TWO} after {TURN_ONE:,}"
    rows[name] = measure(name, second_turn, sides, args.repeat)
    name = f"{FORKS} forks of 1,500, {NEW} tokens each"
    rows[name] = measure(name, forks, sides, args.repeat)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    report(**versions, threads=args.threads, rows=rows)


if __name__ == "__main__":
    main()
