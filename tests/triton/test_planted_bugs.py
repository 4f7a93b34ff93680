"""The tests must be able to fail: each bug planted here is one that a named test has to find.

The kernels are loaded a second time from edited source, under a name of their own, and launched in
place of the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from radchat_kernels import attn_kernels
from tests.triton import test_attention as tests
from tests.triton.banded import edited
from tests.triton.guarded import Launches


class Bug(NamedTuple):
    right: str
    wrong: str
    found_by: Callable[[Launches], None]


def windowed(launches: Launches) -> None:
    tests.test_a_window(5, launches)


def grown(launches: Launches) -> None:
    tests.test_a_plan_serves_the_steps_after_it(None, launches)


def merged(launches: Launches) -> None:
    tests.test_a_merge_never_reads_a_part_without_tokens(with_sinks=False, launches=launches)


def with_sinks(launches: Launches) -> None:
    tests.test_sinks(torch.float32, launches)


BUGS = {
    "the tail is not masked": Bug(
        "D, D_PAD, PAGE, BLOCK_N, I64, True, CAUSAL, WINDOW, HAS_SOFTCAP,\n",
        "D, D_PAD, PAGE, BLOCK_N, I64, False, CAUSAL, WINDOW, HAS_SOFTCAP,\n",
        tests.test_lone_rows_of_all_lengths,
    ),
    "parts are merged without their weights": Bug(
        "weight = tl.exp2(lse - m_use[None, :])",
        'weight = tl.where(lse > float("-inf"), 1.0, 0.0)',
        tests.test_lone_rows_of_all_lengths,
    ),
    "a new maximum does not weigh what was merged before": Bug(
        "acc = acc * alpha[:, None] + tl.sum(part * weight[:, :, None], 0)",
        "acc = acc + tl.sum(part * weight[:, :, None], 0)",
        merged,
    ),
    "the causal flag is dropped": Bug(
        "        if CAUSAL:\n            seen = seen & (pos0 + t[None, :] <= qpos[:, None])\n",
        "",
        tests.test_extends_of_all_lengths,
    ),
    "blocks are taken for whole ones past the first row": Bug(
        "safe_end = tl.minimum(tok_end, first + 1)",
        "safe_end = tok_end",
        tests.test_extends_of_all_lengths,
    ),
    "the window is dropped": Bug(
        "seen = seen & (pos0 + t[None, :] > qpos[:, None] - WINDOW)",
        "seen = seen & (pos0 + t[None, :] >= 0)",
        windowed,
    ),
    "a window is a token too long": Bug(
        "> qpos[:, None] - WINDOW", ">= qpos[:, None] - WINDOW", windowed
    ),
    "blocks before the last row's window are skipped": Bug(
        "tl.min(tl.where(m_ok, qpos, 2147483647), 0)", "tl.max(qpos, 0)", windowed
    ),
    "a row does not end its growing item": Bug("if dyn_row >= 0:", "if dyn_row > 9999:", grown),
    "a row sees all but itself": Bug(
        "tl.minimum(tok_end, position + 1 - pos0)", "tl.minimum(tok_end, position - pos0)", grown
    ),
    "programs beyond the items run": Bug(
        "if item >= tl.load(n_items_ptr):", "if item > 9999:", tests.test_lone_rows_of_all_lengths
    ),
    "a tile writes rows it does not have": Bug(
        "tl.store(mid_lse_ptr + part * stride_ls + head, lse, mask=m_ok)",
        "tl.store(mid_lse_ptr + part * stride_ls + head, lse)",
        tests.test_lone_rows_of_all_lengths,
    ),
    "a part without tokens is read": Bug(
        'mask=(lse > float("-inf"))[:, :, None] & (d < D)[None, None, :]',
        "mask=(at < end)[:, None, None] & (d < D)[None, None, :]",
        merged,
    ),
    "the sink is not in base 2": Bug(
        "other=0.0).to(tl.float32) * 1.4426950408889634",
        "other=0.0).to(tl.float32)",
        with_sinks,
    ),
    "the cap is applied to scores in base 2": Bug(
        "if not HAS_SOFTCAP:", "if True:", tests.test_a_cap_on_scores
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    kernels = edited(attn_kernels, bug.right, bug.wrong, tmp_path)
    with pytest.raises(AssertionError):
        bug.found_by(Launches(kernels))
