"""The body of an RPC: JSON, then arguments that fit the method that takes them.

The signature in service.py is the one description of a method's arguments: an unknown name, a
missing one or a value of another type is refused with the name in the message, before the method
runs. What a value *means* is the method's own business, and a method that takes ``**fields`` checks
the names itself.
"""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, Union

from radchat.errors import InvalidInput


def parse_body(raw: bytes) -> dict[str, Any]:
    """A JSON object, UTF-8, its text free of lone surrogates; raises InvalidInput."""
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error.msg} (character {error.pos})") from error
    except ValueError as error:  # a number of thousands of digits
        raise InvalidInput(f"the body can't be read: {error}") from error
    except RecursionError as error:
        raise InvalidInput("the body is nested too deeply") from error
    if not isinstance(body, dict):
        raise InvalidInput(f"the body must be a JSON object, not {_kind(body)}")
    return typing.cast("dict[str, Any]", _whole_text(body) if b"\\u" in raw else body)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput(f"the body is not JSON: {name}")


def _whole_text(value: Any) -> Any:
    """Pairs of escaped surrogates are joined by the parser; an unpaired one becomes U+FFFD."""
    if isinstance(value, str):
        return (
            value
            if value.isascii()
            else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    if isinstance(value, list):
        return [_whole_text(item) for item in value]
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(item) for key, item in value.items()}
    return value


class Signature(NamedTuple):
    known: dict[str, Any]  # annotation by name
    required: frozenset[str]
    open: bool  # takes any other name too


@lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> Signature:
    hints = typing.get_type_hints(function)
    parameters = [p for name, p in inspect.signature(function).parameters.items() if name != "self"]
    named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    return Signature(
        {p.name: hints.get(p.name, Any) for p in named},
        frozenset(p.name for p in named if p.default is inspect.Parameter.empty),
        len(named) < len(parameters),
    )


def check_arguments(method: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises InvalidInput naming the argument; ``function`` takes it by keyword."""
    known, required, accepts_more = _signature(getattr(function, "__func__", function))
    for name in given:
        if name not in known and not accepts_more:
            raise InvalidInput(
                f"{method}: unknown argument {name!r} (known: {', '.join(known) or 'none'})",
                field=name,
            )
    for name in sorted(required - given.keys()):
        raise InvalidInput(f"{method}: argument {name!r} is missing", field=name)
    for name, value in given.items():
        _check(value, known.get(name, Any), name, method)


def _check(value: Any, kind: Any, name: str, method: str) -> None:
    problem = _mismatch(value, kind, name)
    if problem is not None:
        where, wanted = problem
        got = f", not {_kind(value)}" if where == name else ""  # of what is inside, no word
        raise InvalidInput(f"{method}: {where} must be {wanted}{got}", field=where)


def _mismatch(value: Any, kind: Any, at: str) -> tuple[str, str] | None:
    """None if the JSON value fits the annotation, else where it doesn't and what was wanted."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return None
    if origin in (Union, types.UnionType):
        return _mismatch_union(value, inner, at)
    if origin is Literal:
        return None if value in inner else (at, "one of " + ", ".join(map(repr, inner)))
    if typing.is_typeddict(kind):
        return _mismatch_fields(value, kind, at)
    if origin in (list, Sequence):
        if not isinstance(value, list):
            return at, "a list"
        problems = (_mismatch(v, inner[0], f"{at}[{i}]") for i, v in enumerate(value))
        return next((problem for problem in problems if problem), None)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return at, "an object"
        problems = (_mismatch(v, inner[1], f"{at}.{k}") for k, v in value.items())
        return next((problem for problem in problems if problem), None)
    return None if _fits_plain(value, kind) else (at, _WORDS.get(kind, str(kind)))


def _fits_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    if kind in (None, type(None)):
        return value is None
    if kind in (list, dict):
        return isinstance(value, kind)
    return type(value) is kind  # so that true is no integer


def _mismatch_union(value: Any, kinds: tuple[Any, ...], at: str) -> tuple[str, str] | None:
    problems = [_mismatch(value, kind, at) for kind in kinds]
    if not all(problems):
        return None
    inside = [problem for problem in problems if problem and problem[0] != at]
    if inside:  # the right kind of container, wrong within
        return inside[0]
    return at, " or ".join(problem[1] for problem in problems if problem)


def _mismatch_fields(value: Any, kind: Any, at: str) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return at, "an object"
    hints = typing.get_type_hints(kind)
    for name in value:
        if name not in hints:
            return f"{at}.{name}", "absent (known: " + ", ".join(hints) + ")"
    for name in kind.__required_keys__:
        if name not in value:
            return f"{at}.{name}", "given"
    problems = (_mismatch(item, hints[name], f"{at}.{name}") for name, item in value.items())
    return next((problem for problem in problems if problem), None)


_WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    None: "null",
    type(None): "null",
}


def _kind(value: Any) -> str:
    """What a JSON value is, never what it says: it may be somebody's words."""
    for kind, word in ((bool, "true or false"), (str, "a text"), (dict, "an object")):
        if isinstance(value, kind):
            return word
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else f"the number {value:.6g}"
