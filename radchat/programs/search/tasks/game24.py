"""The game of 24: four numbers, each taken once, and + - * / make 24. Three steps.

The example of Yao et al. 2023 (arXiv 2305.10601), with its three words for what is left. A thought
is held to the steps that there are: the model says which, the grammar does the sum. What a model
says without a grammar is checked as exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from radchat.programs.search.grammars import Grammar, choices
from radchat.programs.search.task import State, Task
from radchat.programs.search.tasks.arithmetic import GOAL, Left, Step, after, formula, steps

COUNT = 4  # numbers
_GOAL_SAID = re.compile(r"\b(?:make|get|reach|to|is|give)\s+24\b|=\s*24\b", re.IGNORECASE)

OPENING = """\
The game of 24: take two of the numbers, put them together with + - * or /, and write what they \
make in their place. After three steps one number is left, and it must be 24. With 2 4 6 10:
2 * 4 = 8 (left: 6 8 10)
6 + 10 = 16 (left: 8 16)
8 + 16 = 24 (left: 24)

The numbers are: {problem}"""
STEP = "Take step {step} of {depth}: two of the numbers that are left."
PROPOSE = "List {count} different ways to take step {step} of {depth}, the most promising first."
VALUE = """\
Can the numbers that are left make 24?
(left: 4 20) sure
(left: 5 6 9) sure
(left: 7 7 9) likely
(left: 1 2 2) impossible
{last}: sure, likely or impossible?"""
VOTE = """\
Which of these steps is the most likely to lead to 24?
{candidates}
Answer with its number."""
ANSWER = "Write all steps as one formula that makes 24."
WORDS = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}  # the paper's


def numbers_of(problem: str) -> Left | None:
    """The four numbers of a problem, however it is put; None: it has not four."""
    found = re.findall(r"(?<![\w.,/-])\d{1,4}(?![\w/])(?!\.\d)", _GOAL_SAID.sub(" ", problem))
    return tuple(map(Fraction, found)) if len(found) == COUNT else None


def taken(problem: str, thoughts: Sequence[str]) -> list[Step] | None:
    """The thoughts as steps; None: one is none, or is wrong about what is left."""
    left = numbers_of(problem)
    found: list[Step] = []
    for thought in thoughts:
        step = None if left is None else after(left, thought)
        if step is None:
            return None
        found.append(step)
        left = step.left
    return found


def left_of(problem: str, thoughts: Sequence[str]) -> Left:
    """The numbers left after right thoughts, as a model reads them; after a wrong one, none."""
    found = taken(problem, thoughts)
    if found is None:
        return ()
    return found[-1].left if found else numbers_of(problem) or ()


def check(problem: str, thoughts: Sequence[str]) -> State:
    left = left_of(problem, thoughts)
    if len(left) > 1:
        return "open"
    return "solved" if left == (GOAL,) else "dead"


def expression(problem: str, thoughts: Sequence[str]) -> str | None:
    """``(8 - 4) * 6 = 24``, of thoughts that solve it."""
    numbers, found = numbers_of(problem), taken(problem, thoughts)
    if numbers is None or found is None or check(problem, thoughts) != "solved":
        return None
    return f"{formula(numbers, found)} = {GOAL}"


def key(problem: str, thoughts: Sequence[str]) -> str:
    """4 + 8 and 8 + 4 leave the same."""
    left = left_of(problem, thoughts)
    return " ".join(map(str, sorted(left))) if left else thoughts[-1]


def thought(problem: str, thoughts: Sequence[str]) -> Grammar:
    """The steps that may be taken."""
    return choices([str(step) for step in steps(left_of(problem, thoughts))])


def refuse(problem: str) -> str | None:
    if numbers_of(problem) is not None:
        return None
    return 'want four whole numbers: radchat think --task game24 "4 6 8 12"'


GAME24 = Task(
    "game24",
    opening=OPENING,
    step=STEP,
    propose=PROPOSE,
    value=VALUE,
    vote=VOTE,
    answer=ANSWER,
    thought=thought,
    values=WORDS,
    check=check,
    final=expression,
    key=key,
    refuse=refuse,
    depth=COUNT - 1,
    branch=5,
    beam=5,
    thought_tokens=64,
)
