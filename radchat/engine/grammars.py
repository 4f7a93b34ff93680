"""Grammars compiled for one model's tokens: once each, the least recently used forgotten.

llguidance does it, over our own tokenizer: tokens it forces are those that our tokenizer would
write. It is imported when the first grammar is asked for. ADR 0025 says why.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.engine import schemas, tool_grammar
from radchat.engine.grammar import Grammar
from radchat.engine.matcher import Matcher
from radchat.engine.schema_checks import check_depth
from radchat.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from radchat.engine.tokenizer import Tokenizer

MAX_KEPT = 64  # compiled grammars of one model
MAX_SOURCE = 1 << 20  # characters
MAX_CHOICES = 10_000
# hostile grammars end with an error in well under a second; ordinary ones use a hundredth of these
MAX_FUEL, MAX_SYMBOLS, MAX_STATES, MAX_ROW = 500_000, 100_000, 50_000, 20_000
# what of a Lark grammar is text: what is left of it names tokens by "<"
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/')


@dataclass(frozen=True, slots=True)
class Compiled:
    grammar: Grammar
    warnings: tuple[str, ...]  # what of a lenient schema is not enforced
    base: Matcher  # at the beginning; copies share what it has learned of the vocabulary

    def matcher(self) -> Matcher:
        return self.base.copy()


class Grammars:
    """Of one model. ``vocab_size``: width of its logits."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, stop_ids: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids
        self._lock = threading.Lock()
        self._known: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> Compiled:
        """On any thread. InvalidInput: malformed, or too large. UsageError: a schema asks for what
        can not be enforced; both name what and where.
        """
        with self._lock:
            known = self._known.get(grammar)
            if known is None:
                known = self._compile(grammar)
                self._known[grammar] = known
                if len(self._known) > MAX_KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(grammar)
            return known

    def _compile(self, grammar: Grammar) -> Compiled:
        if len(grammar.source) > MAX_SOURCE:
            raise InvalidInput(
                f"{_NAMES[grammar.kind]}: {len(grammar.source):,} characters are too many (at most "
                f"{MAX_SOURCE:,})",
                field="grammar",
            )
        try:
            grammar.source.encode()
            source = self._source(grammar)
            if grammar.after:
                source = _after(self._free(grammar.after), source)
        except ValueError as error:  # half a surrogate pair, in the source or spelled in it
            raise InvalidInput(f"{_NAMES[grammar.kind]}: {error}", field="grammar") from error
        inner = self._matcher(source)
        if inner.is_error():
            raise schemas.refused(grammar, inner.get_error(), self._error_of)
        warnings = schemas.ignored(grammar, inner.get_grammar_warnings())
        base = Matcher(inner, self._vocab_size, self._stop_ids)
        if not base.mask().any():
            raise InvalidInput(
                f"{_NAMES[grammar.kind]}: nothing this model can write meets it", field="grammar"
            )
        return Compiled(grammar, warnings, base)

    # -- kinds ------------------------------------------------------------------------------------

    def _source(self, grammar: Grammar) -> str:
        """What llguidance reads."""
        from llguidance import grammar_from

        match grammar.kind:
            case "json_schema":
                return schemas.to_grammar(grammar)
            case "regex":
                return grammar_from("regex", grammar.source)
            case "choices":
                return _choices(grammar)
            case "tools":
                return self._tools(grammar)
        _check_lark(grammar.source)
        try:
            return grammar_from("gbnf" if "::=" in grammar.source else "lark", grammar.source)
        except ValueError as error:
            raise InvalidInput(f"the grammar is not GBNF: {error}", field="grammar") from error

    def _tools(self, grammar: Grammar) -> str:
        form, tools, choice = tool_grammar.parsed(_json(grammar, "a list of tools"))
        for index, tool in enumerate(tools):
            self._check_parameters(tool, f"tools[{index}].parameters")
        return tool_grammar.to_lark(form, tools, choice, self._tokenizer.control)

    def _check_parameters(self, tool: Mapping[str, Any], place: str) -> None:
        """By itself, so that what is wrong is said of this tool."""
        try:
            alone = Grammar("json_schema", json.dumps(tool.get("parameters", True)))
            if error := self._error_of(schemas.to_grammar(alone)):
                raise schemas.refused(alone, error, self._error_of)
        except (InvalidInput, UsageError) as error:
            raise type(error)(f"{place}: {error.message}", **error.data) from error

    def _free(self, mark: str) -> str:
        """Lark of anything up to and with ``mark``, a token of its own or text; and ``@then``."""
        control = self._tokenizer.control.get(mark)
        if control is None:
            text = json.dumps(mark, ensure_ascii=False)
            return f"start: thought @then\nthought[lazy]: /(.|\\n)*/ {text}\n"
        others = ",".join(map(str, sorted({control, *self._stop_ids})))
        return f"start: <[^{others}]>* <[{control}]> @then\n"

    # -- llguidance -------------------------------------------------------------------------------

    def _matcher(self, source: str) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._tokens(), source, log_level=0, limits=_limits())

    def _error_of(self, source: str) -> str:
        return self._matcher(source).get_error()

    def _tokens(self) -> LLTokenizer:
        if self._vocabulary is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            wrapper = TokenizerWrapper(
                _Vocabulary(self._tokenizer, self._vocab_size, self._stop_ids)
            )
            stops = sorted(self._stop_ids) or None
            self._vocabulary = LLTokenizer(wrapper, eos_token=stops)
        return self._vocabulary


