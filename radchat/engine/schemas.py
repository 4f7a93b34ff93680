"""JSON schemas before and after llguidance compiles them: what is wrong, and where.

A schema that asks for what can't be enforced is refused (UsageError), or, lenient, told of; one
that is no schema, or that nothing meets, is InvalidInput. Either names keyword and place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from radchat.engine.grammar import Grammar
from radchat.errors import InvalidInput, RadchatError, UsageError

MAX_DEPTH = 200  # of brackets; llguidance's own parser ends at about a thousand
MAX_NODES = 50_000
# one space where JSON allows white space, none elsewhere: flexible white space may go on for ever,
# and leaves little that is forced
STYLE: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

_ONE = ("additionalProperties", "items", "additionalItems", "not", "contains", "propertyNames")
_ONE_MORE = ("if", "then", "else", "unevaluatedProperties", "unevaluatedItems")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
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
    ("minimum", "minimum"),
    ("minLength", "minLength"),
    ("minItems", "minItems"),
    ("minProperties", "minProperties"),
    ("required", "required"),
    ("anyOf", "anyOf"),
    ("anyOf is empty", "enum"),  # which is read as one
)


def to_grammar(grammar: Grammar) -> str:
    """For llguidance. Raises InvalidInput."""
    from llguidance import LLMatcher

    schema = parsed(grammar.source)
    _check(schema)
    own = {key: value for key, value in schema.items() if key != "x-guidance"}
    return LLMatcher.grammar_from_json_schema(
        json.dumps(own), overrides=cast("Any", {**STYLE, "lenient": grammar.lenient})
    )


def with_style(schema: Any) -> dict[str, Any]:
    """A schema inside another grammar."""
    checked = parsed(json.dumps(schema))
    _check(checked)
    return {**checked, "x-guidance": {**STYLE, "lenient": False}}


def parsed(source: str) -> dict[str, Any]:
    """The schema of a text. ``true`` is the one that everything meets."""
    _check_depth(source)
    try:
        schema = json.loads(source)
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


def invalid(instance: Any, schema: Mapping[str, Any]) -> str:
    """Why a JSON value does not meet a schema, by an independent validator; empty where it does."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(instance))
    return (
        "" if error is None else f"{_dotted(error.absolute_path) or 'the answer'}: {error.message}"
    )


def refused(grammar: Grammar, message: str) -> RadchatError:
    """What llguidance refused, in words of ours."""
    first = _gist(message)
    if grammar.kind != "json_schema":
        what = {"regex": "the regex", "lark": "the grammar"}.get(grammar.kind, grammar.kind)
        return InvalidInput(f"{what} can't be used: {first}", field="grammar")
    schema = parsed(grammar.source)
    found = _KEYS.search(message)
    if found:
        places = [_place(schema, key) for key in json.loads(found.group(1))]
        return UsageError(
            f"the schema can't be enforced: {', '.join(places)} (--schema-lenient leaves that out, "
            "and checks the answer afterwards)",
            keywords=places,
        )
    keyword = next((key for word, key in _ABOUT if word in message and _places(schema, key)), None)
    where = f"{_place(schema, keyword)}: " if keyword else ""
    if keyword in ("oneOf", "format") or "not supported" in message:
        return UsageError(f"the schema can't be enforced: {where}{first}", keywords=[where[:-2]])
    return InvalidInput(f"the schema can't be used: {where}{first}", field="schema")


def ignored(grammar: Grammar, warnings: Sequence[str]) -> tuple[str, ...]:
    """What a lenient schema leaves out, each with its place."""
    if not warnings:
        return ()
    schema = parsed(grammar.source)
    places: list[str] = []
    for warning in warnings:
        found = _KEYS.search(warning)
        keys = json.loads(found.group(1)) if found else []
        places += [place for key in keys for place in _places(schema, key)] or [warning]
    return tuple(dict.fromkeys(places))


# -- before --------------------------------------------------------------------------------------


def _check_depth(source: str) -> None:
    """Without recursion: what follows has it."""
    depth, inside, escaped = 0, False, False
    for char in source:
        if inside:
            inside = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            inside = True
        elif char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidInput(
                    f"the schema is nested too deeply: at most {MAX_DEPTH} brackets", field="schema"
                )
        elif char in "}]":
            depth -= 1


