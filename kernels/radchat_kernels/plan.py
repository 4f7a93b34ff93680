"""Which query rows attend which tokens: the work list of one step. Pure Python, no torch.

A step's rows are cut into *segments*: the new tokens of one sequence, which begin at a position
and whose KV, old and new, lies in the pages of one table. ``plan()`` turns segments into *items*:
some rows × one run of tokens, causal or not. A row may have any number of items; whoever executes
the plan merges a row's partial results by their log-sum-exp. So the plan decides the work and
never the answer.

This is the per-sequence plan: no two sequences share an item. A plan that lets all rows of a
shared prefix read it once is the same list with wider items (rows of one group lie side by side
when segments come in depth-first order of the tree), and its executors are these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows ``[row_begin, row_begin + row_count)`` are tokens ``start, start + 1, …`` of ``table``.

    Token t lies in page ``table[t // page_size]``, slot ``t % page_size``; the new tokens' KV is
    in the pool before attention runs. A segment without rows asks for nothing.
    """

    row_begin: int
    row_count: int
    start: int
    table: Sequence[int]


@dataclass(frozen=True, slots=True)
class Item:
    """Rows × tokens ``[tok_begin, tok_end)`` of ``table``; neither is ever empty.

    causal: row i is token ``tok_begin + i`` and sees the item's tokens up to itself (so the item
        has as many tokens as rows: the causal flag of CPU flash attention is right only there).
    window: the rows are the tokens right after the item (row i is token ``tok_end + i``) and see
        only tokens above ``tok_end + i - window``; every row sees at least one.
    """

    row_begin: int
    row_count: int
    tok_begin: int
    tok_end: int
    table: Sequence[int]
    causal: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device wants of the items. The default is a CPU's: a sequence an item, unsplit."""

    shared: bool = False  # rows that share a run of tokens read it once
    fold_below: int = 0  # tokens: a shared run shorter than this is read with each one's own
    chunk: tuple[int, int] | None = None  # least and most tokens of an item; None: not split
    block_tokens: int = 64  # chunks are multiples of this
    narrow: int = 16  # query rows × group that a small tile holds
    wide: int = 64  # and a large one
    group: int = 1  # query heads on a KV head
    num_kv_heads: int = 1
    programs: int = 1  # that run at once on the device
    growing: bool = False  # a lone row's last item ends where its table ends, not where it is


@dataclass(eq=False, slots=True)
class Plan:
    """The items of one step, good for every layer with the same window."""

    segments: tuple[Segment, ...]
    items: tuple[Item, ...]
    num_rows: int  # rows beyond the last segment's, and rows of no segment, get o = 0
    page_size: int
    window: int | None = None
    scratch: dict[str, object] = field(default_factory=dict, repr=False)
    """What an executor computes once from the plan and uses in every layer, under its own key."""

    def windowed(self, window: int | None) -> Plan:
        """The plan of the same step for layers whose rows see only their last ``window`` tokens."""
        if window == self.window:
            return self
        key = f"windowed {window}"
        if key not in self.scratch:
            self.scratch[key] = plan(self.segments, self.page_size, window)
        found = self.scratch[key]
        assert isinstance(found, Plan)
        return found


def plan(segments: Sequence[Segment], page_size: int, window: int | None = None) -> Plan:
    """One item for a segment's prefix and one, causal, for its own tokens; a lone row has one item.

    window: a row at position p sees the tokens ``(p - window, p]``; None: all of ``[0, p]``.
    """
    assert page_size > 0
    assert window is None or window > 0
    items: list[Item] = []
    for segment in segments:
        assert min(segment.row_begin, segment.row_count, segment.start) >= 0, segment
        assert len(segment.table) * page_size >= segment.start + segment.row_count, "short table"
        for part in _within_window(segment, window):
            items += _items_of(part, window)
    ends = [s.row_begin + s.row_count for s in segments]
    assert _are_disjoint(segments), "two segments claim a row"
    return Plan(tuple(segments), tuple(items), max(ends, default=0), page_size, window)


def _items_of(segment: Segment, window: int | None) -> list[Item]:
    """A segment no longer than the window: its own part is then plainly causal."""
    row, count, start, table = (
        segment.row_begin,
        segment.row_count,
        segment.start,
        segment.table,
    )
    first = 0 if window is None else max(0, start + 1 - window)  # what the first row still sees
    if count == 1:
        return [Item(row, 1, first, start + 1, table)]
    items = [Item(row, count, start, start + count, table, causal=True)]
    if first < start:
        if window is None or start + count <= window:
            items.insert(0, Item(row, count, first, start, table))
        else:  # row i sees tokens above start + i - window: none once i reaches window - 1
            items.insert(0, Item(row, min(count, window - 1), first, start, table, window=window))
    return items


def _within_window(segment: Segment, window: int | None) -> list[Segment]:
    """The segment in pieces of at most ``window`` rows."""
    if segment.row_count == 0:
        return []
    if window is None or segment.row_count <= window:
        return [segment]
    return [
        Segment(
            segment.row_begin + done,
            min(window, segment.row_count - done),
            segment.start + done,
            segment.table,
        )
        for done in range(0, segment.row_count, window)
    ]


def _are_disjoint(segments: Sequence[Segment]) -> bool:
    spans = sorted((s.row_begin, s.row_begin + s.row_count) for s in segments if s.row_count)
    return all(before[1] <= after[0] for before, after in pairwise(spans))
