"""The parts of the GPU benchmark, in order of importance, and what they have found so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from benchmarks import gpu_end_to_end as whole
from benchmarks.gpu_cases import EXPECTED_COPY, Case, Values, Work, reference
from benchmarks.gpu_ceilings import ceilings, small_kernels
from benchmarks.gpu_methods import Method, Ours, TwoLaunches, one_wide_tile, staged
from benchmarks.gpu_peers import Cascade, Flex, Sdpa, SGLang
from benchmarks.gpu_report import Results, Row, Whole, tables
from benchmarks.gpu_timing import Budget, Timer
from benchmarks.machine import report
from radchat_kernels import _triton
from radchat_kernels.executor import choose
from radchat_kernels.tiles import Gpu

CHECKS = 0.35  # of the time, at most: what is not checked by then is not timed
BOUND = {torch.bfloat16: 5e-3, torch.float32: 1e-5}  # relative L2 error


PEERS = ("SGLang", "torch cascade", "SDPA", "FlexAttention", "transformers")  # may fail


class Wrong(Exception):
    """Not what float64 gives."""


@dataclass(slots=True)
class Bench:
    """device, sizes and what is known so far."""

    device: str
    tiny: bool
    dtype: torch.dtype
    gpu: Gpu
    timer: Timer
    budget: Budget
    values: Values
    results: Results
    main: tuple[Case, ...]
    others: tuple[Case, ...]
    methods: list[Method]
    sweeps: list[tuple[Case, Ours]]

    def run(self, *, without_transformers: bool) -> None:
        """The parts in order of importance."""
        say, results = self._say, self.results
        say(f"{self.gpu}, torch {torch.__version__}, triton {_triton.triton.__version__}")
        say(f"times: {self.timer.how}; PDL: the kernels have none")
        for case in (*self.main, *self.others):
            say(
                f"{case.name}: {case.branches} branches, {case.tokens} tokens; a layer moves at "
                f"least {case.least_bytes() / 1e6:.1f} MB ({case.sequence_bytes() / 1e6:.1f} read "
                f"by sequence), {case.flops / 1e9:.2f} GFLOP: expected {1e6 * case.floor():.1f} us"
            )
        self.check()

        def limits() -> None:
            results.ceilings = ceilings(self.timer, self.device, tiny=self.tiny)

        self.budget.does("ceilings", 5, limits)
        self.time_cases(self.main, lambda name: name in {"ours per-seq", "ours tree"})
        self.time_cases(self.main, lambda name: name not in {"ours per-seq", "ours tree"})
        self.sweep()
        self.time_cases(self.others, lambda name: name.startswith("ours"))
        self.small()
        self.time_cases(self.others, lambda name: not name.startswith("ours"))
        self.values.release()
        hf, prompt, counts = (
            (whole.TINY, 32, (2,)) if self.tiny else (whole.LLAMA_3_8B, 8192, (1, 8, 32, 64))
        )
        self.end_to_end(hf, prompt, counts, without_transformers=without_transformers)

    def close(self) -> int:
        """Tables, what was left out, the JSON line; 1 where something of ours went wrong."""
        budget, results = self.budget, self.results
        if self.tiny:
            self._say("interpreted: the times and ratios below mean nothing")
        for line in tables(results):
            self._say(line)
        for what in budget.dropped:
            self._say(f"no time for: {what}")
        for what in budget.failed:
            self._say(f"FAILED: {what}")
        report(
            gpu=self.gpu.arch,
            torch=torch.__version__,
            triton=_triton.triton.__version__,
            timer=self.timer.how,
            tiny=self.tiny,
            rows=[[*key, row.seconds, row.error, row.notes] for key, row in results.rows.items()],
            sweep=[[row.case.name, row.method, row.seconds] for row in results.sweep],
            small=[[each.name, each.seconds, each.least, each.peer] for each in results.small],
            end_to_end=[[w.name, w.branches, w.rate, w.most] for w in results.end_to_end],
            ceilings=asdict(results.ceilings) if results.ceilings else None,
            dropped=budget.dropped,
            failed=budget.failed,
        )
        return int(any(not any(peer in what for peer in PEERS) for what in budget.failed))

    def once(self, name: str) -> int:
        """For a profiler that counts bytes: ``ncu --metrics dram__bytes_read.sum``."""
        case = next(each for each in (*self.main, *self.others) if each.name == name)
        work = self.values.work(case)
        Ours("ours tree", self.gpu).prepare(work).attend(0)
        least = case.least_bytes(work.q.element_size())
        self._say(f"{case.name}: a layer must read {least} bytes, q and o included")
        return 0

    def check(self) -> None:
        """Each method on the first and the last layer of each case, against float64."""
        budget = Budget(CHECKS * self.budget.left, reserve=0)
        for case in (*self.main, *self.others):
            work = self.values.work(case)
            ends = _two_layers(work)
            wanted = [reference(ends, layer) for layer in range(2)]
            for method in self.methods:
                if not method.suits(case):
                    continue
                row = self.results.row(case, method.name)

                def run(
                    method: Method = method,
                    row: Row = row,
                    ends: Work = ends,
                    wanted: list[torch.Tensor] = wanted,
                ) -> None:
                    row.error = _error(method, ends, wanted)
                    self._require(row)

                budget.does(f"{method.name} on {case.name}", 5, run)
            self._say(f"checked {case.name}: " + self._errors(case))
        self.budget.dropped += [f"check and time of {each}" for each in budget.dropped]
        self.budget.failed += budget.failed

    def time_cases(self, cases: tuple[Case, ...], names: Callable[[str], bool]) -> None:
        for case in cases:
            work = self.values.work(case)
            for method in self.methods:
                row = self.results.rows.get((case.name, method.name))
                if row is None or not names(method.name) or not self._is_right(row):
                    continue

                def run(method: Method = method, row: Row = row, work: Work = work) -> None:
                    _time(self.timer, method, work, row)

                self.budget.does(f"the time of {method.name} on {case.name}", 4, run)

    def sweep(self) -> None:
        for case, method in self.sweeps:
            row = Row(case, method.name)

            def run(method: Method = method, row: Row = row) -> None:
                work = self.values.work(row.case)
                ends = _two_layers(work)
                row.error = _error(method, ends, [reference(ends, layer) for layer in range(2)])
                self._require(row)
                _time(self.timer, method, work, row)
                self.results.sweep.append(row)

            self.budget.does(f"{method.name} on {case.name}", 5, run)

    def small(self) -> None:
        executor = choose(self.device, "triton")
        for what, run in small_kernels(executor, self.timer, self.device, tiny=self.tiny):

            def add(run: Callable[[], Any] = run) -> None:
                self.results.small.append(run())

            self.budget.does(what, 2, add)

    def end_to_end(
        self,
        hf: dict[str, Any],
        prompt: int,
        counts: tuple[int, ...],
        *,
        without_transformers: bool,
    ) -> None:
        """Ours, then transformers', the same weights."""
        steps, budget = 3 if self.tiny else 48, self.budget
        weights: whole.Weights = {}
        made: dict[str, whole.Ours | whole.Transformers] = {}

        def part(name: str, rate: Callable[[int, int], float], fixed: float, each: float) -> None:
            for branches in counts:

                def run(branches: int = branches) -> None:
                    per_second = rate(branches, steps)
                    tokens = prompt + branches * steps // 2  # halfway through the answers
                    seconds = whole.step_bytes(hf, weights, tokens) / EXPECTED_COPY
                    found = Whole(name, branches, per_second, branches / seconds)
                    self.results.end_to_end.append(found)

                budget.does(f"{name}, {branches} branches", fixed + each * branches, run)

        def load() -> None:
            weights.update(whole.random_weights(hf, self.dtype, self.device))
            executor = choose(self.device, "triton")
            made["ours"] = whole.Ours(hf, weights, executor, self.device, prompt)

        def load_peer() -> None:
            made["theirs"] = whole.Transformers(hf, weights, self.device, prompt)

        if not budget.does("ours, a whole model", 10, load):
            return
        ours = made.pop("ours")
        assert isinstance(ours, whole.Ours)
        part("ours, eager", ours.rate, 6, 0.1)
        del ours
        if without_transformers or not budget.does("transformers", 30, load_peer):
            return
        theirs = made["theirs"]
        assert isinstance(theirs, whole.Transformers)
        part("transformers generate", theirs.generate_rate, 12, 0.8)  # each computes the prompt
        part("transformers, continuous batching", theirs.batched_rate, 20, 0.8)

    def _require(self, row: Row) -> None:
        if not self._is_right(row):
            raise Wrong(f"error {row.error:.0e}")

    def _is_right(self, row: Row) -> bool:
        return row.error is not None and row.error <= BOUND[self.dtype]

    def _errors(self, case: Case) -> str:
        rows = [row for (name, _), row in self.results.rows.items() if name == case.name]
        return ", ".join(
            f"{row.method} " + ("not" if row.error is None else f"{row.error:.0e}") for row in rows
        )

    def _say(self, line: str) -> None:
        print(line, flush=True)


