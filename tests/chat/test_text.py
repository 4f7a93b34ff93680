"""Nothing a model says can drive the terminal, however it was cut."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.chat.text import Cleaner, clean, join_surrogates, one_line, typed, unsent

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;aGk=\x07",
    "\x1bPq#0\x1b\\",
    "\x1b_app\x1b\\",
    "\x1bc",
    "\x1b[6n",
    "\x9b31m\x9d0;t\x9c",
    "bell\x07 back\x08space",
    "over\rwrite",
    "\x1b]0;never closed, and words after it",
    "\x00\x7f",
    "\u202egnp.exe",
)
cut_texts = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE),
        st.text(st.characters(codec=None), max_size=8),
        st.sampled_from(("\r\n", "\r", "\ud83d", "\ude00", "\n", "\t")),
    ),
    max_size=12,
).map("".join)


def forbidden(text: str) -> list[str]:
    return [
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t")
        or c in "\u202a\u202e\u2066"
    ]


@given(cut_texts)
@settings(max_examples=400, deadline=None)
def test_no_control_character_survives_whatever_the_text(text: str) -> None:
    assert forbidden(clean(text)) == []
    assert forbidden(one_line(text)) == []
    assert "\n" not in one_line(text)


@given(cut_texts, st.data())
@settings(max_examples=400, deadline=None)
def test_any_cut_into_chunks_gives_the_same_text(text: str, data: st.DataObject) -> None:
    cleaner, shown, rest = Cleaner(), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        piece = cleaner.push(rest[:size])
        assert forbidden(piece) == []
        shown, rest = shown + piece, rest[size:]
    assert shown + cleaner.flush() == clean(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf"]), max_size=40))
def test_printable_text_is_kept_letter_for_letter(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_escaped_and_none_of_its_words_are_lost(text: str) -> None:
    shown = clean(text)
    assert all(c in shown for c in text if c.isprintable())
    assert shown != text


@pytest.mark.parametrize("text", ["[/INST]", "[bold", "a[0]", "list[str]", "[/path]", "[red]x"])
def test_square_brackets_are_no_markup(text: str) -> None:
    assert clean(text) == text == one_line(text)


def test_a_line_end_of_two_characters_may_be_cut_between_them() -> None:
    cleaner = Cleaner()
    assert cleaner.push("a\r") + cleaner.push("\nb") + cleaner.flush() == "a\nb"
    assert cleaner.push("a\r") + cleaner.push("b") == "a\\rb"
    assert cleaner.push("a\r") + cleaner.flush() == "a\\r"


def test_paired_surrogates_join_and_unpaired_ones_become_a_mark() -> None:
    assert join_surrogates("\ud83d\ude00") == "\U0001f600"
    assert join_surrogates("a\ud83db\ude00") == "a\ufffdb\ufffd"
    cleaner = Cleaner()
    assert cleaner.push("\ud83d") + cleaner.push("\ude00") == "\U0001f600"


def test_typed_line_ends_are_normalised_and_the_result_can_be_stored() -> None:
    assert typed("a\r\nb\rc\ud800") == "a\nb\nc\ufffd"
    typed("\udcff").encode()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("a\rb\r\nc\r", "a\nb\nc"),
        ("a\x1b\rb", "a\nb"),  # Alt+Enter
        ("\x1b[200~pasted\x1b[201~", "pasted"),
        ("x\x1b[A\x1b[1;5C\x1bOPy\x1bfz\x1b", "xyz"),
        ("\x04\x07tab\tkept\x7f", "tab\tkept"),
        ("\r\r", ""),
    ],
)
def test_what_was_typed_blindly_is_letters_and_lines(keys: str, text: str) -> None:
    assert unsent(keys) == text
