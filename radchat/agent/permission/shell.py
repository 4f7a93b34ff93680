"""A command line taken apart: what runs in it, what it writes, what can't be told.

tree-sitter parses it as bash does (docs/adr/0030). Every command counts, wherever it stands: after
``;`` ``&&`` ``||`` ``|`` ``&`` or a newline, in a subshell, in ``$(...)``, in a here document. What
is not understood is a part of its own that no list and no rule for another part covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from radchat.agent.permission.running import Word, is_harmless_variable, runs

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_LINE = 20_000  # characters
MAX_DEPTH = 8  # of lines in lines: bash -c "bash -c ..."
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|\\\n")
_GLOB = frozenset("*?[")

PartKind = Literal["command", "write", "read", "unknown"]


@dataclass(frozen=True, slots=True)
class Part:
    kind: PartKind
    text: str  # as it stands in the line, or why it is unknown
    words: tuple[Word, ...] = ()  # of a command; of a redirection, its file

    @property
    def name(self) -> str:
        return self.words[0].text if self.words else ""

    @property
    def static_words(self) -> tuple[str, ...]:
        """Up to the first that is not known."""
        found = []
        for word in self.words:
            if not word.is_static:
                break
            found.append(word.text)
        return tuple(found)

    @property
    def is_static(self) -> bool:
        return all(word.is_static for word in self.words)


def parts_of(line: str, depth: int = 0) -> list[Part]:
    """All parts of a line, in no order that means anything. At least one."""
    if len(line) > MAX_LINE:
        return [Part("unknown", f"a line of {len(line):,} characters")]
    if _CONTROL.search(line):
        return [Part("unknown", "it has control characters, or a line that goes on with \\")]
    if depth > MAX_DEPTH:
        return [Part("unknown", "lines in lines in lines")]
    try:
        source = line.encode()
    except UnicodeEncodeError:
        return [Part("unknown", "it is no Unicode text")]
    root = _parser().parse(source).root_node
    if root.has_error:
        return [Part("unknown", "it can't be parsed")]
    found = list(_walk(root, depth))
    return found or [Part("unknown", "it runs nothing")]


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


# -- nodes -----------------------------------------------------------------------------------------

# what is only around others
_AROUND = frozenset((
    "program", "list", "pipeline", "subshell", "if_statement", "elif_clause", "else_clause",
    "while_statement", "for_statement", "do_group", "case_statement", "case_item",
    "negated_command", "redirected_statement", "command_substitution", "process_substitution",
    "string", "concatenation", "heredoc_redirect", "heredoc_body", "command_name",
))  # fmt: skip
_LEAVES = frozenset((
    "word", "number", "raw_string", "ansi_c_string", "string_content", "comment",
    "variable_name", "file_descriptor", "heredoc_start", "heredoc_end", "heredoc_content",
    "simple_expansion", "extglob_pattern", "regex", "special_variable_name",
))  # fmt: skip
_READS = ("<", "<<<")
_WRITES = (">", ">>", "&>", "&>>", ">|", "<>")
_DUPLICATES = (">&", "<&")


def _walk(node: Node, depth: int) -> Iterator[Part]:
    kind = node.type
    if kind == "command":
        yield from _command(node, depth)
    elif kind == "file_redirect":
        yield from _redirect(node, depth)
    elif kind == "herestring_redirect" or kind in _AROUND:
        yield from _below(node, depth)
    elif kind == "compound_statement":
        if node.children and node.children[0].type == "{":
            yield from _below(node, depth)
        else:
            yield _unknown(node, "arithmetic")
    elif kind == "expansion":
        yield from _expansion(node, depth)
    elif kind == "variable_assignment":
        yield from _assignment(node, depth)
    elif kind == "test_command":
        yield from _test(node, depth)
    elif kind == "arithmetic_expansion":
        if any(each.type in ("variable_name", "subscript") for each in _all(node)):
            yield _unknown(node, "arithmetic of variables")
    elif kind not in _LEAVES and node.is_named:
        yield _unknown(node, kind.replace("_", " "))


def _below(node: Node, depth: int) -> Iterator[Part]:
    for child in node.named_children:
        yield from _walk(child, depth)


def _all(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        yield from _all(child)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _unknown(node: Node, why: str) -> Part:
    return Part("unknown", f"{why}: {_text(node)}")


def _expansion(node: Node, depth: int) -> Iterator[Part]:
    """``${x}``, ``${x:-word}``: commands in it are commands; ``${x@P}`` and the like run code."""
    if "@" in _text(node) or "!" in _text(node):
        yield _unknown(node, "an expansion that may run something")
    for child in node.named_children:
        if child.type != "subscript":
            yield from _walk(child, depth)
        else:
            yield _unknown(node, "a subscript")


def _assignment(node: Node, depth: int) -> Iterator[Part]:
    name = _text(node.named_children[0]) if node.named_children else ""
    if not is_harmless_variable(name):
        yield Part("unknown", f"sets {name}: {_text(node)}")
    for child in node.named_children[1:]:
        yield from _walk(child, depth)


def _test(node: Node, depth: int) -> Iterator[Part]:
    """``[ -f x ]`` runs nothing; of what is not known, arithmetic may."""
    dynamic = ("simple_expansion", "expansion", "subscript", "arithmetic_expansion")
    subscripts = any("[" in _text(each) for each in node.named_children)
    if subscripts or any(each.type in dynamic for each in _all(node)):
        yield _unknown(node, "a test of variables")
    for each in _all(node):
        if each.type in ("command_substitution", "process_substitution"):
            yield from _below(each, depth)


def _redirect(node: Node, depth: int) -> Iterator[Part]:
    sign = next((child.type for child in node.children if not child.is_named), "")
    targets = [child for child in node.named_children if child.type != "file_descriptor"]
    for target in targets:
        yield from _walk(target, depth)
    word = _word(targets[0]) if targets else Word("", is_static=False)
    if sign in _READS:
        if sign == "<":
            yield Part("read", _text(node), (word,))
    elif sign in _DUPLICATES and word.is_static and (word.text.isdigit() or word.text == "-"):
        return
    elif sign in (*_WRITES, *_DUPLICATES):
        yield Part("write", _text(node), (word,))
    else:
        yield _unknown(node, "a redirection")


def _command(node: Node, depth: int) -> Iterator[Part]:
    words: list[Word] = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            yield from _assignment(child, depth)
        elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            yield from _walk(child, depth)
        elif child.type == "command_name":
            yield from _below(child, depth)
            words.append(
                _word(child.named_children[0])
                if child.named_children
                else Word("", is_static=False)
            )
        else:
            yield from _walk(child, depth)
            words.append(_word(child))
    yield from of_words(tuple(words), _text(node), depth)


def of_words(words: tuple[Word, ...], text: str, depth: int) -> Iterator[Part]:
    """A command by its words: itself, and what it runs in its turn."""
    if not words or not words[0].is_static or not words[0].text:
        yield Part("unknown", f"what runs is not known: {text}")
        return
    yield from _wrapped(words, text, depth)


def _wrapped(words: tuple[Word, ...], text: str, depth: int) -> Iterator[Part]:
    ran = runs(words)
    if not ran.is_through:
        yield Part("command", text, words)
    if ran.words is not None:
        yield from of_words(ran.words, text, depth + 1)
    if ran.line is not None:
        yield from parts_of(ran.line, depth + 1)


# -- words -----------------------------------------------------------------------------------------


def _word(node: Node) -> Word:
    kind, text = node.type, _text(node)
    if kind == "word":
        return _bare(text)
    if kind == "number":
        return Word(text)
    if kind == "raw_string":
        return Word(text[1:-1])
    if kind == "string":
        inner = [child for child in node.children if child.type != '"']
        if all(child.type == "string_content" for child in inner):
            return Word(re.sub(r'\\(["\\$`])', r"\1", text[1:-1]))
        first = inner[0] if inner and inner[0].type == "string_content" else None
        return Word("" if first is None else _text(first), is_static=False)
    if kind == "concatenation":
        return _joined([_word(child) for child in node.named_children])
    if kind == "process_substitution":
        return Word("")  # a pipe, whose other end is a part of its own
    if kind == "ansi_c_string" and "\\" not in text:
        return Word(text[2:-1])
    return Word("", is_static=False)


def _joined(words: Sequence[Word]) -> Word:
    text = ""
    for word in words:
        text += word.text
        if not word.is_static or word.text in ("{", "}"):
            return Word(text.removesuffix("{"), is_static=False)
    return Word(text)


def _bare(text: str) -> Word:
    """Unquoted: backslashes quote, patterns become names of files."""
    plain = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
    at = min((i for i, char in enumerate(text) if char in _GLOB), default=None)
    if at is None and "{" not in text:
        return Word(plain)
    return Word(text[:at] if at is not None else text.partition("{")[0], is_static=False)
