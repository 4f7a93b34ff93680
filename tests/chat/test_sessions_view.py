"""Hits of a search as lines: the match is marked, and always to be seen."""

from __future__ import annotations

from typing import Any

import pytest

from radchat.chat.sessions_view import hits_listing, listing, marked
from radchat.chat.width import width


def hit(snippet: str, *found: str, **more: Any) -> dict[str, Any]:
    marks = [[snippet.index(word), snippet.index(word) + len(word)] for word in found]
    plain = {"name": "talk", "branch": "main", "short": "d9f1", "created": 1.7e9}
    return {**plain, "snippet": snippet, "marks": marks, **more}


def test_each_match_is_marked_on_one_line() -> None:
    one = hit("the quick\nbrown  fox", "quick", "fox")
    assert marked(one["snippet"], one["marks"]) == "the [quick] brown [fox]"
    assert marked("nothing", []) == "nothing"


@pytest.mark.parametrize("columns", [10, 40, 60, 80, 200])
@pytest.mark.parametrize(
    "words",
    [
        "many words that go before " * 6,
        "x" * 200 + " ",
        "東京都に住む人の" * 20,
        "..." + "a b " * 50,
    ],
)
def test_the_first_match_is_seen_however_narrow_the_terminal(words: str, columns: int) -> None:
    lines = hits_listing([hit(f"{words}needle and more after it", "needle")], columns)
    assert all(width(line) <= columns for line in lines)
    if columns >= 60:
        assert "[needle]" in lines[1]


def test_an_unnamed_message_and_odd_names_keep_the_columns() -> None:
    hits = [
        hit("a needle", "needle"),
        hit("a needle", "needle", branch=None, name="東京\x1b[31m"),
        hit("a needle", "needle", name="n" * 99),
    ]
    lines = hits_listing(hits, 100)
    places = {width(line[: line.index("a [needle]")]) for line in lines[1:]}
    assert len(places) == 1
    assert "\x1b" not in "".join(lines)
    assert " @d9f1 " in lines[2]
    assert hits_listing([], 80) == []


@pytest.mark.parametrize("name", ["zeta", "n" * 99])
def test_what_is_not_on_disk_is_marked_in_lists_and_hits(name: str) -> None:
    session = {"id": "e7f2" * 8, "name": name, "ephemeral": True}
    kept = {**session, "ephemeral": False}
    of_list = listing([session, kept], 80)[1:]
    of_search = hits_listing(
        [{**hit("a needle", "needle", name=name), "ephemeral": each} for each in (True, False)], 80
    )[1:]
    for lines in (of_list, of_search):
        assert [" (ephemeral) " in line for line in lines] == [True, False]
