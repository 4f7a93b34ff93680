"""What the torch executor settles once per plan and then does in every layer: calls and places.

Index tensors, masks and where each partial result goes; nothing of a layer's K, V or scoring.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from radchat_kernels.plan import Item, Plan

# Measured on 2 cores (Xeon with AMX), 9 heads on 3 KV heads × 64; docs/adr/0005-attention-plan.md.
MIN_RUN_TOKENS = 512  # shorter runs on average: one gather costs less than a call for each run
PADDED_MAX_TOKENS = 256  # lone rows up to here: copying costs less than a call for each row


Piece = tuple[int, int, bool, int]  # from row, rows, whether they are the rows' only part, to row


@dataclass(slots=True)
class Call:
    """One flash call: ``count`` rows × tokens from slot ``slot`` of pool or gather.

    The rows are ``[row, row + count)``, or ``index`` where they don't lie side by side.
    """

    row: int
    count: int
    index: Tensor | None  # [count]
    spans: list[tuple[int, int]]  # the runs of rows side by side, half-open, in the call's order
    gathered: bool
    slot: int
    num_tokens: int
    causal: bool
    mask: Tensor | None  # [1, 1, count, num_tokens], 0 or -inf
    pieces: list[Piece]


@dataclass(slots=True)
class Padded:
    """Lone rows over few tokens: one call, [B, KV heads, group, tokens]."""

    rows: Tensor | None  # [B]; None: all rows there are, in order
    num_items: int  # B
    slots: Tensor  # [B * num_tokens]; padding repeats a row's last slot, which is written
    num_tokens: int
    mask: Tensor | None  # [B, 1, 1, num_tokens], 0 or -inf
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Merge:
    """Rows with ``num_parts`` partial results each, at ``[begin, begin + parts * rows)``."""

    num_parts: int
    begin: int
    num_rows: int  # R
    rows: slice | Tensor  # [R]


@dataclass(slots=True)
class Prepared:
    calls: list[Call]
    padded: Padded | None
    gather: Tensor | None  # page ids copied side by side
    merges: list[Merge]
    num_parts: int
    covers_all: bool  # no row without tokens
    is_single: bool  # one call for all rows, in order: its output is the answer, nothing is placed


def prepared(plan: Plan, num_rows: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    assert num_rows >= plan.num_rows, "more rows planned than given"
    key = f"torch {dtype} {num_rows}"
    found = plan.scratch.get(key)
    if found is None:
        found = _prepare(plan, num_rows, dtype)
        if device.type != "cpu":  # where all is made, as values are looked at
            _move(found, device)
        plan.scratch[key] = found
    assert isinstance(found, Prepared)
    return found


def _move(made: Prepared, device: torch.device) -> None:
    """All tensors to the device."""
    parts: list[Any] = [made, *made.calls, *made.merges]
    for part in [*parts, made.padded] if made.padded else parts:
        for each in fields(part):
            value = getattr(part, each.name)
            if isinstance(value, Tensor):
                setattr(part, each.name, value.to(device))


def _prepare(plan: Plan, num_rows: int, dtype: torch.dtype) -> Prepared:
    items: Sequence[Item] = plan.items
    if plan.limits.growing:
        items = [now for i in items if (now := _ends_now(i, plan)) is not None]
    lone = [i for i in items if _is_lone(i)]
    in_order = sorted(lone, key=lambda i: i.rows[0])
    if len(lone) < 2:
        lone = in_order = []
    gather: list[int] = []
    calls = [
        c for i in items if not lone or not _is_lone(i) for c in _calls(i, plan, gather, dtype)
    ]
    gathered = torch.tensor(gather) if gather else None
    padded, is_single = None, len(calls) == 1 and calls[0].spans == [(0, num_rows)]
    if in_order:
        padded = _pad(in_order, plan.page_size, dtype)
        if [i.rows[0] for i in in_order] == list(range(num_rows)):
            padded.rows, is_single = None, not calls
    if is_single:
        return Prepared(calls, padded, gathered, [], 0, covers_all=True, is_single=True)
    merges, num_parts, covers_all = _place(calls, in_order, padded, num_rows)
    return Prepared(calls, padded, gathered, merges, num_parts, covers_all, is_single=False)


def _ends_now(item: Item, plan: Plan) -> Item | None:
    """A growing item as its row is when the plan is made; none of it may be there yet."""
    if not item.grows:
        return item
    end = min(item.tok_end, plan.positions[item.rows[0]] + 1)
    return replace(item, tok_end=end, grows=False) if end > item.tok_begin else None


def _is_lone(item: Item) -> bool:
    """Of the tokens above its window a lone row has none: the planner leaves them out."""
    return len(item.rows) == 1 and item.tok_end - item.tok_begin <= PADDED_MAX_TOKENS


def _calls(item: Item, plan: Plan, gather: list[int], dtype: torch.dtype) -> list[Call]:
    """A call for each run of consecutive pages, or one for all, their ids put into ``gather``."""
    size, num_tokens = plan.page_size, item.tok_end - item.tok_begin
    first = item.tok_begin // size
    pages = list(item.table[first : -(-item.tok_end // size)])
    runs = _runs(pages)
    splits = not item.causal and not item.windowed  # only then may the tokens be cut
    if len(runs) == 1 or (splits and num_tokens >= MIN_RUN_TOKENS * len(runs)):
        spans = [(first + a, first + b, pages[a] * size, False) for a, b in runs]
    else:
        spans = [(first, first + len(pages), len(gather) * size, True)]
        gather += pages
    mask = _window_mask(item, plan, dtype) if item.windowed else None
    row, count = item.rows[0], len(item.rows)
    row_spans, index = [(row, row + count)], None
    if not isinstance(item.rows, range):
        row_spans, index = _side_by_side(item.rows), torch.tensor(item.rows)
    calls = []
    for a, b, slot, gathered in spans:
        begin, end = max(item.tok_begin, a * size), min(item.tok_end, b * size)
        calls.append(
            Call(
                row,
                count,
                index,
                row_spans,
                gathered,
                slot + begin - a * size,
                end - begin,
                item.causal,
                mask,
                [],
            )
        )
    return calls


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of ``pages`` in which ids go up by one."""
    if pages[-1] - pages[0] == len(pages) - 1 and pages == list(
        range(pages[0], pages[0] + len(pages))
    ):
        return [(0, len(pages))]
    ids = torch.tensor(pages)
    cuts = [0, *((ids[1:] != ids[:-1] + 1).nonzero().flatten() + 1).tolist(), len(pages)]
    return list(pairwise(cuts))


