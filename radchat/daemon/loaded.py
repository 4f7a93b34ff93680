"""The engines that are loaded, the memory they leave to others, and who must go to make room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from radchat.models.registry import ModelEntry
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.daemon.remote.engine import RemoteEngine
    from radchat.daemon.remote.model import RemoteModel
    from radchat.engine.engine import Engine
    from radchat.engine.grammars import Grammars
    from radchat.engine.memory import Need
    from radchat.engine.model import LoadedModel
    from radchat.engine.template import Template
    from radchat.engine.tokenizer import Tokenizer


@dataclass(eq=False)
class Loaded:
    """An engine and what turns messages into its ids. ``users`` keeps it from being unloaded."""

    entry: ModelEntry
    dtype: str  # as loaded: fp32, bf16 or int4
    model: LoadedModel | RemoteModel
    engine: Engine | RemoteEngine
    users: int = 0
    last_used: float = 0.0  # on the engines' clock
    is_auto: bool = False  # of dtype ``auto``, whatever that came to
    loaded_at: float = field(default_factory=time.time)  # what was cached before it is gone

    @property
    def key(self) -> str:
        """Under which the worker has it."""
        return f"{self.entry.folder}:{self.dtype}"

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def template(self) -> Template:
        return self.model.template

    @cached_property
    def grammars(self) -> Grammars:
        """Compiled for this model's tokens; what compiles them is imported with the first."""
        from radchat.engine.grammars import Grammars

        return Grammars(self.tokenizer, self.model.vocab_size, self.model.stop_ids)

    @property
    def is_remote(self) -> bool:
        """Another program's, behind a URL: no weights and no KV of it are here."""
        return self.entry.engine is not None

    @property
    def context_length(self) -> int:
        """What a request may hold: the model's context, the setting, the KV pool."""
        return self.engine.context_length

    @property
    def kv_bytes(self) -> int:
        """Of the whole pool."""
        return int(self.engine.stats()["bytes"]["total"])

    @property
    def bytes_per_token(self) -> int:
        """Of KV."""
        return self.engine.bytes_per_token

    @property
    def cached_tokens(self) -> int:
        held = self.engine.stats()["tokens"]
        return int(held["total"] - held["free"])

    @property
    def num_bytes(self) -> int:
        """What is free again when it goes."""
        return self.model.num_bytes + self.kv_bytes

    @property
    def promised(self) -> int:
        """What it has, or will take, that the system still counts as free.

        A pool's pages are the system's until they are first written, and a mapped file is cache to
        it. Pages written and given up since count twice: on the safe side. On a GPU both are taken.
        """
        if self.model.device.type != "cpu":
            return 0
        unwritten = int(self.engine.stats()["bytes"]["free"])
        return unwritten + (self.model.num_bytes if self.model.is_mapped else 0)


class Memory:
    """``available``: bytes free where models go; ``limit``: what all models may take together."""

    def __init__(self, limit: int | None, available: Callable[[], int]) -> None:
        self._limit = limit
        self._available = available

    def look(self) -> int:
        """What is free now, for the others. It may wait for a GPU: not for the event loop."""
        return self._available()

    def free(
        self, loaded: Iterable[Loaded], available: int, coming: LoadedModel | None = None
    ) -> int:
        """Bytes for another model beside these, where so many are free; may be less than none.

        ``coming``: its weights are loaded already, and what is left is for its KV.
        """
        beside = list(loaded)
        weights = 0 if coming is None else coming.num_bytes
        free = available - sum(each.promised for each in beside)
        if coming is not None and coming.is_mapped:
            free -= weights
        if self._limit is None:
            return free
        return min(free, self._limit - weights - sum(each.num_bytes for each in beside))

    def victims(
        self,
        loaded: Iterable[Loaded],
        needed: Need,
        available: int,
        coming: LoadedModel | None = None,
    ) -> list[str]:
        """Keys of the idle engines that must go, oldest first, as few as may be.

        Without ``coming``: those that its weights need. With it: for its KV, once the weights are
        there, as they may have turned out to be broken.
        """
        engines = list(loaded)
        wanted = needed.least if coming is None else needed.good - needed.weights
        short = wanted - self.free(engines, available, coming)
        keys: list[str] = []
        for each in engines:
            if each.users or short <= 0:
                continue
            keys.append(each.key)
            short -= each.num_bytes
        return keys


def swap(coming: str, going: Sequence[Loaded]) -> Event:
    """What is told of engines that make room for another, before they go."""
    names = " and ".join(f"{each.name} {each.dtype}" for each in going)
    tokens = sum(each.cached_tokens for each in going)
    text = (
        f"{coming} takes the place of {names}: "
        f"{tokens:,} cached tokens go, as memory does not hold both"
    )
    return Event("notice", {"text": text, "code": "model_swap", "tokens": tokens})


def slow(name: str) -> Event:
    """What is told of a model in 4 bits on a CPU, before it is loaded."""
    text = (
        f"{name} int4 on the CPU takes little memory and is slow: its weights are unpacked for "
        "each token; --dtype auto is faster where memory holds it"
    )
    return Event("notice", {"text": text, "code": "slow_dtype"})
