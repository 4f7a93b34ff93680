"""Paths beside each other: what is common, which messages stand for each other, what differs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.chat import compare_view, diff_view
from radchat.chat.paths import Beside, beside, by_lines, by_words, pairs
from radchat.chat.width import visible_width
from tests.chat.trees import long

texts = st.text(alphabet="ab ,.\n漢é", max_size=30)


def said(key: str, role: str, text: str, tokens: int | None = 10, **more: Any) -> dict[str, Any]:
    return {"id": long(key), "role": role, "text": text, "tokens": tokens, "branches": [], **more}


COMMON = [
    said("50c1", "system", "You are a careful analyst", 412),
    said("a19e", "user", "summarise", 8113),
    said("b7d0", "assistant", "The report says", 240),
]
PRICE = [
    *COMMON,
    said("c2aa", "user", "price -10 %", 18),
    said("d9f1", "assistant", "Revenue would fall by 4 %.\nMargin stays.", 311, branches=["price"],
         finish_reason="stop", usage={"input_tokens": 1000, "cached_input_tokens": 970}),
]  # fmt: skip
COSTS = [
    *COMMON,
    said("c3b4", "user", "cost -5 %", 15),
    said("e1c7", "assistant", "Revenue would rise by 2 %.\nMargin stays.", None, branches=["costs"],
         finish_reason="length"),
]  # fmt: skip
LOGS = {"price": PRICE, "costs": COSTS, "b7d0": COMMON, "(start)": []}


def call(ref: str) -> dict[str, Any]:
    return {"session": long("e7f2"), "name": "report-q3", "messages": LOGS[ref]}


def of(*refs: str) -> Beside:
    return beside(call, refs)


def test_what_is_common_is_told_once_with_its_numbers() -> None:
    what = of("price", "costs")
    assert what.same() == "same to b7d0: 3 messages, 8,765 tokens"
    assert [side.label for side in what.sides] == ["price@d9f1", "costs@e1c7"]
    assert [side.tokens for side in what.sides] == [329, None]
    assert of("price", "b7d0").sides[1].below == []
    assert of("price", "(start)").same() == "nothing in common"
    assert of("price", "price").same() == "same to d9f1: 5 messages, 9,094 tokens"


def test_numbers_that_are_turns_are_said_to_be() -> None:
    def numbered(ref: str) -> dict[str, Any]:
        turns = {"1": COMMON[:2], "2": PRICE[:4], "3": COSTS}  # 3: of a branch just made
        return {**call("price"), "messages": turns.get(ref, PRICE)}

    told = beside(numbered, ["1", "2"]).turns()
    assert told is not None
    assert told.startswith("1 and 2: turns of this path; branches of a what-if go by number until")
    assert str(beside(numbered, ["3", "1"]).turns()).startswith("1: a turn of this path")
    assert beside(numbered, ["3", "price"]).turns() is None


def test_a_side_of_another_session_is_named_with_it() -> None:
    def elsewhere(ref: str) -> dict[str, Any]:
        return call(ref) if ref == "price" else {**call(ref), "session": long("01"), "name": "b"}

    assert [side.label for side in beside(elsewhere, ["price", "costs"]).sides] == [
        "report-q3:price@d9f1",
        "b:costs@e1c7",
    ]


COLUMNS = """\
same to b7d0: 3 messages, 8,765 tokens

price@d9f1: 2 messages, 329 tokens       costs@e1c7: 2 messages

user c2aa                                user c3b4
price -10 %                              cost -5 %

assistant d9f1                           assistant e1c7
Revenue would fall by 4 %.               Revenue would rise by 2 %.
Margin stays.                            Margin stays.
                                         (length: the answer was cut off)"""

LABELLED = """\
same to b7d0: 3 messages, 8,765 tokens

=== price@d9f1: 2 messages, 329 tokens

user c2aa
price -10 %

assistant d9f1
Revenue would fall by 4 %.
Margin stays.


=== costs@e1c7: 2 messages

user c3b4
cost -5 %

