"""Which query rows attend which tokens: the work list of one step. Pure Python, no torch.

A step's rows are cut into *segments*: the new tokens of one sequence, which begin at a position
and whose KV, old and new, lies in the pages of one table. ``plan()`` turns segments into *items*:
some rows × one run of tokens, causal or not. A row may have any number of items; whoever executes
the plan merges a row's partial results by their log-sum-exp. So the plan decides the work and
never the answer.

``Limits`` says what a device wants of the items. The default is a plan per sequence, unsplit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from radchat_kernels.chunks import split
from radchat_kernels.grouping import share
from radchat_kernels.items import PER_SEQUENCE, Item, Limits, Segment, Sight

__all__ = ["PER_SEQUENCE", "Item", "Limits", "Plan", "Segment", "plan"]


@dataclass(eq=False, slots=True)
class Plan:
    """The items of one step, good for every layer with the same window."""

    segments: tuple[Segment, ...]
    items: tuple[Item, ...]  # longest first where limits.chunk is set
    num_rows: int  # rows beyond the last segment's, and rows of no segment, get o = 0
    page_size: int
    window: int | None = None
    limits: Limits = PER_SEQUENCE
    num_tokens: int = 0  # of the longest path; as long as it may get where rows grow
    scratch: dict[object, object] = field(default_factory=dict, repr=False)
    """What an executor computes once from the plan and uses in every layer, under its own key."""

    @property
    def positions(self) -> list[int]:
        """Of each row when the plan was made; 0 for rows of no segment."""
        found = self.scratch.get("positions")
        if found is None:
            found = self.scratch["positions"] = _positions(self.segments, self.num_rows)
        assert isinstance(found, list)
        return found

    def windowed(self, window: int | None) -> Plan:
        """The plan of the same step for layers whose rows see only their last ``window`` tokens."""
        if window == self.window:
            return self
        key = f"windowed {window}"
        if key not in self.scratch:
            self.scratch[key] = plan(self.segments, self.page_size, window, self.limits)
        found = self.scratch[key]
        assert isinstance(found, Plan)
        return found


def plan(
    segments: Sequence[Segment],
    page_size: int,
    window: int | None = None,
    limits: Limits = PER_SEQUENCE,
) -> Plan:
    """One item for a segment's prefix and one, causal, for its own tokens; a lone row has one item.

    limits: whether rows then share what they read, and how long items are cut.
    window: a row at position p sees the tokens ``(p - window, p]``; None: all of ``[0, p]``.
    """
    assert page_size > 0
    assert window is None or window > 0
    num_rows = num_tokens = 0
    items: list[Item] = []
    for segment in segments:
        count, end = segment.row_count, segment.start + segment.row_count
        assert min(segment.row_begin, count, segment.start) >= 0, segment
        room = len(segment.table) * page_size
        assert room >= end, "short table"
        if count == 1 and limits.growing:
            end = room
        num_tokens = max(num_tokens, end)
        num_rows = max(num_rows, segment.row_begin + count)
        if count == 1:
            items.append(_lone_item(segment.row_begin, segment.start, end, segment.table, window))
            continue
        most = window or count or 1  # rows no more than the window: their own part is plain causal
        for done in range(0, count, most):
            items += _items_of(segment, done, min(most, count - done), window)
    assert _are_disjoint(segments), "two segments claim a row"
    if limits.shared or limits.chunk is not None:
        sight = Sight(window, _positions(segments, num_rows))
        if limits.shared:
            items = share(items, page_size, limits, sight)
        if limits.chunk is not None:
            items = split(items, limits, sight)
    return Plan(tuple(segments), tuple(items), num_rows, page_size, window, limits, num_tokens)


def _positions(segments: Sequence[Segment], num_rows: int) -> list[int]:
    positions = [0] * num_rows
    for s in segments:
        positions[s.row_begin : s.row_begin + s.row_count] = range(s.start, s.start + s.row_count)
    return positions


def _lone_item(row: int, start: int, end: int, table: Sequence[int], window: int | None) -> Item:
    """A lone row's, which may grow to ``end``."""
    first, slides = 0, False
    if window is not None:
        first = max(0, start + 1 - window)
        slides = first < end - window
    return Item(range(row, row + 1), first, end, table, False, slides, end > start + 1)


def _items_of(segment: Segment, done: int, count: int, window: int | None) -> list[Item]:
    """Of the ``count`` rows from the one numbered ``done``, no more than the window."""
    row, start, table = segment.row_begin + done, segment.start + done, segment.table
    rows, end = range(row, row + count), start + count
    if count == 1:
        return [_lone_item(row, start, end, table, window)]
    own = Item(rows, start, end, table, causal=True)
    first = 0 if window is None else max(0, start + 1 - window)  # what the first row still sees
    if first >= start:
        return [own]
    if window is None or end <= window:
        return [Item(rows, first, start, table), own]
    # row i sees tokens above start + i - window: none once i reaches window - 1
    return [Item(rows[: window - 1], first, start, table, windowed=True), own]


def _are_disjoint(segments: Sequence[Segment]) -> bool:
    spans = sorted((s.row_begin, s.row_begin + s.row_count) for s in segments if s.row_count)
    return all(before[1] <= after[0] for before, after in pairwise(spans))