class _Vocabulary:
    """Our tokenizer as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: frozenset[int]) -> None:
        if tokenizer.table is None:
            raise InvalidInput(
                "this model's tokens are not bytes: its answers can't be held to a grammar",
                field="grammar",
            )
        self._tokenizer = tokenizer
        self.special_token_ids = sorted(tokenizer.control_ids | stop_ids)
        # an id that nothing says is the end here: models without one never draw it
        self.eos_token_id = min(stop_ids, default=min(self.special_token_ids, default=0))
        # logits may be wider than the tokenizer; a wrapper's tokens alone say how wide (n_vocab
        # is not heard), and what has no bytes is never allowed
        self.tokens = list(tokenizer.table) + [b""] * (vocab_size - len(tokenizer.table))
        # text in the midst of text: some layouts write a space before what follows a control token
        self._before = [
            next(i for i in range(len(tokenizer.table)) if i not in tokenizer.control_ids)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        words = text.decode() if isinstance(text, bytes) else text
        return list(self._tokenizer.encode_text(words, after=self._before))


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=MAX_FUEL,
        max_grammar_size=MAX_SYMBOLS,
        max_lexer_states=MAX_STATES,
        max_items_in_row=MAX_ROW,
        verbose_errors=False,
    )


def _check_lark(source: str) -> None:
    if source.lstrip().startswith("{"):
        raise InvalidInput("the grammar is neither Lark nor GBNF", field="grammar")
    if "::=" not in source and "<" in _QUOTED.sub("", source):
        raise InvalidInput(
            "the grammar can't be used: it names tokens by <…>, and an answer is text (quote it?)",
            field="grammar",
        )


def _json(grammar: Grammar, want: str) -> Any:
    check_depth(grammar.source, _NAMES[grammar.kind])
    try:
        return json.loads(grammar.source)
    except ValueError as error:
        raise InvalidInput(
            f"{_NAMES[grammar.kind]}: want {want} as JSON: {error}", field="grammar"
        ) from error


def _choices(grammar: Grammar) -> str:
    choices = _json(grammar, "a list of texts")
    if not (
        isinstance(choices, list) and choices and all(isinstance(c, str) and c for c in choices)
    ):
        raise InvalidInput("choices: want a list of texts, none of them empty", field="grammar")
    if len(choices) > MAX_CHOICES:
        raise InvalidInput(f"choices: want at most {MAX_CHOICES:,}", field="grammar")
    return "start: " + " | ".join(json.dumps(c, ensure_ascii=False) for c in choices)


def _after(lark: str, source: str) -> str:
    """What ``lark`` calls ``@then`` is the grammar."""
    inner = json.loads(source) if source.lstrip().startswith("{") else None
    if inner is not None and "grammars" in inner:
        first = dict(inner["grammars"][0], name="then")
        rest = inner["grammars"][1:]
    else:
        first, rest = {"name": "then", "lark_grammar": source}, []
    return json.dumps({"grammars": [{"lark_grammar": lark}, first, *rest]})


_NAMES = {
    "json_schema": "the schema",
    "regex": "the regex",
    "lark": "the grammar",
    "choices": "the choices",
    "tools": "the tools",
}
