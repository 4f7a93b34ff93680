"""Markdown as it is shown: what it looks like, and that nothing is lost, however it was cut."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from types import FrameType

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.chat.markdown import Markdown, rendered
from radchat.chat.markdown_inline import LONG, spans
from radchat.chat.text import clean
from radchat.chat.width import width

SGR = re.compile("\x1b\\[[0-9;]*m")
LETTER = re.compile(r"[^\W_]")


def shown(text: str, columns: int = 60) -> str:
    return "\n".join(SGR.sub("", line) for line in rendered(text, columns))


def streamed(pieces: list[str], columns: int = 40) -> str:
    markdown = Markdown(lambda: columns)
    return "".join(markdown.push(piece) for piece in pieces) + markdown.flush()


def first_lost(text: str, found: str) -> str | None:
    """The first letters of the text that do not come in what was found, and in their order: that is
    another in the cells of a table.
    """
    wanted = LETTER.findall(text)
    if re.search(r"^[> ]*\|", text, re.MULTILINE):
        return "".join((Counter(wanted) - Counter(found)).elements()) or None
    left = iter(found)
    for number, letter in enumerate(wanted):
        if letter not in left:
            return "".join(wanted[number : number + 20])
    return None


# --- any text, cut anywhere ---

SNIPPETS = [
    "**",
    "*",
    "_",
    "`",
    "``",
    "```",
    "~~~",
    "# ",
    "## ",
    "- ",
    "1. ",
    "10) ",
    "> ",
    "|",
    "|---|",
    "| a | b |\n|--|:-:|\n| c | d |\n",
    "\n",
    "\n\n",
    " ",
    "    ",
    "[",
    "](",
    ")",
    "](u1)",
    "![",
    "<",
    ">",
    "<tag>",
    "</s>",
    "&amp;",
    "$",
    "$$",
    "\\[",
    "\\]",
    "\\(",
    "\\)",
    "\\",
    "---",
    "===",
    "[x]",
    "[/INST]",
    "a[0]",
    "[ref]: http://e.f",
    "2*3*4",
    "snake_case",
    "word",
    "two words",
    "中文",
    "重点。",
    "（注）",
    "👨‍👩‍👧",
    "🇩🇪",
    "❤️",
    "e\u0301",
    "```py\n",
    "\n```\n",
    "\t",
    "x" * 90,
    "\\*",
    "<http://h.i/j>",
    "http://k.l",
    "\\x1b[2J",
    '"',
    "!",
    ":",
    "\\r",
]
# what a small model says again and again, once it has begun
LOOPS = [
    "1. ",
    "- ",
    "* - ",
    "> ",
    ">",
    "> 1. ",
    "-",
    "*",
    "**",
    "_",
    "#",
    "`",
    "~",
    "|",
    "| a ",
    "|-",
]
LOOPS += ["[", "![", "[a](", "]", "<", "$", "$a ", "$$", "\\(", "\\", "\t", "(", "x", "中"]
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=5), max_size=40).map(
    lambda parts: clean("".join(parts))
)


LOOPING = st.tuples(
    st.sampled_from(["", *SNIPPETS]), st.sampled_from(LOOPS), st.sampled_from([200, 600]), TEXTS
).map(lambda parts: clean(parts[0] + parts[1] * parts[2] + parts[3][:40]))


@st.composite
def cut_texts(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> tuple[str, list[str]]:
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [*places, len(text)]
    return text, [text[a:b] for a, b in zip([0, *places], ends, strict=True)]


@settings(max_examples=300, deadline=None)
@given(cut_texts(), st.sampled_from([1, 2, 20, 80]))
def test_any_cut_shows_the_same_and_no_word_is_lost(
    cut: tuple[str, list[str]], columns: int
) -> None:
    check_cuts(*cut, columns)


def check_cuts(text: str, pieces: list[str], columns: int) -> None:
    whole = streamed([text], columns)
    assert streamed(pieces, columns) == whole
    assert streamed(list(text), columns) == whole
    assert "\x1b" not in SGR.sub("", whole)
    assert "\r" not in whole
    assert first_lost(text, SGR.sub("", whole)) is None


@settings(max_examples=20, deadline=None)
@given(cut_texts(LOOPING))
def test_so_does_a_text_that_repeats_a_mark_without_end(cut: tuple[str, list[str]]) -> None:
    check_cuts(*cut, 80)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from([1, 2, 20, 80]))
def test_rendered_lines_fit_and_lose_nothing(text: str, columns: int) -> None:
    for paints in (True, False):
        lines = rendered(text, columns, paints=paints)
        bare = [SGR.sub("", line) for line in lines]
        assert paints or bare == lines
        assert all(width(line) <= max(columns, 2) for line in bare), bare
        assert first_lost(text, "".join(bare)) is None


# --- what it looks like ---


@pytest.mark.parametrize(
    ("text", "painted"),
    [
        ("## A *b*", "\x1b[1m##\x1b[0m\x1b[1m A\x1b[0m\x1b[1m \x1b[0m\x1b[1;3mb\x1b[0m\n"),
        ("**b** *i* `c`", "\x1b[1mb\x1b[0m \x1b[3mi\x1b[0m \x1b[36mc\x1b[0m\n"),
        ("**a**b", "\x1b[1ma\x1b[0mb\n"),
        ("[a b](http://c)", "\x1b[4ma b\x1b[0m\x1b[2m (http://c)\x1b[0m\n"),
        ("> q", "\x1b[2m> \x1b[0mq\n"),
        ("中**重点**文", "中\x1b[1m重点\x1b[0m文\n"),
        ("这**“点”**文", "这\x1b[1m“点”\x1b[0m文\n"),
        (
            "```py\nif 1:\n```",
            "\x1b[2m```py\x1b[0m\n\x1b[35mif\x1b[0m \x1b[36m1\x1b[0m:\n\x1b[2m```\x1b[0m\n",
        ),
    ],
)
def test_styles(text: str, painted: str) -> None:
    assert streamed([text]) == painted


VERBATIM = [
    "[/INST] a[0] list[str] [x] [bold [red]x",
    "<tag> </s> <br> &lt;&#27; &nbsp;",
    "2*3*4 = 24, 2 ** 3, a*b*c",
    "snake_case_name __init__.py",
    "$x^*$ and $y^*$, $5 and $6*",
    r"\(a_1 * b_2*\) and \[ x* \]",
    r"C:\new\table, \\host\share",
    "[foo]: http://x.y/z",
    "[^1]: a note",
    "Title\n=====",
    "key: value\n===\nx",
    "~~gone~~",
    "#tag",
    "- [ ] todo\n- [x] done",
    "1. one\n1. two\n7) seven",
    "an *open star\n\n**and `more",
    "| a | b",
    "a | b\n--|--",
    "    code *as it is*",
    "line one\nline two",
    "- a\n\n  b\n  - c\n    d",
    "$$\na*b*c\n$$",
    "\\[\nx_1 * y\n\\]",
    "&copy;",
    "https://x.y/a_b_c*d",
    "<!-- no -->",
    "![",
    "`",
    "***",
]


@pytest.mark.parametrize("text", VERBATIM[:-1])
def test_what_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("- one two three", 9, ["- one two", "  three"]),
        ("1. one\n   - two three", 10, ["1. one", "   - two", "     three"]),
        ("> one two three", 9, ["> one two", "> three"]),
        ("## one two three", 9, ["## one", "two three"]),
        ("a  \nb\\\nc", 9, ["a", "b\\", "c"]),
        ("a\n\n\n\nb\n\n", 9, ["a", "", "b"]),
        ("重点内容。请看", 8, ["重点内", "容。请看"]),
        ("see abcdefghijkl", 8, ["see", "abcdefgh", "ijkl"]),
        ("- 1. x\n- ```py\n  a\n  ```\n- b", 9, ["- 1. x", "-", "```py", "a", "```", "- b"]),
        ("```py\n❤️**\n```", 2, ["``", "`p", "y", "❤️", "**", "``", "`"]),
        ("```\nnever closed\n  # x *y*", 20, ["```", "never closed", "  # x *y*"]),
        ("````md\n```py\nx\n```\n````\n*z*", 9, ["````md", "```py", "x", "```", "````", "z"]),
        ("> ```\n> x *y*\nz *w*", 9, ["> ```", "> x *y*", "z w"]),
        ("---\na: b\n---", 3, ["---", "a:", "b", "---"]),
        (
            "|a|b|\n|-|-:|\n|中|1|\n|`x`|22|y|",
            20,
            ["a        b", "--  ------", "中       1", "x   22 | y"],
        ),
        ("[http://a](http://a) ![p](q)", 40, ["http://a p (q)"]),
        ('[a](b "c d")', 40, ['a (b "c d")']),
        ("**two\nlines** [a\nb](c)", 40, ["two", "lines a", "b (c)"]),
    ],
)
def test_lines(text: str, columns: int, lines: list[str]) -> None:
    assert [SGR.sub("", line) for line in rendered(text, columns)] == lines


def test_without_paint_the_marks_stay() -> None:
    text = "**b** *i* `c` __d__ _e_"
    assert rendered(text, 40, paints=False) == [text]
    assert rendered("# a *b*", 40, paints=False) == ["# a *b*"]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("Some words", " and *more*", "and more\n"),
        ("- an item that is", " long", "  long\n"),
        ("```py\n# a\nx", " = a * b *c\n# d\n```\n*e*", "x = a * b *c\n# d\n```\ne\n"),
        ("| a |\n|---|\n| b |\n", "| c |\n", "| c |\n"),
        ("**bold", "er** text", "er** text\n"),
        ("one\n\n", "two", "two\n"),
    ],
)
def test_an_answer_that_is_gone_on_with(before: str, after: str, shown: str) -> None:
    markdown = Markdown(lambda: 40)
    markdown.resume(before)
    assert SGR.sub("", markdown.push(after) + markdown.flush()) == shown


# --- cost ---

READING = {"settled", "spans", "_read", "start_of", "table_lines"}


@pytest.mark.parametrize(
    ("part", "most"),
    [
        ("plain words and more of them, ", 3),
        ("some **bold** and `code` in it, ", 20),
        ("- a list\n", 10),
        ("| a | b |\n", 10),
        ("中文字", 3),
        ("~~~py\nx = 1  # one of many\n", 40),
        ("x" * 50, 3),
        ("an *open mark ", 300),
        ("[ ", 600),
        ("1. ", 30),
        ("* - ", 30),
        ("> ", 30),
        ("-", 30),
        ("#", 30),
        ("`", 30),
        ("|", 30),
        (" ", 30),
    ],
)
def test_the_cost_of_a_character_does_not_grow_with_the_answer(part: str, most: int) -> None:
    costs = []
    for size in (1_000, 2_000):
        text = part * (size // len(part))
        costs.append(read_meanwhile([text[i : i + 4] for i in range(0, size, 4)]) / size)
    assert costs[1] <= most
    assert costs[1] < 1.5 * costs[0] + 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_mark_repeated_without_end_ends_nothing(loop: str) -> None:
    text = clean(loop * 2_000)
    for pieces in ([text], [text[i : i + 40] for i in range(0, len(text), 40)]):
        assert first_lost(text, SGR.sub("", streamed(pieces))) is None


def test_what_is_long_and_cant_be_taken_word_by_word_is_shown_as_it_is() -> None:
    """Nested emphasis takes the square of its length."""
    cell = "*a " * (LONG // 3)
    assert len(spans(f"*b* {cell[:30]}")) > 1
    assert spans(f"*b* {cell}") == [("", f"*b* {cell}")]
    assert "*b* *a" in shown(f"| h |\n|---|\n| *b* {cell} |")


def test_a_table_of_more_cells_than_anybody_reads_is_text() -> None:
    text = "\n".join(["|" * 200, "|-" * 200 + "|", "| x |", "| y |"])
    assert shown(text, 1000) == text


def read_meanwhile(pieces: list[str]) -> int:
    """How many characters are read while this is shown."""
    total = 0

    def hear(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal total
        code = frame.f_code
        if event != "call" or "chat/markdown" not in code.co_filename:
            return
        if code.co_name in READING:
            total += sum(len(each) for each in frame.f_locals.values() if isinstance(each, str))
        elif code.co_filename.endswith("markdown_code.py") and code.co_name == "line":
            total += len(frame.f_locals["self"]._before) + len(frame.f_locals["text"])

    sys.setprofile(hear)
    try:
        streamed(pieces)
    finally:
        sys.setprofile(None)
    return total


# --- on a screen ---

WIDE = """\
## 标题 and *more*

