"""Drawing a token of each row (K7): the best score + noise of each block of the vocabulary, then
the best block. Scores and noise are float64, the words ``torch_sample``'s.

Reads the logits once. Blocks of which no id survives the filters draw no noise: with filters all
but a few; without, two float64 logarithms an id.
"""

# Kernels have no types that Python's checkers know, and constants in capitals.
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
from torch import Tensor

from radchat_kernels._triton import INTERPRETED, Launcher, jit, launch, power_of_two, tl

# Ids of a program, and numbers of one of the interpreter's, where a program costs milliseconds.
_BLOCK, _TILE = (65536, 1 << 18) if INTERPRETED else (1024, 1024)


@jit
def _words(seed, position, choice, ids):
    """Philox4x32-10 of 32-bit words: the word of each id; written out in ``torch_sample``."""
    zero = (seed + ids).to(tl.uint32) * 0  # of the block's shape
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = zero + position.to(tl.uint32), zero + choice.to(tl.uint32)
    c2, c3 = zero + (ids >> 2).to(tl.uint32), zero
    for _ in tl.static_range(10):
        high_0, low_0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high_2, low_2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high_2 ^ c1 ^ k0, low_2, high_0 ^ c3 ^ k1, low_0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    word = ids & 3
    return tl.where(word < 2, tl.where(word == 0, c0, c1), tl.where(word == 2, c2, c3))


@jit(do_not_specialize=("num_rows",))
def best_in_blocks_kernel(
    logits_ptr, best_ptr, temperature_ptr, keep_ptr, keys_ptr, block_best_ptr, block_ids_ptr,
    num_rows, num_ids, num_blocks, stride_row,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best of BLOCK ids of BLOCK_ROWS rows; -inf where none survives."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    row_ok = row < num_rows
    block = tl.program_id(1)
    ids = (block * BLOCK + tl.arange(0, BLOCK))[None, :]
    ok = row_ok[:, None] & (ids < num_ids)
    logits = tl.load(logits_ptr + row[:, None] * stride_row + ids, mask=ok, other=0.0)
    best = tl.load(best_ptr + row, mask=row_ok, other=0.0)
    temperature = tl.load(temperature_ptr + row, mask=row_ok, other=1.0)
    keep = tl.load(keep_ptr + row, mask=row_ok, other=0.0)
    scores = (logits.to(tl.float64) - best[:, None]) / temperature[:, None]
    survives = (scores >= keep[:, None]) & ok
    scores = tl.where(survives, scores, float("-inf"))
    if tl.max(tl.max(survives.to(tl.int32), 1), 0) > 0:
        key = keys_ptr + row[:, None] * 3
        seed = tl.load(key, mask=row_ok[:, None], other=0)
        position = tl.load(key + 1, mask=row_ok[:, None], other=0)
        choice = tl.load(key + 2, mask=row_ok[:, None], other=0)
        words = _words(seed, position, choice, ids)
        u = (words.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2**-32
        scores -= tl.log(-tl.log(u))
    value = tl.max(scores, 1)
    first = tl.min(tl.where(scores == value[:, None], ids, 2147483647), 1)
    to = row * num_blocks + block
    tl.store(block_best_ptr + to, value, mask=row_ok)
    tl.store(block_ids_ptr + to, first, mask=row_ok)


@jit(do_not_specialize=("num_rows",))
def best_of_blocks_kernel(
    values_ptr, ids_ptr, out_ptr, num_rows, num_blocks,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The ids of BLOCK_ROWS rows' best blocks, all of which are in one program."""
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    i = tl.arange(0, BLOCK)[None, :]
    ok = (row < num_rows)[:, None] & (i < num_blocks)
    at = row[:, None] * num_blocks + i
    values = tl.load(values_ptr + at, mask=ok, other=float("-inf"))
    ids = tl.load(ids_ptr + at, mask=ok, other=2147483647)
    is_best = values == tl.max(values, 1)[:, None]
    id_ = tl.min(tl.where(is_best, ids, 2147483647), 1)
    tl.store(out_ptr + row, id_.to(tl.int64), mask=row < num_rows)


def draw(
    logits: Tensor,
    best: Tensor,
    temperature: Tensor,
    keep: Tensor,
    keys: Tensor,
    *,
    block: int = _BLOCK,
    tile: int = _TILE,
    launch: Launcher = launch,
) -> Tensor:
    """``Executor.draw``: two launches; a program takes ``block`` ids of ``tile // block`` rows."""
    num_rows, num_ids = logits.shape
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    for each in (best, temperature, keep):
        assert each.shape == (num_rows,)
        assert each.dtype == torch.float64
        assert each.is_contiguous()
    assert keys.shape == (num_rows, 3)
    assert keys.dtype == torch.int64
    assert keys.is_contiguous()
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return out
    block = min(block, power_of_two(num_ids))
    num_blocks = -(-num_ids // block)
    values = torch.empty(num_rows, num_blocks, dtype=torch.float64, device=logits.device)
    ids = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=logits.device)
    block_rows = min(max(tile // block, 1), power_of_two(num_rows))
    programs = -(-num_rows // block_rows)
    sizes = num_rows, num_ids, num_blocks, logits.stride(0)
    launch(
        best_in_blocks_kernel,
        (programs, num_blocks),
        [logits, best, temperature, keep, keys, values, ids, *sizes],
        {"BLOCK_ROWS": block_rows, "BLOCK": block},
    )
    launch(
        best_of_blocks_kernel,
        (programs,),
        [values, ids, out, num_rows, num_blocks],
        {"BLOCK_ROWS": block_rows, "BLOCK": power_of_two(num_blocks)},
        num_warps=1,
    )
    return out
