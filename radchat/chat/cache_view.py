"""The engine's cache as lines: totals, the flat list in eviction order, the radix tree itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from radchat.chat.footer import age, count, counted, duration, seconds, size
from radchat.chat.text import one_line
from radchat.chat.tree_shape import TIERS
from radchat.chat.width import cut, hang, table

TEXT_COLUMNS = 48
SERVED = 3  # messages named of those a node serves; then how many more


def _number(value: Any) -> str:
    return "-" if value is None else count(value)


def stats(result: Mapping[str, Any], columns: int | None) -> list[str]:
    is_loaded, tiers = result.get("total_tokens") is not None, result.get("tiers") or {}
    where = " on the device" if tiers.get("disk") else ""
    lines = [] if is_loaded else [f"nothing is cached{where}: no model is loaded"]
    lines += [_tier_line(*each[1:], tiers[each[0]]) for each in TIERS if tiers.get(each[0])]
    lines += _disk(tiers.get("disk") or {}, result)
    lines += _device(result) if is_loaded else []
    return [piece for line in lines for piece in hang(line, columns or sys.maxsize, 10)]


def _device(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{key:<10}{count(result[f'{key}_tokens'])} tokens"
        for key in ("total", "free", "evictable", "pinned", "locked")
    ]
    if result.get("requests") is not None:
        lines.append(f"{'requests':<10}{count(result['requests'])}")
    if result.get("hit_rate") is not None:
        lines.append(f"{'hit rate':<10}{100 * result['hit_rate']:.1f}% of all input tokens")
    return [*lines, *_pins(result)]


def _tier_line(letter: str, name: str, tier: Mapping[str, Any]) -> str:
    """`G device  1,234 tokens, 12.3 MiB of 1.00 GiB`"""
    line = f"{letter} {name:<8}{_number(tier.get('tokens'))} tokens"
    line += "" if tier.get("bytes") is None else f", {size(tier['bytes'])}"
    return f"{line} of {size(tier['budget_bytes'])}" if tier.get("budget_bytes") else line


def _disk(tier: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """What is written and restored, and room on the disk; why nothing is, where that is so."""
    rows = {
        "blocks": None if tier.get("blocks") is None else count(tier["blocks"]),
        "written": _written(tier),
        "restored": tier.get("restored_tokens") and counted(tier["restored_tokens"], "token"),
        "disk": None if tier.get("free_bytes") is None else f"{size(tier['free_bytes'])} free",
        "persist": _persist(result),
        "trouble": result.get("disk_trouble"),
    }
    return [f"{name:<10}{one_line(str(text))}" for name, text in rows.items() if text]


def _written(tier: Mapping[str, Any]) -> str | None:
    """`12.0 MiB of 2.00 GiB this hour`"""
    if tier.get("written_bytes") is None:
        return None
    of = f" of {size(tier['hourly_bytes'])}" if tier.get("hourly_bytes") else ""
    return f"{size(tier['written_bytes'])}{of} this hour"


def _persist(result: Mapping[str, Any]) -> str | None:
    """Said only where it is not as it is by itself."""
    mode = result.get("persist")
    return result.get("persist_off") or (None if mode == "auto" else mode)


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


def evicted(result: Mapping[str, Any], tier: str | None = None) -> str:
    """The line after `cache evict`."""
    if tier == "disk":
        return f"freed {_on_disk(result['freed_tokens'], result['freed_bytes'])}"
    return f"freed {counted(result['freed_tokens'], 'token')}{_stays(result)}"


def sure(*, device: bool = False, disk: bool = False) -> str:
    """What is asked before tiers are emptied."""
    which = "all KV on disk" if disk else "all KV on the device"
    which = "all KV, on the device and on disk, and all pins" if device and disk else which
    return f"forget {which}? It will be computed again when needed."


def cleared(result: Mapping[str, Any], *, device: bool = True, disk: bool = False) -> str:
    """The line after `cache clear`, of the tiers that were meant."""
    parts = [counted(result["freed_tokens"], "token")] if device else []
    parts += [_on_disk(result["disk_tokens"], result["disk_bytes"])] if disk else []
    return f"freed {' and '.join(parts)}{_stays(result)}"


def _on_disk(tokens: int, num_bytes: int) -> str:
    return f"{counted(tokens, 'token')} on disk ({size(num_bytes)})"


def _stays(result: Mapping[str, Any]) -> str:
    kept = result.get("pinned_tokens")
    return f"; {count(kept)} are pinned and stay: cache unpin REF" if kept else ""


def saved(result: Mapping[str, Any]) -> str:
    """The line after `cache save`: what was written, and how much of the path is on disk now."""
    name, tokens = one_line(str(result.get("name") or result["session"])), result["tokens"]
    if tokens:
        blocks = counted(result["blocks"], "block")
        what = f"saved {counted(tokens, 'token')} of {name} ({blocks}, {size(result['bytes'])})"
        what += f" in {seconds(result['seconds'])}"
    else:
        what = f"nothing of {name} was still to be saved"
    on_disk, left = count(result["on_disk_tokens"]), result.get("left")
    if left is None:  # but for the last token, which runs with the next turn
        return f"{what}; all {on_disk} tokens are on disk"
    of = counted(result["path_tokens"], "token")
    return f"{what}; {on_disk} of {of} are on disk: {one_line(str(left))}"


def loaded(result: Mapping[str, Any]) -> str:
    """The line after `cache load` and `cache warm`: where each token of the path came from."""
    came = {
        "were on the device": result["device"],
        "restored from disk": result["restored"],
        "computed": result.get("computed"),
    }
    parts = [f"{count(number)} {how}" for how, number in came.items() if number]
    line = f"{counted(result['path_tokens'], 'token')}: {', '.join(parts) or 'none restored'}"
    line += f" in {seconds(result['seconds'])}"
    if result["missing"] > 1:  # the last token runs with the next turn
        line += f"; {count(result['missing'])} are on no tier: cache warm computes them"
    return line


def verified(result: Mapping[str, Any]) -> str:
    """The line after `cache verify`."""
    what = f"{counted(result['blocks'], 'block')}, {size(result['bytes'])}"
    if result["bad"]:
        what += f": {count(len(result['bad']))} damaged and deleted, computed again when needed"
    else:
        what += ": all as they were written"
    for key, did in (("adopted", "taken in"), ("swept", "swept away")):
        if result.get(key):
            what += f"; {counted(result[key], 'file')} without an entry {did}"
    return what


def bad_blocks(result: Mapping[str, Any]) -> list[str]:
    return [f"bad       {bad['key'][:8]}  {one_line(str(bad['why']))}" for bad in result["bad"]]


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
    """The radix tree: a node a line, indented by depth: node, run, pages, locks, use, words. It is
    the device's: where that has nothing, what is on disk is said.
    """
    if not result["nodes"]:
        disk = (result.get("tiers") or {}).get("disk") or {}
        if not disk.get("tokens"):
            return ["nothing is cached"]
        return ["nothing is cached on the device", _tier_line("D", "disk", disk)]
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
