"""The layout of many answers: no line too wide, nothing shown twice, nothing lost."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.chat.columns import (
    GAP,
    LEAST,
    Cell,
    Folder,
    Whole,
    fit,
    fold,
    page,
    painted,
    plan,
    printed,
    room,
    shorter,
    tail,
)
from radchat.chat.text import clean
from radchat.chat.width import width

LETTERS = "ab é中文字👍🏽👩‍👩‍👧❤️🇩🇪-.\n\n  \t[x]"
TEXTS = st.text(st.sampled_from(LETTERS), max_size=120).map(clean)
COLUMNS = st.integers(1, 90)


def letters(text: str) -> Counter[str]:
    """What must be there, however it is broken into lines; marks on nothing are none."""
    return Counter(char for char in text if not char.isspace() and width(char))


@given(TEXTS, COLUMNS)
def test_a_folded_text_is_all_there_and_no_wider_than_asked(text: str, columns: int) -> None:
    lines = fold(text, columns)
    assert all(width(line) <= columns for line in lines)
    if columns > 1:  # a letter of two columns has no place in one
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


@given(st.lists(TEXTS, max_size=8), st.lists(st.integers(2, 30), min_size=1, max_size=8))
def test_a_text_that_grows_is_folded_as_if_it_had_come_at_once(
    pieces: list[str], columns: list[int]
) -> None:
    folder, text = Folder(), ""
    for number, piece in enumerate(pieces):
        text += piece
        wide = columns[number * len(columns) // len(pieces)]  # and the window is resized
        assert folder.lines(text, wide) == (fold(text, wide) if text else [])
    assert folder.lines("other", 10) == ["other"]  # its end may say it differently


@given(
    st.lists(TEXTS, min_size=1, max_size=9),
    COLUMNS,
    st.integers(1, 30),
    st.integers(0, 8),
    st.none() | st.integers(0, 40),
)
def test_a_screen_has_the_rows_and_columns_it_was_asked_for(
    texts: list[str], columns: int, rows: int, selected: int, top: int | None
) -> None:
    cells = [Cell(f"{i} name", "done, 3 tokens", text, "> asked") for i, text in enumerate(texts)]
    selected %= len(cells)
    cells[selected].top = top
    lines = painted(cells, selected, columns, rows, header="h" * 50, footer=["f" * 50, "g"])
    assert len(lines) == rows
    for line in lines:
        assert width("".join(text for _, text in line)) <= columns
        assert not any("\n" in text for _, text in line)
    shown = "\n".join("".join(text for _, text in line) for line in lines)
    if rows > 6 and columns > 12:
        assert f"> {selected} name" in shown


@given(st.lists(TEXTS, min_size=1, max_size=8), COLUMNS)
def test_what_stays_has_every_answer_once_and_whole(texts: list[str], columns: int) -> None:
    answers = [Whole("0" * 30, "@e1c7", "1, 2, 3", "4 " * 99, text) for text in texts]
    lines = printed(answers, columns, render=fold)
    assert all(width(line) <= columns for line in lines)
    assert letters("".join(printed(answers, columns))) == letters("".join(lines)) or columns == 1
    if columns > 1:
        headings = printed([replace(each, text="") for each in answers], columns)
        assert letters("".join(lines)) == letters("".join([*texts, *headings]))


def test_a_word_wider_than_the_column_begins_where_it_stands() -> None:
    assert fold("> 用中文介绍一下北京 ok", 12) == ["> 用中文介绍", "一下北京 ok"]
    assert fold("say Donaudampfschiff now", 8) == ["say Dona", "udampfsc", "hiff now"]
    assert fold("a bb\n用中文介绍", 6) == ["a bb", "用中文", "介绍"]


def test_stacked_a_long_name_leaves_room_for_the_newest_words() -> None:
    cells = [
        Cell("1 a-branch-with-a-long-name", "41 tokens, 5.4 tok/s", "and so it went on"),
        Cell("2 short", "reading the prompt 45%"),
    ]
    one, two = (line[0][1] for line in painted(cells, 0, 46, 20, header="", footer=())[1:3])
    assert one == "> 1 a-branch-with...  41 tokens  so it went on"
    assert two == "  2 short             reading the prompt 45%"


@pytest.mark.parametrize(
    ("columns", "count"), [(1, 1), (40, 1), (49, 1), (50, 2), (80, 3), (120, 4), (200, 7)]
)
def test_as_many_columns_as_can_be_read(columns: int, count: int) -> None:
    assert fit(columns) == count
    if count > 1:
        assert room(columns, count) >= LEAST
        assert count * room(columns, count) + (count - 1) * len(GAP) <= columns


def test_the_selected_one_is_among_those_seen() -> None:
    for count in range(1, 12):
        for most in range(1, count + 1):
            for selected in range(count):
                first = page(count, most, selected)
                assert 0 <= first <= selected < first + most <= count


def test_selection_is_seen_without_colour() -> None:
    cells = [Cell("1 price", "answering"), Cell("2 cost", "waiting")]
    lines = painted(cells, 1, 60, 10, header="", footer=[])
    text = ["".join(text for _, text in line) for line in lines]
    assert text[1] == "  1 price".ljust(29) + GAP + "> 2 cost".ljust(29)
    assert text[3] == "-" * 29 + GAP + "=" * 29


def test_the_newest_lines_are_seen_until_one_scrolls() -> None:
    cell = Cell("1 price", "answering", "\n".join(f"line {i}" for i in range(30)))
    rows = plan(1, 40, 20, 2).rows
    shown = painted([cell], 0, 40, 20, header="", footer=["", ""])
    assert ("", "line 29".ljust(40)) in shown[-3]
    cell.top = 4
    shown = painted([cell], 0, 40, 20, header="", footer=["", ""])
    text = ["".join(text for _, text in line) for line in shown]
    assert text[3] == f"= 5-{4 + rows} of 30 ".ljust(40, "=")
    assert text[4].rstrip() == "line 4"
    cell.text += "\nmore"  # what one reads stays where it is
    again = painted([cell], 0, 40, 20, header="", footer=["", ""])
    assert again[4:-2] == shown[4:-2]


def test_what_was_asked_stands_above_in_two_lines() -> None:
    cell = Cell("1 x", "done", "answer", "> " + "long words " * 20)
    lines = ["".join(text for _, text in line) for line in cell.lines(24)]
    assert lines == ["> long words long words", "long words long words...", "", "answer"]


def test_a_state_loses_its_last_parts_first() -> None:
    assert shorter("done, 12 tokens, 20 tok/s", 30) == "done, 12 tokens, 20 tok/s"
    assert shorter("done, 12 tokens, 20 tok/s", 20) == "done, 12 tokens"
    assert shorter("done, 12 tokens", 3) == "done"
    assert shorter("reading the prompt 45%", 16) == "reading 45%"
    assert shorter("waiting for 1: reading the prompt 45%", 16) == "waiting for 1"
    assert shorter("", 0) == ""


@given(TEXTS, st.integers(0, 40))
def test_the_tail_of_a_line_is_its_end(text: str, columns: int) -> None:
    line = " ".join(text.split())
    end = tail(line, columns)
    assert line.endswith(end)
    assert width(end) <= columns


def test_styled_lines_stand_in_their_columns() -> None:
    answers = [Whole("[1] a", "@a0a0", "done", "", "x"), Whole("[2] b", "", "done", "> so?", "y")]
    bold = "\x1b[1m{}\x1b[0m".format
    lines = printed(answers, 60, render=lambda text, _columns: [bold(text)], title=bold)
    assert lines[0] == bold("[1] a@a0a0") + " " * 21 + bold("[2] b")
    assert lines[1:4] == ["(done)" + " " * 25 + "(done)", " " * 31 + "> so?", ""]
    assert lines[4] == bold("x") + " " * 30 + bold("y")


def test_a_long_name_leaves_room_for_its_message() -> None:
    answer = Whole("[1] a-name-of-many-words", "@e1c7", "done, 12 tokens, 20 tok/s", "", "x")
    lines = printed([answer, answer], 50)
    assert lines[0] == "[1] a-name-of-ma...@e1c7" + GAP + "[1] a-name-of-ma...@e1c7"
