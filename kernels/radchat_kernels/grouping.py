"""Rows that see the same tokens in the same pages read them once: items grouped by sets of rows.

The tree of branches is found in the page tables, not asked for: a run of tokens is shared by those
whose tables hold the same pages there, and all before it, and who see it. So nodes of the radix
tree that the same rows pass through are one run, and any number of roots is the same as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radchat_kernels.items import Item, Limits, Sight, side_by_side

ITEM_COSTS = 32  # tokens that could be read in the time that one item more takes


@dataclass(eq=False, slots=True)
class _Reader:
    """An item of one sequence, to be read with others as far as ``shared_end``."""

    item: Item
    table: list[int]
    shared_end: int


@dataclass(eq=False, slots=True)
class _Run:
    """Tokens that the same readers see."""

    readers: list[_Reader]
    begin: int
    end: int
    children: list[_Run] = field(default_factory=list)


def share(items: Sequence[Item], page_size: int, limits: Limits, sight: Sight) -> list[Item]:
    """The same work with what sequences have in common read once; causal items stay as they are.

    What grows is shared as far as its row has come.
    """
    readers = [
        _Reader(i, _as_list(i.table), _reached(i, sight))
        for i in sorted(items, key=lambda item: item.rows[0])
        if not i.causal
    ]
    shared = [item for item in items if item.causal]
    for run in _runs(readers, page_size, limits):
        shared += _items_of(run, sight)
    return shared


def _as_list(table: Sequence[int]) -> list[int]:
    return table if isinstance(table, list) else list(table)  # slices of one kind compare


def _reached(item: Item, sight: Sight) -> int:
    return min(item.tok_end, sight.positions[item.rows[0]] + 1) if item.grows else item.tok_end


def _runs(readers: list[_Reader], page_size: int, limits: Limits) -> list[_Run]:
    """The tree of runs, parents before children, with the short ones folded.

    A group shares the run up to where a table differs or one of them sees no further.
    """
    root = _Run([], 0, 0)
    found: list[_Run] = []
    left = [(readers, 0, 0, root)]  # (readers, from token, pages known to be the same, parent)
    while left:
        group, begin, num_same, parent = left.pop()
        if len(group) == 1:
            _add(found, _Run(group, begin, group[0].item.tok_end), parent)
            continue
        if not group:
            continue
        nearest = min([reader.shared_end for reader in group])
        num_same = _num_same_pages(group, num_same, -(-nearest // page_size))
        end = min(nearest, num_same * page_size)
        parent = _add(found, _Run(group, begin, end), parent)
        staying = []
        for reader in group:
            if reader.shared_end > end:
                staying.append(reader)
            else:  # what may still grow
                _add(found, _Run([reader], end, reader.item.tok_end), parent)
        if end < num_same * page_size:
            left.append((staying, end, num_same, parent))
            continue
        by_page: dict[int, list[_Reader]] = {}
        for reader in staying:
            by_page.setdefault(reader.table[num_same], []).append(reader)
        left += [(each, end, num_same, parent) for each in reversed(by_page.values())]
    for run in found:
        _fold(run, limits)
    return found


def _add(found: list[_Run], run: _Run, parent: _Run) -> _Run:
    """The run, if any of its readers sees a token of it; else its parent stands for it."""
    run.begin = max(run.begin, _first_seen(run.readers))
    if run.begin >= run.end:
        return parent
    found.append(run)
    parent.children.append(run)
    return run


def _num_same_pages(group: list[_Reader], known: int, most: int) -> int:
    """How many pages, ``known`` … ``most``, all tables begin with."""
    reference, end = group[0].table, most
    head = reference[known:end]
    for reader in group:
        table = reader.table
        if table is reference or table[known:end] == head:
            continue
        low = known  # the same up to here, and not up to end
        while end - low > 1:
            middle = (low + end) // 2
            if table[low:middle] == reference[low:middle]:
                low = middle
            else:
                end = middle
        end = low
        head = reference[known:end]
    return end


def _fold(run: _Run, limits: Limits) -> None:
    """A short run is read again by each that goes on from it, where that costs less.

    In tokens of one KV head: c readings of its n tokens are (c - 1) · n more. Each row that goes on
    has one partial result less, ``2 · rows · group`` in all: writing and reading one (o and lse in
    float32) is as much as K and V of two tokens in 16 bits. And there is one item less, unless some
    row ends here.
    """
    num_tokens = run.end - run.begin
    if len(run.readers) == 1 or num_tokens >= max(limits.fold_below, limits.share_from):
        return
    going_on = {id(reader) for child in run.children for reader in child.readers}
    ending = [reader for reader in run.readers if id(reader) not in going_on]
    children = [child for child in run.children if child.begin == run.end]
    rows = sum([len(reader.item.rows) for child in children for reader in child.readers])
    more = (len(children) + bool(ending) - 1) * num_tokens
    saved = 2 * rows * limits.group + (0 if ending else ITEM_COSTS)
    if num_tokens >= limits.share_from and more >= saved:
        return
    for child in children:
        child.begin = max(run.begin, _first_seen(child.readers))
    run.readers = [reader for reader in ending if reader.item.tok_begin < run.end]
    if run.readers:
        run.begin = max(run.begin, _first_seen(run.readers))


def _first_seen(readers: list[_Reader]) -> int:
    return min([reader.item.tok_begin for reader in readers])


def _items_of(run: _Run, sight: Sight) -> list[Item]:
    """The run as an item: none where it has been folded into others."""
    if not run.readers:
        return []
    item = run.readers[0].item
    rows = item.rows
    if len(run.readers) > 1:
        rows = side_by_side([row for reader in run.readers for row in reader.item.rows])
    windowed = False
    grows = item.grows and run.end > sight.positions[rows[0]] + 1
    if sight.window is not None:
        rows = rows if grows else sight.rows(rows, run.end)
        furthest = max([_furthest(reader.item, sight) for reader in run.readers])
        windowed = run.begin <= furthest - sight.window
    return [Item(rows, run.begin, run.end, item.table, False, windowed, grows)] if rows else []


def _furthest(item: Item, sight: Sight) -> int:
    """The position that the last of its rows has, or may come to."""
    return item.tok_end - 1 if item.grows else sight.positions[item.rows[-1]]
