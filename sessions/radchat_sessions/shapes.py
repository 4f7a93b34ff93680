"""The shapes of what a document holds: every value that is read back has the type it is read as.

Keys of ``extra``, ``usage`` and ``timing`` that nothing here reads are kept as they are: a later
radchat may have written them, and JSON they are. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, TypeAlias

from radchat_sessions.content import clean
from radchat_sessions.errors import Unreadable
from radchat_sessions.messages import ROLES

Check: TypeAlias = Callable[[Any], bool]
Checks: TypeAlias = Mapping[str, Check]

_MAX_ID: Final = 2**32
_MAX_NUMBER: Final = 2**53  # beyond it a float is no longer the integer that was written
_TIMES: Final = (-(2**35), 2**37)  # the years 881 to 6325: every calendar here can name them
_REASONS = ("stop", "length", "abort", "error")
_KINDS = ("label", "score")  # a pin is of the cache it was set in
_HEX: Final = frozenset("0123456789abcdef")

# -- one value -------------------------------------------------------------------------------------


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= _HEX


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_NUMBER


def _is_time(value: Any) -> bool:
    return _is_number(value) and _TIMES[0] <= value < _TIMES[1]


def _is_clock(value: Any) -> bool:
    """What the daemon reads a session's clock with."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_ID


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*values: str) -> Check:
    return lambda value: value in values


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _tuples(*checks: Check) -> Check:
    return _list_of(
        lambda each: (
            isinstance(each, list)
            and len(each) == len(checks)
            and all(check(item) for check, item in zip(checks, each, strict=True))
        )
    )


def _exactly(checks: Checks, may: Checks | None = None) -> Check:
    """An object of these keys, and of those that may be there, and no others."""
    known = {**checks, **(may or {})}
    return lambda value: (
        isinstance(value, dict)
        and checks.keys() <= value.keys() <= known.keys()
        and all(check(value[key]) for key, check in known.items() if key in value)
    )


def _known(checks: Checks) -> Check:
    """An object in which these keys, where they are there, are what they are read as."""
    return lambda value: (
        isinstance(value, dict)
        and all(check(value[key]) for key, check in checks.items() if key in value)
    )


def _is_part(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind in ("text", "reasoning", "file") and not is_text(value.get("text")):
        return False
    if kind == "tool_call" and not _is_dict(value.get("call")):
        return False
    if kind != "tool_call" and not all(maybe(is_text)(value.get(key)) for key in ("call", "tool")):
        return False
    return is_text(kind) and (kind != "file" or is_text(value.get("name")))


def _are_points(value: Any) -> bool:
    """``[characters, digest, ids]`` each, at least one, from the front of the prompt to its end."""
    if not value or not _tuples(_is_count, is_text, _is_count)(value):
        return False
    return all(a[0] <= b[0] and a[2] <= b[2] for a, b in pairwise(value))


# -- what is kept with an answer and with a prompt -------------------------------------------------

_TIERS = _exactly(dict.fromkeys(("device", "host", "disk", "computed"), _is_count))
_REUSE = _exactly(
    {
        "matched": _is_count, "restored": _is_count, "computed": _is_count,
        "parts": _list_of(
            _exactly({"start": _is_count, "end": _is_count, "cause": is_text, "why": is_text})
        ),
        "ended": maybe(
            _exactly({"position": _is_count, "before": is_text, "token": is_text, "after": is_text})
        ),
    },
    {"from_disk": _tuples(_is_count, _is_count)},
)  # fmt: skip
_USAGE = _known(
    {
        **dict.fromkeys(
            ("input_tokens", "cached_input_tokens", "output_tokens", "forced_tokens",
             "reasoning_tokens"),
            maybe(_is_count),
        ),
        "cache": maybe(_TIERS), "reuse": maybe(_REUSE),
    }
)  # fmt: skip
_TIMING = _known(dict.fromkeys(("first_token_s", "total_s", "tokens_per_s"), maybe(_is_number)))
_COMPACTED = _exactly({"branch": maybe(is_text), "message": maybe(is_id)})
_MESSAGE_EXTRA = _known({"context": maybe(_is_count), "error": is_text, "compacted": _COMPACTED})
_PROMPT_EXTRA = _known({"cleared": _list_of(is_id), "opens_reasoning": _is_bool})

# -- the records -----------------------------------------------------------------------------------

SESSION: Checks = {
    "id": is_id, "name": is_text, "named": _is_bool, "model": maybe(is_text),
    "folder": maybe(is_text), "settings": _is_dict, "clock": _is_clock, "created": _is_time,
    "used": _is_time,
}  # fmt: skip
HEAD: Checks = {"branch": maybe(is_text), "message": maybe(is_id)}
LABEL: Checks = {"message": is_id, "kind": _one_of(*_KINDS), "value": is_text}
MESSAGE: Checks = {
    "id": is_id, "parent": maybe(is_id), "role": _one_of(*ROLES), "parts": _list_of(_is_part),
    "created": _is_time, "digest": is_text,
}  # fmt: skip
MESSAGE_MAY: Checks = {
    "extra": _MESSAGE_EXTRA, "prompt": is_id, "out": _list_of(_is_count), "model": is_text,
    "dtype": is_text, "sampling": _is_dict, "seed": _is_int, "choice": _is_count, "usage": _USAGE,
    "timing": _TIMING, "finish_reason": _one_of(*_REASONS), "stopped": _is_bool, "holds": is_text,
    "prompts": lambda value: isinstance(value, list),
}  # fmt: skip
PROMPT: Checks = {
    "id": is_id, "base_message": maybe(is_id), "base_prompt": maybe(is_id), "kept": _is_count,
    "tail": _list_of(_is_count), "tokenizer": is_text, "settings": is_text, "points": _are_points,
    "extra": _PROMPT_EXTRA, "created": _is_time, "shares": _tuples(is_id, _is_count, _is_count),
    "order": _is_count,
}  # fmt: skip


def an_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(f"{where} is not an object")
    return value


def fields(value: Any, where: str, wanted: Checks, may: Checks | None = None) -> dict[str, Any]:
    """What is wanted and what may be there, and nothing else; every text of it made whole."""
    given = an_object(value, where)
    may = may or {}
    for name in wanted:
        if name not in given:
            raise Unreadable(f"{where} has no {name}")
    for name, item in given.items():
        check = wanted.get(name) or may.get(name)
        if check is None:
            raise Unreadable(f"{where} has a field that is not known here")
        if not check(item):
            raise Unreadable(f"{name} of {where} is not what it should be")
    return dict(clean(given))
