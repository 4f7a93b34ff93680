"""The four workloads of the benchmarks, as requests: what comes at first, what each end brings.

Few-shot: 20 questions of 40 tokens on a header of 1,000, 4 out. Self-consistency: 16 samples of 48
on a problem of 1,000. Tree of thought: a problem of 600; 3 thoughts of 40, on each 5, on each of
those 5. Multi-turn: a chat of 10 turns, 150 in and 8 out. Several programs of a kind run at once
(``count``); all that can be asked is asked at once, in random order, and a child or a next turn
when what it builds on has ended.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.simulator import VOCAB, Arrival, ask
from radchat.engine.request import Ids

Then = Callable[[Arrival, Ids], Sequence[Arrival]]
QUESTIONS, SAMPLES, TURNS = 20, 16, 10
BRANCHING = (3, 5, 5)


def nothing(_arrival: Arrival, _answer: Ids) -> Sequence[Arrival]:
    return ()


class Program:
    """``at_first`` and ``then`` are what ``Simulation.run`` takes; nobody waits to ask.

    ``ids``: those that prompts are drawn from. ``scale``: all lengths are divided by it.
    """

    def __init__(self, seed: int, ids: range, scale: int) -> None:
        self.dice = random.Random(seed)
        self.at_first: list[Arrival] = []
        self.then: Then = nothing
        self._ids, self._scale = ids, scale
        self._num_requests = 0

    def words(self, count: int, dice: random.Random | None = None) -> Ids:
        dice, ids = dice or self.dice, self._ids
        some = range(max(1, count // self._scale))
        return array("I", [dice.randrange(ids.start, ids.stop) for _ in some])

    def made(self, kind: str, ids: Ids, max_tokens: int) -> Arrival:
        self._num_requests += 1
        name, most = f"{self._num_requests}", max(2, max_tokens // self._scale)
        return Arrival(0.0, ask(name, ids, most, seed=self._num_requests), kind)


class Workload(Protocol):
    def __call__(
        self, seed: int, *, count: int = ..., ids: range = ..., scale: int = ...
    ) -> Program: ...


def few_shot(seed: int, *, count: int = 8, ids: range = range(VOCAB), scale: int = 1) -> Program:
    program = Program(seed, ids, scale)
    for _ in range(count):
        header = program.words(1000)
        program.at_first += [
            program.made("question", header + program.words(40), 4) for _ in range(QUESTIONS)
        ]
    program.dice.shuffle(program.at_first)
    return program


def self_consistency(
    seed: int, *, count: int = 8, ids: range = range(VOCAB), scale: int = 1
) -> Program:
    program = Program(seed, ids, scale)
    for _ in range(count):
        problem = program.words(1000)
        program.at_first += [program.made("sample", problem, 48) for _ in range(SAMPLES)]
    program.dice.shuffle(program.at_first)
    return program


def tree_of_thought(
    seed: int, *, count: int = 4, ids: range = range(VOCAB), scale: int = 1
) -> Program:
    program = Program(seed, ids, scale)

    def children(path: Ids, level: int) -> list[Arrival]:
        return [program.made(f"{level}", path, 40) for _ in range(BRANCHING[level])]

    def then(arrival: Arrival, answer: Ids) -> Sequence[Arrival]:
        level = int(arrival.kind) + 1
        return children(arrival.request.ids + answer, level) if level < len(BRANCHING) else ()

    for _ in range(count):
        program.at_first += children(program.words(600), 0)
    program.dice.shuffle(program.at_first)
    program.then = then
    return program


def multi_turn(seed: int, *, count: int = 24, ids: range = range(VOCAB), scale: int = 1) -> Program:
    program = Program(seed, ids, scale)

    def then(arrival: Arrival, answer: Ids) -> Sequence[Arrival]:
        turn = int(arrival.kind) + 1
        if turn == TURNS:
            return ()
        said = program.words(150, random.Random(arrival.request.id))
        return [program.made(f"{turn}", arrival.request.ids + answer + said, 8)]

    program.at_first = [program.made("0", program.words(150), 8) for _ in range(count)]
    program.then = then
    return program


WORKLOADS: dict[str, Workload] = {
    "few-shot": few_shot,
    "self-consistency": self_consistency,
    "tree of thought": tree_of_thought,
    "multi-turn": multi_turn,
}
