"""Failures in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from radchat.daemon.outgoing import TooLarge, json_answer
from radchat.errors import (
    Busy,
    ContextOverflow,
    InvalidInput,
    NotFound,
    RadchatError,
    Unreachable,
    UsageError,
)

RETRY_AFTER_S = 1
MOST_OF_NAME = 64
_OTHERWISE = " (--schema-lenient"  # how a command goes on without what can't be enforced
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# what a field of ours is called in a request
_PARAMS = {"repetition_penalty": "repetition_penalty", "logprobs": "top_logprobs"}


class Conflict(RadchatError):
    """The branch that was named is somewhere else."""

    code = "conflict"
    http_status = 409


def kind_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def status_of(error: RadchatError) -> int:
    """A name that is taken when it is given was free when it was looked for: it is asked again."""
    return Conflict.http_status if error.data.get("taken") else error.http_status


def error_json(error: RadchatError, status: int | None = None) -> dict[str, Any]:
    """The object itself, as an answer or a chunk has it."""
    param, message = error.data.get("field"), error.message
    code: str | None = error.code
    if param == "schema" or "keywords" in error.data:
        param = "tools" if message.startswith("tools[") else "response_format"
        if _OTHERWISE in message:
            message = f"{message.partition(_OTHERWISE)[0]}: with strict: false it is left out"
    if isinstance(error, ContextOverflow):
        param = param or "messages"
    elif isinstance(error, NotFound) and "model" in error.data:
        code, param = "model_not_found", "model"
    elif isinstance(error, (InvalidInput, UsageError)) and not isinstance(error, TooLarge):
        code = Conflict.code if error.data.get("taken") else None
    return {
        "error": {
            "message": message,
            "type": kind_of(status_of(error) if status is None else status),
            "param": None if param is None else _PARAMS.get(str(param), str(param)),
            "code": code,
        }
    }


def answer(error: RadchatError) -> Response:
    headers = {}
    if isinstance(error, TooLarge):
        headers["connection"] = "close"  # what is left of the body is not the next request
    if isinstance(error, (Busy, Unreachable)):
        headers["retry-after"] = str(error.data.get("retry_after_s", RETRY_AFTER_S))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_answer(error_json(error), status_of(error), headers or None)


def of_validation(problems: Sequence[Mapping[str, Any]]) -> InvalidInput:
    """The first thing that is wrong with a request, by its place: ``messages[0].role``. Never what
    was said there.
    """
    first = problems[0]
    where = _path([each for each in first["loc"] if each not in ("body", "query", "path")])
    text = str(first["msg"])
    if first["type"] == "extra_forbidden":
        where, text = _unknown(first["loc"]), "there is no such parameter"
    return InvalidInput(
        f"{where}: {text}" if where else text, **({"field": where} if where else {})
    )


def _path(loc: Sequence[int | str]) -> str:
    """Without the names that pydantic gives to the kinds of a union."""
    path = ""
    for each in loc:
        if isinstance(each, int):
            path += f"[{each}]"
        elif each.isidentifier() and each[0].islower() and each not in _KINDS:
            path += f".{each}" if path else each
    return path


def _unknown(loc: Sequence[int | str]) -> str:
    """A name that nobody knows may look like anything; of a long one, its beginning."""
    place, name = _path(loc[1:-1]), str(loc[-1])[:MOST_OF_NAME]
    return f"{place}.{name}" if place else name


_KINDS = frozenset(("str", "int", "float", "bool", "list", "dict", "constrained", "literal"))
