"""The inside of a line of Markdown: which of it is settled, and its text in styles.

markdown-it reads emphasis, code and links. What a chat wants otherwise: nothing is taken for HTML
or an entity, math keeps its backslashes and stars, ``2*3*4`` is arithmetic, emphasis works beside
ideographs, and a link shows where it leads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from radchat.chat.text import one_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.rules_inline.state_inline import Delimiter
    from markdown_it.token import Token

Span: TypeAlias = tuple[str, str]  # (style, text); a style is the numbers of an SGR sequence

BOLD, DIM, ITALIC, UNDERLINE, CODE = "1", "2", "3", "4", "36"
LONG = 1000  # characters at once, from where on marks are not read: that takes their square
MARKS = frozenset("*_`[]()<>\\$!")  # without one of these a text is what it is
_ESCAPED = frozenset(
    "*_`#<>|~+-.!&"
)  # not brackets, braces, $, backslash: LaTeX has a use for them
_IDEOGRAPH = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff01-\uff60\U00020000-\U0003fffd"
_CLOSES = (
    "\u3001\u3002\u3009\u300b\u300d\u300f\u3011\uff01\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff5d"
)
_OPENS = "\u3008\u300a\u300c\u300e\u3010\uff08\uff5b"
# after white space; and beside an ideograph, less before what closes and after what opens
BREAKS = re.compile(
    rf"(?<=\s)|(?<=[{_IDEOGRAPH}])(?<![{_OPENS}])(?=[^{_CLOSES}\s\u0300-\u036f\u200d\u3099\u309a\ufe00-\ufe0f])"
    rf"|(?<=[^\s{_IDEOGRAPH}*_`$<\\\\!(\[{{\"'])(?=[{_IDEOGRAPH}])(?![{_CLOSES}])"
)
_MATH = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$"}
_MARK = re.compile(r"\\.|`+|\$\$?|[\[\]<]", re.DOTALL)
_LINK_AHEAD = re.compile(r"<[^\s<>]*\Z")
_IDEOGRAPHS = re.compile(f"[{_IDEOGRAPH}]")


def spans(source: str, *, paints: bool = True) -> list[Span]:
    """The text in styles. Without paint, what the style says is said by the marks themselves."""
    if MARKS.isdisjoint(source) or len(source) > LONG:
        return [("", source)]
    return list(_styled(_read(source)[0], paints=paints))


def settled(source: str) -> int:
    """How much of the source no continuation can change: up to a place where a line may break."""
    end = len(source) if len(source) <= LONG or MARKS.isdisjoint(source) else 0
    while (at := _first_open(source[:end])) is not None:
        end = max(
            (m.start() for m in BREAKS.finditer(source, 0, at + 1) if m.start() <= at), default=0
        )
    return end


def _first_open(source: str) -> int | None:
    """Where the first thing begins that is not yet closed, and may be."""
    if MARKS.isdisjoint(source):
        return None
    found = _open_span(source)
    if "*" in source or "_" in source:
        waiting = (at for at, mark in _read(source)[1] if mark.open and mark.end < 0)
        found = min((at for at in (found, next(waiting, None)) if at is not None), default=None)
    return found


def _open_span(source: str) -> int | None:
    """The same of code, math, links and addresses."""
    at, brackets = 0, list[int]()
    while found := _MARK.search(source, at):
        mark, start, at = found[0], found.start(), found.end()
        end: int | None = at
        if mark[0] == "`":
            end = _end_of_code(source, at, len(mark))
        elif _opens_math(source, mark, at):
            end = _end_of_math(source, mark, at)
        elif mark == "<" and _LINK_AHEAD.match(source, start):
            end = None
        elif mark == "[":
            brackets.append(start)
        elif mark == "]" and brackets:
            label = brackets.pop()
            if source.startswith("(", at):
                start, end = label, _end_of_target(source, at + 1)
        if end is None:
            return min([start, *brackets])
        at = end
    return brackets[0] if brackets else None


def _end_of_code(source: str, at: int, ticks: int) -> int | None:
    for found in re.compile("`+").finditer(source, at):
        if len(found[0]) == ticks:
            return found.end()
    return None


def _opens_math(source: str, mark: str, at: int) -> bool:
    """``$`` does before neither a space nor a digit: that is money."""
    if mark == "$":
        return at < len(source) and not source[at].isspace() and not source[at].isdigit()
    return mark in _MATH


def _end_of_math(source: str, mark: str, at: int) -> int | None:
    end = source.find(_MATH[mark], at)
    while (
        mark == "$"
        and end >= 0
        and (source[end - 1] in " \\" or source[end + 1 : end + 2].isdigit())
    ):
        end = source.find("$", end + 1)
    return None if end < 0 else end + len(mark)


def _end_of_target(source: str, at: int) -> int | None:
    depth = 1
    for found in re.compile(r"\\.|[()]", re.DOTALL).finditer(source, at):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


# --- markdown-it ---


def _read(source: str) -> tuple[list[Token], list[tuple[int, Delimiter]]]:
    marks: list[tuple[int, Delimiter]] = []
    tokens = _parser().parseInline(source, {"marks": marks, "source": source})
    return tokens[0].children or [], marks


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import emphasis

    def emphasised(state: StateInline, silent: bool) -> bool:
        start, known = state.pos, len(state.delimiters)
        if not emphasis.tokenize(state, silent):
            return False
        for offset, mark in enumerate(state.delimiters[known:]):
            _relax(mark, state.src[start - 1 : start], state.src[state.pos : state.pos + 1])
            if state.src is state.env["source"]:  # not of a picture's label
                state.env["marks"].append((start + offset, mark))
        return True

    parser = MarkdownIt("commonmark", {"html": False})
    parser.disable(["entity", "html_inline"])
    parser.inline.ruler.at("emphasis", emphasised)
    parser.inline.ruler.at("escape", _escaped)
    parser.inline.ruler.before("escape", "math", _math, {"alt": []})
    parser.normalizeLink = parser.normalizeLinkText = lambda url: url  # type: ignore[method-assign, assignment]
    return parser


def prepare() -> None:
    """Import what is slow, so that the first marks need not wait for it."""
    _parser()


def _relax(mark: Delimiter, before: str, after: str) -> None:
    if mark.marker == ord("_") and mark.length > 1:  # Python's names: __init__
        mark.open = mark.close = False
    elif (before + after).isascii() and before.isalnum() and after.isalnum():
        mark.open = False
    elif mark.marker == ord("*") and _IDEOGRAPHS.search(before + after):  # no spaces around words
        mark.open |= bool(after.strip())
        mark.close |= bool(before.strip())


def _escaped(state: StateInline, silent: bool) -> bool:
    at = state.pos
    if state.src[at] != "\\" or at + 1 >= state.posMax:
        return False
    char = state.src[at + 1]
    if not silent:
        state.pending += char if char in _ESCAPED else state.src[at : at + 2]
    state.pos += 2
    return True


def _math(state: StateInline, silent: bool) -> bool:
    at = state.pos
    found = _MARK.match(state.src, at)
    if found is None or not _opens_math(state.src, found[0], found.end()):
        return False
    end = _end_of_math(state.src, found[0], found.end())
    if end is None or end > state.posMax:
        return False
    if not silent:
        state.pending += state.src[at:end]
    state.pos = end
    return True


# --- styles ---


def _styled(tokens: list[Token], *, paints: bool) -> Iterator[Span]:
    styles: list[str] = []
    links: list[tuple[Token, int]] = []  # one is in, and how much was shown before
    shown = ""
    for token in tokens:
        kind = token.type.removesuffix("_open").removesuffix("_close")
        style = ";".join(styles)
        if token.type in ("softbreak", "hardbreak"):
            yield style, "\n"
        elif kind == "code_inline":
            text = token.content if paints else f"{token.markup}{token.content}{token.markup}"
            yield ";".join([*styles, CODE]), text
            shown += token.content
        elif kind in ("em", "strong", "link"):
            if token.nesting > 0:
                styles.append({"em": ITALIC, "strong": BOLD, "link": UNDERLINE}[kind])
            elif styles:
                styles.pop()
            if kind != "link":
                yield style, "" if paints else token.markup
            elif token.nesting > 0:
                links.append((token, len(shown)))
            else:
                link, start = links.pop()
                if link.info != "auto":
                    yield from _target(link, "href", shown[start:], ";".join([*styles, DIM]))
        elif kind == "image":
            yield style, token.content
            yield from _target(token, "src", token.content, ";".join([*styles, DIM]))
            shown += token.content
        else:
            yield style, token.content
            shown += token.content


def _target(token: Token, name: str, shown: str, style: str) -> Iterator[Span]:
    """Where a link leads, less where its text says so."""
    title = str(token.attrs.get("title") or "")
    to = one_line(str(token.attrs.get(name) or ""))
    if to and (to != shown or title):
        quoted = f' "{one_line(title)}"' if title else ""
        yield style, f" ({to}{quoted})" if shown else f"({to}{quoted})"
