"""What does a step of the engine cost: fixed, for a token of a prompt, for a row of an answer?

Steps of the real engine on the real model, each of a known make-up, in turn for ``--repeat``
rounds; least squares over the medians. All contexts are about ``CONTEXT`` tokens, so what attention
adds for a longer one is not in it. ``simulator.py`` runs on these three numbers. Time is CPU time
on one thread: on a machine that does much else, it is what can be measured.

    python benchmarks/step_costs.py [--model smollm2-135m] [--repeat 7]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402

from benchmarks.machine import report  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.engine.engine import Engine  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.request import Ids, Request, SamplingParams  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402

CONTEXT = 1024
STEPS = [(1, 0), (4, 0), (8, 0), (16, 0), (0, 64), (0, 256), (0, 512), (8, 128), (8, 512)]


class Steps:
    """Steps of so many answers' rows and so many tokens of one prompt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_requests = 0
        self._head = words(CONTEXT, 0)
        self._submit(self._head, 1)
        while engine.has_work():
            engine.step()

    def _submit(self, ids: Ids, max_tokens: int) -> str:
        self._num_requests += 1
        name = str(self._num_requests)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self._engine.submit(Request(name, ids, params))
        return name

    def _after_head(self, count: int) -> Ids:
        """Tokens that no request before has had, behind the head that all have."""
        return self._head + words(count, self._num_requests + 1)

    def seconds(self, rows: int, extend: int) -> float:
        """CPU time of one step, everything else of the requests not counted."""
        engine = self._engine
        talking = [self._submit(self._after_head(2), 64) for _ in range(rows)]
        for _ in range(4):  # their prompts, and a step or two to warm up
            engine.step()
        if extend:
            talking.append(self._submit(self._after_head(extend), 4))
        began = time.process_time()
        engine.step()
        spent = time.process_time() - began
        for name in talking:
            engine.abort(name)
        while engine.has_work():
            engine.step()
        return spent


def fitted(times: dict[tuple[int, int], float]) -> tuple[float, float, float]:
    """Seconds: (fixed, a token of a prompt, a row of an answer); relative errors weigh alike."""
    a = torch.tensor([[1.0, extend, rows] for rows, extend in times], dtype=torch.float64)
    b = torch.tensor(list(times.values()), dtype=torch.float64)
    fixed, token, row = torch.linalg.lstsq(a / b[:, None], torch.ones_like(b)).solution.tolist()
    return fixed, token, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(registry.resolve(Places.from_env(), args.model).folder, "auto")
    steps = Steps(build_engine(model, kv_budget=Size(tokens=8192)))
    times: dict[tuple[int, int], list[float]] = {step: [] for step in STEPS}
    for number in range(args.repeat + 1):  # the first warms up
        for step, seen in times.items():
            spent = steps.seconds(*step)
            if number:
                seen.append(spent)
    medians = {step: median(seen) for step, seen in times.items()}
    fixed, token, row = fitted(medians)
    for (rows, extend), typical in medians.items():
        guess = fixed + extend * token + rows * row
        print(
            f"{rows:3} rows + {extend:4} of a prompt   {1000 * typical:7.1f} ms   "
            f"({1000 * min(times[rows, extend]):.1f} to {1000 * max(times[rows, extend]):.1f}; "
            f"the fit says {1000 * guess:.1f})"
        )
    print(f"fixed {1000 * fixed:.1f} ms, {1e6 * token:.0f} us a token, {1000 * row:.2f} ms a row")
    report(
        model=args.model,
        dtype=model.dtype,
        threads=1,
        torch=torch.__version__,
        costs_us={"fixed": 1e6 * fixed, "token": 1e6 * token, "row": 1e6 * row},
        steps_ms={f"{rows}+{extend}": 1000 * seen for (rows, extend), seen in medians.items()},
    )


if __name__ == "__main__":
    main()
