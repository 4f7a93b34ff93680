"""What a model takes of the memory, and whether it is there: counted before anything is loaded.

A machine that swaps is worse than one that says no, so what does not fit is refused with the
numbers and what to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from radchat.config import Size, kv_default
from radchat.errors import ContextOverflow, ModelBroken

PAGE_SIZE = 16  # tokens
WORK_BYTES = 256 * 1024**2  # activations and logits of a step, with room
GOOD_TOKENS = 8192  # a pool that holds these is worth the place of another model


def available() -> int:
    """Bytes a process can take without swapping."""
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model needs. ``kv``: the budget that was set, else a page's."""

    name: str
    weights: int
    kv: int
    good_kv: int  # for a conversation: what other models may have to go for
    kv_is_set: bool = False

    @property
    def least(self) -> int:
        return self.weights + WORK_BYTES + self.kv

    @property
    def good(self) -> int:
        return self.weights + WORK_BYTES + max(self.kv, self.good_kv)

    def require(self, free: int) -> None:
        """Raises ModelBroken with the numbers and what to lower."""
        if self.least <= free:
            return
        kv = f", {gb(self.kv)} of it KV (kv_device)" if self.kv_is_set else ""
        lower = "a smaller kv_device (RADCHAT_KV_DEVICE), " if self.kv_is_set else ""
        raise ModelBroken(
            f"{self.name} needs {gb(self.least)} of memory{kv} and {gb(free)} are free: "
            f"close something, or take {lower}a smaller model or --dtype bf16",
            need_bytes=self.least,
            free_bytes=free,
        )


def need(name: str, weights: int, budget: Size | None, token_bytes: int, context: int) -> Need:
    """``token_bytes``: KV of one token; ``context``: what the model can hold at most."""
    page = token_bytes * PAGE_SIZE
    kv = page if budget is None else num_pages(budget, token_bytes, 0) * page
    good = token_bytes * min(context, GOOD_TOKENS) if budget is None else kv
    return Need(name, weights, kv, good, budget is not None)


def num_pages(budget: Size | None, token_bytes: int, free: int) -> int:
    """Pages of the KV pool: of the budget, else of a quarter of what is free, up to 4 GiB."""
    page = token_bytes * PAGE_SIZE
    if budget is not None and budget.tokens is not None:
        pages = -(-budget.tokens // PAGE_SIZE)
    else:
        given = None if budget is None else budget.bytes
        pages = (kv_default(free) if given is None else given) // page
    if pages < 1:
        raise ContextOverflow(
            f"the KV budget holds no page of {PAGE_SIZE} tokens ({page:,} bytes): "
            "raise kv_device (RADCHAT_KV_DEVICE)"
        )
    return pages


def gb(num_bytes: int) -> str:
    return f"{max(num_bytes, 0) / 1e9:.1f} GB"
