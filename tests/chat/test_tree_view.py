from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.chat.tree_rows import kv_cell
from radchat.chat.tree_shape import folded, short_ids, walk
from radchat.chat.tree_view import render
from radchat.chat.width import width
from tests.chat.trees import busy, chain, long, message, report

# `hits` is right-aligned under its heading
PICTURE = """\
session report-q3 (e7f2)  smollm2-135m  14 messages  2 branches   KV G 1.42 GiB  D 1.51 GiB  budget 71%
id     who   text                                tokens   kv  used  hits  lru
50c1   sys   You are a careful analyst...           412   G*  now     23    -
  a19e user  @report.md summarise                 8,113   G   now     21    9
    b7d0 asst The report says...                    240   G   now     21    8
      c2aa user price -10 %                          18   G   4s       3    7   price
        d9f1 asst Revenue would fall...             311   G   4s       3    6   <- HEAD
      c3b4 user cost -5 %                            15   D   2m       1    -
        e1c7 asst Margin...                         298   D   2m       1    -   costs
G device  H host  D disk  - none  * pinned    lru 1 goes first    shared by all branches: 8,765 tokens, computed once"""  # noqa: E501

NARROW = """\
session report-q3 (e7f2)  smollm2-135m  14 messages  2 branches
KV G 1.42 GiB  D 1.51 GiB  budget 71%
id     who   text                         tokens   kv  used  hits  lru
50c1   sys   You are a careful analyst...    412   G*  now     23    -
  a19e user  @report.md summarise          8,113   G   now     21    9
    b7d0 asst The report says...             240   G   now     21    8
      c2aa user price -10 %                   18   G   4s       3    7   price
        d9f1 asst Revenue would fall...      311   G   4s       3    6   <- HEAD
      c3b4 user cost -5 %                     15   D   2m       1    -
        e1c7 asst Margin...                  298   D   2m       1    -   costs
G device  H host  D disk  - none  * pinned    lru 1 goes first
shared by all branches: 8,765 tokens, computed once"""

BARE = """\
session report-q3 (e7f2)  smollm2-135m  14 messages  2 branches
id     who   text                                tokens
50c1   sys   You are a careful analyst...           412
  a19e user  @report.md summarise                 8,113
    b7d0 asst The report says...                    240
      c2aa user price -10 %                          18   price
        d9f1 asst Revenue would fall...             311   <- HEAD
      c3b4 user cost -5 %                            15
        e1c7 asst Margin...                         298   costs"""


BUSY = """\
session report-q3 (e7f2)  smollm2-135m  14 messages  5 branches
KV G 1.42 GiB  D 1.51 GiB  budget 71%
id     who   text        tokens kv    used hits lru
50c1   sys   You are...     412 G*    now    23   -
a19e   user  @report....  8,113 G     now    21   9
b7d0   asst  The repo...    240 G     now    21   8
  c2aa user  price -10 %     18 G     4s      3   7 price
  d9f1 asst  Revenue...     311 G     4s      3   6 main
  0abc user  what wou...  1,234 G 81% 2m      3   1
  1abc asst  what wou...  1,235 G 80% 2m      3   2
  2abc user  what wou...  1,236 G 80% 2m      3   3
  3abc asst  what wou...  1,237 G 80% 2m      3   4
  4abc user  what wou...  1,238 G 80% 2m      3   5
  5abc asst  what wou...  1,239 G 80% 2m      3   6 raise-prices-slowly  <- HEAD
    ffff user a sibling      12 G     now     0   -
    eeee user another...     12 G     now     0   - a-second-long-name
  c3b4 user  cost -5 %       15 D     2m      1   -
  e1c7 asst  Margin...      298 D     2m      1   - costs
G device  H host  D disk  - none  * pinned    lru 1 goes first
shared by all branches: 8,765 tokens, computed once"""


def drawn(tree: dict[str, Any], columns: int | None, **more: Any) -> str:
    return "\n".join(render(tree, columns=columns, **more))


def test_the_picture_is_the_one_of_the_manual() -> None:
    assert drawn(report(), None, cache=True) == PICTURE
    assert drawn(report(), 200, cache=True) == PICTURE


def test_at_eighty_columns_the_text_gives_way_and_no_number_does() -> None:
    assert drawn(report(), 80, cache=True) == NARROW


def test_branch_names_and_head_survive_where_the_text_and_the_space_run_out() -> None:
    assert drawn(busy(), 80, cache=True) == BUSY


@pytest.mark.parametrize("columns", [60, 70, 80, 90, 120])
def test_head_is_never_cut_off(columns: int) -> None:
    for line in render(busy(), columns=columns, cache=True):
        assert width(line) <= columns
        assert not line.lstrip().startswith("5abc") or line.endswith("  <- HEAD")


def test_without_the_cache_only_tokens_and_names_are_shown() -> None:
    assert drawn(report(), None) == BARE
    assert drawn(report(), 80) == BARE


