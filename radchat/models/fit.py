"""What fits this machine's memory: the offer of a first start.

Sizes are those of the weights in memory (two bytes a parameter); the least a conversation needs
besides is added. Nothing here asks the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.models.sources import ALIASES

if TYPE_CHECKING:
    from radchat.models.registry import ModelEntry

_OVERHEAD = 1 << 30  # bytes: torch, the daemon, activations
_KV_TOKENS = 8192  # a conversation of this length must fit
# On a CPU every token reads all weights: above this it is no conversation any more.
COMFORTABLE_ON_CPU = 6_000_000_000  # bytes in memory


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model radchat runs. ``fetch_bytes``: the download; ``memory_bytes``: what running takes."""

    source: str
    fetch_bytes: int
    memory_bytes: int
    about: str

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "fetch_bytes": self.fetch_bytes,
            "memory_bytes": self.memory_bytes,
            "about": self.about,
        }


def _suggest(source: str, fetch: int, parameters: int, kv_bytes: int, about: str) -> Suggestion:
    """``kv_bytes`` is KV of one token: 2 x layers x kv_heads x head_dim x 2 bytes."""
    memory = 2 * parameters + _KV_TOKENS * kv_bytes + _OVERHEAD
    return Suggestion(source, fetch, memory, about)


SMALLEST = "smollm2-135m"
SUGGESTIONS: tuple[Suggestion, ...] = (  # smallest first
    _suggest(SMALLEST, ALIASES[SMALLEST].wheel_bytes, 134_515_008, 23_040, "small; knows little"),
    _suggest("Qwen/Qwen3-0.6B", 1_503_300_328, 596_049_920, 114_688, "small; short tasks"),
    _suggest("Qwen/Qwen3-1.7B", 4_063_515_640, 1_720_574_976, 114_688, "everyday questions"),
    _suggest(
        "Qwen/Qwen3-4B-Instruct-2507", 8_044_982_080, 4_022_468_096, 147_456, "good; slow on a CPU"
    ),
    _suggest("Qwen/Qwen3-8B", 16_381_516_856, 8_190_735_360, 147_456, "better; needs a GPU"),
)


def available_memory() -> int:
    """Bytes a new process can take without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # elsewhere: half of what is built in, as what others use is not told
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def kv_token_bytes(entry: ModelEntry, dtype: str = "auto") -> int | None:
    """Bytes of KV a token takes: 2 x layers x kv_heads x head_dim values; None: not known.

    ``auto`` may come to fp32, and so may KV beside int4 weights: both are counted as that.
    """
    try:
        about = json.loads((entry.folder / "radchat.json").read_text(encoding="utf-8"))
        shape = about.get("kv_shape")
        if shape is None:  # the decoder's
            config = json.loads((entry.folder / "config.json").read_text(encoding="utf-8"))
            heads = config["num_attention_heads"]
            size = config.get("head_dim") or config["hidden_size"] // heads
            shape = (config["num_hidden_layers"], config.get("num_key_value_heads") or heads, size)
        layers, kv_heads, head_dim = map(int, shape)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
        return None
    return 2 * layers * kv_heads * head_dim * (2 if dtype == "bf16" else 4)


def offers(memory_bytes: int, suggestions: Sequence[Suggestion] = SUGGESTIONS) -> list[Suggestion]:
    """Those that fit, largest first; the smallest is always among them, and always last."""
    fitting = [one for one in suggestions[1:] if one.memory_bytes <= memory_bytes]
    return [*reversed(fitting), suggestions[0]]


def measured(*, has_gpu: bool) -> str:
    """Whose memory ``available_memory`` is, for people: a GPU's takes torch to be known."""
    gpu = " (of the GPU's own, which has to hold it, nothing is known before a model is loaded)"
    return "this machine's memory" + (gpu if has_gpu else "")


def recommended(memory_bytes: int, *, has_gpu: bool = False) -> Suggestion:
    """The best that fits; without a GPU the best that also answers at a pace one can read."""
    for one in offers(memory_bytes):
        if has_gpu or one.memory_bytes <= COMFORTABLE_ON_CPU:
            return one
    return SUGGESTIONS[0]
