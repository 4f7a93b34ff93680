"""What an answer is taken out of a text by, which answers are the same, and who wins when."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.errors import UsageError
from radchat.programs.extracting import Extraction, extraction, last_number, number, same
from radchat.programs.matcher import MOST_GIVEN_UP, Matcher
from radchat.programs.vote import Row, Tally, is_decided
from radchat.programs.vote_in_chat import Asked, parse

STORY = "First 3 boxes.\nThen 12 more, so 3 + 12 = 15.\n\nThe answer is 15.\n"


@pytest.fixture
def matched() -> Iterator[list[Matcher]]:
    made: list[Matcher] = []
    yield made
    for each in made:
        each.close()


def taken(how: str | None, text: str) -> str | None:
    found = extraction(how)
    try:
        return found.find(text)
    finally:
        found.close()


# -- what is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text", "answer"),
    [
        (r"\d+", STORY, "15"),  # the last: a chain of thought ends in its answer
        (r"\d*", STORY, "15"),  # a match of nothing is none
        (r"answer is (\d+)", STORY, "15"),
        (r"(?:is|=) (\d+)|(nothing)", "= 4, or nothing", "nothing"),  # the group that took part
        (r"^Answer: (.*)$", "Answer: 3\nAnswer:  yes \nso", "yes"),
        (r"(?i)ANSWER", STORY, "answer"),
        (r"\d+", "none", None),
        (r"x(.*)y", "x  y", None),
        (r"-?\d+", "-7", "-7"),
        ("last-line", STORY, "The answer is 15."),
        ("last-line", "one\r\ntwo\r\n \n", "two"),
        ("last-line", " \n", None),
        (None, "  so it is\n", "so it is"),
        (None, "\n", None),
    ],
)
def test_it_is_taken_from_the_end(how: str | None, text: str, answer: str | None) -> None:
    assert taken(how, text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 1,000", "1000"),
        ("1000.0", "1000"),
        ("it is 1,234,567.50 dollars", "1234567.5"),
        ("-5", "-5"),
        ("10-5", "5"),
        ("x = -5, or (3)-2", "2"),
        ("-$1,200.", "-1200"),
        ("\u221212", "-12"),
        ("+7", "7"),
        ("-0.0", "0"),
        ("007", "7"),
        ("about .5", "0.5"),
        ("0.50%", "0.5"),
        ("v1.2.3", "3"),
        ("1,2,3", "3"),
        ("1e3", "1000"),
        ("2eggs", "2"),
        ("1e-7", "0.0000001"),
        ("10" + "0" * 200, "1E+201"),
        ("1e999999999999999999999", None),
        ("no number", None),
        ("\\boxed{42}", "42"),
        ("**42**", "42"),
    ],
)
def test_the_last_number(text: str, answer: str | None) -> None:
    assert taken("last-number", text) == answer


@given(st.integers(-(10**12), 10**12), st.integers(0, 3))
def test_a_number_is_the_same_however_it_is_written(value: int, zeros: int) -> None:
    point = "." + "0" * zeros if zeros else ""
    ways = [f"{value}{point}", f"{value:,}{point}", f"{value:+}{point}", f"{value}e0"]
    assert {last_number(f"so it is {way}, I think") for way in ways} == {str(value)}
    assert {same(way) for way in ways} == {str(value)}


@given(st.text())
def test_any_text_has_a_key_that_is_its_own(text: str) -> None:
    assert same(same(text)) == same(text) or same(text).endswith((".", "*", "`"))
    for how in ("last-number", "last-line", "json:a[0]", None):
        found = taken(how, text)
        assert found is None or found.strip() == found != ""
        if how == "last-number" and found is not None:
            assert number(found) == found


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("Paris", "paris.", True),
        ("New  York", "new\nyork", True),
        ("**Paris**", "`Paris`", True),
        ("**Paris.**", "Paris", True),
        ("1,000", "1000.0", True),
        ("1.5", "1.50", True),
        ("$5", "5", False),
        ("a*b", "ab", False),
        ("1.5", "15", False),
        ("Parma", "Paris", False),
    ],
)
def test_which_answers_are_the_same(one: str, other: str, are_same: bool) -> None:
    assert (same(one) == same(other)) is are_same


JSON = '{"answer": 1000.0, "steps": [{"by": "adding"}, {"by": ["a", 2]}], "ok": true, "none": null}'


@pytest.mark.parametrize(
    ("path", "text", "answer"),
    [
        ("answer", JSON, "1000"),
        (".answer", JSON, "1000"),
        ("steps[0].by", JSON, "adding"),
        ("steps[-1].by", JSON, '["a", 2]'),
        ("steps[2].by", JSON, None),
        ("steps.by", JSON, None),
        ("answer.by", JSON, None),
        ("ok", JSON, "true"),
        ("none", JSON, None),
        ("", '[{"b": 1, "a": 2.50}]', '[{"a": 2.5, "b": 1}]'),
        ("", " 4 ", "4"),
        ("[1]", "[1, 2]", "2"),
        ("answer", f"I think [1] of it:\n```json\n{JSON}\n```\nor {{}}", "1000"),
        ("answer", f'[1] says {JSON} and {{"answer": 3}}', "1000"),
        ("answer", '{"answer": {} {"answer": "so  it\\nis "}', "so  it\nis"),
        ("answer", "the answer is 4", None),
        ("answer", '{"answer": NaN}', None),
        ("", '{"a": 1e999999999}', '{"a": "1E+999999999"}'),
        ("answer", '{"answer": 1' + "0" * 5000 + "}", "1E+5000"),
    ],
)
def test_what_stands_at_a_path_of_json(path: str, text: str, answer: str | None) -> None:
    assert taken(f"json:{path}", text) == answer


def test_text_made_to_take_long_as_json_does_not() -> None:
    begin = time.process_time()
    for text in ("[" * 40_000, '{"a":' * 10_000, '["' * 20_000, "{" * 40_000):
        assert taken("json:a", text) is None
    assert time.process_time() - begin < 20


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("(a", r"--extract \(a: no regular expression \(.*position 0\)"),
        ("", "--extract wants"),
        ("json:a..b", "want keys and places"),
        ("json:.", "want keys and places"),
        ("json:a[x]", "want keys and places"),
        ("json:a[0]b", "want keys and places"),
        ("json:a[", "want keys and places"),
    ],
)
def test_what_can_take_nothing_is_refused_before_anything_runs(how: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        extraction(how)


# -- a pattern that takes for ever -----------------------------------------------------------------


def test_a_search_that_takes_too_long_is_ended_and_the_next_one_made(
    matched: list[Matcher],
) -> None:
    matcher = Matcher("(a+)+$", limit_s=0.05)
    matched.append(matcher)
    assert matcher("b aaa") == "aaa"
    assert matcher("a" * 60 + "b") is None
    assert matcher.num_given_up == 1
    assert matcher("c aa") == "aa"
    for num in range(2, MOST_GIVEN_UP + 2):
        assert matcher("a" * 60 + "b") is None
        assert matcher.num_given_up == num
    assert matcher("c aa") is None  # no more are tried


def test_a_text_is_searched_as_it_is(matched: list[Matcher]) -> None:
    matcher = Matcher("<([^>]*)>")
    matched.append(matcher)
    for text in ("a\nb\u2028c\x85d", "\ud800", "\x00 \x1b[1m", "[]", "\N{GRINNING FACE}" * 9000):
        assert matcher(f"so: <{text}>") == text


# -- the count -------------------------------------------------------------------------------------


def counted(*answers: str | None, num: int | None = None) -> Tally:
    tally = Tally(num or len(answers), same)
    for choice, answer in enumerate(answers):
        tally.add(choice, answer)
    return tally


def test_the_most_votes_are_first_then_who_spoke_first() -> None:
    tally = counted("b", "A", None, "a.", "c", "a", "b")
    assert tally.rows == [Row("A", (1, 3, 5)), Row("b", (0, 6)), Row("c", (4,))]
    assert tally.tied == []
    assert tally.without == [2]
    assert tally.share(tally.rows[0].count) == 3 / 7
    assert tally.line == "7 of 7: 3 for A, 2 for b, 1 for c, 1 without an answer"
    assert (
        counted("x", "y", "z", "u", num=9).line == "4 of 9: 1 for x, 1 for y, 1 for z, 1 for others"
    )
    assert counted(num=4).line == "0 of 4"


def test_it_is_spelled_as_most_spell_it() -> None:
    assert [row.answer for row in counted("1,000", "1000", "1000").rows] == ["1000"]
    assert [row.answer for row in counted("paris", "Paris").rows] == ["paris"]


def test_a_tie_is_a_tie() -> None:
    tally = counted("b", "a", "a", "b", "c")
    assert [row.answer for row in tally.tied] == ["b", "a"]
    assert counted("b").tied == []
    assert counted(None).tied == counted(num=3).tied == []


def test_who_was_stopped_has_no_vote_and_is_not_waited_for() -> None:
    tally = counted("a", num=3)
    assert (tally.running, tally.is_decided) == (2, False)
    tally.lose(1)
    assert (tally.running, tally.is_decided) == (1, False)  # that one could make it a tie
    tally.lose(2)
    assert (tally.running, tally.is_decided) == (0, True)
    assert tally.num_whole == 1


def test_nothing_is_decided_by_nobody() -> None:
    assert not is_decided([], 0)
    assert not is_decided([2, 2], 0)
    assert is_decided([9, 2], 6)
    assert not is_decided([9, 2], 7)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12), st.randoms())
def test_an_early_stop_never_changes_who_wins(
    answers: list[str | None], order: random.Random
) -> None:
    """In whatever order they end, and with whatever the others would have said."""
    whole, tally = counted(*answers), Tally(len(answers), same)
    for choice in order.sample(range(len(answers)), len(answers)):
        tally.add(choice, answers[choice])
        if tally.is_decided:
            break
    assert [row.answer for row in tally.rows[:1]] == [row.answer for row in whole.rows[:1]]
    assert not tally.running or not tally.tied


def test_each_way_says_what_is_missing_where_there_is_none() -> None:
    ways = {r"\d": r"a match for \d", "last-number": "a number", "json:a": "JSON with json:a"}
    for how, what in ways.items():
        found: Extraction = extraction(how)
        assert (found.what, found.is_whole) == (what, False)
    assert extraction(None).is_whole


# -- in a chat -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("why?", Asked("why?")),
        ("-N 4 why?", Asked("why?", 4)),
        ("--early-stop -N=4 --show-all\nwhy\nso?", Asked("why\nso?", 4, None, True, True)),
        ("--extract 'is (.+)' -5 + 3?", Asked("-5 + 3?", extract="is (.+)")),
        ('--extract="a b" 3 -N 4', Asked("3 -N 4", extract="a b")),
        ("--extract \\d+' so?", Asked("so?", extract="\\d+'")),
    ],
)
def test_options_come_before_the_text(typed: str, asked: Asked) -> None:
    assert parse(typed) == asked


@pytest.mark.parametrize(
    "typed", ["", "-N x y", "-N 0 y", "--bogus y", "--extract last-line", "-N 4"]
)
def test_what_asks_nothing_is_told_how(typed: str) -> None:
    with pytest.raises(UsageError, match=r"/vote \[-N K\]"):
        parse(typed)