中文段落：这是一个**很重要**的例子，请看`代码`。 e\u0301a\u0308 a ❤️ b 👨‍👩‍👧 c 🇩🇪 d

- 列表项目 with words
  > quoted 引用文字也很长

| 名 | value |
|----|------:|
| 中文字 | 1 |
"""


@pytest.mark.parametrize("columns", [10, 20, 80])
def test_no_line_is_broken_by_the_terminal(columns: int) -> None:
    """What a terminal shows is what was written, line for line: none was wider than we thought."""
    screen = pyte.Screen(columns, 200)
    text = WIDE.replace("👨‍👩‍👧", "👩").replace("\ufe0f", "")  # pyte drops what follows these
    out = "\n".join(rendered(text, columns))
    pyte.Stream(screen).feed(out.replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display]
    seen = [SGR.sub("", line) for line in out.split("\n")]
    assert [unicodedata.normalize("NFC", line) for line in lines[: len(seen)]] == [
        unicodedata.normalize("NFC", line) for line in seen
    ]


@pytest.mark.parametrize("columns", [1, 2, 20, 80])
def test_no_cluster_is_cut_in_two(columns: int) -> None:
    out = "\n".join(rendered(WIDE, columns))
    for cluster in ("👨‍👩‍👧", "🇩🇪", "❤️", "e\u0301"):
        assert cluster in out
