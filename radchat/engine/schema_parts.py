"""The schemas in a schema: where each is, and a copy with each of them changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]  # keys that lead to a schema
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# values, not schemas; of an unknown keyword a value may be one: "$ref" leads there
_DATA = ("const", "default", "x-guidance", "dependentRequired", "dependencies", "$vocabulary")


def walk(schema: Any) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every schema in a schema, with the keys that lead to it; outer ones first."""
    todo: deque[tuple[Path, Any]] = deque([((), schema)])
    while todo:
        path, at = todo.popleft()
        if not isinstance(at, Mapping):
            continue
        yield path, at
        todo += [((*path, *keys), each) for keys, each in parts(at)]


def parts(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """What stands right in a schema as a schema, and where."""
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            yield from (((key, name), each) for name, each in value.items())
        elif key in _MANY and isinstance(value, list):
            yield from (((key, str(i)), each) for i, each in enumerate(value))
        elif key not in _DATA:
            yield (key,), value


def mapped(schema: Any, change: Callable[[Path, dict[str, Any]], Any], path: Path = ()) -> Any:
    """A copy in which every schema, outer before inner, is what ``change`` makes of it."""
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = change(path, dict(schema))
    for key, value in out.items():
        if key in _NAMED and isinstance(value, Mapping):
            out[key] = {
                name: mapped(each, change, (*path, key, name)) for name, each in value.items()
            }
        elif key in _MANY and isinstance(value, list):
            out[key] = [mapped(each, change, (*path, key, str(i))) for i, each in enumerate(value)]
        elif key not in _DATA:
            out[key] = mapped(value, change, (*path, key))
    return out


def target(root: Mapping[str, Any], ref: Any) -> Any:
    """The schema that a reference leads to; what leads nowhere in here llguidance refuses."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return True
    at: Any = root
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping) and name in at:
            at = at[name]
        elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            return True
    return at


def places_of(schema: Any, keyword: str) -> list[str]:
    return [dotted((*path, keyword)) for path, at in walk(schema) if keyword in at]


def place_of(schema: Any, keyword: str) -> str:
    return next(iter(places_of(schema, keyword)), keyword)


def dotted(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))
