"""A workload through a real engine, with one part of it taken away; and the same by others.

*no cache*: each request has a namespace of its own. *no tree*: a table in place of the tree, whose
entries are whole sequences: a request finds the longest prompt, or prompt with its whole answer,
that its own begins with, and nothing of what it shares with others. *no hint*: who needs what
another is just computing does not wait for it. *no parallel*: a branch when the one before it has
ended, depth first. *fcfs*, *random*: the order of the queue. Nothing else differs: the same
requests, the same seeds, the same pool; lengths are fixed, for nobody is told of a stop token.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from benchmarks.simulator import Arrival
from benchmarks.workloads import Program
from radchat.config import Size
from radchat.engine.engine import Engine
from radchat.engine.model import LoadedModel, build_engine
from radchat.engine.request import Finished, Ids, Request, Tokens
from radchat.engine.scheduler_options import SchedulerOptions

Names = Callable[[str, Ids], str]  # id of a request and its prompt -> its namespace


def one_for_all(_name: str, _ids: Ids) -> str:
    return ""


def one_each(name: str, _ids: Ids) -> str:
    return name


class Table:
    """No tree: whole sequences by their ids. What continues an entry has its namespace, in which
    nothing else is; so the tree finds in it what a table would.
    """

    def __init__(self) -> None:
        self._spaces: dict[bytes, str] = {}
        self._lengths: set[int] = set()

    def put(self, ids: Ids, space: str) -> None:
        self._spaces.setdefault(ids.tobytes(), space)
        self._lengths.add(len(ids))

    def __call__(self, name: str, ids: Ids) -> str:
        raw, size = ids.tobytes(), ids.itemsize
        lengths = sorted((each for each in self._lengths if each <= len(ids)), reverse=True)
        found = (self._spaces.get(raw[: each * size]) for each in lengths)
        space = next((each for each in found if each is not None), name)
        self.put(ids, space)
        return space


COUNTS = ("steps", "rows_run", "requests", "input_tokens", "output_tokens", "retractions")


DEFAULT = SchedulerOptions()


class Peer(Protocol):
    def run(self, prompts: list[Ids], new: int) -> list[Ids]: ...


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    options: SchedulerOptions = DEFAULT
    names: Callable[[], Names] = lambda: one_for_all
    parallel: bool = True


WHOLE = Side("all of it")
NO_CACHE = Side("no cache", names=lambda: one_each)
PARTS = (
    Side("no tree", names=Table),
    Side("no hint", options=SchedulerOptions(follow=False)),
    Side("no parallel", parallel=False),
)
ORDERS = (
    Side("lpm"),
    Side("fcfs", options=SchedulerOptions(policy="fcfs")),
    Side("random", options=SchedulerOptions(policy="random")),
)


class Run(NamedTuple):
    """``computed``: tokens of prompts, by the engine's own count of rows; others don't tell."""

    wall_s: float
    steps: int
    computed: int | None
    input: int
    output: int
    retractions: int

    @property
    def hit_rate(self) -> float | None:
        return None if self.computed is None else 1 - self.computed / self.input


class Ours:
    """Engines on the same weights, one for each way of scheduling, with pools alike."""

    def __init__(self, model: LoadedModel, pool_tokens: int) -> None:
        self._model, self._pool = model, Size(tokens=pool_tokens)
        self._engines: dict[SchedulerOptions, Engine] = {}

    def run(self, program: Program, side: Side) -> Run:
        if side.options not in self._engines:
            self._engines[side.options] = build_engine(
                self._model, kv_budget=self._pool, options=side.options
            )
        engine = self._engines[side.options]
        engine.clear()
        return run(engine, program, side)

    @property
    def cached_tokens(self) -> int:
        """After a run of all of it: what was different in it."""
        cache = self._engines[WHOLE.options].cache
        return (cache.total - cache.free) * cache.page_size


def run(engine: Engine, program: Program, side: Side) -> Run:
    names, answers = side.names(), dict[str, Ids]()
    alive: dict[str, Request] = {}
    arrivals: dict[str, Arrival] = {}
    before = engine.stats()
    began = time.perf_counter()
    waiting = deque(program.at_first)
    while waiting or alive:
        while waiting and (side.parallel or not alive):
            arrival = waiting.popleft()
            request = arrival.request
            request = replace(request, namespace=names(request.id, request.ids))
            alive[request.id], arrivals[request.id] = request, arrival
            engine.submit(request)
        for event in engine.step():
            if isinstance(event, Tokens):
                answers.setdefault(event.request_id, array("I")).extend(event.ids)
            elif isinstance(event, Finished):
                if event.error:
                    raise RuntimeError(event.error)
                request, answer = alive.pop(event.request_id), answers.pop(event.request_id)
                if isinstance(names, Table):
                    names.put(request.ids + answer, request.namespace)
                new = program.then(arrivals.pop(request.id), answer)
                waiting.extendleft(reversed(new))
    wall = time.perf_counter() - began
    engine.check_idle()
    spent = {name: value - before[name] for name, value in engine.stats().items() if name in COUNTS}
    decoded = spent["output_tokens"] - spent["requests"]  # a first token is drawn from the prompt
    return Run(
        wall,
        spent["steps"],
        spent["rows_run"] - decoded,
        spent["input_tokens"],
        spent["output_tokens"],
        spent["retractions"],
    )


def by_waves(peer: Peer, program: Program) -> Run:
    """What can be asked at once is; then what follows from the answers. All answers of a wave are
    equally long.
    """
    began = time.perf_counter()
    wave, steps, asked, output = list(program.at_first), 0, 0, 0
    while wave:
        (new,) = {arrival.request.params.max_tokens or 0 for arrival in wave}
        answers = peer.run([arrival.request.ids for arrival in wave], new)
        steps += new
        asked += sum(len(arrival.request.ids) for arrival in wave)
        output += new * len(wave)
        pairs = zip(wave, answers, strict=True)
        wave = [child for arrival, answer in pairs for child in program.then(arrival, answer)]
    return Run(time.perf_counter() - began, steps, None, asked, output, 0)
