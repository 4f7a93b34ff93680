"""The order of the waiting queue: one function, three policies.

``lpm``: what is overdue first, then foreground, then by how long a request has waited compared
with the work it brings (response ratio, in powers of two), and among equals the longest matched
prefix, then the highest hit rate, then the least work. So a hot request goes first, as long as a
cold one has not waited for ``PATIENCE`` times as long as its own prompt takes: with less, chats
that go on at once take turns, and evict each other (docs/adr/0008). ``fcfs`` and ``random`` are
there for comparison.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from radchat.engine.batch import Urgency
from radchat.engine.choice import Choice
from radchat.engine.request import Priority
from radchat.errors import InvalidInput

POLICIES = ("lpm", "fcfs", "random")
PATIENCE = 16


class Waiting(NamedTuple):
    """A queued choice as the tree stands now."""

    choice: Choice
    matched: int  # tokens that need not be run
    priority: Priority
    is_overdue: bool
    is_worn: bool = False  # put back too often


def queue_order(
    entries: Sequence[Waiting], policy: str, now: float, tokens_per_s: float, seed: int = 0
) -> list[Waiting]:
    """Who is admitted first; nothing is changed. Raises InvalidInput for an unknown policy."""
    if policy == "lpm":
        return sorted(entries, key=lambda entry: _lpm_key(entry, now, tokens_per_s))
    if policy == "fcfs":
        return sorted(entries, key=_arrival)
    if policy == "random":  # a place is drawn once for a request, not anew each step
        return sorted(
            entries, key=lambda entry: random.Random(f"{seed} {_arrival(entry)}").random()
        )
    raise InvalidInput(
        f"policy: want one of {', '.join(POLICIES)} (got {policy!r})", field="policy"
    )


def urgency(policy: str, now: float, tokens_per_s: float) -> Urgency | None:
    """Of prompts that run: short ones, and those that others wait for, overtake long ones, again
    with ageing. None: in order of admission.
    """
    if policy != "lpm":
        return None

    def key(choice: Choice) -> tuple[float, float]:
        waited = max(0.0, now - choice.group.arrived)
        age = math.floor(math.log2(1 + waited * tokens_per_s / choice.pending))
        return -age, choice.pending / (1 + choice.followers)

    return key


def _arrival(entry: Waiting) -> tuple[int, int]:
    return entry.choice.group.serial, entry.choice.index


def _lpm_key(entry: Waiting, now: float, tokens_per_s: float) -> tuple[float, ...]:
    waited = max(0.0, now - entry.choice.group.arrived)
    length = len(entry.choice.ids)
    service = (length - entry.matched) / tokens_per_s
    if entry.is_overdue:
        return (0, *_arrival(entry))
    age = math.floor(math.log2(1 + waited / (PATIENCE * service)))
    rate = entry.matched / length
    return (
        1,
        entry.priority,
        not entry.is_worn,
        -age,
        -entry.matched,
        -rate,
        service,
        *_arrival(entry),
    )
