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
    """What the parts add up to: the path, and what opens the next turn."""
    number, limit = result["tokens"], result.get("limit")
    of = f" of {count(limit)}, {100 * number / limit:.0f}%" if limit else ""
    return f"{count(number)} tokens{of} before your next words · {one_line(str(result['model']))}"


def _bars(result: Mapping[str, Any], columns: int | None) -> list[str]:
    whole = result.get("limit") or max(result["tokens"], 1)
    rows = [(NAMES[part], number) for part, number in result["parts"].items() if number]
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
    tiers = [f"{count(number)} on {name}" for name, number in cached.items() if number]
    rest = tokens - sum(cached.values())
    cached_share = share(tokens - rest, tokens)
    return f"of them {count(rest)} to compute, cached {', '.join(tiers) or 'none'} ({cached_share})"


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
