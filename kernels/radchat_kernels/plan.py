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

    causal: ``rows[i]`` is token ``tok_begin + i`` and sees the item's tokens up to itself (so the
        item has as many tokens as rows: the causal flag of CPU flash attention is right only
        there). All other rows see all of the item, but for these two:
    windowed: a row at position p sees only tokens above ``p - window``; when the plan is made,
        every row sees at least one.
    grows: one row, at position p; the item ends at ``min(tok_end, p + 1)``, which may leave none.
    """

    rows: Sequence[int]  # a range where they lie side by side
    tok_begin: int
    tok_end: int
    table: Sequence[int]
    causal: bool = False
    windowed: bool = False
    grows: bool = False


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


PER_SEQUENCE = Limits()


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
    scratch: dict[str, object] = field(default_factory=dict, repr=False)
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
    if limits.chunk is not None:
        items = _split(items, limits, window, _positions(segments, num_rows))
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
    return Item(range(row, row + 1), first, end, table, windowed=slides, grows=end > start + 1)


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


def _split(
    items: Sequence[Item], limits: Limits, window: int | None, positions: Sequence[int]
) -> list[Item]:
    """Long items in chunks, so that all programs of the device have work; longest first."""
    least = _chunks(items, limits)
    pieces: list[Item] = []
    for item in items:
        num_tokens = item.tok_end - item.tok_begin
        size = least[_is_wide(item, limits)]
        if item.causal or num_tokens <= size:
            pieces.append(item)
            continue
        count = -(-num_tokens // size)
        size = _round_up(-(-num_tokens // count), limits.block_tokens)
        for begin in range(item.tok_begin, item.tok_end, size):
            end = min(begin + size, item.tok_end)
            rows, grows = item.rows, item.grows
            if item.windowed and window is not None and len(rows) > 1:
                rows = _sighted(rows, end, window, positions)
            if grows:  # only what lies beyond the row now
                grows = end > positions[rows[0]] + 1
            if rows:
                pieces.append(Item(rows, begin, end, item.table, False, item.windowed, grows))
    return sorted(pieces, key=lambda item: item.tok_begin - item.tok_end)


def _sighted(rows: Sequence[int], end: int, window: int, positions: Sequence[int]) -> Sequence[int]:
    """Those of ``rows`` that see a token below ``end``."""
    seeing = [row for row in rows if positions[row] - window < end - 1]
    if len(seeing) == len(rows):
        return rows
    if isinstance(rows, range) and seeing and seeing[-1] - seeing[0] == len(seeing) - 1:
        return range(seeing[0], seeing[-1] + 1)
    return seeing


def _chunks(items: Sequence[Item], limits: Limits) -> tuple[int, int]:
    """Tokens of a chunk of narrow items, and of wide ones.

    All of a class, tokens × row tiles × KV heads, over the programs that run at once. Wide chunks
    are twice as long at least: each writes more partial results.
    """
    assert limits.chunk is not None
    least, most = limits.chunk
    work = [0, 0]
    for item in items:
        if not item.causal:
            tiles = -(-len(item.rows) * limits.group // limits.wide)
            work[_is_wide(item, limits)] += (item.tok_end - item.tok_begin) * tiles
    narrow, wide = (
        _round_up(-(-tokens * limits.num_kv_heads // limits.programs), limits.block_tokens)
        for tokens in work
    )
    return min(max(narrow, least), most), min(max(wide, 2 * least), most)


def _is_wide(item: Item, limits: Limits) -> bool:
    return len(item.rows) * limits.group > limits.narrow


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to
