"""The line below the prompt: what answers, where one is, how full the context is, and how much of
the last prompt was cached. From what the chat was told; nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radchat.chat.footer import SEPARATOR, place, share, short_count
from radchat.chat.text import one_line
from radchat.chat.width import cut, width

MODEL, PLACE = 32, 40  # columns; of a long name the beginning has to do


@dataclass(frozen=True, slots=True)
class Facts:
    doing: str = ""  # what the chat waits for
    model: str | None = None
    dtype: str | None = None
    is_loaded: bool = True
    branch: str | None = None
    message: str | None = None
    done: Mapping[str, Any] = field(default_factory=dict)  # of the answer one stands at


def line(facts: Facts, columns: int) -> str:
    """One line. Where it is short of columns, the cache share goes first, then the context's
    numbers; what the chat waits for and where one is are the last to be cut.
    """
    model = cut(one_line(str(facts.model or "")), MODEL)
    if model and not facts.is_loaded:
        model += " not loaded"
    elif model and facts.dtype:
        model += f" {one_line(facts.dtype)}"
    where = place(facts.branch, facts.message) if facts.branch or facts.message else ""
    parts = {
        "model": one_line(facts.doing) or model,
        "place": cut(where, PLACE),
        "context": _context(facts.done, is_short=False),
        "cached": _cached(facts.done),
    }
    for name, shorter in (
        ("cached", ""),
        ("context", _context(facts.done, is_short=True)),
        ("context", ""),
    ):
        if width(_joined(parts)) <= columns:
            break
        parts[name] = shorter
    return cut(_joined(parts), columns)


def _joined(parts: Mapping[str, str]) -> str:
    return SEPARATOR.join(part for part in parts.values() if part)


def _context(done: Mapping[str, Any], *, is_short: bool) -> str:
    context = done.get("context") or {}
    used, limit = context.get("used"), context.get("limit")
    if used is None or not limit:
        return ""
    counts = "" if is_short else f"{short_count(used)}/{short_count(limit)} "
    return f"ctx {counts}{100 * used / limit:.0f}%"


def _cached(done: Mapping[str, Any]) -> str:
    usage = done.get("usage") or {}
    cached, total = usage.get("cached_input_tokens"), usage.get("input_tokens")
    return "" if cached is None or not total else f"cached {share(cached, total)}"
