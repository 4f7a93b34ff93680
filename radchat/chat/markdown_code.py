"""Code in colours, line by line as it comes.

A lexer wants the whole text. It is given what came since the last place where nothing was open, so
that the cost stays linear; only the new line is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radchat.chat.markdown_inline import Span

if TYPE_CHECKING:
    from pygments.lexer import Lexer

ENOUGH = 800  # characters before a line, from where on it may be read without what came earlier
MOST = 4000  # and from where on it must
LONG = 1000  # characters of a line that is data rather than code
SLOW = ("maple",)  # its lexer takes minutes for a line of prose
# of 16 colours those that are read on dark and on light; the most special kind first
STYLES = (
    ("Token.Comment", "2"),
    ("Token.Keyword", "35"),
    ("Token.Operator.Word", "35"),
    ("Token.Literal.String", "32"),
    ("Token.Literal.Number", "36"),
    ("Token.Name.Builtin", "36"),
    ("Token.Name.Function", "1"),
    ("Token.Name.Class", "1"),
    ("Token.Name.Tag", "35"),
    ("Token.Generic.Deleted", "31"),
    ("Token.Generic.Inserted", "32"),
    ("Token.Generic.Heading", "1"),
    ("Token.Generic.Subheading", "1"),
)
SPANNING = ("Token.Comment", "Token.Literal.String")  # what may go on in the next line


class Highlighter:
    """``language``: of a fence; one that is not known, or none, is plain."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._before = ""

    def line(self, text: str) -> list[Span]:
        if self._lexer is None or len(text) > LONG:
            return [("", text)]
        source = f"{self._before}{text}\n"
        tokens = list(self._lexer.get_tokens_unprocessed(source))
        if "".join(value for _, _, value in tokens) != source:  # a lexer that loses some
            self._lexer = None
            return [("", text)]
        kind = str(tokens[-1][1])
        is_open = kind.startswith(SPANNING) and not kind.endswith("Single")
        is_enough = len(source) > (MOST if is_open else ENOUGH)
        start, self._before = len(self._before), "" if is_enough else source
        return _between(tokens, start, start + len(text))


def _lexer(language: str) -> Lexer | None:
    if not language or language in SLOW:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language)
    except ClassNotFound:
        return None


def _between(tokens: list[tuple[int, object, str]], start: int, end: int) -> list[Span]:
    """Those between two places, in their styles."""
    at, spans = 0, list[Span]()
    for _, kind, value in tokens:
        part = value[max(start - at, 0) : max(end - at, 0)] if at + len(value) > start else ""
        if part:
            name = str(kind)
            spans.append((next((s for known, s in STYLES if name.startswith(known)), ""), part))
        at += len(value)
    return spans