assistant e1c7
Revenue would rise by 2 %.
Margin stays.
(length: the answer was cut off)"""


def test_side_by_side_where_there_is_room_else_one_after_the_other() -> None:
    def drawn(what: Beside, columns: int | None, side_by_side: bool = True) -> str:
        return "\n".join(compare_view.lines(what, columns=columns, side_by_side=side_by_side))

    what = of("price", "costs")
    assert drawn(what, 80) == COLUMNS
    assert drawn(what, 80, side_by_side=False) == drawn(what, None) == drawn(what, 49) == LABELLED
    assert "costs@e1c7: 2 messages" in drawn(of("price", "costs", "b7d0"), 200)
    assert "b7d0: nothing after it" in drawn(of("price", "b7d0"), None)


@pytest.mark.parametrize("columns", [50, 80, 200])
@pytest.mark.parametrize("text", ["漢字" * 60, "x" * 300, "\x1b[31m" * 20, "a\tb " * 40])
def test_no_column_is_wider_than_its_room(columns: int, text: str) -> None:
    path = [*COMMON, said("ffff", "assistant", text)]
    logs = {"x": path, "price": PRICE}
    what = beside(lambda ref: {**call("price"), "messages": logs[ref]}, list(logs))
    told = compare_view.lines(what, columns=columns, side_by_side=True)
    assert all(visible_width(line) <= columns for line in told)
    assert all("\x1b" not in line and "\t" not in line for line in told)
    begins = {line.index("assistant d9f1") for line in told if "assistant d9f1" in line}
    assert begins == {(columns - 2) // 2 + 2}


UNIFIED = """\
--- price@d9f1
+++ costs@e1c7
same to b7d0: 3 messages, 8,765 tokens

@@ user c2aa -> c3b4 @@
-price -10 %
+cost -5 %

@@ assistant d9f1 -> e1c7 @@
-Revenue would fall by 4 %.
+Revenue would rise by 2 %.
 Margin stays."""

WORDED = """\
--- price@d9f1
+++ costs@e1c7
same to b7d0: 3 messages, 8,765 tokens

@@ user c2aa -> c3b4 @@
[-price -10-]{+cost -5+} %

@@ assistant d9f1 -> e1c7 @@
Revenue would [-fall-]{+rise+} by [-4-]{+2+} %.
Margin stays."""

STAT = """\
price@d9f1 -> costs@e1c7
same to b7d0: 3 messages, 8,765 tokens
words: +4 -4    tokens: 329 -> -
who        message       tokens    words   +   -  finish          cached
user       c2aa -> c3b4  18 -> 15  3      +2  -2  -               -
assistant  d9f1 -> e1c7  311 -> -  8      +2  -2  stop -> length  97.0% -> -"""


def test_a_difference_by_lines_by_words_and_in_numbers() -> None:
    what = of("price", "costs")
    assert "\n".join(diff_view.lines(what)) == UNIFIED
    assert "\n".join(diff_view.lines(what, words=True)) == WORDED
    assert "\n".join(diff_view.stat(what)) == STAT


def test_colour_is_added_to_marks_and_changes_no_letter() -> None:
    def paint(text: str, style: str) -> str:
        return f"<{style}>{text}</>"

    told = "\n".join(diff_view.lines(of("price", "costs"), words=True, paint=paint))
    assert "<red>[-fall-]</><green>{+rise+}</>" in told
    for mark in ("<bold>", "<dim>", "<red>", "<green>", "</>"):
        told = told.replace(mark, "")
    assert told == WORDED


LONG = "the quick brown fox jumps over the lazy dog"
BROKEN = """\
-the quick brown
-  fox jumps over
-  the lazy dog
+the quick brown
+  fox jumps over
+  the lazy cat
   https://long.example/a/b/c"""
WORDS_BROKEN = """\
the quick brown fox
  jumps over the lazy
  <red>[-dog-]</><green>{+cat+}</>"""


def test_lines_wider_than_the_terminal_are_broken_at_words_below_their_mark() -> None:
    def paint(text: str, style: str) -> str:
        return f"<{style}>{text}</>" if style in ("red", "green") else text

    link = "\n  https://long.example/a/b/c"
    logs = {
        "a": [said("aaaa", "assistant", LONG + link)],
        "b": [said("bbbb", "assistant", LONG.replace("dog", "cat") + link)],
    }
    what = beside(lambda ref: {**call("price"), "messages": logs[ref]}, list(logs))
    told = diff_view.lines(what, columns=20)[5:]
    assert "\n".join(told) == BROKEN
    painted = diff_view.lines(what, columns=22, words=True, paint=paint)[5:]
    assert "\n".join(painted[:3]) == WORDS_BROKEN
    assert diff_view.lines(what, columns=20, paint=paint)[6] == "<red>-  fox jumps over</>"
    assert diff_view.lines(what, columns=80) == diff_view.lines(what)