def _side_by_side(rows: Sequence[int]) -> list[tuple[int, int]]:
    """The rows as half-open ranges, in order."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and spans[-1][1] == row:
            spans[-1] = (spans[-1][0], row + 1)
        else:
            spans.append((row, row + 1))
    return spans


def _window_mask(item: Item, plan: Plan, dtype: torch.dtype) -> Tensor:
    assert plan.window is not None
    tokens = torch.arange(item.tok_begin, item.tok_end)
    lowest = torch.tensor([plan.positions[row] - plan.window for row in item.rows])
    return _additive(tokens[None, :] > lowest[:, None], dtype)[None, None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)


def _pad(items: Sequence[Item], size: int, dtype: torch.dtype) -> Padded:
    lens = torch.tensor([i.tok_end - i.tok_begin for i in items])
    num_tokens = int(lens.max())
    firsts = [i.tok_begin // size for i in items]
    tables = [list(i.table[f : -(-i.tok_end // size)]) for i, f in zip(items, firsts, strict=True)]
    width = max(map(len, tables))
    pages = torch.tensor([t + [0] * (width - len(t)) for t in tables])
    steps = torch.arange(num_tokens).expand(len(items), -1)
    offsets = torch.tensor([i.tok_begin % size for i in items])[:, None]
    at = steps.minimum(lens[:, None] - 1) + offsets
    slots = pages.gather(1, at // size) * size + at % size
    mask = None
    if int(lens.min()) < num_tokens:
        mask = _additive(steps < lens[:, None], dtype)[:, None, None, :]
    rows = torch.tensor([i.rows[0] for i in items])
    return Padded(rows, len(items), slots.flatten(), num_tokens, mask)


def _place(
    calls: list[Call], lone: Sequence[Item], padded: Padded | None, num_rows: int
) -> tuple[list[Merge], int, bool]:
    """Say where each part goes: straight to the output, or among the parts of a merge.

    Rows are cut where the set of calls that cover them changes. Ranges with equally many parts are
    merged together, laid out [part, row], so that a merge reads views.
    """
    # rows side by side that one call covers: (first, end, call or lone item, first one in the call)
    spans: list[tuple[int, int, int, int]] = []
    for index, call in enumerate(calls):
        done = 0
        for begin, end in call.spans:
            spans.append((begin, end, index, done - begin))
            done += end - begin
    spans += [(i.rows[0], i.rows[0] + 1, len(calls) + n, 0) for n, i in enumerate(lone)]
    edges = sorted({0, num_rows, *(edge for span in spans for edge in span[:2])})
    covers: list[list[tuple[int, int]]] = [[] for _ in edges[:-1]]
    for begin, end, index, offset in spans:
        for block in range(bisect_left(edges, begin), bisect_left(edges, end)):
            covers[block].append((index, offset))

    def place(index: int, at: int, count: int, is_only: bool, to: int) -> None:
        if index >= len(calls):
            assert padded is not None
            at, pieces = index - len(calls), padded.pieces
        else:
            pieces = calls[index].pieces
        if pieces:
            begin, done, was_only, went = pieces[-1]
            if (begin + done, was_only, went + done) == (at, is_only, to):
                at, count, to = begin, done + count, went
                pieces.pop()
        pieces.append((at, count, is_only, to))

    num_parts, merges = 0, []
    for n in sorted({len(c) for c in covers}):
        blocks = [(edges[b], edges[b + 1], c) for b, c in enumerate(covers) if len(c) == n]
        rows = [row for begin, end, _ in blocks for row in range(begin, end)]
        done = 0
        for begin, end, covering in blocks:
            for part, (index, offset) in enumerate(covering):
                to = begin if n == 1 else num_parts + part * len(rows) + done
                place(index, begin + offset, end - begin, n == 1, to)
            done += end - begin
        if n > 1:
            lie = slice(rows[0], rows[-1] + 1)
            is_run = lie.stop - lie.start == len(rows)
            merges.append(Merge(n, num_parts, len(rows), lie if is_run else torch.tensor(rows)))
            num_parts += n * len(rows)
    return merges, num_parts, all(covers)
