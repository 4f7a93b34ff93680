"""What `cache top` is told, in the shape of its JSON."""

from __future__ import annotations

from typing import Any

from tests.chat.trees import long

PAGE = 16


def row(
    branch: str | None,
    tokens: int,
    *,
    device: int | None = None,
    disk: int = 0,
    kind: str = "branch",
    rank: int | None = None,
    used: float | None = 4.0,
    name: str | None = "report-q3",
    **more: Any,
) -> dict[str, Any]:
    """All of it on the device, unless said otherwise."""
    device = tokens if device is None else device
    held = -(-device // PAGE) * PAGE
    return {
        "kind": kind,
        "session": None if name is None else long("e7f2"),
        "name": name,
        "ephemeral": False,
        "branch": branch,
        "message": None if branch is None else long("d9f1"),
        "text": None if branch is None else f"the words of {branch}",
        "tokens": tokens,
        "cached": {"device": device, "host": 0, "disk": disk},
        "held_tokens": held,
        "evictable_tokens": held,
        "pinned_tokens": 0,
        "locked_tokens": 0,
        "answers": [],
        "last_used_s": used,
        "hits": 3 if device else None,
        "lru_rank": rank,
        "next_tokens": held,
        **more,
    }


def locked(made: dict[str, Any], *answers: str) -> dict[str, Any]:
    held = made["held_tokens"]
    more = {"locked_tokens": held, "evictable_tokens": 0, "lru_rank": None, "next_tokens": 0}
    return {**made, **more, "answers": list(answers)}


def of(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    held = sum(each["held_tokens"] for each in rows)
    total = 4096
    sums = {
        f"{key}_tokens": sum(each[f"{key}_tokens"] for each in rows)
        for key in ("evictable", "pinned", "locked")
    }
    return {
        "model": "smollm2-135m",
        "dtype": "bf16",
        "tiers": {
            "device": {"tokens": held, "bytes": held * 2**18, "budget_bytes": total * 2**18},
            "disk": {"tokens": 1024, "bytes": 2**28, "budget_bytes": 2**33},
        },
        "total_tokens": total,
        "free_tokens": total - held,
        **sums,
        "hit_rate": 0.873,
        "requests": 12,
        "bytes_per_token": 2**18,
        "running": 0,
        "waiting": 0,
        "look_s": 0.0,
        "answers": [],
        "rows": rows,
        **more,
    }


def top(name: str = "report-q3") -> dict[str, Any]:
    """Two branches, what they share, one answer in progress, and one branch on disk."""
    said = {"message": "aa", "session": long("e7f2"), "name": name, "branch": "main", "text": name}
    rows = [
        row("price", 329, rank=1, hits=3, name=name),
        row(None, 100, kind="unnamed", name=None, rank=2, used=60),
        locked(row(None, 765, kind="shared", used=0, name=name), "aa"),
        locked(row("main", 40, used=0, name=name), "aa"),
        locked(row(None, 0, device=32, kind="running", name=None, used=None), "aa"),
        row(name, 313, device=0, disk=313, used=120, name=name, text=name),
    ]
    return of(rows, running=1, answers=[said])
