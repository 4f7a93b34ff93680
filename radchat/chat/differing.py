"""Where two sequences differ, in bounded time.

What stands once in each of both holds them together (a "patience" diff), and so on between those;
only what lies between is compared all with all, for that takes the square of its length and more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Step: TypeAlias = tuple[str, int, int, int, int]  # difflib's opcodes
Match: TypeAlias = tuple[int, int, int]  # where in both, and how long

SMALL = 64 * 64  # so much is always compared all with all
BUDGET = 250_000  # of larger ones, in all
PER_ITEM = 30  # for looking for what stands once
WIDTHS = (1, 8)  # items in a row that stand once


def steps(left: Sequence[str], right: Sequence[str]) -> tuple[list[Step], bool]:
    """What makes the one the other; and is it rough: were stretches too long to be compared, and
    count as replaced?
    """
    found, is_rough = _matches(left, right)
    told: list[Step] = []
    a = b = 0
    for at, to, length in [*found, (len(left), len(right), 0)]:
        if (a, b) != (at, to):
            what = "replace" if a < at and b < to else "delete" if a < at else "insert"
            told.append((what, a, at, b, to))
        if length:
            told.append(("equal", at, at + length, to, to + length))
        a, b = at + length, to + length
    return told, is_rough


def _matches(left: Sequence[str], right: Sequence[str]) -> tuple[list[Match], bool]:
    """In order; those that follow each other in both are one."""
    budget = BUDGET + PER_ITEM * (len(left) + len(right))
    found: list[Match] = []
    is_rough = False
    gaps = [(0, len(left), 0, len(right))]
    while gaps:
        a, a_end, b, b_end = gaps.pop()
        same = _num_same(left, right, range(a, a_end), range(b, b_end))
        found.append((a, b, same))
        a, b = a + same, b + same
        same = _num_same(left, right, range(a, a_end)[::-1], range(b, b_end)[::-1])
        a_end, b_end = a_end - same, b_end - same
        found.append((a_end, b_end, same))
        cost = (a_end - a) * (b_end - b)
        if not cost:
            continue
        ours, theirs = left[a:a_end], right[b:b_end]
        if cost > SMALL:
            budget -= len(ours) + len(theirs)
            held = _held(ours, theirs) if budget > 0 else []
            if held:
                ends = [*((a + i, b + j) for i, j in held), (a_end, b_end)]
                for i, j in ends:  # each begins with what holds it, which is the same in both
                    gaps.append((a, i, b, j))
                    a, b = i, j
                continue
            budget -= cost
            if budget < 0:
                is_rough = True
                continue
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        found += [(a + i, b + j, length) for i, j, length in blocks]
    return list(_merged(found)), is_rough


def _num_same(left: Sequence[str], right: Sequence[str], ours: range, theirs: range) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((n for n, (i, j) in pairs if left[i] != right[j]), min(len(ours), len(theirs)))


def _held(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Places of what stands once in each, as many as are in the same order in both."""
    for width in WIDTHS:
        ours, theirs = _once(left, width), _once(right, width)
        found = _in_order([(at, theirs[key]) for key, at in ours.items() if key in theirs])
        if found:
            return found
    return []


def _once(items: Sequence[str], width: int) -> dict[tuple[str, ...], int]:
    places: dict[tuple[str, ...], int] = {}
    for at in range(len(items) - width + 1):
        key = tuple(items[at : at + width])
        places[key] = -1 if key in places else at
    return {key: at for key, at in places.items() if at >= 0}


def _in_order(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The most of them of which both numbers rise; the first of each rises already."""
    ends: list[int] = []  # the least second number at which so many can end
    last: list[int] = []  # which pair that is
    before: list[int] = []
    for number, (_, to) in enumerate(pairs):
        length = bisect_left(ends, to)
        ends[length : length + 1] = [to]
        last[length : length + 1] = [number]
        before.append(last[length - 1] if length else -1)
    found = []
    at = last[-1] if last else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _merged(found: list[Match]) -> Iterator[Match]:
    a = b = length = 0
    for at, to, more in sorted(each for each in found if each[2]):
        if (at, to) == (a + length, b + length):
            length += more
            continue
        if length:
            yield a, b, length
        a, b, length = at, to, more
    if length:
        yield a, b, length
