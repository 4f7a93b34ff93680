"""benchmarks/gpu.py as a whole at tiny sizes: each method is right, each part runs and is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import gpu
from benchmarks import gpu_end_to_end as whole
from benchmarks.gpu_cases import MAIN, TINY_MAIN, TINY_OTHERS, Case, Values, Work, grow, reference
from benchmarks.gpu_methods import Ours, Prepared, TwoLaunches
from benchmarks.gpu_report import Results, tables
from benchmarks.gpu_timing import Budget, GraphTimer
from radchat_kernels.tiles import Gpu

HERE = Gpu("interpret", 2)
TREE = TINY_OTHERS[0]


def test_all_of_it_runs_and_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--tiny", "--without-transformers"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["failed"] == []
    assert found["dropped"] == []
    timed = {(case, method) for case, method, seconds, error, _ in found["rows"] if seconds}
    for case in (*TINY_MAIN, *TINY_OTHERS):
        methods = {"ours per-seq", "ours tree", "ours, one wide tile"}
        methods |= {"torch cascade", "SDPA flash", "FlexAttention"}
        assert {(case.name, method) for method in methods} <= timed
    assert (TREE.name, "ours two-level") in timed
    assert all(error < 1e-5 for *_, error, _ in found["rows"])
    assert {name for _, name, _ in found["sweep"]} >= {"chunk 64", "1 stages", "two launches"}
    assert len(found["small"]) == 10
    assert [name for name, *_ in found["end_to_end"]] == ["ours, eager"]
    header = max(i for i, line in enumerate(lines) if line.startswith("case "))
    assert len(lines) - header - 1 == len(found["rows"])  # the table is last


def test_parts_without_time_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--tiny", "--minutes", "0"]) == 0
    out = capsys.readouterr().out
    assert f"no time for: check and time of ours tree on {TREE.name}" in out
    assert "no time for: ceilings" in out
    assert "no time for: ours, a whole model" in out
    assert json.loads(out.splitlines()[-1])["small"] == []


def test_without_the_interpreters_flag_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 1
    assert "nothing would run on the GPU" in capsys.readouterr().err


def test_one_layer_for_a_profiler(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--tiny", "--once", TREE.name]) == 0
    assert f"a layer must read {TREE.least_bytes(4)} bytes" in capsys.readouterr().out


class Zeros:
    """A method that does not attend."""

    name = "ours, broken"

    def suits(self, case: Case) -> bool:
        return True

    def prepare(self, work: Work) -> Prepared:
        return Prepared(lambda layer: torch.zeros_like(work.q[layer]), work.case.layers)


def test_a_wrong_method_is_not_timed_and_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    bench = gpu.bench_of(gpu.arguments(["--tiny"]))
    bench.methods = [Zeros()]
    bench.check()
    bench.time_cases(bench.main, lambda _: True)
    assert bench.close() == 1
    out = capsys.readouterr().out
    assert f"FAILED: ours, broken on {TREE.name}: Wrong: error 1e+00" in out
    assert all(row.seconds is None for row in bench.results.rows.values())


def test_only_others_may_fail() -> None:
    bench = gpu.bench_of(gpu.arguments(["--tiny"]))
    bench.budget.failed.append(f"the time of SDPA cuDNN on {TREE.name}: RuntimeError: no kernel")
    assert bench.close() == 0
    bench.budget.failed.append("int4 qkv 128 x 64, 1 rows: RuntimeError: no kernel")
    assert bench.close() == 1


def test_a_tree_shares_whole_pages_and_copies_the_rest() -> None:
    tree = grow(TREE)  # 40, two of 9, four of 7
    a, b, c, _ = tree.tables
    assert a[:2] == c[:2]  # 32 of 40 tokens
    assert a[2] == b[2] != c[2]  # 40 to 49: two of each
    assert len({table[3] for table in tree.tables}) == 4
    work = Values([TREE], torch.float32, "cpu").work(TREE)
    k, _ = work.slots(1)
    assert torch.equal(k[a[2] * 16 : a[2] * 16 + 8], k[c[2] * 16 : c[2] * 16 + 8])
    assert TREE.least_bytes(4) < TREE.sequence_bytes(4)


class Recorded:
    """What of torch.cuda streams need: notes who waits for whom."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.now = "main"

    def Stream(self) -> Any:  # noqa: N802 - torch's name
        return self._stream("side")

    def current_stream(self) -> Any:
        return self._stream(self.now)

    def _stream(self, name: str) -> Any:
        def wait(other: Any) -> None:
            self.done.append(f"{name} waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream.name
        self.done.append(f"on {stream.name}")
        yield
        self.now = before


def test_two_launches_side_by_side_give_the_same() -> None:
    work = Values([TINY_MAIN[1]], torch.float32, "cpu").work(TINY_MAIN[1])
    cuda = Recorded()
    prepared = Ours("ours", HERE, launch=TwoLaunches(cuda)).prepare(work)
    want = reference(work, 0)
    assert (prepared.attend(0) - want).norm() < 1e-5 * want.norm()
    assert cuda.done == ["side waits for main", "on side", "main waits for side"]


class Graphs(Recorded):
    """And what a graph needs: time goes on by 2 ms with each replay, by 100 in other runs."""

    def __init__(self) -> None:
        super().__init__()
        self.milliseconds = 0.0
        self.replays = 0

    def CUDAGraph(self) -> Any:  # noqa: N802 - torch's name
        def replay() -> None:
            self.replays += 1
            self.milliseconds += 2

        return SimpleNamespace(replay=replay)

    @contextmanager
    def graph(self, _: Any) -> Iterator[None]:
        self.done.append("capture")
        yield

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        assert enable_timing
        event = SimpleNamespace()
        event.record = lambda: setattr(event, "at", self.milliseconds)
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def synchronize(self) -> None:
        self.done.append("wait")


def test_a_graph_is_captured_once_and_replayed() -> None:
    cuda, runs = Graphs(), []

    def run() -> None:
        cuda.milliseconds += 100
        runs.append(cuda.now)

    assert GraphTimer(replays=5, cuda=cuda).seconds(run) == pytest.approx(0.002)
    assert runs == ["side", "side", "main"]  # two before the capture, one in it
    assert cuda.done.index("capture") > cuda.done.index("wait")
    assert cuda.replays == 7  # two of them not counted


def test_targets_are_said_with_the_figures() -> None:
    case, results = MAIN[-1], Results()
    results.row(case, "ours per-seq").seconds = 12e-3 / case.layers
    results.row(case, "ours tree").seconds = 1.05e-3 / case.layers
    header, _, line = tables(results)[-3:]
    assert line.startswith(case.name)
    assert " 11.43x " in line
    assert "<= 1.1 ms met, >= 11.0x met" in line
    assert f"{case.least_bytes() * 32 / 1e9:.3f}" == "3.255"  # kernels.md: 3.22 GB, without q and o
    assert header.split()[:3] == ["case", "B", "method"]
    results.row(case, "ours tree").seconds = 1.2e-3 / case.layers
    assert "<= 1.1 ms MISSED, >= 11.0x MISSED" in tables(results)[-1]


def test_a_part_is_run_only_with_its_time_left() -> None:
    now = [0.0]
    budget = Budget(20, clock=lambda: now[0], reserve=5)

    def spend() -> None:
        now[0] += 8

    assert budget.does("first", 10, spend)
    assert not budget.does("second", 10, spend)
    assert budget.does("third", 5, spend)
    assert budget.dropped == ["second"]

    def fail() -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    now[0] = 0
    assert not budget.does("fourth", 1, fail)
    assert budget.failed == ["fourth: RuntimeError: no such kernel"]


@pytest.mark.slow
def test_transformers_goes_on_from_the_same_prompt() -> None:
    weights = whole.random_weights(whole.TINY, torch.float32, "cpu")
    theirs = whole.Transformers(whole.TINY, weights, "cpu", 32)
    assert theirs.generate_rate(2, 3) > 0
    assert theirs.batched_rate(2, 3) > 0
