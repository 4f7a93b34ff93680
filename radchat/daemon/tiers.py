"""How full the cache is, by tier, as JSON (docs/cli.md). The disk is all models' together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tiers_json(
    stats: Mapping[str, Any] | None, disk: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole cache by tier; budgets are ceilings."""
    tiers: dict[str, Any] = {}
    if stats is not None:
        tokens, sizes = stats["tokens"], stats["bytes"]
        used = tokens["total"] - tokens["free"]
        tiers["device"] = {
            "tokens": used,
            "bytes": sizes["total"] - sizes["free"],
            "budget_bytes": sizes["total"],
            "budget_tokens": tokens["total"],
        }
    if disk is not None:
        restored = ((stats or {}).get("disk") or {}).get("restored_tokens", 0)
        tiers["disk"] = {**disk, "restored_tokens": restored}
    return tiers


def all_tiers_json(
    stats: Sequence[Mapping[str, Any]], disk: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The tiers of all loaded models together."""
    total: dict[str, Any] = {}
    for tiers in map(tiers_json, stats):
        for tier, counts in tiers.items():
            sums = total.setdefault(tier, dict.fromkeys(counts, 0))
            total[tier] = {key: sums[key] + counts[key] for key in counts}
    if disk is not None:
        restored = sum((each.get("disk") or {}).get("restored_tokens", 0) for each in stats)
        total["disk"] = {**disk, "restored_tokens": restored}
    return total


STATS = (
    "hit_rate",
    "requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "rows_run",
    "steps",
    "retractions",
    "device_full",
    "prefill_tokens_per_s",
    "page_size",
    "bytes_per_token",
)


def stats_json(stats: Mapping[str, Any] | None, disk: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without a model there is no cache to measure (null), and nothing that could go (0)."""
    if stats is None:
        return {
            "tiers": tiers_json(None, disk),
            "total_tokens": None,
            "free_tokens": None,
            "evictable_tokens": 0,
            "pinned_tokens": 0,
            "locked_tokens": 0,
            **dict.fromkeys(STATS),
            "requests": 0,
        }
    tokens = stats["tokens"]
    return {
        "tiers": tiers_json(stats, disk),
        "total_tokens": tokens["total"],
        "free_tokens": tokens["free"],
        "evictable_tokens": tokens["evictable"],
        "pinned_tokens": tokens["pinned"],
        "locked_tokens": tokens["locked"],
        **{name: stats[name] for name in STATS},
        "hit_rate": stats["hit_rate"] if stats["input_tokens"] else None,  # 0 of 0 is no rate
    }
