"""What does jump-forward spare where a schema decides much of what is said?

Three schemas of everyday work (a person, a tool call, a nested order), four texts each, greedy. In
exact mode (fp32) the ids with and without it are compared; steps are counted; wall time in exact
mode and in bf16, one text of each schema after the other, and all at once. And how long from a
schema to its first mask: one never seen (the tokenizer's part is warm), and one asked before.

    python benchmarks/jump.py [--model smollm2-135m] [--threads 2] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the daemon has it; read with torch

import jsonschema  # noqa: E402
import torch  # noqa: E402

from benchmarks.jump_documents import DOCUMENTS, TEXTS  # noqa: E402
from benchmarks.machine import report  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.engine.engine import Engine  # noqa: E402
from radchat.engine.grammar import Grammar  # noqa: E402
from radchat.engine.grammars import Grammars  # noqa: E402
from radchat.engine.model import LoadedModel, build_engine, load  # noqa: E402
from radchat.engine.request import (  # noqa: E402
    Finished,
    FinishReason,
    Ids,
    Request,
    SamplingParams,
    Tokens,
)
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402

MOST = 200  # tokens of a document
POOL = 16_000
OF: dict[str, Callable[[list[float]], float]] = {"median": median, "worst": max}
STEPS, WALL, FIRST_MASK_MS = 0.65, 1.4, 5.0  # targets


class Said(NamedTuple):
    ids: list[Ids]
    wall_s: float
    steps: int
    forced: int
    cut: int  # documents that MOST tokens did not hold
    valid: int  # that hold to their schemas

    @property
    def output(self) -> int:
        return sum(map(len, self.ids))


class Speaker:
    """An engine whose prompts are warm: what is timed is what is said."""

    def __init__(self, model: LoadedModel) -> None:
        self._engine: Engine = build_engine(model, kv_budget=Size(tokens=POOL))
        self._params = SamplingParams(temperature=0.0, max_tokens=MOST, stop_ids=model.stop_ids)
        grammars = Grammars(model.tokenizer, model.vocab_size, model.stop_ids)
        self._asked = [
            (
                array("I", model.tokenizer.encode_text(prompt)),
                grammars.compile(Grammar("json_schema", json.dumps(schema))),
            )
            for _, schema, prompt in DOCUMENTS
        ]
        self._decode = model.tokenizer.decode
        self._number = 0
        for number in range(len(self._asked)):
            self.say([number], jump=True)

    def say(self, numbers: Sequence[int], *, jump: bool) -> Said:
        """These documents at once."""
        engine, answers = self._engine, defaultdict[str, Ids](lambda: array("I"))
        before, forced, cut = engine.stats()["steps"], 0, 0
        began = time.perf_counter()
        names = []
        for number in numbers:
            self._number += 1
            names.append(f"{self._number}")
            ids, grammar = self._asked[number]
            engine.submit(Request(names[-1], ids, self._params, grammar=grammar, jump=jump))
        while engine.has_work():
            for event in engine.step():
                if isinstance(event, Tokens):
                    answers[event.request_id].extend(event.ids)
                elif isinstance(event, Finished):
                    if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
                        raise RuntimeError(f"{event.reason}: {event.error}")
                    forced += event.usage.forced_tokens
                    cut += event.reason is FinishReason.LENGTH
        wall = time.perf_counter() - began
        steps = engine.stats()["steps"] - before
        said = [answers[name] for name in names]
        valid = sum(map(self._holds, numbers, said))
        return Said(said, wall, steps, forced, cut, valid)

    def _holds(self, number: int, ids: Ids) -> bool:
        text = self._decode([each for each in ids if each not in self._params.stop_ids])
        try:
            jsonschema.validate(json.loads(text), DOCUMENTS[number][1])
        except (ValueError, jsonschema.ValidationError):
            return False
        return True

    def one_by_one(self, *, jump: bool) -> Said:
        """The first text of each schema."""
        each = [self.say([number], jump=jump) for number in range(0, len(self._asked), TEXTS)]
        return Said(
            [said.ids[0] for said in each],
            *(sum(said[field] for said in each) for field in range(1, 6)),
        )

    def at_once(self, *, jump: bool) -> Said:
        return self.say(range(len(self._asked)), jump=jump)


class Jumping:
    """With and without in turn, a round at a time."""

    def __init__(self, folder: Path) -> None:
        models = {dtype: load(folder, dtype) for dtype in ("fp32", "bf16")}
        self._speakers = {dtype: Speaker(model) for dtype, model in models.items()}
        self._first_masks = first_masks(models["bf16"])
        self._pairs: dict[str, list[tuple[Said, Said]]] = defaultdict(list)

    def round(self) -> None:
        for dtype, speaker in self._speakers.items():
            for name, run in (("one by one", speaker.one_by_one), ("at once", speaker.at_once)):
                self._pairs[f"{dtype}, {name}"].append((run(jump=True), run(jump=False)))

    def found(self) -> dict[str, Any]:
        """Counts of the last round, medians of the rounds' times and of their ratios."""
        rows: dict[str, Any] = {}
        for name, pairs in self._pairs.items():
            with_, without = pairs[-1]
            rows[name] = {
                "wall_s": [median(pair[side].wall_s for pair in pairs) for side in (0, 1)],
                "faster": median(b.wall_s / a.wall_s for a, b in pairs),
                "steps": [with_.steps, without.steps],
                "steps_ratio": with_.steps / without.steps,
                "output": [with_.output, without.output],
                "forced": with_.forced,
                "same": sum(a == b for a, b in zip(with_.ids, without.ids, strict=True)),
                "documents": len(with_.ids),
                "valid": [with_.valid, without.valid],
                "cut": with_.cut,
                "rounds": len(pairs),
            }
        return {"rows": rows, "first_mask_ms": self._first_masks}


