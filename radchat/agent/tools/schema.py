"""JSON schemas of tools' arguments, and the arguments of a call checked by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.agent.types import Call

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def string(about: str) -> dict[str, Any]:
    return {"type": "string", "description": about}


def integer(about: str, least: int = 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "description": about}


def boolean(about: str) -> dict[str, Any]:
    return {"type": "boolean", "description": about}


def arguments(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """Of an object with these, and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def problem(call: Call, parameters: Mapping[str, Any]) -> str | None:
    """What is wrong with a call's arguments, for the model; None: nothing. The grammar has seen to
    it where there is one; an imported call, or one of another engine, may be anything.
    """
    properties = parameters.get("properties", {})
    for name in parameters.get("required", ()):
        if name not in call.arguments:
            return f"{call.name} wants {name!r}"
    for name, value in call.arguments.items():
        if name not in properties:
            if parameters.get("additionalProperties") is False:
                return f"{call.name} has no {name!r}: it has {', '.join(properties) or 'none'}"
            continue
        kind = properties[name].get("type")
        if isinstance(kind, str) and kind in TYPES:
            is_bool = isinstance(value, bool)
            if not isinstance(value, TYPES[kind]) or (is_bool and kind != "boolean"):
                return f"{name}: want {kind} (got {value!r:.60})"
        least = properties[name].get("minimum")
        if least is not None and isinstance(value, (int, float)) and value < least:
            return f"{name}: want {least} or more (got {value})"
    return None
