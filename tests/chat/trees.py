"""Trees for the tests of the picture, in the shape of `radchat tree --json`."""

from __future__ import annotations

from typing import Any


def long(prefix: str) -> str:
    return prefix + "0" * (32 - len(prefix))


def message(
    key: str,
    parent: str | None,
    role: str,
    text: str,
    tokens: int,
    *,
    tier: str = "device",
    held: int | None = None,
    used: float | None = 0,
    hits: int | None = 0,
    lru: int | None = None,
    pinned: bool = False,
) -> dict[str, Any]:
    cached = {"device": 0, "host": 0, "disk": 0}
    if tier != "none":
        cached[tier] = tokens if held is None else held
    return {
        "id": long(key),
        "parent": long(parent) if parent else None,
        "role": role,
        "text": text,
        "tokens": tokens,
        "cached": cached,
        "last_used_s": used,
        "hits": hits,
        "pinned": pinned,
        "lru_rank": lru,
        "labels": [],
    }


def report() -> dict[str, Any]:
    """The tree of docs/cli.md."""
    disk: dict[str, Any] = {"tier": "disk", "used": 120, "hits": 1}
    return {
        "session": long("e7f2"),
        "name": "report-q3",
        "model": "smollm2-135m",
        "head": long("d9f1"),
        "branch": "main",
        "num_messages": 14,
        "branches": {"price": long("c2aa"), "costs": long("e1c7")},
        "messages": [
            message(
                "50c1", None, "system", "You are a careful analyst...", 412, hits=23, pinned=True
            ),
            message("a19e", "50c1", "user", "@report.md summarise", 8113, hits=21, lru=9),
            message("b7d0", "a19e", "assistant", "The report says...", 240, hits=21, lru=8),
            message("c2aa", "b7d0", "user", "price -10 %", 18, used=4, hits=3, lru=7),
            message(
                "d9f1", "c2aa", "assistant", "Revenue would fall...", 311, used=4, hits=3, lru=6
            ),
            message("c3b4", "b7d0", "user", "cost -5 %", 15, **disk),
            message("e1c7", "c3b4", "assistant", "Margin...", 298, **disk),
        ],
        "tiers": {
            "device": {"tokens": 9094, "bytes": int(1.42 * 2**30), "budget_bytes": 2 * 2**30},
            "host": None,
            "disk": {"tokens": 313, "bytes": int(1.51 * 2**30), "budget_bytes": 2**33},
        },
        "shared_tokens": 8765,
    }


def busy() -> dict[str, Any]:
    """The same, gone on with: deep, partly cached, and with long names at its end."""
    tree = report()
    parent = "d9f1"
    for i in range(6):
        key, role = f"{i}abc", "assistant" if i % 2 else "user"
        text = f"what would it be like if number {i}"
        tree["messages"].append(
            message(key, parent, role, text, 1234 + i, held=1000, used=130, hits=3, lru=i + 1)
        )
        parent = key
    tree["messages"] += [
        message("ffff", parent, "user", "a sibling", 12),
        message("eeee", parent, "user", "another sibling", 12),
    ]
    tree["head"] = long(parent)
    named = {"raise-prices-slowly": parent, "main": "d9f1", "a-second-long-name": "eeee"}
    tree["branches"] |= {name: long(key) for name, key in named.items()}
    return tree


def chain(length: int) -> dict[str, Any]:
    """A conversation without a fork."""
    messages = [
        message(f"{i:04x}", f"{i - 1:04x}" if i else None, "user", f"message {i}", 10)
        for i in range(length)
    ]
    head = messages[-1]["id"] if messages else None
    return {"session": long("ab"), "name": "long", "head": head, "messages": messages}
