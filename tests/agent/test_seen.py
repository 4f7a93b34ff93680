"""What a person approves is seen whole, and as what it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.agent.terminal.body import rows_of
from radchat.agent.terminal.seen import hewn, oddities, seen, seen_line
from radchat.agent.types import Preview
from radchat.chat.width import width

SHOWN = [
    ("a\x1b[2Jb", r"a\x1b[2Jb"),
    ("a\u200bb\u2060\ufeff\u00ad", r"a\u200bb\u2060\ufeff\xad"),
    ("a\u202eb\u200f\u061c", r"a\u202eb\u200f\u061c"),
    ("a\u00a0b\u3000c", r"a\xa0b\u3000c"),
    ("a\u2028b\x85c\x0bd\r\n", "a\\u2028b\\x85c\\x0bd\\r\n"),
    ("a\U000e0041\u3164\ufe0f", r"a\ue0041\u3164\ufe0f"),
    ("[/INST] [red]\ttab", "[/INST] [red]\ttab"),
    ("größer 修复 e\u0301", "größer 修复 e\u0301"),
]
TOLD = [
    ("rm -rf x", ""),
    ("größer 修复 исправил αβγδ", ""),
    ("p\u0430ypal", "letters that are not what they look like: p\u0430ypal (U+0430 CYRILLIC"),
    ("\u0441\u043e\u0440\u0443", "U+0441 CYRILLIC SMALL LETTER ES"),
    ("\uff52\uff4d", "U+FF52 FULLWIDTH LATIN SMALL LETTER R"),
    ("a\u200b\u200b", "not seen, and shown as numbers: U+200B ZERO WIDTH SPACE"),
    ("\x1b[31m\x07\x08\x7f\u202e", "; and 1 more"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_nothing_is_unseen(text: str, shown: str) -> None:
    assert seen(text) == shown


@pytest.mark.parametrize(("text", "line"), TOLD)
def test_what_looks_like_something_else_is_told(text: str, line: str) -> None:
    told = "\n".join(oddities(text))
    assert (line in told) if line else told == ""


def test_a_title_is_one_line_with_all_its_spaces() -> None:
    assert seen_line("a  b\nc\td") == r"a  b\nc\td"


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.text(), st.integers(10, 60))
def test_rows_hold_all_of_it_and_no_more_than_fits(body: str, columns: int) -> None:
    rows = rows_of(Preview("t", body, "command"), columns + 5)
    assert all(width(row.text) <= columns + 5 for row in rows)
    assert all(row.text.startswith(("  | ", "    ")) for row in rows)
    whole = seen(body).removesuffix("\n").expandtabs(4).replace("\n", "")
    assert "".join(row.text[4:] for row in rows) == whole or "\t" in body


def test_only_the_first_lines_of_a_difference_name_the_file() -> None:
    body = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n same\n"
    rows = rows_of(Preview("t", body, "diff"), 80)
    assert [row.style for row in rows] == ["head", "head", "@", "-", "+", ""]


def test_wide_characters_are_not_cut() -> None:
    assert hewn("修复修复", 5) == ["修复", "修复"]
    assert hewn("", 5) == [""]
