"""Of K3 to K7, the bugs that their tests have to find: each is planted, in an edited copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from radchat_kernels import cache, fused, sample
from radchat_kernels.executor import Heads
from tests.triton import test_rows as rows
from tests.triton import test_sample as draws
from tests.triton.banded import edited


class Bug(NamedTuple):
    kernels: ModuleType
    right: str
    wrong: str
    found_by: Callable[[Any], None]


def rope_store(kernels: Any) -> None:
    rows.check_rope_store(kernels, torch.float32, Heads(3, 3, 80), 2, 256, is_normed=True)


def store(kernels: Any) -> None:
    rows.check_store(kernels, torch.float32, 8192)


def copy_pages(kernels: Any) -> None:
    rows.check_copy_pages(kernels, torch.float32, 64)


def add_rmsnorm(kernels: Any) -> None:
    rows.check_add_rmsnorm(kernels, torch.float32, 70, 5, 4)


def silu(kernels: Any) -> None:
    rows.check_act_mul(kernels, torch.float32, "silu", 33, 5, 4)


def gelu(kernels: Any) -> None:
    rows.check_act_mul(kernels, torch.float32, "gelu_tanh", 33, 5, 4)


def tokens(kernels: Any) -> None:
    draws.check_tokens(kernels, 300, 40, 64, 1024)


BUGS = {
    "heads are turned the other way": Bug(
        cache, "x * cos_x + y * sin_x", "x * cos_x - y * sin_x", rope_store
    ),
    "both halves are turned by the angles of the first": Bug(
        cache, "cos_ptr + angle + D // 2", "cos_ptr + angle", rope_store
    ),
    "a head's norm counts what is beside it": Bug(
        cache, "mask=live & inside, other=0.0", "mask=live, other=0.0", rope_store
    ),
    "a head's norm is divided by a power of two": Bug(
        cache, "tl.sum(y * y, 1)) / D", "tl.sum(y * y, 1)) / (2 * HALF_PAD)", rope_store
    ),
    "a head's norm is not rounded before the weight": Bug(
        cache, "x = (x * inv).to(weight.dtype).to(tl.float32)", "x = (x * inv)",
        rows.check_rounding_of_heads,
    ),
    "rows beyond the last are turned": Bug(
        cache, "live, inside = (row < num_rows)", "live, inside = (row <= num_rows)", rope_store
    ),
    "v is stored as k lies": Bug(
        cache, "row * stride_v_row + head * stride_v_head",
        "row * stride_k_row + head * stride_k_head", store,
    ),
    "rows beyond the last are stored": Bug(
        cache, "ok = (row < num_rows)[:, None]", "ok = (row < num_rows + 1)[:, None]", store
    ),
    "a page is copied with what follows it": Bug(
        cache, "mask=i < SIZE", "mask=i < 2 * SIZE", copy_pages
    ),
    "pages are copied in one layer": Bug(
        cache, "tl.program_id(1).to(tl.int64) * num_pages", "0 * num_pages", copy_pages
    ),
    "source and target are the same": Bug(cache, "tl.load(pair + 1)", "tl.load(pair)", copy_pages),
    "the norm is of the sum before it is rounded": Bug(
        fused, "        total = residual.to(tl.float32)\n    inv", "    inv",
        rows.check_rounding_of_norms,
    ),
    "a norm is divided by a power of two": Bug(fused, "/ H + eps", "/ BLOCK_H + eps", add_rmsnorm),
    "eps is dropped": Bug(fused, "/ H + eps", "/ H", add_rmsnorm),
    "the sum is not kept": Bug(
        fused, "tl.store(residual_ptr + row * stride_residual + i, residual, mask=ok)", "pass",
        add_rmsnorm,
    ),
    "an activation is not rounded before up": Bug(
        fused, "y.to(gate.dtype).to(tl.float32)", "y", rows.check_rounding_of_activations
    ),
    "gate is taken for up": Bug(fused, "stride + SIZE + i", "stride + i", silu),
    "gelu's tanh has half its argument": Bug(fused, "1.5957691216057308", "0.7978845608", gelu),
    "columns beyond the last are written": Bug(
        fused, "(row < num_rows) & (i < SIZE)", "(row < num_rows)", silu
    ),
    "the seed's high word is the low one": Bug(
        sample, "(seed >> 32).to(tl.uint32)", "seed.to(tl.uint32)", tokens
    ),
    "position and choice change places": Bug(
        sample, "position.to(tl.uint32), zero + choice", "choice.to(tl.uint32), zero + position",
        tokens,
    ),
    "four ids have the same noise": Bug(sample, "word = ids & 3", "word = ids & 0", tokens),
    "a score at the threshold does not survive": Bug(
        sample, "scores >= keep[:, None]", "scores > keep[:, None]", tokens
    ),
    "what does not survive is drawn": Bug(
        sample, "scores = tl.where(survives, scores", "scores = tl.where(ok, scores", tokens
    ),
    "ids beyond the last are drawn": Bug(
        sample, "row_ok[:, None] & (ids < num_ids)", "row_ok[:, None] & (ids >= 0)", tokens
    ),
    "of equal blocks the last wins": Bug(
        sample, "tl.min(tl.where(is_best, ids, 2147483647), 1)",
        "tl.max(tl.where(is_best, ids, -1), 1)", draws.check_rows_of_which_nothing_is_kept,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    kernels = edited(bug.kernels, bug.right, bug.wrong, tmp_path)
    with pytest.raises(AssertionError):
        bug.found_by(kernels)