def _two_layers(work: Work) -> Work:
    """The case on its first and its last layer only, on the same memory."""
    step = work.case.layers - 1
    case = replace(work.case, layers=2)
    return replace(work, case=case, q=work.q[::step], pool=work.pool[::step])


def _error(method: Method, ends: Work, wanted: list[torch.Tensor]) -> float:
    """The larger relative L2 error of two layers."""
    prepared = method.prepare(ends)
    errors = [
        float((prepared.attend(layer).double() - want).norm() / want.norm())
        for layer, want in enumerate(wanted[: prepared.layers])
    ]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _time(timer: Timer, method: Method, work: Work, row: Row) -> None:
    prepared = method.prepare(work)
    layers = range(prepared.layers)
    row.seconds = timer.seconds(lambda: [prepared.attend(i) for i in layers]) / len(layers)
    row.notes = prepared.notes


def all_methods(gpu: Gpu, sglang: Any, *, tiny: bool) -> list[Method]:
    """Ours first, then others, the costliest last."""
    found: list[Method] = [
        Ours("ours per-seq", gpu, shared=False),
        Ours("ours tree", gpu),
        Ours("ours two-level", gpu, levels=1),
        Ours("ours, one wide tile", gpu, change=one_wide_tile),
    ]
    if sglang:
        found += [
            SGLang(f"SGLang, {splits} splits, page {page}", sglang, splits, page)
            for splits, page in ((8, 16), (32, 16), (64, 16), (8, 1))
            if splits == 8 or not tiny
        ]
    found.append(Cascade())
    found.append(Sdpa("SDPA flash", SDPBackend.FLASH_ATTENTION))
    if not tiny:
        found.append(Sdpa("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION))
        found.append(Sdpa("SDPA efficient", SDPBackend.EFFICIENT_ATTENTION))
    return [*found, Flex(compiled=not tiny)]


def all_sweeps(gpu: Gpu, main: tuple[Case, ...], *, tiny: bool) -> Iterator[tuple[Case, Ours]]:
    """Chunks, stages and launches, at the fewest and the most branches."""
    chunks, stages = ((64,), (1,)) if tiny else ((128, 256, 512, 1024, 2048), (2, 3))
    for case in (main[0],) if tiny else (main[0], main[-1]):
        yield from ((case, Ours(f"chunk {c}", gpu, chunk=c)) for c in chunks)
        yield from ((case, Ours(f"{s} stages", gpu, change=staged(s))) for s in stages)
    case = main[-1]
    yield case, Ours("one launch", gpu)
    yield case, Ours("two launches", gpu, launch=TwoLaunches())
    if not tiny:
        side = TwoLaunches(torch.cuda)
        yield case, Ours("two launches side by side", gpu, launch=side)
