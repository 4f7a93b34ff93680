"""A plan as int32 words for kernels that run a work list: one buffer, one transfer. Pure Python.

Parts of the buffer, each beginning at a multiple of 4 words:

    items        [n, 8]   row_begin, row_count, page_begin, tok_begin, tok_end, pos0, part_begin,
                          dyn_row
    rows         query rows; an item's are rows[row_begin : row_begin + row_count]
    pages        page ids; an item's token t is in pages[page_begin + t // P], slot t % P
    part_indptr  [T + 1]  row r's parts are part_slots[part_indptr[r] : part_indptr[r + 1]]
    part_slots   slots of partial results, each in there once
    n_items      [1]

Tokens count from the first of page ``pages[page_begin]``, which is token ``pos0`` of its path.
part_begin: the slot of the item's first row, the others follow; -1: the item is the only part of
all its rows and writes the output itself (such rows have no slots). dyn_row: -1, or the row whose
position p ends the item: at ``min(tok_end, p + 1 - pos0)``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from radchat_kernels.plan import Plan

ITEM_WORDS = 8


@dataclass(frozen=True, slots=True)
class WorkList:
    data: array[int]
    offsets: dict[str, tuple[int, int]]  # name of a part -> (begin, length) in data, in words
    num_items: int  # row tiles: what a program works on
    num_slots: int
    num_rows: int  # T
    most_rows: int  # query rows × group of the largest
    has_narrow: bool  # some fit a small tile
    has_wide: bool
    covers_all: bool  # every row of [0, T) has an item; the output of others must be zeroed
    causal: bool  # some item is


def pack(plan: Plan, num_rows: int, *, direct: bool = True) -> WorkList:
    """Items cut into row tiles, those of one run of tokens behind one another.

    num_rows: T, at least the plan's. direct: a row's only part may be written straight to the
    output; not so where the merge has more to add (sinks).
    """
    assert num_rows >= plan.num_rows, "more rows planned than given"
    group, narrow, wide = plan.limits.group, plan.limits.narrow, plan.limits.wide
    assert group <= narrow <= wide, "a tile holds at least the query heads of one KV head"
    positions = plan.positions
    num_parts = [0] * num_rows
    for item in plan.items:
        for row in item.rows:
            num_parts[row] += 1
    words, rows, pages = array("i"), array("i"), array("i")
    rows_at: dict[int, int] = {}  # chunks of one run have the same rows
    slots: list[list[int]] = [[] for _ in range(num_rows)]
    num_slots, most_rows, has_narrow, has_wide = 0, 0, False, False
    for item in plan.items:
        row_begin = rows_at.get(id(item.rows))
        if row_begin is None:
            row_begin = rows_at[id(item.rows)] = len(rows)
            rows.extend(item.rows)
        first_page = item.tok_begin // plan.page_size
        pos0, page_begin = first_page * plan.page_size, len(pages)
        pages.extend(item.table[first_page : -(-item.tok_end // plan.page_size)])
        dyn_row = item.rows[0] if item.grows else -1
        for begin, count in _tiles(len(item.rows), group, narrow, wide):
            tile = item.rows[begin : begin + count]
            end = item.tok_begin + begin + count if item.causal else item.tok_end
            first = item.tok_begin
            if item.windowed and plan.window is not None:  # what none of these rows sees
                first = max(first, min([positions[row] for row in tile]) + 1 - plan.window)
            part_begin = -1
            if not direct or any(num_parts[row] > 1 for row in tile):
                part_begin = num_slots
                for row in tile:
                    slots[row].append(num_slots)
                    num_slots += 1
            words.extend(
                (
                    row_begin + begin,
                    count,
                    page_begin,
                    first - pos0,
                    end - pos0,
                    pos0,
                    part_begin,
                    dyn_row,
                )
            )
            most_rows = max(most_rows, count * group)
            if count * group <= narrow:
                has_narrow = True
            else:
                has_wide = True
    num_items = len(words) // ITEM_WORDS
    indptr = [0]
    for each in slots:
        indptr.append(indptr[-1] + len(each))
    data, offsets = _joined(
        items=words,
        rows=rows,
        pages=pages,
        part_indptr=indptr,
        part_slots=[slot for each in slots for slot in each],
        n_items=(num_items,),
    )
    return WorkList(
        data,
        offsets,
        num_items,
        num_slots,
        num_rows,
        most_rows,
        has_narrow,
        has_wide,
        all(num_parts),
        any(item.causal for item in plan.items),
    )


def _tiles(count: int, group: int, narrow: int, wide: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each row tile of ``count`` rows."""
    if count * group <= narrow:
        yield 0, count
        return
    most = wide // group
    for begin in range(0, count, most):
        yield begin, min(most, count - begin)


def _joined(**parts: Iterable[int]) -> tuple[array[int], dict[str, tuple[int, int]]]:
    data, offsets = array("i"), dict[str, tuple[int, int]]()
    for name, values in parts.items():
        data.extend([0] * (-len(data) % 4))
        begin = len(data)
        data.extend(values)
        offsets[name] = (begin, len(data) - begin)
    return data, offsets