def first_masks(model: LoadedModel, times: int = 40) -> dict[str, float]:
    """Milliseconds from a schema to its first mask: of a new one, and of one that is known."""
    grammars = Grammars(model.tokenizer, model.vocab_size, model.stop_ids)
    took: dict[str, list[float]] = {"new": [], "known": []}
    for number in range(times + 1):
        _, schema, _ = DOCUMENTS[number % len(DOCUMENTS)]
        text = json.dumps({**schema, "title": f"schema {number}"})
        for seen in took.values():
            began = time.perf_counter()
            grammars.compile(Grammar("json_schema", text)).matcher().mask()
            if number:  # the first sets up the tokenizer's part
                seen.append(1000 * (time.perf_counter() - began))
    return {f"{kind} {name}": of(took[kind]) for kind in took for name, of in OF.items()}


def show(found: dict[str, Any]) -> None:
    heads = f"{'with ms':>9}{'without':>9}{'faster':>8}{'steps':>12}{'':7}{'forced of':>12}"
    print(f"\n{'a schema decides':24}{heads}{'same ids':>10}{'valid':>9}{'cut':>5}{'rounds':>7}")
    for name, row in found["rows"].items():
        walls = "".join(f"{1000 * each:9.0f}" for each in row["wall_s"])
        steps = "{} / {}".format(*row["steps"])
        forced = f"{row['forced']} / {row['output'][0]}"
        same = f"{row['same']} / {row['documents']}"
        valid = "{} + {}".format(*row["valid"])
        print(
            f"{name:24}{walls}{row['faster']:7.2f}x{steps:>12}{row['steps_ratio']:6.2f}x"
            f"{forced:>12}{same:>10}{valid:>9}{row['cut']:5}{row['rounds']:7}"
        )
    masks = found["first_mask_ms"]
    print("schema to first mask, ms: " + ", ".join(f"{k} {v:.2f}" for k, v in masks.items()))
    print(f"targets: steps ≤ {STEPS}x, {WALL}x faster, {FIRST_MASK_MS:.0f} ms; fp32 the same ids")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    jumping = Jumping(registry.resolve(Places.from_env(), args.model).folder)
    for _ in range(args.repeat):
        jumping.round()
    found = jumping.found()
    show(found)
    report(torch=torch.__version__, threads=args.threads, **found)


if __name__ == "__main__":
    main()
