"""What a model takes of the memory, and whether it is there: counted before anything is loaded.

A machine that swaps is worse than one that says no, so what does not fit is refused with the
numbers and what to lower.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from radchat.config import GPU_KEPT_FREE, Size
from radchat.errors import ContextOverflow, ModelBroken

PAGE_SIZE = 16  # tokens
WORK_BYTES = 256 * 1024**2  # activations and logits of a step, with room
GOOD_TOKENS = 8192  # a pool that holds these is worth the place of another model


def available() -> int:
    """Bytes a process can take without swapping."""
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model needs, on a GPU or in the machine's own memory.

    ``kv``: the budget that was set, else a page's.
    """

    name: str
    weights: int
    kv: int
    good_kv: int  # for a conversation: what other models may have to go for
    kv_is_set: bool = False
    on_gpu: bool = False
    dtype: str = "fp32"  # that this is the need of
    has_4_bits: bool = False  # the model, besides

    @property
    def least(self) -> int:
        return self._with(self.kv)

    @property
    def good(self) -> int:
        return self._with(max(self.kv, self.good_kv))

    def require(self, free: int) -> None:
        """Raises ModelBroken with the numbers and what to lower."""
        if self.least > free:
            raise self.refusal(free)

    def refusal(self, free: int) -> ModelBroken:
        kv = f", {gb(self.kv)} of it KV (kv_device)" if self.kv_is_set else ""
        lower = ["a smaller kv_device (RADCHAT_KV_DEVICE)"] if self.kv_is_set else []
        *take, last = [*lower, *self._lighter(), "a smaller model"]
        memory, close, more = "memory", "close something", ""
        if self.on_gpu:
            memory, close = "the GPU's memory", "end what else uses the GPU"
            more = ", or run it on the CPU (device, RADCHAT_DEVICE=cpu)"
        return ModelBroken(
            f"{self.name} needs {gb(self.least)} of {memory}{kv} and {gb(free)} are free: "
            f"{close}, or take {', '.join(take)}{' or ' if take else ''}{last}{more}",
            need_bytes=self.least,
            free_bytes=free,
        )

    def _lighter(self) -> list[str]:
        """Forms of the same weights that are smaller than this one."""
        if self.dtype == "int4":
            return []
        packed = "--dtype int4" if self.has_4_bits else "a .gguf file of it in Q4_0 or Q4_1"
        return ["--dtype bf16", packed] if self.dtype == "fp32" else [packed]

    def _with(self, kv: int) -> int:
        """Beside so much KV. On a GPU, where none is set: so that ``gpu_kv`` comes to as much."""
        held = self.weights + kv
        if self.on_gpu and not self.kv_is_set:
            return max(held + WORK_BYTES, int(held / (1 - GPU_KEPT_FREE)) + 1)
        return held + WORK_BYTES


def need(
    name: str,
    weights: int,
    budget: Size | None,
    token_bytes: int,
    context: int,
    *,
    on_gpu: bool = False,
    dtype: str = "fp32",
    has_4_bits: bool = False,
) -> Need:
    """``token_bytes``: KV of one token; ``context``: what the model can hold at most."""
    page = token_bytes * PAGE_SIZE
    kv = page if budget is None else num_pages(budget, token_bytes, 0) * page
    good = token_bytes * min(context, GOOD_TOKENS) if budget is None else kv
    return Need(name, weights, kv, good, budget is not None, on_gpu, dtype, has_4_bits)


def gpu_kv(free: int, weights: int) -> int:
    """Bytes for KV where so many of a GPU are free with the weights loaded: all but what a step
    takes, and a tenth of what was free before.
    """
    return free - max(WORK_BYTES, int(GPU_KEPT_FREE * (free + weights)))


def no_pool(
    name: str, num_tokens: int, token_bytes: int, free: int, *, kv_is_set: bool, on_gpu: bool
) -> ModelBroken:
    """For a KV pool that the device did not give, though it had been counted."""
    need = num_tokens * token_bytes
    memory = "the GPU's memory" if on_gpu else "memory"
    to_less = "lower kv_device (RADCHAT_KV_DEVICE)"
    if not kv_is_set:
        to_less = "set kv_device (RADCHAT_KV_DEVICE) to less"
    return ModelBroken(
        f"{name}: KV of {num_tokens:,} tokens takes {gb(need)} of {memory} in one "
        f"piece, and {gb(free)} are free: {to_less}, or end what else uses it",
        need_bytes=need,
        free_bytes=free,
    )


def no_memory(*, is_possible: bool, on_gpu: bool) -> str:
    """For a request whose least step finds no room; ``is_possible``: on a device that is empty."""
    if not is_possible:
        return (
            "a step asked for more memory than there is in this machine, which is a mistake of "
            "radchat's: radchat daemon logs has the place; please report it"
        )
    what = "the GPU has no memory" if on_gpu else "there is no memory"
    close = "end what else uses the GPU" if on_gpu else "close something"
    return (
        f"{what} left for this answer, though nothing else ran: {close}, or lower kv_device "
        "(RADCHAT_KV_DEVICE) and load the model again"
    )


def num_pages(budget: Size | None, token_bytes: int, default: int) -> int:
    """Pages of the KV pool: of the budget, else of ``default`` bytes."""
    page = token_bytes * PAGE_SIZE
    if budget is not None and budget.tokens is not None:
        pages = -(-budget.tokens // PAGE_SIZE)
    else:
        given = None if budget is None else budget.bytes
        pages = (default if given is None else given) // page
    if pages < 1:
        raise ContextOverflow(
            f"the KV budget holds no page of {PAGE_SIZE} tokens ({page:,} bytes): "
            "raise kv_device (RADCHAT_KV_DEVICE)"
        )
    return pages


def gb(num_bytes: int) -> str:
    return f"{max(num_bytes, 0) / 1e9:.1f} GB"
