"""Columns by cluster: nothing is cut in two, at any width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.chat.width import clusters, cut, pad, table, width, wrap

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
CASES = {
    "abc": 3,
    "漢字": 4,
    "e\u0301": 1,
    "한국": 4,
    "\u1112\u1161\u11ab": 2,  # the same syllable kind, in parts
    FLAG: 2,
    FLAG + FLAG: 4,
    FAMILY: 2,
    "\u2764\ufe0f": 2,
    "\u2764": 1,
    "\U0001f44d\U0001f3fd": 2,
    "ｶﾅ": 2,
    "": 0,
}


@pytest.mark.parametrize(("text", "columns"), CASES.items())
def test_the_agreed_widths(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize("columns", [1, 2, 20, 80])
@pytest.mark.parametrize("text", [*CASES, "漢字" * 30, FAMILY * 9, FLAG * 50, "a\u0301" * 90])
def test_a_cut_never_exceeds_its_width_nor_splits_a_cluster(text: str, columns: int) -> None:
    result = cut(text, columns)
    assert width(result) <= columns
    kept = result.removesuffix("...") if result != text else result
    whole = list(clusters(text))
    assert list(clusters(kept)) == whole[: len(list(clusters(kept)))]


@given(st.text(max_size=60), st.integers(0, 40))
def test_padded_text_has_exactly_its_columns(text: str, columns: int) -> None:
    assert width(pad(text, columns)) == columns


@given(st.text(max_size=60))
def test_clusters_add_up_to_the_text(text: str) -> None:
    assert "".join(clusters(text)) == text


def test_the_borders_of_a_table_line_up_under_wide_words() -> None:
    lines = table([["漢字", "1", "|"], ["abc", "1,000", "|"]], ["name", "n", "|"], frozenset((1,)))
    assert len({width(line) for line in lines}) == 1


@given(st.text(max_size=80), st.integers(5, 40))
def test_wrapped_text_keeps_its_words_and_only_a_long_word_is_too_long(
    text: str, columns: int
) -> None:
    lines = wrap(text, columns)
    assert "".join(lines).replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert all(width(line) <= columns or " " not in line.strip(" ") for line in lines)
