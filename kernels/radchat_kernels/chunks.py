"""Long items cut into chunks, so that every program of the device has work, and no more than that.

Each chunk more is one more partial result for each of its rows, to be written and merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from radchat_kernels.items import Item, Limits, Sight


def split(items: Sequence[Item], limits: Limits, sight: Sight) -> list[Item]:
    """The items in chunks of even length, longest first. What rows with a window don't see is left.

    A causal item stays whole: it has at most as many tokens as rows, and is cut by rows.
    """
    narrow, wide = chunk_tokens(items, limits)
    pieces: list[Item] = []
    for item in items:
        size = wide if _is_wide(item, limits) else narrow
        num_tokens = item.tok_end - item.tok_begin
        if item.causal or num_tokens <= size:
            pieces.append(item)
            continue
        count = -(-num_tokens // size)
        size = _round_up(-(-num_tokens // count), limits.block_tokens)
        for begin in range(item.tok_begin, item.tok_end, size):
            end = min(begin + size, item.tok_end)
            rows = sight.rows(item.rows, end) if item.windowed and not item.grows else item.rows
            if rows:
                # what a row has come to already is no longer growing
                grows = item.grows and end > sight.positions[rows[0]] + 1
                pieces.append(Item(rows, begin, end, item.table, False, item.windowed, grows))
    return sorted(pieces, key=_longest_first)


def chunk_tokens(items: Sequence[Item], limits: Limits) -> tuple[int, int]:
    """Tokens of a chunk of items that fit a small tile, and of the others.

    Tokens × row tiles × KV heads of all of them, over the programs that run at once. The others'
    chunks are twice as long at least, and have no upper bound: each writes a partial result of
    all its rows, and where rows alone fill the device there is nothing to gain by it.
    """
    assert limits.chunk is not None
    least, most = limits.chunk
    work = [0, 0]
    large = limits.extend if any(item.causal for item in items) else limits.wide
    rows_of_tile = large // limits.group
    for item in items:
        if not item.causal:
            tiles = -(-len(item.rows) // rows_of_tile)
            work[_is_wide(item, limits)] += (item.tok_end - item.tok_begin) * tiles
    narrow, wide = (
        _round_up(-(-tokens * limits.num_kv_heads // limits.programs), limits.block_tokens)
        for tokens in work
    )
    return min(max(narrow, least), most), max(wide, 2 * least)


def _is_wide(item: Item, limits: Limits) -> bool:
    return len(item.rows) * limits.group > limits.narrow


def _longest_first(item: Item) -> int:
    return item.tok_begin - item.tok_end


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to
