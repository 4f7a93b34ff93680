"""Steps over trees of branches, for the tests of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from radchat_kernels.plan import Limits, Plan, Segment

PAGE = 4

Pairs = list[tuple[int, int]]  # (row, token)


@st.composite
def steps(draw: st.DrawFn, *, lone: bool = False, most: int = 7) -> list[Segment]:
    """Segments whose tables begin with another's, cut anywhere, or with none's: several roots.

    Some end inside a page that others read on in, some have no rows, some have pages in reserve,
    and some a page changed, so that tables differ in the middle and agree again behind it.
    """
    tables: list[list[int]] = []
    segments, row, fresh = [], 0, 300
    for _ in range(draw(st.integers(1, most))):
        table: list[int] = []
        if tables and draw(st.integers(0, 5)) > 0:
            table = list(draw(st.sampled_from(tables)))
            table = table[: draw(st.integers(0, len(table)))]
        new = draw(st.integers(0 if table else 1, 6))
        table += range(fresh, fresh + new)
        fresh += new
        if draw(st.integers(0, 7)) == 0:
            table[draw(st.integers(0, len(table) - 1))], fresh = fresh, fresh + 1
        count = 1 if lone or draw(st.booleans()) else draw(st.integers(0, 9))
        count = min(count, len(table) * PAGE)
        start = draw(st.integers(0, len(table) * PAGE - count))
        tables.append(table)
        segments.append(Segment(row, count, start, table))
        row += count
    if draw(st.booleans()):  # rows of a group then don't lie side by side
        order = draw(st.permutations(segments))
        segments, row = [], 0
        for s in order:
            segments.append(Segment(row, s.row_count, s.start, s.table))
            row += s.row_count
    return segments


def limits(**fixed: Any) -> st.SearchStrategy[Limits]:
    """Small enough to cut, tile and fold steps of a few dozen tokens."""
    asked: dict[str, st.SearchStrategy[Any]] = {
        "shared": st.booleans(),
        "share_from": st.sampled_from([0, 5, 30]),
        "fold_below": st.sampled_from([0, 3, 8, 40]),
        "chunk": st.sampled_from([None, (2, 8), (4, 64)]),
        "block_tokens": st.sampled_from([1, 2, 8]),
        "narrow": st.sampled_from([2, 4]),
        "wide": st.sampled_from([4, 7, 16]),
        "group": st.integers(1, 2),
        "num_kv_heads": st.integers(1, 2),
        "programs": st.sampled_from([1, 3, 100]),
        "growing": st.booleans(),
    }
    asked |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(Limits, **asked)


def seen(made: Plan) -> Pairs:
    """Every (row, token) an executor is told to compute, in order of items."""
    pairs = []
    for item in made.items:
        for i, row in enumerate(item.rows):
            position = made.positions[row]
            for token in range(item.tok_begin, item.tok_end):
                if item.causal and token > item.tok_begin + i:
                    continue
                if item.grows and token > position:
                    continue
                if item.windowed and made.window is not None and token <= position - made.window:
                    continue
                pairs.append((row, token))
    return pairs


def wanted(segments: Sequence[Segment], window: int | None) -> Pairs:
    """What rows see by definition."""
    pairs = []
    for segment in segments:
        for i in range(segment.row_count):
            position = segment.start + i
            first = 0 if window is None else max(0, position + 1 - window)
            pairs += [(segment.row_begin + i, t) for t in range(first, position + 1)]
    return pairs