def test_what_is_far_from_a_change_is_counted_not_shown() -> None:
    lines = [f"line {n}" for n in range(30)]
    changed = [*lines[:15], "other", *lines[16:]]
    logs = {
        "a": [said("aaaa", "assistant", "\n".join(lines))],
        "b": [said("bbbb", "assistant", "\n".join(changed))],
    }
    told = diff_view.lines(beside(lambda ref: {**call("price"), "messages": logs[ref]}, "ab"))
    assert told[5:] == [
        "... 12 lines the same",
        *(f" line {n}" for n in (12, 13, 14)),
        "-line 15",
        "+other",
        *(f" line {n}" for n in (16, 17, 18)),
        "... 11 lines the same",
    ]


def test_the_same_message_again_and_one_that_only_one_path_has() -> None:
    again = [*COMMON, said("0001", "user", "price -10 %", 18)]
    what = beside(lambda ref: {**call("price"), "messages": {"a": PRICE, "b": again}[ref]}, "ab")
    told = diff_view.lines(what)
    assert told[4:6] == ["@@ user c2aa -> 0001 @@", "(the same)"]
    assert told[7:9] == ["@@ assistant d9f1 @@", "-Revenue would fall by 4 %."]
    assert diff_view.lines(of("price", "price"))[2:] == ["same to d9f1: 5 messages, 9,094 tokens"]


def test_files_are_compared_as_what_was_sent() -> None:
    def sent(key: str, text: str) -> dict[str, Any]:
        return said(key, "user", "read it", files=[{"name": "r.md", "text": text}])

    logs = {"a": [sent("aaaa", "one\ntwo")], "b": [sent("bbbb", "one\nthree")]}
    told = diff_view.lines(beside(lambda ref: {**call("price"), "messages": logs[ref]}, "ab"))
    assert told[4:8] == ["@@ file r.md aaaa -> bbbb @@", " one", "-two", "+three"]


def test_control_characters_are_shown_not_sent() -> None:
    bad = [said("aaaa", "assistant\x1b[1m", "a\x1b[2Jb", branches=["x\x9by"])]
    what = beside(lambda ref: {**call("price"), "messages": bad if ref == "a" else PRICE}, "ab")
    for told in (
        diff_view.lines(what),
        diff_view.lines(what, words=True),
        diff_view.stat(what),
        compare_view.lines(what, columns=100, side_by_side=True),
    ):
        assert all(line.isprintable() for line in told)
        assert any("\\x1b" in line for line in told)


@given(texts, texts)
def test_the_words_kept_and_taken_are_the_first_text_those_kept_and_put_the_second(
    a: str, b: str
) -> None:
    changes, _ = by_words(a, b)
    assert "".join(text for mark, text in changes if mark in " -") == a
    assert "".join(text for mark, text in changes if mark in " +") == b
    marks = [mark for mark, _ in changes]
    assert all(text for _, text in changes)
    assert set(pairwise(marks)) <= set(map(tuple, (" -", " +", "-+", "- ", "+ ")))


@given(texts, texts)
def test_the_lines_kept_and_taken_are_the_first_text(a: str, b: str) -> None:
    changes, _ = by_lines(a, b)
    assert "\n".join(text for mark, text in changes if mark in " -") == a
    assert "\n".join(text for mark, text in changes if mark in " +") == b
    assert by_lines(None, a).of == [("+", line) for line in a.split("\n")]


roles = st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=6)


@settings(max_examples=50)
@given(roles, roles)
def test_every_message_of_both_paths_is_in_one_pair(a: list[str], b: list[str]) -> None:
    left = [said(f"a{n}", role, "") for n, role in enumerate(a)]
    right = [said(f"b{n}", role, "") for n, role in enumerate(b)]
    found = list(pairs(left, right))
    assert [x for x, _ in found if x] == left
    assert [y for _, y in found if y] == right
    assert all(x["role"] == y["role"] for x, y in found if x and y)
