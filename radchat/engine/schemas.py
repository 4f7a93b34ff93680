"""JSON schemas before and after llguidance compiles them: what is wrong, and where.

A schema that asks for what can't be enforced is refused (UsageError), or, lenient, told of; one
that is no schema, or that nothing meets, is InvalidInput. Either names keyword and place.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from radchat.engine.grammar import Grammar
from radchat.engine.schema_checks import check, check_depth, enforceable
from radchat.engine.schema_parts import Path, dotted, place_of, places_of, walk
from radchat.errors import InvalidInput, RadchatError, UsageError

# one space where JSON allows white space, none elsewhere: flexible white space may go on for ever,
# and leaves little that is forced
STYLE: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # no \uXXXX: so spelled, a property's name would escape what the schema says of it
    "json_allowed_escapes": 'nrbtf\\"',
}

MAX_TRIED, TRIED_S = 200, 0.5  # parts of a schema, for one that is to blame, and how long

_KEYS = re.compile(r"Unimplemented keys: (\[.*\])")
# of llguidance's other refusals: a word in the message, and the keyword it is about
_ABOUT = (
    ("oneOf", "oneOf"),
    ("Invalid type", "type"),
    ("Unknown format", "format"),
    ("Pointer", "$ref"),
    ("Resource", "$ref"),
    ("regex parse error", "pattern"),
    ("lookaround", "pattern"),
    ("min/maxProperties", "minProperties"),
    ("min/maxProperties", "maxProperties"),
    ("minimum", "minimum"),
    ("minLength", "minLength"),
    ("minItems", "minItems"),
    ("minProperties", "minProperties"),
    ("required", "required"),
    ("anyOf", "anyOf"),
    ("anyOf is empty", "enum"),  # which is read as one
)


def to_grammar(grammar: Grammar) -> str:
    """For llguidance. Raises InvalidInput, UsageError."""
    schema = parsed(grammar.source)
    try:
        check(schema)
    except RecursionError:
        raise InvalidInput("the schema: too many references in a row", field="schema") from None
    own = enforceable(schema, lenient=grammar.lenient)
    return _grammar_of(own, lenient=grammar.lenient)


def _grammar_of(schema: Mapping[str, Any], *, lenient: bool) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides=cast("Any", {**STYLE, "lenient": lenient})
    )


def with_style(schema: Any) -> dict[str, Any]:
    """A schema inside another grammar."""
    checked = parsed(json.dumps(schema))
    check(checked)
    return {**enforceable(checked, lenient=False), "x-guidance": {**STYLE, "lenient": False}}


def parsed(source: str) -> dict[str, Any]:
    """The schema of a text. ``true`` is the one that everything meets."""
    check_depth(source)
    try:
        schema = json.loads(source, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        raise InvalidInput(f"the schema is not JSON: {error}", field="schema") from error
    if schema is True:
        return {}
    if schema is False:
        raise InvalidInput("the schema is false: nothing meets it", field="schema")
    if not isinstance(schema, dict):
        raise InvalidInput(
            "the schema must be an object, or true (any JSON at all)", field="schema"
        )
    return schema


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _no_number(digits)


def refused(grammar: Grammar, message: str, error_of: Callable[[str], str]) -> RadchatError:
    """What llguidance refused, in words of ours."""
    first = _gist(message)
    if grammar.kind != "json_schema":
        what = {"regex": "the regex", "lark": "the grammar"}.get(grammar.kind, grammar.kind)
        return InvalidInput(f"{what} can't be used: {first}", field="grammar")
    schema = parsed(grammar.source)
    found = _KEYS.search(message)
    if found:
        places = [place_of(schema, key) for key in json.loads(found.group(1))]
        return UsageError(
            f"the schema can't be enforced: {', '.join(places)} (--schema-lenient, or "
            "lenient=True in a program, leaves that out, and checks the answer afterwards)",
            keywords=places,
        )
    path, at = _culprit(schema, first, error_of)
    keyword = next((key for word, key in _ABOUT if word in message and key in at), None)
    place = dotted((*path, keyword) if keyword else path)
    where = f"{place}: " if place else ""
    if keyword in ("oneOf", "format") or "supported" in message:
        return UsageError(f"the schema can't be enforced: {where}{first}", keywords=[where[:-2]])
    return InvalidInput(f"the schema can't be used: {where}{first}", field="schema")


def _culprit(
    schema: Mapping[str, Any], gist: str, error_of: Callable[[str], str]
) -> tuple[Path, Mapping[str, Any]]:
    """The innermost of its schemas that by itself is refused for the same."""
    defs = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    until = time.monotonic() + TRIED_S
    for path, at in reversed(list(walk(schema))[:MAX_TRIED]):
        if time.monotonic() > until:
            break  # that it is refused is known
        alone = enforceable({**defs, **at}, lenient=True)
        if _gist(error_of(_grammar_of(alone, lenient=False))) == gist:
            return path, at
    return (), schema


def ignored(grammar: Grammar, warnings: Sequence[str]) -> tuple[str, ...]:
    """What a lenient schema leaves out, each with its place."""
    if not warnings:
        return ()
    schema = parsed(grammar.source)
    places: list[str] = []
    for warning in warnings:
        found = _KEYS.search(warning)
        keys = json.loads(found.group(1)) if found else []
        places += [place for key in keys for place in places_of(schema, key)] or [warning]
    return tuple(dict.fromkeys(places))


def _gist(message: str) -> str:
    """The line of a message that says what is wrong; its pictures of where are left out."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it was refused"])[0].removeprefix("at 1(8): ")
