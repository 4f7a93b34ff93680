"""The arguments of a program as they are typed, and what is said of those that don't fit."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from radchat.cli import program_file, run_view
from radchat.cli.common import Cli
from radchat.errors import InvalidInput, NotFound, RadchatError, UsageError
from radchat.programs import State, assistant, gen, program, python_file, user
from tests.programs.fake_remote import FakeRemote


@dataclass
class Named:
    """As much of a program as its arguments need."""

    function: Callable[..., Any]
    name: str = "sort"


def typed(function: Callable[..., Any], *pairs: str) -> dict[str, Any]:
    return program_file.arguments(Named(function), list(pairs))  # type: ignore[arg-type]


def everything(  # type: ignore[no-untyped-def]
    s: Any,
    text: str,
    num: int = 1,
    share: float = 0.5,
    is_long: bool = False,
    names: list[str] | None = None,
    more: dict[str, int] | None = None,
    level: Literal["low", "high"] = "low",
    either: int | str = 0,
    plain=3,
    bare=None,
) -> None:
    """Of each kind one."""


def test_an_argument_is_read_as_its_parameter_says() -> None:
    pairs = [
        "text=a=b, 3", "num=-4", "share=1e-3", "is_long=Yes", 'names=["a", "b"]', 'more={"a": 1}',
        "level=high", "either=seven", "plain=12", "bare=12",
    ]  # fmt: skip
    assert typed(everything, *pairs) == {
        "text": "a=b, 3", "num": -4, "share": 0.001, "is_long": True, "names": ["a", "b"],
        "more": {"a": 1}, "level": "high", "either": "seven", "plain": 12, "bare": "12",
    }  # fmt: skip
    assert typed(everything, "either=7", "names=null") == {"either": 7, "names": None}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("num=four", "--arg num=four: want a whole number"),
        ("share=x", "want a number"),
        ("is_long=perhaps", "want true or false"),
        ("names=a,b", "want a JSON list or null"),
        ("more=[1]", "want a JSON object or null"),
        ("level=medium", "want low, high"),
        ("text", "want NAME=VALUE"),
        ("txt=a", "did you mean text?"),
        ("zzz=a", "it has text, num"),
    ],
)
def test_one_that_does_not_fit_is_told_with_what_is_wanted(pair: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(everything, pair)
    assert said in caught.value.message


def test_one_given_twice_or_left_out_is_told() -> None:
    with pytest.raises(UsageError, match="num is given twice"):
        typed(everything, "num=1", "num=2")

    def two(s: Any, text: str, num: int, rest: str = "") -> None: ...

    with pytest.raises(UsageError, match="sort needs text, num: --arg text=TEXT --arg num=N"):
        program_file.check(Named(two), {"rest": "a"})  # type: ignore[arg-type]


def test_a_program_that_takes_any_argument_gets_it_as_text() -> None:
    assert typed(lambda s, **more: None, "a=1", "b=x") == {"a": "1", "b": "x"}


def test_annotations_that_mean_nothing_here_leave_the_words_as_they_are() -> None:
    scope: dict[str, Any] = {}
    source = "from __future__ import annotations\ndef f(s, a: Nowhere, b: int): pass"
    exec(compile(source, "x.py", "exec"), scope)
    assert typed(scope["f"], "a=1") == {"a": "1"}


def rows(text: str) -> list[dict[str, Any]]:
    return program_file.rows(Named(everything), text, "in.jsonl", {"num": 7})  # type: ignore[arg-type]


def test_rows_are_objects_and_go_over_what_is_given_for_all() -> None:
    assert rows('{"text": "a"}\n\n{"text": "b", "num": 8}\n') == [
        {"num": 7, "text": "a"},
        {"num": 8, "text": "b"},
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"text": "a"}\n{"text":', "in.jsonl:2: no JSON"),
        ('{"text": "a"}\n"b"', 'in.jsonl:2: want a JSON object, as {"text": "..."'),
        ('{"text": "a"}\n{"num": 3}', "in.jsonl:2: sort needs text"),
        ('{"text": "a", "txt": 3}', "in.jsonl:1: sort has no argument 'txt': did you mean text?"),
        ("\n \n", "in.jsonl has no rows"),
    ],
)
def test_a_row_that_does_not_fit_is_told_with_its_line_before_any_runs(
    text: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        rows(text)
    assert said in caught.value.message


def test_a_failure_is_told_with_the_line_of_the_users_file() -> None:
    source = "import json\n\ndef f():\n    return json.loads('{')\nf()"
    try:
        exec(compile(source, "user.py", "exec"), {})
    except ValueError as error:
        failed = python_file.failure("user.py", error)
    assert isinstance(failed, RadchatError)
    assert failed.exit_code == 1
    assert failed.message.startswith("user.py:4: JSONDecodeError: Expecting")
    ours = NotFound("no model x")
    assert python_file.failure("user.py", ours) is ours


@pytest.mark.parametrize(
    ("does", "is_ours", "said"),
    [
        ("sys.exit('bye')", False, "user.py:2: SystemExit: bye"),
        ("sys.exit(3)", False, "user.py:2: SystemExit: 3"),
        ("raise BrokenPipeError('its own')", False, "user.py:2: BrokenPipeError: its own"),
        ("raise SystemExit(143)", True, ""),
    ],
)
def test_a_program_that_exits_is_told_and_sigterm_ends_it(
    does: str, is_ours: bool, said: str
) -> None:
    with pytest.raises(BaseException) as caught:
        exec(compile(f"import sys\n{does}", "user.py", "exec"), {})
    assert python_file.is_ours("user.py", caught.value) is is_ours
    assert is_ours or python_file.failure("user.py", caught.value).message == said


def test_a_reader_that_has_gone_is_no_failure_of_the_program() -> None:
    with pytest.raises(BrokenPipeError) as caught:
        raise BrokenPipeError(32, "Broken pipe")
    assert python_file.is_ours("user.py", caught.value)


def test_a_file_that_is_no_python_is_told_with_its_line() -> None:
    try:
        compile("a = 1\nb = (", "user.py", "exec")
    except SyntaxError as error:
        failed = python_file.failure("user.py", error)
    assert failed.message == "user.py:2: SyntaxError: '(' was never closed"


def test_a_value_that_json_has_no_word_for_is_written_as_text_and_told() -> None:
    notes: list[str] = []
    value = {"a": (1, 2.5, None, True), 3: {"x"}, "n": float("nan")}
    assert run_view.plain(value, notes.append, "result") == {
        "a": [1, 2.5, None, True],
        "3": "{'x'}",
        "n": "nan",
    }
    assert [note.split(":")[0] for note in notes] == ["result.3", "result.n"]


def test_a_state_that_is_returned_is_its_variables() -> None:
    @program
    def main(s: State) -> State:
        s += user("Hi")
        s += assistant(gen("said"))
        return s

    state = main.run(remote=FakeRemote())
    notes: list[str] = []
    assert run_view.plain([state.result], notes.append, "result") == [{"said": "ok"}]
    assert notes == []
    assert repr(state).startswith("<state 0 of a program")


def test_rows_are_written_in_order_whoever_ends_first() -> None:
    out = io.StringIO()
    told = run_view.Rows(Cli(quiet=True), 3, out)
    told.add(2, {"result": 2})
    told.add(0, {"result": 0})
    assert out.getvalue() == '{"result": 0}\n'
    told.add(1, {"error": {}})
    assert out.getvalue() == '{"result": 0}\n{"error": {}}\n{"result": 2}\n'
    assert told.failed == 1
