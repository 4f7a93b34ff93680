"""What is wrong with a JSON schema, found before llguidance reads it; and its own holes, closed.

Held against an independent validator (tests): whatever that refuses is never written.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from radchat.engine.patterns import portable
from radchat.engine.schema_meetable import Meetable
from radchat.engine.schema_parts import Path, dotted, mapped, parts, target, walk
from radchat.errors import InvalidInput, UsageError

MAX_DEPTH = 200  # of brackets; llguidance's own parser ends at about a thousand
MAX_NODES = 10_000  # two seconds of the standard's check
MAX_DENOMINATOR = 1024  # of a step that is exact in binary
MAX_DECIMALS = 15  # of a bound: llguidance rounds what has more
LARGEST_STEP = 20_000  # of all together: automata of so many states
MAX_NAME_PATTERNS = 100  # each is compared with each
MAX_PATTERNS = 16  # that one text must fit: each may double what llguidance looks at


def check_depth(source: str, what: str = "the schema") -> None:
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
                    f"{what}: nested too deeply: at most {MAX_DEPTH} brackets", field="schema"
                )
        elif char in "}]":
            depth -= 1


def check(schema: Mapping[str, Any]) -> None:
    """A schema by the standard, of a bearable size, that something can meet."""
    import jsonschema

    steps = 0.0
    for number, (path, at) in enumerate(walk(schema)):
        if number > MAX_NODES:
            raise InvalidInput(
                f"the schema is too large: at most {MAX_NODES:,} parts", field="schema"
            )
        # before the check by the standard, which compiles them, and warns
        if isinstance(at.get("pattern"), str):
            _portable(path, "pattern", at["pattern"])
        if isinstance(at.get("patternProperties"), Mapping):
            for pattern in at["patternProperties"]:
                _portable(path, "patternProperties", pattern)
        step = at.get("multipleOf")
        steps += step if isinstance(step, (int, float)) else 0
        if steps > LARGEST_STEP:
            raise cannot(path, "multipleOf", f"at most {LARGEST_STEP:,}, in all of the schema")
    try:
        jsonschema.Draft202012Validator.check_schema(mapped(schema, without_old_forms))
    except jsonschema.SchemaError as error:
        where = dotted(error.absolute_path) or "the schema"
        raise InvalidInput(
            f"the schema is not valid: {where}: {error.message}", field="schema"
        ) from error
    if _patterns_of(schema, schema, {}) > MAX_PATTERNS:
        raise cannot((), "allOf", f"at most {MAX_PATTERNS} patterns for one text")
    if not Meetable(schema).is_meetable(schema):
        raise InvalidInput(
            "the schema can't be met: it requires what it does not allow, or itself without end",
            field="schema",
        )


def _patterns_of(root: Mapping[str, Any], at: Any, known: dict[int, int]) -> int:
    """How many patterns one text in it may have to fit, at most."""
    if not isinstance(at, Mapping):
        return 0
    if id(at) not in known:
        known[id(at)] = 0  # of one that holds itself
        inner, every = [0], [int(isinstance(at.get("pattern"), str))]
        for (keyword, *_), each in parts(at):
            found = every if keyword == "allOf" else inner
            found.append(_patterns_of(root, each, known))
        if "$ref" in at:
            every.append(_patterns_of(root, target(root, at["$ref"]), known))
        known[id(at)] = max(inner) + sum(every)
    return known[id(at)]


def without_old_forms(_path: Path, schema: dict[str, Any]) -> dict[str, Any]:
    """``items`` as a list, of drafts before 2020-12, llguidance reads as ``prefixItems``."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    return schema


def enforceable(schema: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
    """What llguidance is given: each of its own holes closed, or refused with its place."""

    def change(path: Path, at: dict[str, Any]) -> dict[str, Any]:
        at.pop("x-guidance", None)  # its settings are not the schema's to make
        if at.get("uniqueItems") is False:
            del at["uniqueItems"]
        if isinstance(at.get("pattern"), str):
            at["pattern"] = _portable(path, "pattern", at["pattern"])
        if isinstance(at.get("patternProperties"), Mapping):
            at["patternProperties"] = {
                _portable(path, "patternProperties", pattern): each
                for pattern, each in at["patternProperties"].items()
            }
        for keyword, why in (*_too_large(at), *(() if lenient else _holes(at))):
            raise cannot(path, keyword, why)
        return at

    return cast("dict[str, Any]", mapped(schema, change))


def _too_large(at: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        bound = at.get(keyword, 0)
        if isinstance(bound, float) and round(bound, MAX_DECIMALS) != bound:
            yield keyword, f"at most {MAX_DECIMALS} digits after the point"
    if len(at.get("patternProperties", ())) > MAX_NAME_PATTERNS:
        yield "patternProperties", f"at most {MAX_NAME_PATTERNS}"


def _holes(at: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    step = at.get("multipleOf")
    if isinstance(step, float) and step.as_integer_ratio()[1] > MAX_DENOMINATOR:
        yield "multipleOf", f"{step} is no exact number to those who check it"
    least = at.get("minProperties", 0)
    if isinstance(least, (int, float)) and least > len(set(at.get("required", ()))) + 1:
        yield "minProperties", "a name could come twice, and count twice"


def _portable(path: Path, keyword: str, pattern: str) -> str:
    try:
        found = portable(pattern)
        with contextlib.suppress(re.error):  # the standard's check says that
            re.compile(pattern)
    except ValueError as error:
        raise cannot(path, keyword, str(error)) from error
    except (OverflowError, RecursionError) as error:
        place = dotted((*path, keyword))
        raise InvalidInput(f"the schema can't be used: {place}: {error}", field="schema") from error
    return found


def cannot(path: Path, keyword: str, why: str) -> UsageError:
    place = dotted((*path, keyword))
    return UsageError(f"the schema can't be enforced: {place}: {why}", keywords=[place])
