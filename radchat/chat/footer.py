"""Numbers as a person reads them, and the line under an answer (docs/cli.md, "In chat").

Every number is measured: what is not known is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.text import one_line
from radchat.chat.width import cut, width

SEPARATOR = " · "
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(number: int) -> str:
    """1,180"""
    return f"{number:,}"


def counted(number: int, thing: str) -> str:
    """1 token, 1,180 tokens, 4 branches"""
    many = "es" if thing.endswith("ch") else "s"
    return f"{count(number)} {thing}{'' if number == 1 else many}"


def short_count(number: int) -> str:
    """812, 1.2k, 131k, 1.0M"""
    if number < 1000:
        return str(number)
    if number < 99_950:
        return f"{number / 1000:.1f}k"
    if number < 999_500:
        return f"{number / 1000:.0f}k"
    return f"{number / 1e6:.1f}M"


def seconds(value: float) -> str:
    """41 ms, 0.5 s, 12 s, 3 min"""
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / _MINUTE:.0f} min"


def latency(value: float) -> str:
    """A short wait: 41 ms, 412 ms, 1.2 s."""
    return f"{value * 1000:.0f} ms" if value < 0.9995 else seconds(value)


def age(value: float | None) -> str:
    """now, 4s, 2m, 3h, 5d; - when never used"""
    if value is None:
        return "-"
    if value < 1:
        return "now"
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if value >= unit:
            return f"{value // unit:.0f}{name}"
    return f"{value:.0f}s" if value < 59.5 else "1m"


def duration(value: float) -> str:
    """45s, 1h30m, 2h, 1d23h: what was asked for, or is left of it, in two units, to the nearest."""
    step = 1
    if value >= _HOUR - 0.5:  # a day less a moment is a day
        step = _MINUTE if value < _DAY - _MINUTE / 2 else _HOUR
    left = round(value / step) * step
    parts = []
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m"), (1, "s")):
        number, left = divmod(left, unit)
        if number:
            parts.append(f"{number}{name}")
    return "".join(parts) or "0s"


def size(num_bytes: int) -> str:
    """812 B, 1.4 MiB, 1.42 GiB"""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f} tok/s" if tokens_per_s >= 9.95 else f"{tokens_per_s:.1f} tok/s"


def share(part: int, whole: int) -> str:
    """A percentage that says 100 only when all of it is meant."""
    percent = 100 * part / whole
    if part < whole and percent > 99.9:
        percent = 99.9
    return f"{percent:.1f}%"


def place(branch: str | None, message: str | None, short: str | None = None) -> str:
    """branch@id, as in every line that says where one is; ``short``: as much of it as is enough."""
    where = one_line(branch or "")
    return (f"{where}@{short or message[:4]}" if message else where) or "(empty)"


def where(result: Mapping[str, Any], was: Mapping[str, Any] | None = None) -> str:
    """`session · branch@id`, from what moved: `fork`, `switch`, ... or the end of an answer.

    ``was``: HEAD before an answer that moved its branch: `(was f206)`, for the old tip is nameless.
    """
    head = result.get("head")
    branch, message = result.get("branch"), head
    if isinstance(head, Mapping):
        branch, message = head.get("branch"), head.get("message")
    name = one_line(str(result.get("name") or result.get("session") or ""))
    line = f"{name}{SEPARATOR}{place(branch, message, result.get('short'))}"
    old = (was or {}).get("message")
    if old and was and was.get("branch") == branch and old != message:
        line += f" (was {old[:4]})"
    return line


def footer(
    answer: Mapping[str, Any],
    *,
    context: Mapping[str, Any],
    saved_s: float | None,
    why: str | None = None,
    columns: int | None = None,
) -> str:
    """One line under an answer, from the shape of ``ask --json`` and what ``done`` adds to it.

    ``why`` much of it was computed again. In ``columns`` it stays one line: what is the same in
    every answer goes first, then what the eye can tell, then how long the first token took; where
    one is and what was cached are the last to be cut.
    """
    usage, cache = answer.get("usage") or {}, answer.get("cache") or {}
    disk = cache.get("disk") or 0
    why = one_line(why or "")
    timing = answer.get("timing") or {}
    model = " ".join(str(answer[key]) for key in ("model", "dtype") if answer.get(key))
    thought = usage.get("reasoning_tokens")
    forced, said = usage.get("forced_tokens"), usage.get("output_tokens") or 0
    first, speed = timing.get("first_token_s"), timing.get("tokens_per_s")
    parts = {
        "place": place(answer.get("branch"), answer.get("message"), answer.get("short")),
        "model": one_line(model),
        "context": _context(context),
        "cached": _cached(usage, disk, why, saved_s, is_remote="remote" in cache),
        "first token": "" if first is None else f"first token {latency(first)}",
        "thought": f"thought {counted(thought, 'token')}" if thought else "",
        "forced": f"forced {count(forced)}/{counted(said, 'token')}" if forced else "",
        "speed": "" if speed is None else rate(speed),
    }
    line = SEPARATOR.join(part for part in parts.values() if part)
    for name, shorter in (
        ("model", ""),
        ("cached", _cached(usage, disk, why)),
        ("context", _context(context, share=False)),
        *((name, "") for name in ("context", "speed", "forced", "thought", "first token")),
        ("cached", _cached(usage)),
    ):
        if columns is None or width(line) <= columns:
            return line
        parts[name] = shorter
        line = SEPARATOR.join(part for part in parts.values() if part)
    return line if columns is None else cut(line, columns)


def _context(context: Mapping[str, Any], *, share: bool = True) -> str:
    used, limit = context.get("used"), context.get("limit")
    if used is None or not limit:
        return ""
    text = f"ctx {short_count(used)}/{short_count(limit)}"
    return f"{text} {100 * used / limit:.0f}%" if share else text


def _cached(
    usage: Mapping[str, Any],
    disk: int = 0,
    why: str = "",
    saved_s: float | None = None,
    *,
    is_remote: bool = False,
) -> str:
    """`cached 1,980/2,012 (98.4%), 1,900 from disk saved 0.5 s`, `cached 0/2,012 (0.0%: why)`"""
    cached, total = usage.get("cached_input_tokens"), usage.get("input_tokens")
    if cached is None or not total:
        return ""
    because = f": {why}" if why else ", remote" if is_remote else ""
    text = f"cached {count(cached)}/{count(total)} ({share(cached, total)}{because})"
    text += f", {count(disk)} from disk" if disk else ""
    return f"{text} saved {seconds(saved_s)}" if saved_s else text
