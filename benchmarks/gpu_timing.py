"""Seconds of work on the device, and how much of the benchmark's time is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

import torch

Run = Callable[[], object]


class Timer(Protocol):
    """``how``: the way it measures, for the report."""

    how: str

    def seconds(self, run: Run) -> float: ...


class WallTimer:
    """One call, by the clock: where there is no GPU such a figure only shows that it ran."""

    how = "wall clock, one call, no CUDA graph"

    def seconds(self, run: Run) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began


class GraphTimer:
    """The median of replays of one captured graph, each between two events.

    So a launch costs what it costs the device; the host's part is in the end-to-end figures.
    """

    def __init__(self, replays: int = 20, cuda: Any = torch.cuda) -> None:
        self.how = f"CUDA events, median of {replays} replays of a graph"
        self._replays = replays
        self._cuda = cuda

    def seconds(self, run: Run) -> float:
        cuda = self._cuda
        side = cuda.Stream()  # nothing may run on the default stream while a graph is captured
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):  # compiles, uploads plans, fills the caches of memory
                run()
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            run()
        return self._median(graph.replay)

    def _median(self, run: Run) -> float:
        cuda = self._cuda
        times: list[float] = []
        for index in range(self._replays + 2):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            cuda.synchronize()
            if index >= 2:
                times.append(begin.elapsed_time(end) / 1e3)
        return median(times)


class Budget:
    """What is left of the minutes; parts come in order of importance, so the last ones give way."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, reserve: float = 5
    ) -> None:
        self._clock = clock
        self._ends = clock() + seconds - reserve  # the report itself
        self.dropped: list[str] = []
        self.failed: list[str] = []

    @property
    def left(self) -> float:
        return self._ends - self._clock()

    def does(self, what: str, seconds: float, run: Run) -> bool:
        """Run it if ``seconds``, a guess at what it takes, are left; else it is dropped, and told.

        What fails is told too, and ends nothing else: a peer may not run on this machine.
        """
        if self.left < seconds:
            self.dropped.append(what)
            return False
        try:
            run()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            self.failed.append(f"{what}: {type(error).__name__}: {first}")
            return False
        return True
