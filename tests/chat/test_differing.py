"""Where two sequences differ: all of both is told of, also where they are long."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.chat import diff_view
from radchat.chat.differing import Step, steps
from radchat.chat.paths import beside, by_words
from tests.chat.test_paths import COMMON, said

few = st.lists(st.sampled_from("abcd"), max_size=300)


def rebuilt(told: list[Step], left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    ours, theirs = [], []
    for what, a, a_end, b, b_end in told:
        if what == "equal":
            assert left[a:a_end] == right[b:b_end]
        assert (a < a_end) == (what != "insert")
        assert (b < b_end) == (what != "delete")
        ours += left[a:a_end]
        theirs += right[b:b_end]
    return ours, theirs


@given(few, few, st.lists(st.text(max_size=1), max_size=300))
def test_the_steps_make_the_one_the_other(
    left: list[str], right: list[str], odd: list[str]
) -> None:
    for a, b in ((left, right), (left + odd, odd + right), (odd, right + odd + left)):
        assert rebuilt(steps(a, b)[0], a, b) == (a, b)


def words(number: int, kinds: int, seed: int) -> list[str]:
    made = random.Random(seed)
    return [f"w{made.randrange(kinds)}" for _ in range(number)]


@pytest.mark.parametrize("kinds", [100, 5000])
@pytest.mark.parametrize("number", [300, 20_000])
def test_every_word_that_was_changed_is_found_in_a_long_text(number: int, kinds: int) -> None:
    ours = words(number, kinds, 1)
    theirs = list(ours)
    for at in range(7, number, 40):
        theirs[at] = "new"
    changes, is_rough = by_words(" ".join(ours), " ".join(theirs))
    assert not is_rough
    assert [text for mark, text in changes if mark == "+"] == ["new"] * len(range(7, number, 40))
    assert [text for mark, text in changes if mark == "-"] == ours[7::40]


def test_what_has_too_much_alike_is_not_looked_into_and_that_is_said() -> None:
    """All with all would take half a minute."""
    texts = [" ".join(words(20_000, 100, seed)) for seed in (1, 2)]
    changes, is_rough = by_words(*texts)
    assert is_rough
    assert "".join(text for mark, text in changes if mark in " -") == texts[0]
    assert "".join(text for mark, text in changes if mark in " +") == texts[1]
    ends = {
        key: [*COMMON, said(key, "assistant", text)]
        for key, text in zip(("d9f1", "e1c7"), texts, strict=True)
    }
    what = beside(lambda ref: {"session": "s", "messages": ends[ref]}, list(ends))
    assert diff_view.ROUGH in diff_view.lines(what, words=True)
    assert diff_view.ROUGH in diff_view.stat(what)
    assert [row["rough"] for row in diff_view.to_json(what, words=True)["diff"]] == [True]
    assert diff_view.ROUGH not in diff_view.lines(what)
