"""A tool's input schema as the grammar of calls can hold to it, or why it can't.

What only narrows (patterns, formats, lengths) is left to the server, which checks its arguments
itself; references are written out. What the shape hangs on and can't be said is a reason to leave
the tool out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from radchat.chat.text import one_line

MAX_BYTES = 16_000  # of one tool's schema: it stands in the prompt
MAX_DEPTH = 12
MAX_WORDS = 300  # characters of a description in it
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


class Unusable(Exception):
    """In words, for the user."""


def usable(schema: Any) -> dict[str, Any]:
    """Raises Unusable."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise Unusable("its arguments are no object")
    found = _Shape(schema).of({**schema, "type": "object"}, ())
    found.setdefault("properties", {})
    found["additionalProperties"] = False
    if not set(found.get("required", ())) <= set(found["properties"]):
        raise Unusable("it requires what it does not describe")
    if len(json.dumps(found)) > MAX_BYTES:
        raise Unusable(f"its schema is larger than {MAX_BYTES:,} bytes")
    return found


class _Shape:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def of(self, schema: Any, refs: tuple[str, ...], depth: int = 0) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise Unusable("a part of its schema is none")
        if depth > MAX_DEPTH:
            raise Unusable("its schema is nested too deeply")
        if "$ref" in schema:
            ref = str(schema["$ref"])
            if ref in refs:
                raise Unusable(f"its schema refers to itself ({one_line(ref)})")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            return self.of({**self._target(ref), **rest}, (*refs, ref), depth + 1)
        if len(schema.get("allOf") or ()) == 1:
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            return self.of({**schema["allOf"][0], **rest}, refs, depth + 1)
        if "allOf" in schema:
            raise Unusable("its schema joins several (allOf)")
        return self._written(schema, refs, depth)

    def _written(
        self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        kinds = schema.get("type")
        if kinds is not None:
            if not all(kind in TYPES for kind in (kinds if isinstance(kinds, list) else [kinds])):
                raise Unusable(f"its schema has a type {json.dumps(kinds):.40}")
            found["type"] = kinds
        if isinstance(schema.get("description"), str):
            found["description"] = one_line(schema["description"])[:MAX_WORDS]
        for key in ("enum", "const"):
            if key in schema:
                found[key] = schema[key]
        if "integer" in (kinds if isinstance(kinds, list) else [kinds]):
            for key in ("minimum", "maximum"):
                if type(schema.get(key)) is int:
                    found[key] = schema[key]
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key] and "anyOf" not in found:
                found["anyOf"] = [self.of(each, refs, depth + 1) for each in schema[key]]
        if isinstance(schema.get("items"), (Mapping, bool)):
            found["items"] = self.of(schema["items"], refs, depth + 1)
        if isinstance(schema.get("properties"), Mapping):
            found["properties"] = {
                str(name): self.of(each, refs, depth + 1)
                for name, each in schema["properties"].items()
            }
            required = [name for name in schema.get("required") or () if isinstance(name, str)]
            if required:
                found["required"] = required
            more = schema.get("additionalProperties")
            if isinstance(more, bool):
                found["additionalProperties"] = more
        elif isinstance(schema.get("additionalProperties"), Mapping):
            found["additionalProperties"] = self.of(schema["additionalProperties"], refs, depth + 1)
        return found

    def _target(self, ref: str) -> Mapping[str, Any]:
        at: Any = self._root
        if ref == "#":
            return self._root
        if not ref.startswith("#/"):
            raise Unusable(f"its schema refers to {one_line(ref):.60}, which is not in it")
        for part in ref[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            at = at.get(key) if isinstance(at, Mapping) else None
        if not isinstance(at, Mapping):
            raise Unusable(f"its schema refers to {one_line(ref):.60}, which is not in it")
        return at
