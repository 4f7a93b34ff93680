"""Totals of the cache as they are told."""

from __future__ import annotations

from typing import Any

import pytest

from radchat.daemon.tiers import STATS, stats_json


@pytest.mark.parametrize(("asked", "rate"), [(0, None), (512, 0.0)])
def test_a_rate_of_no_tokens_is_not_known_and_zero_is_measured(
    asked: int, rate: float | None
) -> None:
    stats: dict[str, Any] = {**dict.fromkeys(STATS, 0), "hit_rate": 0.0, "input_tokens": asked}
    for key in ("tokens", "bytes"):
        stats[key] = {"total": 100, "free": 90, "evictable": 0, "pinned": 0, "locked": 0}
    told = stats_json(stats, None)
    assert (told["hit_rate"], told["requests"]) == (rate, 0)
