"""Small rules about places in texts and ids: what is common, where one may cut, what shows."""

from __future__ import annotations

import json
from collections.abc import Iterable

from radchat.engine import raw_ids
from radchat.engine.request import Ids


def common_text(a: str, b: str) -> int:
    """Length of the common beginning, by halving: slices compare faster than characters."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shows(want: str, text: str) -> bool:
    """As it is, trimmed, or inside JSON."""
    for form in (want, want.strip()):
        escaped = (json.dumps(form, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
        if form in text or any(e in text for e in escaped):
            return True
    return False


def insides(spans: Iterable[tuple[int, int]]) -> set[int]:
    """Places where a cut would fall inside a span."""
    return {place for start, end in spans for place in range(start + 1, end)}


def common_ids(a: Ids, b: Ids) -> int:
    return raw_ids.common_len(a.tobytes(), b.tobytes(), 0, len(b) * raw_ids.ID_BYTES)


def trimmed(shares: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Shares of a tail of which only the last ``total`` ids are left."""
    result: list[int] = []
    for share in reversed(shares):
        result.append(min(share, total))
        total -= result[-1]
    return tuple(reversed(result))
