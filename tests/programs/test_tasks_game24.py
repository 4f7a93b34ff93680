"""The game of 24, exactly: every sum, every way to write it, and the formula at the end."""

from __future__ import annotations

import ast
import itertools
import json
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from radchat.errors import UsageError
from radchat.programs.search.tasks.arithmetic import (
    GOAL,
    Left,
    Step,
    after,
    calculated,
    read_numbers,
    solvable,
    steps,
)
from radchat.programs.search.tasks.game24 import GAME24, check, expression, numbers_of

NUMBERS = st.lists(st.integers(1, 13), min_size=4, max_size=4)


def left(*numbers: int | str) -> Left:
    return tuple(map(Fraction, numbers))


def solution(numbers: Left) -> list[Step]:
    """Steps that make 24."""
    if len(numbers) == 1:
        return []
    step = next(each for each in steps(numbers) if solvable(each.left))
    return [step, *solution(step.left)]


def evaluated(node: ast.AST) -> tuple[Fraction, Counter[int]]:
    """What a formula is, as Python reads it, and the numbers in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value), Counter([node.value])
    assert isinstance(node, ast.BinOp)
    (a, some), (b, more) = evaluated(node.left), evaluated(node.right)
    sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
    value = calculated(a, sign, b)
    assert value is not None
    return value, some + more


def test_as_many_can_be_solved_as_there_are() -> None:
    problems = list(itertools.combinations_with_replacement(range(1, 14), 4))
    assert len(problems) == 1820
    assert sum(solvable(each) for each in problems) == 1362


def test_the_hard_ones_need_fractions() -> None:
    assert solvable([1, 3, 4, 6])  # 6 / (1 - 3 / 4)
    assert solvable([3, 3, 8, 8])  # 8 / (3 - 8 / 3)
    assert not solvable([1, 1, 1, 1])
    thoughts = ["3 / 4 = 3/4 (left: 3/4 1 6)", "1 - 3/4 = 1/4 (left: 1/4 6)", "6/1/4=24(left:24)"]
    assert check("1 3 4 6", thoughts) == "solved"
    assert expression("1 3 4 6", thoughts) == "6 / (1 - 3 / 4) = 24"
    assert check("1 3 4 6", ["1 - 3 = -2 (left: -2 4 6)", "4 - -2 = 6 (left: 6 6)"]) == "open"


@pytest.mark.parametrize(
    "text",
    [
        "4 + 8 = 12 (left: 6 12 12)",
        "4+8=12(left:6 12 12)",
        "  4 + 8 = 12   (left:  12, 6,12 ).  ",
        "8 + 4 = 12 (Left: 12 12 6)",
        "4 + 8 = 12.0 [left 6; 12; 12]",
        "4 + 8 = 24/2 (left: 6 12 12)",
    ],
)
def test_a_right_step_may_be_written_so(text: str) -> None:
    step = after(left(4, 6, 8, 12), text)
    assert step is not None
    assert sorted(step.left) == [6, 12, 12]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("8 × 6 = 48 (left: 4 12 48)", (4, 12, 48)),
        ("8 x 6 = 48 (left: 4 12 48)", (4, 12, 48)),
        ("6 − 8 = -2 (left: -2 4 12)", (-2, 4, 12)),
        ("8 ÷ 6 = 4/3 (left: 4/3 4 12)", ("4/3", 4, 12)),
        ("6 / 12 = 0.5 (left: 1/2 4 8)", ("1/2", 4, 8)),
        ("6/12=1/2 (left: 0.5 4 8)", ("1/2", 4, 8)),
    ],
)
def test_signs_fractions_and_numbers_below_zero(text: str, rest: tuple[int | str, ...]) -> None:
    step = after(left(4, 6, 8, 12), text)
    assert step is not None
    assert sorted(step.left) == sorted(left(*rest))


@pytest.mark.parametrize(
    "text",
    [
        "4 + 8 = 13 (left: 6 12 13)",  # the sum
        "4 + 8 = 12 (left: 6 12)",  # what is left
        "4 + 8 = 12 (left: 6 8 12)",
        "4 + 8 = 12 (left: 6 12 12 12)",
        "4 + 9 = 13 (left: 6 12 13)",  # a number that isn't there
        "4 + 9 = 13 (left: 6 8 12 13)",
        "4 + 4 = 8 (left: 6 8 12)",  # one taken twice
        "4 + 4 = 8 (left: 6 8 8 12)",
        "8 / 6 = 1.33 (left: 1.33 4 12)",  # not exact
        "4 / 0 = 4 (left: 4 6 12)",
        "4 ^ 8 = 12 (left: 6 12 12)",
        "4 + 8 = 12",
        "4 + 8 = 12 (left: 6 12 1/0)",
        "4 + 8 = 12 (left: six 12 12)",
        "1. 4 + 8 = 12 (left: 6 12 12)",
        "4 + 8 = 12 (left: 6 12 12) and so on",
        "",
        "4 + 8 = 12 (left: 6 12 1",
        "9" * 5000 + " + 8 = 12 (left: 6 12 12)",
    ],
)
def test_a_wrong_step_is_none(text: str) -> None:
    assert after(left(4, 6, 8, 12), text) is None
    assert check("4 6 8 12", [text]) == "dead"
    assert expression("4 6 8 12", [text]) is None


def test_nothing_is_divided_by_zero() -> None:
    assert calculated(Fraction(3), "/", Fraction(0)) is None
    assert all(step.sign != "/" or step.b for step in steps(left(0, 3, 0)))
    assert after(left(0, 3), "3 / 0 = 0 (left: 0)") is None
    zero = ["4 - 4 = 0 (left: 0 3 5)", "3 / 0 = 0 (left: 0 5)"]
    assert check("3 4 4 5", zero[:1]) == "open"
    assert check("3 4 4 5", zero) == "dead"


@settings(deadline=None)
@given(NUMBERS, st.randoms(use_true_random=False))
def test_each_step_there_is_reads_back_as_itself_and_one_that_is_changed_does_not(
    numbers: list[int], dice: random.Random
) -> None:
    problem = " ".join(map(str, numbers))
    at, thoughts = left(*numbers), list[str]()
    while len(at) > 1:
        step = dice.choice(list(steps(at)))
        text = str(step)
        assert text in json.loads(str(GAME24.thought_grammar(problem, thoughts)["source"]))
        assert after(at, text) == step
        calculation, _, rest = text.partition("(")
        assert (
            after(
                at,
                calculation.replace(" ", "")
                + "( "
                + rest.replace("left: ", "left").replace(" ", ",  "),
            )
            is not None
        )
        wrong = step._replace(result=step.result + dice.choice(left(1, -1, "1/2")))
        assert after(at, str(wrong)) is None
        assert after(at, str(step._replace(left=(*step.left, Fraction(1))))) is None
        thoughts.append(text)
        at = step.left
    assert check(problem, thoughts) == ("solved" if at == left(24) else "dead")
    for length in (1, 2):
        assert check(problem, thoughts[:length]) == "open"
    assert check(problem, [thoughts[1], thoughts[0], thoughts[2]]) == "dead"


@settings(deadline=None)
@given(NUMBERS)
def test_the_formula_is_24_with_each_number_once(numbers: list[int]) -> None:
    assume(solvable(numbers))
    problem = " ".join(map(str, numbers))
    found = expression(problem, [str(step) for step in solution(left(*numbers))])
    assert found is not None
    formula, equals, goal = found.rpartition(" = ")
    assert (equals, goal) == (" = ", "24")
    assert evaluated(ast.parse(formula, mode="eval").body) == (GOAL, Counter(numbers))


def test_the_formula_has_only_the_brackets_it_needs() -> None:
    thoughts = ["4 + 8 = 12 (left: 6 12 12)", "12 - 6 = 6 (left: 6 12)"]
    assert expression("4 6 8 12", thoughts) is None  # not yet
    assert expression("2 3 4 4", ["2 * 3 = 6 (left: 4 4 6)", "4 * 6 = 24 (left: 4 24)"]) is None
    solved = [
        "13 - 9 = 4 (left: 4 4 10)",
        "10 - 4 = 6 (left: 4 6)",
        "4 * 6 = 24 (left: 24)",
    ]
    assert expression("4 9 10 13", solved) in {
        "4 * (10 - (13 - 9)) = 24",
        "(13 - 9) * (10 - 4) = 24",
    }
    sums = ["5 + 6 = 11 (left: 6 7 11)", "6 + 7 = 13 (left: 11 13)", "11 + 13 = 24 (left: 24)"]
    assert expression("5 6 6 7", sums) == "5 + 6 + 6 + 7 = 24"
    minus = ["3 - 2 = 1 (left: 1 5 20)", "5 - 1 = 4 (left: 4 20)", "20 + 4 = 24 (left: 24)"]
    assert expression("2 3 5 20", minus) == "20 + 5 - (3 - 2) = 24"


def test_the_answer_is_held_to_the_formula() -> None:
    solved = ["5 + 6 = 11 (left: 6 7 11)", "6 + 7 = 13 (left: 11 13)", "11 + 13 = 24 (left: 24)"]
    grammar = GAME24.answer_grammar("5 6 6 7", solved)
    assert grammar is not None
    assert json.loads(grammar["source"]) == ["5 + 6 + 6 + 7 = 24"]
    assert GAME24.answer_grammar("5 6 6 7", solved[:2]) is None


def test_steps_that_leave_the_same_are_one_thought() -> None:
    same = {GAME24.key_of("4 6 8 12", [f"{a} = 12 (left: 6 12 12)"]) for a in ("4 + 8", "8 + 4")}
    assert len(same) == 1
    assert GAME24.key_of("4 6 8 12", ["no step"]) == "no step"


@pytest.mark.parametrize(
    "problem",
    [
        "4 6 8 12",
        "4, 6, 8, 12",
        "Use 4, 6, 8 and 12 to make 24.",
        "make 24 of 4 6 8 12",
        "4 6 8 12 = 24",
    ],
)
def test_the_four_numbers_are_found_however_they_are_told(problem: str) -> None:
    assert numbers_of(problem) == left(4, 6, 8, 12)
    GAME24.check_problem(problem)


@pytest.mark.parametrize(
    "problem", ["", "4 6 8", "4 6 8 12 13", "1/2 3 4 5", "1.5 2 3 4", "a b c d"]
)
def test_what_is_no_problem_is_told_with_one_that_is(problem: str) -> None:
    with pytest.raises(UsageError, match=r"game24: want four whole numbers: radchat think .* .4 6"):
        GAME24.check_problem(problem)


def test_no_step_is_longer_than_a_thought_may_be() -> None:
    """By characters, which are no fewer than tokens; and its end."""
    longest = 0
    for numbers in itertools.combinations_with_replacement((7, 9, 11, 12, 13), 4):
        for step in steps(left(*numbers)):
            for second in steps(step.left):
                longest = max(longest, len(str(second)))
    assert longest + 1 <= (GAME24.thought_tokens or 0)


def test_numbers_are_nothing_but_numbers() -> None:
    assert read_numbers("1 2/3, -4;0.5") == [1, Fraction(2, 3), -4, Fraction(1, 2)]
    assert read_numbers("") == []
    assert read_numbers("1/0") is None
    assert read_numbers("1 or 2") is None
