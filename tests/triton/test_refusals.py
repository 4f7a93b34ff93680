"""What a kernel would read or write wrongly without an error is refused before it is launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from radchat_kernels import cache, int4
from radchat_kernels.attn import attend
from radchat_kernels.executor import Heads, Packed4
from radchat_kernels.plan import Segment, plan
from tests.triton.steps import SMALL

INDEX = torch.int64


def strided(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(2 * count, dtype=dtype)[::2]


def store(slots: Tensor) -> None:
    new, pool = torch.ones(3, 1, 4), torch.zeros(4, 2, 1, 4)
    cache.store(new, new, pool, pool, slots)


def rope_store(slots: Tensor) -> None:
    angle, pool = torch.zeros(3, 1, 4), torch.zeros(4, 2, 1, 4)
    cache.rope_store(torch.zeros(3, 16), (angle, angle), pool, pool, slots, Heads(2, 1, 4))


def attend_at(positions: Tensor, sinks: Tensor | None = None) -> None:
    made, pool = plan([Segment(row, 1, 0, [row]) for row in range(3)], 4), torch.zeros(3, 4, 1, 16)
    attend(torch.zeros(3, 2, 16), pool, pool, made, positions, 1.0, sinks=sinks, tiles=SMALL)


def attend_with(sinks: Tensor) -> None:
    attend_at(torch.zeros(3, dtype=INDEX), sinks)


def linear4(
    bias: Tensor | None = None,
    *,
    x: Tensor | None = None,
    scales: Tensor | None = None,
    nibbles: torch.dtype = torch.uint8,
) -> None:
    halves = torch.ones(6, 2, dtype=torch.float16)
    weight = Packed4(
        torch.zeros(6, 32, dtype=nibbles), halves if scales is None else scales, halves
    )
    int4.linear4(torch.zeros(2, 64) if x is None else x, weight, bias)


# right ones, and wrong ones of each: elements apart, too few, of another dtype
CASES: list[tuple[Callable[[Tensor], None], list[Tensor], list[Tensor]]] = [
    *(
        (
            call,
            [torch.arange(3)],
            [strided(3, INDEX), torch.arange(2), torch.arange(3, dtype=torch.int32)],
        )
        for call in (store, rope_store, attend_at)
    ),
    (attend_with, [torch.zeros(2)], [strided(2), torch.zeros(1)]),
    (linear4, [torch.zeros(6)], [strided(6), torch.zeros(5)]),
]


@pytest.mark.parametrize(("call", "right", "wrong"), CASES)
def test_a_vector_is_whole_and_side_by_side(
    call: Callable[[Tensor], None], right: list[Tensor], wrong: list[Tensor]
) -> None:
    for each in right:
        call(each)
    for each in wrong:
        with pytest.raises(AssertionError):
            call(each)


def test_a_4_bit_weight_is_what_it_has_to_be() -> None:
    with pytest.raises(AssertionError):
        linear4(scales=torch.ones(6, 1, dtype=torch.float16))
    with pytest.raises(AssertionError):
        linear4(nibbles=torch.int8)


def test_rows_too_far_apart_for_32_bits_are_not_multiplied() -> None:
    far = torch.empty(1, dtype=torch.float16, device="meta").as_strided((3, 64), (2**30, 1))
    with pytest.raises(AssertionError, match="32 bits"):
        linear4(x=far)


@pytest.mark.parametrize("pairs", [[(1, 4), (2, 4)], [(1, 2), (2, 3)]])
def test_a_page_is_written_once_and_not_read_then(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        cache.copy_pages(torch.zeros(1, 2, 5, 1, 1, 1), pairs)
