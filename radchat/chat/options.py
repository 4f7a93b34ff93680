"""Names a person types for a setting or a command, and the one they meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from radchat.errors import UsageError

# -o k=v: every number a request can carry, by its name on the wire
OPTIONS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "max_tokens": int,
    "num_ctx": int,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "logprobs": int,
    "stop": str,
}

DTYPE = "the dtype is chosen where a chat or an answer begins: radchat chat -c --dtype int4"


def nearest(word: str, names: Sequence[str]) -> str | None:
    """The name this word was meant to be, if it is near enough to one."""
    import difflib

    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.7)
    if found:
        return found[0]
    starts = [name for name in names if len(word) > 1 and name.startswith(word.lower())]
    return starts[0] if len(starts) == 1 else None


def parse_option(pair: str) -> tuple[str, Any]:
    """One `k=v` of -o, or of /set in a chat."""
    key, equals, text = pair.partition("=")
    key = {"temp": "temperature", "ctx": "num_ctx"}.get(key.strip(), key.strip()).replace("-", "_")
    if key == "dtype":
        raise UsageError(DTYPE)
    if key not in OPTIONS:
        near = nearest(key, tuple(OPTIONS))
        hint = f"did you mean {near}?" if near else f"known: {', '.join(OPTIONS)}"
        raise UsageError(f"unknown option {key!r}: {hint}")
    if not equals:
        raise UsageError(f"{key}: want {key}=VALUE")
    try:
        return key, OPTIONS[key](text.strip() if key != "stop" else text)
    except ValueError as error:
        raise UsageError(f"{key} = {text!r}: want a number") from error
