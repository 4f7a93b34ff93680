"""The four workloads as programs of ``radchat.programs`` on a private daemon, cache on and off.

All told: the language, the socket, the daemon and the engine. Texts are of ordinary words that are
a token each, with the lengths of ``workloads.py``; an answer may end early, at a stop token, so
what has been put out is counted too.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.cli import Home
from benchmarks.program_runs import Run
from benchmarks.workloads import BRANCHING, QUESTIONS, SAMPLES, TURNS
from radchat.client import Client
from radchat.engine.tokenizer import Tokenizer
from radchat.models import registry
from radchat.paths import Places
from radchat.programs import gen, program

WORD = re.compile(r" [a-z]{3,9}")


class Texts:
    """Words that the tokenizer has whole, with their space: so many tokens as words."""

    def __init__(self, folder: Path, scale: int) -> None:
        tokenizer = Tokenizer(folder)
        words = (tokenizer.decode([token]) for token in range(300, 40_000))
        self._words = [word for word in words if WORD.fullmatch(word)]
        self._scale = scale

    def made(self, count: int, dice: random.Random) -> str:
        return "".join(dice.choices(self._words, k=max(1, count // self._scale)))


@program
def few_shot(s: Any, header: str, questions: list[str], most: int) -> None:
    s += header
    forks = s.fork(len(questions))
    for fork, question in zip(forks, questions, strict=True):
        fork += question + gen("answer", max_tokens=most)
    forks.join()


@program
def self_consistency(s: Any, problem: str, most: int) -> None:
    s += problem
    forks = s.fork(SAMPLES)
    for fork in forks:
        fork += gen("answer", max_tokens=most)
    forks.join()


@program
def tree_of_thought(s: Any, problem: str, most: int) -> None:
    s += problem
    level = [s]
    for branching in BRANCHING:
        below = []
        for each in level:
            below += each.fork(branching)
        for each in below:
            each += gen("thought", max_tokens=most)
        level = below
    for each in level:
        each["thought"]


@program
def multi_turn(s: Any, turns: list[str], most: int) -> None:
    for turn in turns:
        s += turn + gen("answer", max_tokens=most)


class Language:
    """A daemon of its own, warm."""

    def __init__(self, model: str, scale: int, chats: int) -> None:
        self._texts = Texts(registry.resolve(Places.from_env(), model).folder, scale)
        self._scale, self._chats = scale, chats
        self._home = Home(model)
        os.environ.update(self._home.env)  # where the language looks for a daemon
        self._home.run("daemon", "start")
        self._client = Client.connect(Places.from_env())
        self.run("few-shot", -1, cache=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.close()

    def measure(self, name: str, seen: dict[str, list[Run]]) -> None:
        """One more round: the same program, with a cache and without."""
        for side, cache in (("cache on", True), ("cache off", False)):
            seen[side].append(self.run(name, len(seen[side]), cache=cache))

    def run(self, name: str, number: int, *, cache: bool) -> Run:
        dice = random.Random(f"{name} {number}")
        start = self._started(name, dice)
        before = self._counts()
        began = time.perf_counter()
        states = start(cache=cache, options={"temperature": 1.0, "seed": number + 1})
        wall = time.perf_counter() - began
        for state in states:
            if state.error:
                raise state.error
        after = self._counts()
        steps, asked, cached, output, back = (b - a for a, b in zip(before, after, strict=True))
        return Run(wall, steps, asked - cached, asked, output, back)

    def _started(self, name: str, dice: random.Random) -> Callable[..., list[Any]]:
        """Its texts are made before the clock runs."""
        words, most = self._texts.made, max(2, OUTPUT[name] // self._scale)
        if name == "multi-turn":
            chats = [[words(150, dice) for _ in range(TURNS)] for _ in range(self._chats)]
            rows = [{"turns": turns, "most": most} for turns in chats]
            return partial(multi_turn.run_batch, rows, at_once=len(rows))
        if name == "few-shot":
            questions = [words(40, dice) for _ in range(QUESTIONS)]
            given = {"header": words(1000, dice), "questions": questions, "most": most}
            return lambda **how: [few_shot.run(**given, **how)]
        what = self_consistency if name == "self-consistency" else tree_of_thought
        problem = words(1000 if name == "self-consistency" else 600, dice)
        return lambda **how: [what.run(problem=problem, most=most, **how)]

    def _counts(self) -> list[int]:
        """The engine's own; a fork's warming of what its branches share is a request too."""
        stats = self._client.call("cache.stats")
        return [stats[name] or 0 for name in COUNTED]


OUTPUT = {"few-shot": 4, "self-consistency": 48, "tree of thought": 40, "multi-turn": 8}
COUNTED = ("steps", "input_tokens", "cached_tokens", "output_tokens", "retractions")