@pytest.mark.parametrize("columns", [1, 2, 20, 80, 200])
@pytest.mark.parametrize(
    "text", ["漢字" * 40, "\U0001f468\u200d\U0001f469" * 30, "e\u0301" * 90, "\u2764\ufe0f" * 50]
)
def test_wide_text_never_makes_a_row_wider_than_the_terminal(columns: int, text: str) -> None:
    tree = report()
    tree["messages"][1]["text"] = text
    tree["name"] = text
    tree["branches"][text] = tree["head"]
    for line in render(tree, columns=columns, cache=True):
        assert width(line) <= columns


def test_columns_line_up_under_wide_text() -> None:
    tree = report()
    tree["messages"][2]["text"] = "漢字漢字 한국 \U0001f1e9\U0001f1ea"
    lines = render(tree, columns=100, cache=True)
    ends = {width(line.split("   G")[0]) for line in lines if "   G" in line and "KV" not in line}
    assert len(ends) == 1


def test_control_characters_and_newlines_in_text_and_names_are_shown_not_sent() -> None:
    tree = report()
    tree["messages"][0]["text"] = "a\n\x1b[2Jb\r\tc"
    tree["name"] = "x\x1b]0;y\x07"
    tree["branches"] = {"\x9b31m": long("d9f1")}
    picture = drawn(tree, None, cache=True)
    assert "a \\x1b[2Jb c" in picture
    assert picture.replace("\n", "").isprintable()


def test_only_letters_are_drawn() -> None:
    assert drawn(report(), None, cache=True).isascii()


def test_a_long_conversation_is_not_pushed_off_the_screen() -> None:
    lines = render(chain(60), columns=80, folds=False)
    assert len(lines) == 62
    assert all("message" in line for line in lines[2:])
    assert lines[-1].endswith("<- HEAD")
    piped = render(chain(60), columns=None, folds=False)
    assert piped[-1].startswith(" " * 118)  # nothing limits a pipe


def test_forks_stay_visible_in_a_deep_tree() -> None:
    tree = chain(60)
    tree["messages"] += [
        message("aaaa", "0014", "user", "left", 1),
        message("bbbb", "aaaa", "assistant", "left answer", 1),
    ]
    lines = {line.split()[0]: line for line in render(tree, columns=80, folds=False)[2:]}
    indent = {key: len(line) - len(line.lstrip()) for key, line in lines.items()}
    assert indent["0014"] == 0
    assert indent["aaaa"] == indent["bbbb"] == indent["0015"] == 2


def test_ids_grow_only_where_four_letters_are_not_enough() -> None:
    ids = [long("abcd1"), long("abcd2"), long("ffff")]
    assert short_ids(ids) == {ids[0]: "abcd1", ids[1]: "abcd2", ids[2]: "ffff"}
    assert short_ids(["ab"]) == {"ab": "ab"}


@pytest.mark.parametrize(
    ("held", "pinned", "cell"),
    [
        (100, False, "G"),
        (100, True, "G*"),
        (80, False, "G 80%"),
        (99, True, "G* 99%"),
        (0, False, "-"),
    ],
)
def test_a_partly_cached_message_shows_its_share(held: int, pinned: bool, cell: str) -> None:
    assert kv_cell(message("a", None, "user", "", 100, held=held, pinned=pinned)) == cell


@pytest.mark.parametrize(
    ("device", "disk", "cell"),
    [
        (0, 100, "D"),
        (0, 99, "D"),  # an answer's stop token
        (0, 40, "D 40%"),
        (30, 70, "G 30% D"),
        (30, 69, "G 30% D"),
        (30, 20, "G 30% D 20%"),
    ],
)
def test_a_message_on_two_tiers_shows_the_fastest_with_its_share_then_the_other(
    device: int, disk: int, cell: str
) -> None:
    entry = message("a", None, "assistant", "", 100)
    entry["cached"] = {"device": device, "host": 0, "disk": disk}
    assert kv_cell(entry) == cell
    entry["pinned"] = True
    assert kv_cell(entry) == cell[0] + "*" + cell[1:]


def test_without_a_model_the_header_tells_of_the_disk_alone() -> None:
    tree = report()
    tree["tiers"] |= {"device": None}
    assert "   KV D 1.51 GiB\n" in drawn(tree, None, cache=True)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_two_tiers_of_a_message_fit_as_one_does(columns: int) -> None:
    tree = report()
    tree["messages"][1]["cached"] = {"device": 4000, "host": 0, "disk": 3000}
    lines = render(tree, columns=columns, cache=True)
    assert all(width(line) <= columns for line in lines)
    assert any("G 49% D 36%" in line for line in lines)
    assert any(line.endswith("<- HEAD") for line in lines)


def test_an_empty_session_says_so() -> None:
    tree: dict[str, Any] = {
        "session": long("ab"),
        "name": "new",
        "head": None,
        "messages": [],
        "branches": {},
    }
    assert drawn(tree, 80) == "session new (ab00)  0 messages  0 branches\n(no messages yet)"
    told = drawn(tree | {"num_messages": 3}, 80)  # a filter shows none of them
    assert told.endswith("3 messages  0 branches\n(none of these)")


