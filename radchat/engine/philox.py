"""Philox4x32-10: random words that are a pure function of (key, counter).

Counter-based: no state to keep, so the noise of one token depends on nothing else in the batch
and is the same on every device. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3" (SC'11); the tests hold it to the known answers of their Random123 library.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four words a counter; all int64 tensors holding 0 … 2**32 - 1, of shapes that broadcast.

    A product of two 32-bit words wraps in int64 but keeps all its 64 bits, so the shift and the
    mask give its upper half exactly.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (high >> 32 & _MASK) ^ c1 ^ k0,
            high & _MASK,
            (low >> 32 & _MASK) ^ c3 ^ k1,
            low & _MASK,
        )
        k0, k1 = k0 + _KEY_STEPS[0] & _MASK, k1 + _KEY_STEPS[1] & _MASK
    return c0, c1, c2, c3


def uniforms(seed: Tensor, position: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
    """float64 in (0, 1) for each token id; arguments are int64 and broadcast to one shape.

    Key = the 64 bits of the seed. Counter = (position, choice, id // 4, 0), and the id takes word
    id % 4 of the four: a whole vocabulary costs a quarter of the rounds.
    """
    words = philox(_counter(position, choice, ids >> 2), _key(seed))
    lane = ids & 3
    word = torch.where(
        lane < 2,
        torch.where(lane == 0, words[0], words[1]),
        torch.where(lane == 2, words[2], words[3]),
    )
    return _unit(word)


def uniforms_of_all(seed: int, position: int, choice: int, num_ids: int, device: str) -> Tensor:
    """``uniforms`` for the ids 0 … num_ids - 1 of one place, [num_ids]."""
    blocks = torch.arange((num_ids + 3) // 4, device=device)
    place = [torch.tensor(value, device=device) for value in (signed(seed), position, choice)]
    words = philox(_counter(place[1], place[2], blocks), _key(place[0]))
    return _unit(torch.stack(words, dim=1).flatten()[:num_ids])


def signed(seed: int) -> int:
    """The int64 with the bits of an unsigned 64-bit seed, as tensors hold it."""
    return seed - 2**64 if seed >= 2**63 else seed


def _counter(position: Tensor, choice: Tensor, block: Tensor) -> Words:
    return position & _MASK, choice & _MASK, block, torch.zeros_like(block)


def _key(seed: Tensor) -> tuple[Tensor, Tensor]:
    return seed & _MASK, seed >> 32 & _MASK


def _unit(word: Tensor) -> Tensor:
    return (word.double() + 0.5) * 2.0**-32