def _check(schema: Mapping[str, Any]) -> None:
    """A schema by the standard, of a bearable size, that something can meet."""
    import jsonschema

    for number, _ in enumerate(_walk(schema)):
        if number > MAX_NODES:
            raise InvalidInput(
                f"the schema is too large: at most {MAX_NODES:,} parts", field="schema"
            )
    try:
        jsonschema.Draft202012Validator.check_schema(_without_old_forms(schema))
    except jsonschema.SchemaError as error:
        where = _dotted(error.absolute_path) or "the schema"
        raise InvalidInput(
            f"the schema is not valid: {where}: {error.message}", field="schema"
        ) from error
    if not _Meetable(schema).is_meetable(schema):
        raise InvalidInput(
            "the schema can't be met: it requires itself inside itself without end", field="schema"
        )


def _without_old_forms(schema: Any) -> Any:
    """``items`` as a list, of drafts before 2020-12, llguidance reads as ``prefixItems``."""
    if isinstance(schema, list):
        return [_without_old_forms(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _without_old_forms(value) for key, value in schema.items()}
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        if "additionalItems" in out:
            out["items"] = out.pop("additionalItems")
    return out


class _Meetable:
    """Whether some finite value can meet a schema, as far as what it requires of itself goes: the
    least fixed point, begun with nothing being meetable.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, bool] = {}
        self._has_changed = False

    def is_meetable(self, schema: Any) -> bool:
        while True:
            self._has_changed = False
            self._seen: set[int] = set()
            found = self._look(schema)
            if found or not self._has_changed:
                return found

    def _look(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        key = id(schema)
        if key in self._seen or self._known.get(key):
            return self._known.get(key, False)
        self._seen.add(key)
        found = self._judge(schema)
        if found:
            self._known[key] = self._has_changed = True
        return found

    def _judge(self, schema: Mapping[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and not self._look(self._target(schema["$ref"])):
            return False
        if not all(self._look(each) for each in schema.get("allOf", ())):
            return False
        for key in ("anyOf", "oneOf"):
            if key in schema and not any(self._look(each) for each in schema[key]):
                return False
        types = schema.get("type")
        types = [types] if isinstance(types, str) else types
        if types is None or set(types) - {"object", "array"}:
            return True  # a number, say
        return any(self._of_type(schema, kind) for kind in types)

    def _of_type(self, schema: Mapping[str, Any], kind: str) -> bool:
        if kind == "object":
            named = schema.get("properties", {})
            more = schema.get("additionalProperties", True)
            return all(self._look(named.get(name, more)) for name in schema.get("required", ()))
        least = schema.get("minItems", 0)
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        wanted = [*first[:least], *([rest] if least > len(first) else [])]
        return all(self._look(each) for each in wanted)

    def _target(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            return True  # refused by llguidance
        at: Any = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping) and name in at:
                at = at[name]
            elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at = at[int(name)]
            else:
                return True  # refused by llguidance
        return at


# -- places --------------------------------------------------------------------------------------


def _walk(schema: Any) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every schema in a schema, with the keys that lead to it."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while todo:
        path, at = todo.pop(0)
        if not isinstance(at, Mapping):
            continue
        yield path, at
        single = [key for key in (*_ONE, *_ONE_MORE) if isinstance(at.get(key), Mapping)]
        todo += [((*path, key), at[key]) for key in single]
        for key in _MANY:
            if isinstance(at.get(key), list):
                todo += [((*path, key, str(i)), each) for i, each in enumerate(at[key])]
        for key in _NAMED:
            if isinstance(at.get(key), Mapping):
                todo += [((*path, key, name), each) for name, each in at[key].items()]


def _places(schema: Any, keyword: str) -> list[str]:
    return [_dotted((*path, keyword)) for path, at in _walk(schema) if keyword in at]


def _place(schema: Any, keyword: str) -> str:
    return next(iter(_places(schema, keyword)), keyword)


def _dotted(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))


def _gist(message: str) -> str:
    """The line of a message that says what is wrong; its pictures of where are left out."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it was refused"])[0].removeprefix("at 1(8): ")
