"""The tree picker without a terminal: keys in, rows and wishes out; and what is painted of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat.chat.picker_paint import paint
from radchat.chat.picker_state import KEYS, ON_HEAD, Picker, Wish
from radchat.chat.tree_shape import FILTERS
from radchat.chat.width import width
from tests.chat.trees import busy, chain, long, message, report

PAINTED = """\
report-q3  7 messages  5/7
   50c1 sys  You are a careful analyst...                                 G*
     a19e user @report.md summarise                                       G
       b7d0 asst The report says...                                       G
         c2aa user price -10 %                                     price  G
>          d9f1 asst Revenue would fall...                       <- HEAD  G
         c3b4 user cost -5 %                                              D
           e1c7 asst Margin...                                     costs  D"""


def picker(tree: dict[str, Any] | None = None) -> Picker:
    return Picker(report() if tree is None else tree)


def pressed(on: Picker, *keys: str) -> Wish | None:
    wish = None
    for key in keys:
        wish = on.press(key)
    return wish


def seen(on: Picker, columns: int = 76, rows: int = 12) -> list[str]:
    return ["".join(text for _, text in line).rstrip() for line in paint(on, columns, rows)]


def ids(on: Picker) -> list[str]:
    return [on.short[key] for key, _, _ in on.rows]


def test_the_tree_with_the_cursor_on_head() -> None:
    assert "\n".join(seen(picker())[:8]) == PAINTED


def test_thoughts_stand_beside_their_rows_are_found_and_pass_the_filter_of_labels() -> None:
    tree = report()
    for number, each in enumerate(tree["messages"][2:5:2], 1):
        each |= {"thought": f"s1.{number}", "score": 6.5 + number}
    on = picker(tree)
    lines = seen(on)
    assert lines[3].endswith(" s1.1 7.5  G")
    assert lines[5].endswith(" s1.2 8.5  <- HEAD  G")
    while on.filter != "labeled":
        pressed(on, "tab")
    assert ids(on) == ["b7d0", "c2aa", "d9f1", "e1c7"]  # two branches, and HEAD
    assert [depth for _, depth, _ in on.rows] == [0, 1, 2, 1]
    pressed(on, "/", *"s1.2", "enter")
    assert on.short[on.cursor or ""] == "d9f1"


def test_up_and_down_stop_at_the_ends() -> None:
    on = picker()
    for key, at in (("home", 0), ("up", 0), ("down", 1), ("j", 2), ("k", 1), ("end", 6),
                    ("down", 6), ("h", 4)):  # fmt: skip
        pressed(on, key)
        assert on.at == at


def test_a_page_is_what_is_seen() -> None:
    on = picker(chain(200))
    assert seen(on, rows=13)[-3].split()[1] == "00c7"
    pressed(on, "home")
    assert seen(on, rows=13)[1].split()[1] == "0000"
    pressed(on, "pagedown")
    assert on.at == 10
    assert seen(on, rows=13)[1].split()[0] == "0001"  # it scrolls no further than it must
    paint(on, 80, 43)
    pressed(on, "pagedown")
    assert on.at == 50


def test_left_folds_then_goes_up_and_right_unfolds_then_goes_down() -> None:
    on = picker()
    pressed(on, "up", "up", "left")
    assert ids(on) == ["50c1", "a19e", "b7d0"]
    assert seen(on)[3].endswith("  +4  G")
    pressed(on, "left")
    assert on.at == 1
    pressed(on, "down", "right")
    assert len(on.rows) == 7
    assert on.at == 2
    pressed(on, "right")
    assert on.at == 3
    pressed(on, "left", "h")
    assert on.short[on.cursor or ""] == "d9f1"  # whatever is folded above it


def test_enter_goes_to_the_row_and_q_leaves() -> None:
    assert pressed(picker(), "up", "enter") == Wish("go", long("c2aa"))
    for key in ("q", "escape", "c-c", "c-d"):
        assert pressed(picker(), key) == Wish("leave")


def test_a_name_is_asked_for_a_fork_and_none_is_a_name_too() -> None:
    on = picker()
    assert pressed(on, "f") is None
    assert seen(on)[-1] == "name of the new branch (none: automatic):"
    assert pressed(on, *"low q", "backspace", "backspace", "enter") == Wish(
        "fork", long("d9f1"), "low"
    )
    assert pressed(on, "f", "enter") == Wish("fork", long("d9f1"), "")
    on.again(Wish("fork", long("d9f1"), "low"), "there is a branch low already")
    assert seen(on)[-2:] == [
        "there is a branch low already",
        "name of the new branch (none: automatic): low",
    ]
    assert pressed(on, "escape") is None
    assert pressed(on, "q") == Wish("leave")


def test_a_paste_is_text_of_the_line_that_is_typed_and_else_nothing() -> None:
    on = picker()
    on.paste("q")
    assert on.mode == "walk"
    pressed(on, "f")
    on.paste(" a name\nof two ")
    assert pressed(on, "enter") == Wish("fork", long("d9f1"), "a name of two")


def test_a_name_for_what_is_gone_is_not_asked_for_again() -> None:
    on = picker()
    wish = pressed(on, "end", "f", "x", "enter")
    assert wish is not None
    tree = report()
    on.renew({**tree, "messages": [m for m in tree["messages"] if m["id"] != wish.message]})
    on.again(wish, "no message e1c7")
    assert (on.mode, on.notice) == ("walk", "no message e1c7")


def test_a_label_is_asked_for_and_an_empty_one_is_none() -> None:
    assert pressed(picker(), "l", *"good", "enter") == Wish("label", long("d9f1"), "good")
    on = picker()
    assert pressed(on, "l", "x", "c-u", "enter") is None
    assert on.mode == "walk"


def test_marks_take_what_follows_and_never_what_head_needs() -> None:
    on = picker()
    pressed(on, "d")
    assert on.notice == ON_HEAD
    pressed(on, "up", "d")
    assert (on.notice, on.marked) == (ON_HEAD, set())
    pressed(on, "end", "d", "up", "d")
    assert on.marks == {long("c3b4")}
    assert on.marked == {long("c3b4"), long("e1c7")}
    assert [line[:2] for line in seen(on)[5:8]] == ["  ", ">d", " d"]
    pressed(on, "down", "d")  # one of them: the mark above it goes
    assert on.marked == set()
    assert on.notice == "c3b4: not deleted"


def test_what_is_marked_is_asked_about_before_it_goes_and_before_one_leaves() -> None:
    on = picker()
    assert pressed(on, "x") is None
    assert "nothing is marked" in on.notice
    count = Wish("count", marked=(long("c3b4"),))
    assert pressed(on, "end", "up", "d", "x") == count
    on.ask("delete 2 messages?")
    assert seen(on)[-2] == "delete 2 messages? y/N"
    assert pressed(on, "n") is None  # asked for by itself: on we walk
    assert pressed(on, "q") == count
    for key in ("escape", "c-c"):  # back
        on.ask("delete 2 messages?")
        assert pressed(on, key) is None
        assert on.mode == "walk"
    assert pressed(on, "q") == count
    for key in ("enter", "n"):  # of y/N, Enter is the N
        on.ask("delete 2 messages?")
        assert pressed(on, key) == Wish("leave")
    assert pressed(on, "home", "enter") == count
    on.ask("delete 2 messages?")
    assert pressed(on, "y") == Wish("prune", marked=(long("c3b4"),))
    left = report()
    left["messages"] = left["messages"][:5]
    assert on.pruned(left) == Wish("go", long("50c1"))
    assert on.marks == on.marked == set()


def test_words_are_found_with_what_is_above_them() -> None:
    on = picker()
    pressed(on, "/", *"MARGIN")
    assert ids(on) == ["50c1", "a19e", "b7d0", "c3b4", "e1c7"]
    assert on.short[on.cursor or ""] == "e1c7"
    assert "1 with MARGIN" in seen(on)[0]
    assert "fg:ansibrightblack" in paint(on, 76, 12)[1][0][0]
    pressed(on, "enter")
    assert pressed(on, "enter") == Wish("go", long("e1c7"))
    pressed(on, "escape")
    assert len(on.rows) == 7
    pressed(on, "/", *"%", "enter", "n")
    first = on.cursor
    pressed(on, "n")
    assert {first, on.cursor} == {long("c2aa"), long("c3b4")}
    pressed(on, "N")
    assert on.cursor == first
    pressed(on, "/", *"zzz")
    assert seen(on)[1] == "(none of these)"
    assert pressed(on, "up", "down", "enter", "enter", "d", "f") is None


def test_names_and_ids_are_found_too() -> None:
    for words in ("price", "c2aa", "-10 pri"):
        on = picker()
        pressed(on, "/", *words)
        assert long("c2aa") in on.matches


def test_tab_goes_through_the_filters_and_head_is_always_shown() -> None:
    on = picker()
    told = []
    for name in list(FILTERS)[1:]:
        pressed(on, "tab")
        assert on.filter == name
        assert f"filter {name}" in seen(on)[0]
        told.append(ids(on))
    assert told == [
        ["50c1", "a19e", "c2aa", "d9f1", "c3b4"],
        ["50c1", "a19e", "b7d0", "c2aa", "d9f1", "c3b4", "e1c7"],
        ["c2aa", "d9f1", "e1c7"],
    ]
    pressed(on, "tab")
    assert on.filter == "default"


def test_help_is_shown_until_a_key() -> None:
    on = picker()
    pressed(on, "?")
    told = "\n".join(seen(on, 80, 24))
    assert all(name in told and text in told for name, text in KEYS)
    assert pressed(on, "q") is None
    assert on.mode == "walk"


def test_a_session_without_a_message_can_be_left() -> None:
    on = picker(chain(0))
    assert seen(on)[1] == "(no messages yet)"
    for key in ("enter", "up", "pagedown", "left", "right", "d", "f", "l", "n", "tab", "h"):
        assert pressed(on, key) is None
    assert pressed(on, "/", "x", "enter", "escape", "x") is None
    assert pressed(on, "q") == Wish("leave")


def test_nothing_of_a_text_or_name_is_sent_as_it_is() -> None:
    tree = report()
    tree["messages"][3]["text"] = "a\n\x1b[2Jb\tc"
    tree["branches"]["x\x9b31m"] = long("c2aa")
    tree["name"] = "n\x1b]0;y\x07"
    on = picker(tree)
    on.say("no \x1b[1m")
    assert all(line.isprintable() for line in seen(on, 200))
    assert "a \\x1b[2Jb c" in "\n".join(seen(on, 200))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (20, 5), (1, 1), (40, 3)])
@pytest.mark.parametrize("text", ["漢字" * 90, "e\u0301" * 90, "x" * 900])
def test_no_line_is_wider_than_the_screen_and_none_is_too_many(
    columns: int, rows: int, text: str
) -> None:
    tree = busy()
    tree["messages"][9]["text"] = text
    tree["branches"][text] = tree["head"]
    on = picker(tree)
    for keys in ((), ("l", *"漢字" * 60), ("escape", "?")):
        pressed(on, *keys)
        lines = paint(on, columns, rows)
        assert len(lines) <= rows
        assert all(sum(width(piece) for _, piece in line) <= columns for line in lines)
    pressed(on, "x")
    if columns >= 40:
        assert any("<- HEAD" in line for line in seen(on, columns, max(rows, 24)))


def test_of_five_thousand_messages_only_the_rows_on_the_screen_are_laid_out() -> None:
    class Counted(dict[str, Any]):
        asked = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.asked += key == "text"
            return super().get(key, default)

    tree = chain(5000)
    tree["messages"] = [Counted(each) for each in tree["messages"]]
    on = picker(tree)
    for key in ("pageup", "up", "home", "end"):
        pressed(on, key)
        Counted.asked = 0
        assert len(paint(on, 80, 24)) == 24
        assert 0 < Counted.asked <= 24


keys = st.sampled_from(
    ["up", "down", "left", "right", "pageup", "pagedown", "home", "end", "enter", "tab", "escape",
     "backspace", *"dxflhnNq/?ya1 "]
)  # fmt: skip
parents = st.lists(st.integers(-1, 11), max_size=12)


@given(parents, st.integers(0, 11), st.lists(keys, max_size=40), st.integers(4, 12))
def test_the_cursor_is_on_a_row_that_is_seen_whatever_is_pressed(
    above: list[int], head: int, pressed_keys: list[str], rows: int
) -> None:
    messages = []
    for n, parent in enumerate(above):
        up = f"{parent % n:04x}" if n and parent >= 0 else None
        messages.append(message(f"{n:04x}", up, "user" if n % 2 else "tool", f"text {n}", 1))
    tree = chain(0) | {"messages": messages, "branches": {}}
    tree["head"] = messages[head % len(messages)]["id"] if messages else None
    on = picker(tree)
    path = set(on.path)
    for key in pressed_keys:
        on.press(key)
        lines = paint(on, 60, rows)
        assert len(lines) == rows
        assert not on.marked & path
        assert bool(on.cursor) == bool(on.rows)
        if on.rows and on.mode != "help":
            assert on.rows[on.at][0] == on.cursor
            assert on.top <= on.at < on.top + rows - 3
            assert lines[1 + on.at - on.top][0][1].startswith(">")
        assert sum(line[0][1].startswith(">") for line in lines if line) <= 1
