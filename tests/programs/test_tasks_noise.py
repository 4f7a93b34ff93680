"""A model that is often wrong, and what a search makes of it: the game of 24.

The model is an oracle with known noise. Of its steps 45 in 100 lead to 24, where anything does; 20
are sums that are wrong; the other 35 are taken blindly. Of its judgements 1 in 4 is a guess. The
seeds are fixed: a single chain solves 14 of the 100, a search 97 or 95.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from radchat.programs.search.asks import Answer, Ask, Failed, OnDelta, Output
from radchat.programs.search.settings import Search
from radchat.programs.search.tasks.arithmetic import Step, solvable, steps
from radchat.programs.search.tasks.game24 import GAME24, check, expression, left_of
from radchat.programs.search.think import Outcome, think

WELL, WRONG_SUM, GUESSED = 0.45, 0.2, 0.25


def noisy_step(problem: str, thoughts: Sequence[str], dice: random.Random) -> str:
    every = list(steps(left_of(problem, thoughts)))
    luck = dice.random()
    good = [step for step in every if solvable(step.left)] if luck < WELL else []
    step: Step = dice.choice(good or every)
    if luck >= 1 - WRONG_SUM:
        step = step._replace(result=step.result + 1)
    return str(step)


def noisy_value(problem: str, thoughts: Sequence[str], dice: random.Random) -> str:
    if dice.random() < GUESSED:
        return dice.choice(list(GAME24.values))
    return "sure" if solvable(left_of(problem, thoughts)) else "impossible"


class Noisy:
    """``Asks`` over that model. A thought's message is all thoughts up to it."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.opened: Mapping[str, Any] = {"at": None, "number": 1, "found": None}

    def ask(self, asks: Sequence[Ask], _on_delta: OnDelta) -> list[Answer | Failed]:
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Ask) -> Answer:
        dice = random.Random(f"{self.problem} {ask.at} {ask.options['seed']}")
        thoughts = [] if ask.at is None else ask.at.split("\n")
        if ask.says is not None:
            said = list(ask.says)
        elif ask.text == GAME24.value_text(self.problem, thoughts):
            said = [noisy_value(self.problem, thoughts, dice) for _ in range(ask.n)]
        elif ask.text == GAME24.step_text(self.problem, thoughts):
            said = [noisy_step(self.problem, thoughts, dice) for _ in range(ask.n)]
        else:
            assert ask.text == GAME24.propose_text(self.problem, thoughts, 5)
            lines = [noisy_step(self.problem, thoughts, dice) for _ in range(5)]
            said = ["\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))]
        tokens = [0 if ask.says is not None else len(text.split()) for text in said]
        return Answer(
            [
                Output("\n".join([*thoughts, text]), text, num)
                for text, num in zip(said, tokens, strict=True)
            ],
            {"output_tokens": sum(tokens)},
        )

    def score(self, at: str | None, text: str, choices: Sequence[str]) -> Mapping[str, Any]:
        raise AssertionError("judged by value")

    def mark(self, marks: Mapping[str, str]) -> None: ...

    def release(self, messages: Sequence[str]) -> int:
        return len(messages)

    def close(self) -> None: ...


def problems() -> list[str]:
    every = itertools.combinations_with_replacement(range(1, 14), 4)
    some = random.Random(24).sample([each for each in every if solvable(each)], 100)
    return [" ".join(map(str, each)) for each in some]


def solved(search: Search) -> list[Outcome]:
    found = []
    for problem in problems():
        outcome = think(problem, search, GAME24, Noisy(problem))
        if outcome.is_solved:
            thoughts = outcome.best.texts
            assert check(problem, thoughts) == "solved"
            assert expression(problem, thoughts) is not None
            found.append(outcome)
    return found


def test_a_search_solves_what_a_single_chain_of_the_same_model_does_not() -> None:
    chain = Search(branch=1, beam=1, n_eval=1, seed=1)
    assert len(solved(chain)) <= 20
    for generate in ("propose", "sample"):
        search = Search(**GAME24.defaults(), generate=generate, seed=1)
        assert len(solved(search)) >= 90, generate
