"""The API's description (`/openapi.json`): what is asked, and what answers and failures are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

FAILURES = {
    400: "the request is not one, or can't be met; `param` names the place",
    401: "no key, or another",
    403: "a foreign Host or Origin, or what is not this key's to see",
    404: "no such address, model, session or message",
    409: "the branch is elsewhere",
    413: "the body is too large",
    429: "too many requests in progress: Retry-After",
    431: "too many headers",
    500: "a fault of the daemon's: its log tells",
    503: "the daemon stops, or what it needs is busy or away: Retry-After",
}
STREAMED = ("/v1/chat/completions", "/v1/completions")
_TEXT = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT,
                "code": _TEXT,
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ANSWER = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "usage": {"type": ["object", "null"]},
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}


def describe(api: FastAPI) -> dict[str, Any]:
    """Once; it is the app's own from then on."""
    told = api.openapi()
    for path, methods in told["paths"].items():
        for operation in methods.values():
            answers = operation["responses"]
            answers.pop("422", None)
            for status, text in FAILURES.items():
                answers[str(status)] = {"description": text, "content": _json("Failure")}
            if path in STREAMED:
                answers["200"]["content"] = {
                    **_json("Answer"),
                    "text/event-stream": {"schema": {"type": "string"}},
                }
            if path == "/metrics":
                answers["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
            if path != "/health":
                operation["security"] = [{"key": []}]
    parts = told.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {"Failure": _ERROR, "Answer": _ANSWER}
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return told


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
