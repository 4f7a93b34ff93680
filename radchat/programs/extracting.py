"""The answer that a text comes to, and which answers are the same.

A chain of thought ends in its answer, so whatever is looked for is looked for last: the last match
of a regular expression, the last number, the last line. JSON is what the text is, or the first
value in it that has the path.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from radchat.chat.code_block import first_block
from radchat.errors import UsageError
from radchat.programs.matcher import Matcher, compiled

LAST_NUMBER, LAST_LINE, JSON = "last-number", "last-line", "json:"
MOST_VALUES = 1000  # places in a text where JSON may begin; the rest of such a text is no answer
PLAIN_DIGITS = 100  # a number with more before or after its point has an exponent
# a sign belongs to a number unless something stands before it that is subtracted from
_NUMBER = re.compile(
    r"((?:(?<![\w)\]])[-+\u2212](?:[$\u20ac\u00a3](?=[.0-9]))?)?)"
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)"
    r"((?:[eE][-+]?[0-9]+(?!\w))?)"
)
_STEP = re.compile(r"\[(-?[0-9]+)\]|(?:^|\.)([^.\[\]]+)")
_MARKED = re.compile(r"(\*\*|`)(.+)\1")


@dataclass(frozen=True, slots=True)
class Extraction:
    """How an answer is taken out of a text. ``find`` gives None where there is none; answers with
    the same ``key`` are one. ``what`` is missing where there is none.
    """

    what: str
    find: Callable[[str], str | None]
    key: Callable[[str], str]
    matcher: Matcher | None = None  # of a regular expression

    @property
    def is_whole(self) -> bool:
        """The answer is all of the text."""
        return self.find is whole

    def close(self) -> None:
        if self.matcher is not None:
            self.matcher.close()


def extraction(how: str | None) -> Extraction:
    """``how`` as `--extract` has it; UsageError for what can be none."""
    if how is None:
        return Extraction("a word", whole, _one_spaced)
    if how == LAST_NUMBER:
        return Extraction("a number", last_number, same)
    if how == LAST_LINE:
        return Extraction("a line", last_line, same)
    if how.startswith(JSON):
        path = parse_path(how.removeprefix(JSON))
        return Extraction(f"JSON with {how}", lambda text: in_json(text, path), same)
    matcher = Matcher(_checked(how))
    return Extraction(f"a match for {how}", matcher, same, matcher)


def _checked(pattern: str) -> str:
    try:
        with warnings.catch_warnings(action="ignore"):
            compiled(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"--extract {pattern}: no regular expression ({error}); also json:PATH, {LAST_NUMBER}, "
            f"{LAST_LINE}"
        ) from error
    if not pattern:
        raise UsageError(f"--extract wants a regular expression, json:PATH, {LAST_NUMBER}, ...")
    return pattern


# --- which are the same ---


def same(answer: str) -> str:
    """Case, spaces, a full stop at its end and the marks of emphasis around it don't matter, nor
    how a number is written.
    """
    text = _one_spaced(answer).removesuffix(".")
    if marked := _MARKED.fullmatch(text):
        text = marked[2].strip().removesuffix(".")
    return number(text) or text.casefold()


def _one_spaced(text: str) -> str:
    return " ".join(text.split())


def number(text: str) -> str | None:
    """The one way to write it: `1,000.0` is `1000`. None for what is no number."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else _written(match)


def _written(match: re.Match[str]) -> str | None:
    sign, digits, exponent = match.groups()
    is_negative = sign[:1] in ("-", "\u2212")
    try:
        value = Decimal(f"{'-' * is_negative}{digits.replace(',', '')}{exponent}")
        if value and abs(value.adjusted()) > PLAIN_DIGITS:
            return str(value.normalize(Context(prec=len(digits))))
    except ArithmeticError:  # an exponent of a billion billions
        return None
    if not value:
        return "0"
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# --- what is looked for ---


def whole(text: str) -> str | None:
    return text.strip() or None


def last_number(text: str) -> str | None:
    found = None
    for match in _NUMBER.finditer(text):
        found = match
    return None if found is None else _written(found)


def last_line(text: str) -> str | None:
    return text.rstrip().rpartition("\n")[2].strip() or None


def parse_path(path: str) -> list[str | int]:
    """`result.items[0].name`: keys, and places in a list; nothing is the value itself."""
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise UsageError(
                f"--extract {JSON}{path}: want keys and places in lists, as {JSON}answer or "
                f"{JSON}steps[-1].result"
            )
        steps.append(step[2] if step[1] is None else int(step[1]))
        at = step.end()
    return steps


def in_json(text: str, path: list[str | int]) -> str | None:
    """What stands at the path; a list or an object as JSON."""
    for value in _values(text):
        found = _at(value, path)
        if found is not None:
            return _told(found)
    return None


def _values(text: str) -> Iterator[Any]:
    """JSON in the text, the likeliest first: all of it, its code block, what begins in the
    middle.
    """
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse)
    for piece in (text.strip(), (first_block(text) or "").strip()):
        try:
            value, end = decoder.raw_decode(piece)
        except (ValueError, RecursionError):
            continue
        if end == len(piece):
            yield value
    at = 0
    for _ in range(MOST_VALUES):
        begins = [place for mark in "{[" if (place := text.find(mark, at)) >= 0]
        if not begins:
            return
        at = min(begins)
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            yield value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _at(value: Any, path: list[str | int]) -> Any:
    for step in path:
        is_fit = isinstance(value, dict if isinstance(step, str) else list)
        try:
            value = value[step] if is_fit else None
        except LookupError:
            return None
    return value


def _told(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, Decimal):
        return number(str(value))
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value: Decimal) -> int | float | str:
    if abs(value.adjusted()) > PLAIN_DIGITS:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)
