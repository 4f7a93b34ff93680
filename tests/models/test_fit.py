"""The offer of a first start: what fits, largest first, the smallest always there."""

from __future__ import annotations

from radchat.models.fit import (
    COMFORTABLE_ON_CPU,
    SMALLEST,
    SUGGESTIONS,
    available_memory,
    offers,
    recommended,
)
from radchat.models.sources import ALIASES, classify


def test_only_what_fits_is_offered_largest_first() -> None:
    assert [one.source for one in offers(0)] == [SMALLEST]
    everything = offers(10**12)
    assert [one.memory_bytes for one in everything] == sorted(
        (one.memory_bytes for one in SUGGESTIONS), reverse=True
    )
    edge = SUGGESTIONS[2].memory_bytes
    assert offers(edge)[0] == SUGGESTIONS[2]
    assert offers(edge - 1)[0] == SUGGESTIONS[1]


def test_without_a_gpu_nothing_too_slow_to_read_is_recommended() -> None:
    assert recommended(10**12, has_gpu=True) == SUGGESTIONS[-1]
    on_cpu = recommended(10**12)
    assert on_cpu.memory_bytes <= COMFORTABLE_ON_CPU
    assert on_cpu != SUGGESTIONS[0]
    assert recommended(10**9).source == SMALLEST


def test_the_smallest_says_that_it_is_small() -> None:
    assert "small" in SUGGESTIONS[0].about
    assert SUGGESTIONS[0].source in ALIASES


def test_every_suggestion_can_be_pulled_and_has_a_true_looking_size() -> None:
    for one in SUGGESTIONS[1:]:
        assert classify(one.source).kind == "hub"
        assert one.fetch_bytes < one.memory_bytes + 10**9


def test_free_memory_is_of_this_machine() -> None:
    assert 10**8 < available_memory() < 10**14
