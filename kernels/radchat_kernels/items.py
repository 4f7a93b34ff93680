"""What plans are made of and for: segments of a step, items of work, limits of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

    rows: Sequence[int]  # ascending; a range where they lie side by side
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
    share_from: int = 0  # tokens: shorter shared runs never stay one, whatever that saves
    fold_below: int = 0  # tokens: shared runs at least as long always stay one (``grouping``)
    chunk: tuple[int, int] | None = None  # tokens of an item, and most of a narrow one; None: any
    block_tokens: int = 64  # chunks are multiples of this
    narrow: int = 16  # query rows × group that a small tile holds
    wide: int = 64  # and a large one
    extend: int = 64  # and a large one in plans with causal items
    group: int = 1  # query heads on a KV head
    num_kv_heads: int = 1
    programs: int = 1  # that run at once on the device
    growing: bool = False  # a lone row's last item ends where its table ends, not where it is


PER_SEQUENCE = Limits()


@dataclass(frozen=True, slots=True)
class Sight:
    """What rows of a step see: a window over the positions they have when the plan is made."""

    window: int | None
    positions: Sequence[int]

    def rows(self, rows: Sequence[int], tok_end: int) -> Sequence[int]:
        """Those that see a token below ``tok_end``, which all have come to."""
        if self.window is None:
            return rows
        blind_from = tok_end - 1 + self.window
        seeing = [row for row in rows if self.positions[row] < blind_from]
        return rows if len(seeing) == len(rows) else side_by_side(seeing)


def side_by_side(rows: Sequence[int]) -> Sequence[int]:
    """Ascending rows, as a range if they are one."""
    if len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1:
        return range(rows[0], rows[-1] + 1)
    return rows
