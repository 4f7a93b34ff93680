"""Prompts for real models."""

from __future__ import annotations

from array import array

import torch

from radchat.engine.request import Ids


def words(count: int, seed: int) -> Ids:
    """Random ids of ordinary words: no control tokens, and nothing cached by chance."""
    generator = torch.Generator().manual_seed(seed)
    return array("I", torch.randint(300, 40_000, (count,), generator=generator).tolist())
