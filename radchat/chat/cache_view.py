"""The engine's cache as lines: totals, the flat list in eviction order, the radix tree itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radchat.chat.footer import age, count, duration, size
from radchat.chat.text import one_line
from radchat.chat.tree_view import TIERS
from radchat.chat.width import cut, table

TEXT_COLUMNS = 48
SERVED = 3  # messages named of those a node serves; then how many more


def _number(value: Any) -> str:
    return "-" if value is None else count(value)


def stats(result: Mapping[str, Any], columns: int | None) -> list[str]:
    if result.get("total_tokens") is None:
        return _fit(["nothing is cached: no model is loaded"], columns)
    lines = []
    for key, letter, name in TIERS:
        tier = (result.get("tiers") or {}).get(key)
        if not tier:
            continue
        line = f"{letter} {name:<8}{_number(tier.get('tokens'))} tokens"
        if tier.get("bytes") is not None:
            line += f", {size(tier['bytes'])}"
        if tier.get("budget_bytes"):
            line += f" of {size(tier['budget_bytes'])}"
        lines.append(line)
    lines += [
        f"{key:<10}{count(result[f'{key}_tokens'])} tokens"
        for key in ("total", "free", "evictable", "pinned", "locked")
    ]
    if result.get("requests") is not None:
        lines.append(f"{'requests':<10}{count(result['requests'])}")
    if result.get("hit_rate") is not None:
        lines.append(f"{'hit rate':<10}{100 * result['hit_rate']:.1f}% of all input tokens")
    return _fit([*lines, *_pins(result)], columns)


def _pins(result: Mapping[str, Any]) -> list[str]:
    """`pin       d9f1 of report-q3: 1,180 of 1,211 tokens, for 1h30m`, and what of the limit."""
    pins = result.get("pins") or ()
    lines = [f"{'pin':<10}{_pin(pin)}" for pin in pins]
    if pins and result.get("pin_limit_tokens") is not None:
        wanted, limit = count(result["pin_tokens"]), count(result["pin_limit_tokens"])
        lines.append(f"{'pins':<10}{wanted} of at most {limit} tokens")
    return lines


def _pin(pin: Mapping[str, Any]) -> str:
    held = count(pin["held_tokens"])
    held += "" if pin.get("tokens") is None else f" of {count(pin['tokens'])}"
    name = one_line(str(pin.get("name") or pin["session"]))
    left = duration(pin["expires_s"])
    return f"{pin['message'][:4]} of {name}: {held} tokens cached, for {left}"


def pinned(result: Mapping[str, Any]) -> str:
    """The line after `cache pin`."""
    wanted, limit = count(result["pin_tokens"]), count(result["pin_limit_tokens"])
    return f"pinned {_pin(result)}; pins take {wanted} of at most {limit} tokens"


def freed(result: Mapping[str, Any]) -> str:
    """The line after `cache evict` and `cache clear`."""
    kept = result.get("pinned_tokens")
    stays = f"; {count(kept)} are pinned and stay: cache unpin REF" if kept else ""
    return f"freed {count(result['freed_tokens'])} tokens{stays}"


def entries(result: Mapping[str, Any], columns: int | None) -> list[str]:
    """Eviction order: rank 1 goes first; what is locked or pinned has none."""
    if not result["entries"]:
        return ["nothing is cached"]
    head = ["lru", "node", "tokens", "frees", "kv", "used", "hits", "session", "message", "text"]
    rows = [
        [
            _number(e.get("rank")),
            str(e.get("node", "-")),
            _number(e.get("tokens")),
            _number(e.get("frees")),
            _tier(e),
            age(e.get("last_used_s")),
            _number(e.get("hits")),
            one_line(str(e.get("name") or e.get("session") or "-")),
            str(e.get("message") or "-")[:8],
            cut(one_line(str(e.get("text") or "")), TEXT_COLUMNS),
        ]
        for e in result["entries"]
    ]
    return _fit(table(rows, head, frozenset((0, 2, 3, 6))), columns)


def nodes(result: Mapping[str, Any], columns: int | None) -> list[str]:
    """The radix tree: a node a line, indented by depth: node, run, pages, locks, use, words."""
    if not result["nodes"]:
        return ["nothing is cached"]
    head = f"{'node':<10}{'tokens':>15}  pages  locks  used  hits  lru  kv  text"
    lines = [head]
    for node in result["nodes"]:
        name = "  " * min(int(node.get("depth") or 0), 20) + str(node["id"])
        run = f"{count(node['start'])}-{count(node['end'])}"
        served = _served(node.get("messages") or ())
        text = cut(one_line(str(node.get("tokens_text") or "")), TEXT_COLUMNS)
        line = (
            f"{name:<10}{run:>15}  {_number(node.get('pages')):>5}  "
            f"{_number(node.get('locks')):>5}  {age(node.get('last_used_s')):<4}  "
            f"{_number(node.get('hits')):>4}  {_number(node.get('lru_rank')):>3}  "
            f"{_tier(node):<2}  {text}"
        )
        lines.append(f"{line}  [{served}]" if served else line.rstrip())
    return _fit(lines, columns)


def _tier(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('tier') or '-'}{'*' if entry.get('pinned') else ''}"


def _served(messages: Sequence[Any]) -> str:
    """`50c1, a19e, b7d0, +24`"""
    names = [str(message)[:4] for message in messages[:SERVED]]
    return ", ".join([*names, f"+{len(messages) - SERVED}"] if messages[SERVED:] else names)


def _fit(lines: list[str], columns: int | None) -> list[str]:
    return lines if columns is None else [cut(line, columns) for line in lines]
