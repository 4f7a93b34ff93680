"""What fills the context, as lines: a bar for each part, the largest messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.footer import count, share
from radchat.chat.text import one_line
from radchat.chat.width import cut

NAMES = {
    "system": "system prompt",
    "files": "files",
    "user": "your words",
    "answers": "answers",
    "reasoning": "reasoning",
    "tools": "tools",
    "template": "template marks",
}
WHO = {"system": "sys", "user": "user", "assistant": "asst", "tool": "tool"}
LEAST_BAR, MOST_BAR = 10, 50


def lines(result: Mapping[str, Any], columns: int | None) -> list[str]:
    """``columns`` of the terminal, None: nothing limits it."""
    shown = [_total(result), *_bars(result, columns), _next(result), *_largest(result)]
    return [line if columns is None else cut(line, columns) for line in shown]


def _total(result: Mapping[str, Any]) -> str:
    """As the footer tells it; with what opens the next turn, it is what the parts add up to."""
    opening, limit = _opening(result), result.get("limit")
    number = result["tokens"] - opening
    of = f" of {count(limit)}, {100 * number / limit:.0f}%" if limit else ""
    more = f", then {count(opening)} to open your next turn" if opening else ""
    return f"{count(number)} tokens{of}{more} · {one_line(str(result['model']))}"


def _opening(result: Mapping[str, Any]) -> int:
    """Marks of the template after the last answer; 0 where they are not told apart: earlier
    reasoning that drops out of the next prompt makes it shorter than the last.
    """
    used = result.get("used")
    more = 0 if used is None or not result["exact"] else result["tokens"] - used
    return int(more) if 0 < more <= result["parts"]["template"] else 0


def _bars(result: Mapping[str, Any], columns: int | None) -> list[str]:
    whole = result.get("limit") or max(result["tokens"], 1)
    opening = _opening(result)
    parts = {**result["parts"], "template": result["parts"]["template"] - opening}
    rows = [(NAMES[part], number) for part, number in parts.items() if number]
    rows += [("next turn opens", opening)] if opening else []
    rows += [("free", result["free"])] if result.get("free") is not None else []
    size = max(LEAST_BAR, MOST_BAR if columns is None else min(MOST_BAR, columns - 38))
    found = []
    for name, number in rows:
        full = min(size, round(size * number / whole))
        bar = "." * size if name == "free" else "#" * full + "." * (size - full)
        found.append(f"  {name:<16}{count(number):>9}  {bar}  {share(number, whole):>6}")
    return found


def _next(result: Mapping[str, Any]) -> str:
    tokens, cached = result["tokens"], result["cached"]
    if not result["exact"]:
        return "no model is loaded: what the template adds is not told from what was said"
    if "remote" in cached:
        return f"before your next words {count(tokens)}; what is cached of them, its engine knows"
    tiers = [f"{count(number)} on {name}" for name, number in cached.items() if number]
    rest = tokens - sum(cached.values())
    cached_share = share(tokens - rest, tokens)
    where = f"cached {', '.join(tiers) or 'none'} ({cached_share})"
    return f"before your next words {count(rest)} of {count(tokens)} to compute, {where}"


def _largest(result: Mapping[str, Any]) -> list[str]:
    if not result["messages"]:
        return []
    rows = ["the largest:"]
    for message in result["messages"]:
        names = " ".join(f"@{name}" for name in message["files"])
        text = one_line(f"{names} {message['text']}".strip())
        place = f"#{message['turn']}" if message["turn"] else ""
        who = WHO.get(message["role"], message["role"])
        rows.append(f"  {place:<5}{who:<6}{count(message['tokens']):>9}  {text}")
    return rows
