"""Offsets beyond 2^31 elements, with real addresses: memory that is promised and hardly touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

from radchat_kernels import attn_kernels
from radchat_kernels._triton import launch
from tests.triton.banded import edited
from tests.triton.far import ROOM, ROW, ROWS, far_memory
from tests.triton.steps import Step

STRIDES = {"q": "qt", "k": "kp", "v": "vp", "o": "ot", "mid_o": "ms", "mid_lse": "ls"}


class Far:
    """A launcher that runs on copies whose rows are ROW apart, each tensor's beside the others'."""

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels
        self._memory = far_memory()

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        consts: dict[str, Any],
        **options: int,
    ) -> None:
        names = [name for name in kernel.arg_names if name not in consts]
        given = dict(zip(names, args, strict=True))
        copies: list[tuple[Tensor, Tensor]] = []
        for at, (name, stride) in enumerate(STRIDES.items()):
            near = given.get(f"{name}_ptr")
            if near is None:
                continue
            assert len(near) < ROWS
            place = near.shape, (ROW, *near.stride()[1:]), ROOM + 2**16 * at
            far = self._memory.as_strided(*place)
            far.copy_(near)
            given[f"{name}_ptr"], given[f"stride_{stride}"] = far, ROW
            copies.append((near, far))
        run = getattr(self._kernels, kernel.__name__)
        launch(run, grid, list(given.values()), {**consts, "I64": True}, **options)
        for near, far in copies:
            near.copy_(far)


def check(kernels: ModuleType) -> None:
    """Rows of one part each, and rows of two."""
    for leaves in ([("", 1, 1), ("", 2, 1), ("", 3, 1)], [("", 4, 3)]):
        step = Step(leaves)
        made = step.plan()
        step.judge(step.run(made, Far(kernels)), made)


def test_offsets_beyond_32_bits() -> None:
    check(attn_kernels)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("page = page.to(tl.int64)", "pass"),
        ("row = row.to(tl.int64)\n        part =", "part ="),
        ("part = part.to(tl.int64)", "pass"),
        ("slot = slot.to(tl.int64)", "pass"),
        ("row = row.to(tl.int64)\n    o_at =", "pass\n    o_at ="),
    ],
    ids=["page", "row", "part", "slot merged", "row merged"],
)
def test_an_offset_that_is_cut_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    kernels = edited(attn_kernels, right, wrong, tmp_path)
    with pytest.raises(AssertionError):
        check(kernels)
