"""Exact arithmetic on what is left of some numbers, a step at a time.

A step takes two of the numbers and puts what they make in their place:
``4 + 8 = 12 (left: 6 12 12)``. Numbers are fractions: 1/3 is no 0.333.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

GOAL = Fraction(24)
Left = tuple[Fraction, ...]

_SIGNS = str.maketrans("−–×÷", "--*/")  # as a model may write them
_WHOLE = r"[-+]?\d{1,12}(?:\.\d{1,12})?"
_BROKEN = r"[-+]?\d{1,12}/\d{1,12}"
_LIST = re.compile(rf"({_BROKEN}|{_WHOLE})(?:[\s,;]+|$)")
# "3 / 8 = 3/8": a stroke may be the step's or a number's; each way of reading it is tried
_STEPS = [
    re.compile(
        rf"({a})\s*([-+*/x])\s*({b})\s*=\s*({_BROKEN}|{_WHOLE})\s*[(\[]\s*left\s*:?\s*(.*?)\s*[)\]]\.?",
        re.IGNORECASE,
    )
    for a, b in itertools.product((_WHOLE, _BROKEN), repeat=2)
]


class Step(NamedTuple):
    a: Fraction
    sign: str
    b: Fraction
    result: Fraction
    left: Left  # after it; in no order that matters

    def __str__(self) -> str:
        left = " ".join(map(str, self.left))
        return f"{self.a} {self.sign} {self.b} = {self.result} (left: {left})"


def calculated(a: Fraction, sign: str, b: Fraction) -> Fraction | None:
    """None: a division by zero."""
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
    return a / b if b else None


def steps(left: Sequence[Fraction]) -> Iterator[Step]:
    """Every step there is, once."""
    told = set()
    for i, j in itertools.permutations(range(len(left)), 2):
        a, b = left[i], left[j]
        rest = tuple(left[k] for k in range(len(left)) if k not in (i, j))
        for sign in "+-*/":
            result = calculated(a, sign, b)
            if result is not None and (a, sign, b) not in told:
                told.add((a, sign, b))
                yield Step(a, sign, b, result, tuple(sorted((*rest, result))))


def read_step(text: str) -> list[Step]:
    """What it says, each way it can be read: nothing here says that it is right."""
    found = []
    plain = text.strip().translate(_SIGNS)
    for pattern in _STEPS:
        match = pattern.fullmatch(plain)
        if match is None:
            continue
        a, sign, b, result, listed = match.groups()
        numbers = read_numbers(listed)
        values = [_number(each) for each in (a, b, result)]
        if numbers is not None and None not in values:
            one, two, made = (Fraction(each or 0) for each in values)
            found.append(Step(one, sign.lower().replace("x", "*"), two, made, tuple(numbers)))
    return found


def read_numbers(text: str) -> list[Fraction] | None:
    """Numbers apart by spaces or commas; None where anything else is said."""
    found, end = [], 0
    while end < len(text):
        match = _LIST.match(text, end)
        number = match and _number(match[1])
        if match is None or number is None:
            return None
        found.append(number)
        end = match.end()
    return found


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


@lru_cache(maxsize=4096)
def after(left: Left, text: str) -> Step | None:
    """The step that a text says, where it is right about what is ``left``."""
    for step in read_step(text):
        rest = Counter(left)
        rest.subtract((step.a, step.b))
        if min(rest.values(), default=0) < 0:
            continue
        rest[step.result] += 1
        if calculated(step.a, step.sign, step.b) == step.result and Counter(step.left) == +rest:
            return step
    return None


def solvable(numbers: Sequence[Fraction | int]) -> bool:
    """Whether they can make 24."""
    return _solvable(tuple(sorted(map(Fraction, numbers))))


@cache
def _solvable(left: Left) -> bool:
    if len(left) == 1:
        return left[0] == GOAL
    return any(_solvable(step.left) for step in steps(left))


# -- one formula of many steps ---------------------------------------------------------------------

_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_ALONE = 3


class Formula(NamedTuple):
    value: Fraction
    text: str
    rank: int  # of its outermost sign


def formula(numbers: Sequence[Fraction], taken: Sequence[Step]) -> str:
    """What the steps come to, written with as few brackets as it needs."""
    left = [Formula(each, str(each), _ALONE) for each in numbers]
    for step in taken:
        a, b = _take(left, step.a), _take(left, step.b)
        rank = _RANK[step.sign]
        one = a.text if a.rank >= rank else f"({a.text})"
        # behind - and / all that is of their own rank would be read otherwise
        inner = b.rank > rank or (b.rank == rank and step.sign in "+*")
        two = b.text if inner else f"({b.text})"
        left.append(Formula(step.result, f"{one} {step.sign} {two}", rank))
    (whole,) = left
    return whole.text


def _take(left: list[Formula], value: Fraction) -> Formula:
    return left.pop(next(i for i, each in enumerate(left) if each.value == value))