def test_colour_changes_no_letter() -> None:
    def paint(text: str, style: str) -> str:
        return f"<{style}>{text}</>"

    painted = drawn(report(), 80, cache=True, paint=paint)
    for mark in ("<bold>", "<dim>", "</>"):
        painted = painted.replace(mark, "")
    assert painted == NARROW


FOLDED = """\
session long (ab00)  60 messages  0 branches   KV G 1.42 GiB  D 1.51 GiB  budget 71%
id     who   text                                tokens   kv     used  hits   lru
0000   user  message 0                               10   G      now      0     -
  0001 user  message 1                               10   G      now      0     -
    0002 user message 2                              10   G      now      0     -
      0003 user message 3                            10   G      now      0     -
        ...      47 messages                        470   G 51%  now   0-46  3-26
          0033 user message 51                       10   G      now      0     -"""


def test_the_middle_of_a_long_conversation_is_one_row_with_its_sums() -> None:
    tree = chain(60) | {"tiers": report()["tiers"]}
    for number, each in enumerate(tree["messages"][4:51]):
        if number % 2:
            each["cached"] = {"device": 0, "host": 0, "disk": 0}
        else:
            each |= {"lru_rank": 26 - number // 2, "hits": number, "last_used_s": 4.0 + number}
    lines = drawn(tree, None, cache=True).split("\n")
    assert "\n".join(lines[:8]) == FOLDED
    assert [line.split()[0] for line in lines[7:-1]] == [f"{n:04x}" for n in range(51, 60)]
    assert len(drawn(tree, None, folds=False).split("\n")) == 62


def test_forty_rows_are_never_too_many() -> None:
    assert "..." not in drawn(chain(40), 80)
    assert "..." in drawn(chain(41), 80)


def test_what_has_a_name_forks_is_pinned_or_head_stays() -> None:
    tree = chain(5000)
    tree["messages"][1000]["labels"] = ["here"]
    tree["messages"].append(message("aaaaa", "07d0", "user", "a fork", 1))
    tree["branches"] = {"side": tree["messages"][3000]["id"]}
    tree["head"] = tree["messages"][4000]["id"]
    for each in tree["messages"][:101]:
        each["pinned"] = True
    told = drawn(tree, 100, cache=True)
    for text in ("here", "a fork", "side", "<- HEAD", "message 2000 ", "message 100 "):
        assert text in told
    lines = told.split("\n")
    assert len(lines) < 50
    assert [line.split()[4] for line in lines if "..." in line][:2] == ["G*", "G"]


@pytest.mark.parametrize(
    ("thought", "score", "shown"),
    [
        ("s1.1.2", 7.5, "s1.1.2 7.5"),
        ("s1.1.2", None, "s1.1.2"),
        (None, 0.43129, "0.431"),
        ("s2.10", 20.0, "s2.10 20"),
        ("s2.10", 0.001, "s2.10 0.001"),
        ("s2.10", 1234.5, "s2.10 1,234"),
        ("s2.10", -0.0, "s2.10 0"),
    ],
)
def test_a_thought_shows_its_name_and_score_after_its_labels(
    thought: str | None, score: float | None, shown: str
) -> None:
    tree = report()
    tree["messages"][4] |= {"labels": ["good"], "thought": thought, "score": score}
    line = next(each for each in drawn(tree, 100).split("\n") if "Revenue" in each)
    assert line.endswith(f"   good  {shown}  <- HEAD")


def test_what_follows_a_cut_message_is_told_of_with_it() -> None:
    tree = report()
    tree["messages"] = tree["messages"][:3]
    tree["messages"][2]["more_below"] = 4
    line = drawn(tree, 80).split("\n")[-1]
    assert line.endswith("   ... 4 more below")
    tree["head_below"] = tree["messages"][2]["id"]
    for columns in (80, 60, 50):
        assert drawn(tree, columns).split("\n")[-1].endswith("<- HEAD below")
    assert drawn(tree, 80).split("\n")[-1].endswith("   ... 4 more below  <- HEAD below")


@given(st.lists(st.integers(0, 7), max_size=120), st.sets(st.integers(0, 119)))
def test_every_message_is_shown_or_counted_exactly_once(back: list[int], named: set[int]) -> None:
    parents = {str(n): None if n < up or not n else str(n - 1 - up) for n, up in enumerate(back)}
    alike = {key: None if int(key) in named else int(key) // 50 for key in parents}
    left, hidden = folded(parents, alike.__getitem__)
    told = [each for key, _, _ in walk(left) for each in hidden.get(key, [key])]
    assert sorted(told, key=int) == list(parents)
    assert told == [key for key, _, _ in walk(parents)]  # and in the same order
    follow = Counter(parents.values())
    for middle in hidden.values():
        assert len(middle) >= 6
        assert len({alike[key] for key in middle}) == 1
        assert all(alike[key] is not None and follow[key] == 1 for key in middle)
    assert hidden == {} or len(parents) > 40
