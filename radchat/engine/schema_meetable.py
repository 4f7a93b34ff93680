"""Whether any value at all can meet a JSON schema that requires itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.engine.schema_parts import target


class Meetable:
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
        if "$ref" in schema and not self._look(target(self._root, schema["$ref"])):
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
