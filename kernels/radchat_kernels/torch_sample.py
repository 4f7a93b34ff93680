"""Drawing a token of each row in plain torch: the twin of K7.

The id with the highest score + noise, where noise = -log(-log u) (so it is drawn with the
probability that the scores say) and u = (word + 0.5) / 2**32. The words are Philox4x32-10's
(Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11): key = the
seed, counter = (position, choice, id // 4, 0), word id % 4. So the noise of an id depends on
nothing else in the batch, and is the same on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF

_MOST = 1 << 22  # ids at once: a word takes 8 bytes, and a round some of each


def draw(logits: Tensor, best: Tensor, temperature: Tensor, keep: Tensor, keys: Tensor) -> Tensor:
    """Ids [R] int64 of logits [R, V]: ``Executor.draw``. Where no score is ≥ keep, 0."""
    given = logits, best, temperature, keep, keys
    most = max(1, _MOST // logits.shape[1])
    parts = [
        (begin, min(most, len(logits) - begin)) for begin in range(0, max(len(logits), 1), most)
    ]
    return torch.cat([_draw(*(each.narrow(0, *part) for each in given)) for part in parts])


def _draw(logits: Tensor, best: Tensor, temperature: Tensor, keep: Tensor, keys: Tensor) -> Tensor:
    scores = logits.double().sub_(best.unsqueeze(1)).div_(temperature.unsqueeze(1))
    noise = words(keys, logits.shape[1]).double().add_(0.5).mul_(2.0**-32)
    noise = noise.log_().neg_().log_().neg_()
    lost = (scores >= keep.unsqueeze(1)).logical_not_()  # NaN too
    return scores.add_(noise).masked_fill_(lost, -torch.inf).argmax(-1)


def words(keys: Tensor, num_ids: int) -> Tensor:
    """The words [R, num_ids] of the ids 0 … num_ids - 1, in int64; keys as ``draw`` takes them."""
    seed, position, choice = keys.unsqueeze(-1).unbind(1)
    block = torch.arange((num_ids + 3) // 4, device=keys.device)
    c0, c1, c2, c3 = position & MASK, choice & MASK, block, torch.zeros_like(block)
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(ROUNDS):
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # all 64 bits, of which one is a sign
        c0, c1, c2, c3 = (
            ((high >> 32) & MASK) ^ c1 ^ k0,
            high & MASK,
            ((low >> 32) & MASK) ^ c3 ^ k1,
            low & MASK,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return torch.stack([c0, c1, c2, c3], dim=-1).flatten(1).narrow(1, 0, num_ids)
