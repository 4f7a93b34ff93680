"""Tools in one order, whatever order they came in, so that equal tools give equal ids.

Keys in the order people write them, the rest by name; a tool's arguments as its ``required`` lists
them, for a list has an order and a model writes them as it reads them; then the others by name.
"""

from __future__ import annotations

from typing import Any

_KEYS = ("type", "function", "name", "description", "parameters", "properties", "required")


def in_order(value: Any) -> Any:
    """JSON, with all keys of all objects in it in that order."""
    if isinstance(value, list):
        return [in_order(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = sorted(value, key=lambda k: (_KEYS.index(k) if k in _KEYS else len(_KEYS), k))
    return {
        key: _properties(value[key], value.get("required"))
        if key == "properties" and isinstance(value[key], dict)
        else in_order(value[key])
        for key in keys
    }


def _properties(found: dict[str, Any], required: Any) -> dict[str, Any]:
    first = [name for name in required if name in found] if isinstance(required, list) else []
    rest = sorted(name for name in found if name not in first)
    return {name: in_order(found[name]) for name in dict.fromkeys([*first, *rest])}
