"""The four programs of the benchmarks, as requests: what comes at first, and what each end brings.

Few-shot: 8 headers of 1,000 tokens, 20 questions of 40 on each, 4 out. Self-consistency: 8 problems
of 1,000, 16 samples of 48 each. Tree of thought: 4 problems of 600; 3 thoughts of 40, on each 5, on
each of those 5. Multi-turn: 24 chats of 10 turns, 150 in and 8 out. All that can be asked is asked
at once, in random order; a child or a next turn when what it builds on has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.simulator import Arrival, ask, some_ids
from radchat.engine.request import Ids

Then = Callable[[Arrival, Ids], Sequence[Arrival]]
BRANCHING = (3, 5, 5)
TURNS, CHATS = 10, 24


def nothing(_arrival: Arrival, _answer: Ids) -> Sequence[Arrival]:
    return ()


class Program:
    """``at_first`` and ``then`` are what ``Simulation.run`` takes; nobody waits to ask."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.at_first: list[Arrival] = []
        self.then: Then = nothing
        self._num_requests = 0

    def made(self, kind: str, ids: Ids, max_tokens: int) -> Arrival:
        self._num_requests += 1
        name = f"{self._num_requests}"
        return Arrival(0.0, ask(name, ids, max_tokens, seed=self._num_requests), kind)


def few_shot(seed: int) -> Program:
    program = Program(seed)
    for _ in range(8):
        header = some_ids(program.dice, 1000)
        program.at_first += [
            program.made("question", header + some_ids(program.dice, 40), 4) for _ in range(20)
        ]
    program.dice.shuffle(program.at_first)
    return program


def self_consistency(seed: int) -> Program:
    program = Program(seed)
    for _ in range(8):
        problem = some_ids(program.dice, 1000)
        program.at_first += [program.made("sample", problem, 48) for _ in range(16)]
    program.dice.shuffle(program.at_first)
    return program


def tree_of_thought(seed: int) -> Program:
    program = Program(seed)

    def children(ids: Ids, level: int) -> list[Arrival]:
        return [program.made(f"{level}", ids, 40) for _ in range(BRANCHING[level])]

    def then(arrival: Arrival, answer: Ids) -> Sequence[Arrival]:
        level = int(arrival.kind) + 1
        return children(arrival.request.ids + answer, level) if level < len(BRANCHING) else ()

    for _ in range(4):
        program.at_first += children(some_ids(program.dice, 600), 0)
    program.dice.shuffle(program.at_first)
    program.then = then
    return program


def multi_turn(seed: int) -> Program:
    program = Program(seed)

    def then(arrival: Arrival, answer: Ids) -> Sequence[Arrival]:
        turn = int(arrival.kind) + 1
        if turn == TURNS:
            return ()
        ids = arrival.request.ids + answer + some_ids(random.Random(arrival.request.id), 150)
        return [program.made(f"{turn}", ids, 8)]

    program.at_first = [program.made("0", some_ids(program.dice, 150), 8) for _ in range(CHATS)]
    program.then = then
    return program


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "few-shot": few_shot,
    "self-consistency": self_consistency,
    "tree of thought": tree_of_thought,
    "multi-turn": multi_turn,
}
