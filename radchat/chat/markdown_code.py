"""Code in colours, line by line as it comes.

A lexer wants the whole text. It is given what came since the last place where nothing was open, so
that the cost stays linear; only the new line is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radchat.chat.markdown_inline import Span

if TYPE_CHECKING:
    from pygments.lexer import Lexer

ENOUGH = 1500  # characters before a line, from where on it may be read without what came earlier
MOST = 6000  # and from where on it must
# of 16 colours those that are read on dark and on light; the most special kind first
STYLES = (
    ("Comment", "2"), ("Keyword", "35"), ("Operator.Word", "35"), ("Literal.String", "32"),
    ("Literal.Number", "36"), ("Name.Builtin", "36"), ("Name.Function", "1"), ("Name.Class", "1"),
    ("Name.Tag", "35"), ("Generic.Deleted", "31"), ("Generic.Inserted", "32"),
    ("Generic.Heading", "1"), ("Generic.Subheading", "1"),
)  # fmt: skip
SPANNING = ("Comment", "Literal.String")  # what may go on in the next line


class Highlighter:
    """``language``: of a fence; one that is not known, or none, is plain."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._before = ""

    def line(self, text: str) -> list[Span]:
        if self._lexer is None:
            return [("", text)]
        source = f"{self._before}{text}\n"
        read = self._lexer.get_tokens_unprocessed(source)
        tokens = [(str(kind)[len("Token.") :], value) for _, kind, value in read]
        if "".join(value for _, value in tokens) != source:  # a lexer that loses some
            self._lexer = None
            return [("", text)]
        kind = tokens[-1][0]
        is_open = kind.startswith(SPANNING) and not kind.startswith("Comment.Single")
        is_enough = len(source) > (MOST if is_open else ENOUGH)
        self._before = "" if is_enough else source
        return _last(tokens, len(source) - len(text) - 1, len(source) - 1)


def _lexer(language: str) -> Lexer | None:
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language)
    except ClassNotFound:
        return None


def _last(tokens: list[tuple[str, str]], start: int, end: int) -> list[Span]:
    """Those between two places, in their styles."""
    at, spans = 0, list[Span]()
    for kind, value in tokens:
        part = value[max(start - at, 0) : max(end - at, 0)]
        if part:
            style = next((s for name, s in STYLES if kind.startswith(name)), "")
            spans.append((style, part))
        at += len(value)
    return spans
