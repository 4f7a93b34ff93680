"""Two minutes of everything at once; the half hour is `python benchmarks/soak.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import End, Sample, soak, verdict

MINUTES = 2.0
CLIENTS, REST_S = 2, 0.25  # beside the other tests: not all of the machine
MOST = 1_600_000_000


@pytest.mark.timeout(400)
def test_nothing_stays_of_two_minutes_of_everything() -> None:
    samples, end, done, failures = soak(MINUTES, CLIENTS, REST_S)
    assert failures == []
    assert verdict(samples, end, done.total()) == []
    assert max(each.rss for each in samples) < MOST  # it settles at 1.1 GB, after 3,000 requests
    assert done.total() > 100
    assert len(done) == 11  # each kind of thing was done


WELL = [Sample(float(at), 500_000_000 + (at < 20) * at, 30, 12, 5.0) for at in range(0, 100, 2)]
QUIET = End(1000, 200, 700, 100, 0, 0, 0, 0, 18, 18)

LEAKS: dict[str, tuple[list[Sample], End, str]] = {
    "a page that nobody gave back": (WELL, replace(QUIET, evictable=684, locked=16), "locked"),
    "a page that is in no list": (WELL, replace(QUIET, evictable=684), "are lost"),
    "a socket that stays open": (WELL, replace(QUIET, files=19), "left open"),
    "a request that never ended": (WELL, replace(QUIET, running=1), "requests run"),
    "an answer that is still counted": (WELL, replace(QUIET, active=1), "are counted"),
    "a conversation in passing that is kept": (WELL, replace(QUIET, strangers=1), "nobody named"),
    "memory that grows": (
        [replace(each, rss=each.rss + int(each.at_s * 1e6)) for each in WELL],
        QUIET,
        "memory has grown",
    ),
    "threads that stay": (
        [replace(each, threads=12 + int(each.at_s / 10)) for each in WELL],
        QUIET,
        "threads",
    ),
}


def test_a_quiet_end_is_well() -> None:
    assert verdict(WELL, QUIET) == []


def test_memory_is_judged_only_once_it_may_have_settled() -> None:
    grown, end, _ = LEAKS["memory that grows"]
    assert verdict(grown, end, requests=3_000) == []


@pytest.mark.parametrize("what", LEAKS)
def test_what_leaks_is_named(what: str) -> None:
    samples, end, word = LEAKS[what]
    (told,) = verdict(samples, end)
    assert word in told
