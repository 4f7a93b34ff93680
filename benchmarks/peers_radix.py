"""Drives SGLang's prefix trees from its unzipped wheel, so that they run beside ours.

Its dependencies are not installed: what the tree modules import but never run here (GPU pools,
metrics, the server) is answered by empty stand-ins. None of its code is in this file.

    pip download --no-deps -d DIR sglang && unzip -q DIR/sglang-*.whl -d DIR/sglang
"""

from __future__ import annotations

import importlib
import sys
import types
from abc import ABCMeta
from array import array
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

MEM = "sglang.srt.mem_cache"
# What is really loaded; every other part of sglang, and whatever it needs besides, is stood in for.
REAL = (
    "sglang.srt.environ",
    "sglang.srt.rust_extensions",
    "sglang.srt.session",
    "sglang.srt.utils.rank_consensus_checker",
    *(f"{MEM}.{name}" for name in ("radix_cache", "base_prefix_cache", "cache_init_params")),
    *(f"{MEM}.{name}" for name in ("events", "utils", "evict_policy", "unified_radix_cache")),
    *(f"{MEM}.{name}" for name in ("cpp_utils", "unified_cache", "rust_tree_core")),
)
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.utils", MEM)  # entered, their __init__ not run

_MOCKS: list[MagicMock] = []  # calls to them are slow: none may be part of what is measured


class _Meta(ABCMeta):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"  # a member of an enum

    def __new__(mcs, *args: Any, **_: Any) -> Any:
        return super().__new__(mcs, *args)

    def __init__(cls, *args: Any, **_: Any) -> None:
        super().__init__(*args)


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012  what import expects of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = MagicMock(name=f"{self.__name__}.{name}")
        _MOCKS.append(value)
        if name[:1].isupper() and not name.isupper():
            value = _Meta(name, (), {"__init__": lambda *_, **__: None})
            value.__class_getitem__ = lambda _: value
        setattr(self, name, value)
        return value


class _Finder:
    """Real modules by their path, stand-ins for the rest of sglang and for what is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        top = name.split(".", maxsplit=1)[0]
        if top == "sglang" and any(name == r or name.startswith(f"{r}.") for r in REAL):
            return PathFinder.find_spec(name, path)
        if top != "sglang" and (top in sys.stdlib_module_names or PathFinder.find_spec(top)):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        if spec.name in PACKAGES:
            module.__path__ = [str(self.folder.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _Slots:
    """Counts slots, as its allocators would; no KV is moved."""

    device, page_size = "cpu", 1

    def __init__(self, size: int) -> None:
        self.size = self.free_slots = size

    def available_size(self) -> int:
        return self.free_slots

    def free(self, slots: Any, *_: Any, **__: Any) -> None:
        self.free_slots += len(slots)

    free_segment = free

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.free if name.startswith("free") else lambda *_, **__: None


class SGLang:
    """One of its trees at page size 1, plain LRU."""

    def __init__(self, num_slots: int, longest: int, *, rust: bool = False) -> None:
        import torch

        base = importlib.import_module(f"{MEM}.base_prefix_cache")
        self._match, self._evict = base.MatchPrefixParams, base.EvictParams
        self._insert = base.InsertParams
        self._key = importlib.import_module(f"{MEM}.radix_cache").RadixKey
        params = importlib.import_module(f"{MEM}.cache_init_params").CacheInitParams
        self.slots = _Slots(num_slots)
        self._values = torch.arange(longest, dtype=torch.int64)
        self.rust = rust
        options: dict[str, Any] = {}
        name, module = "RadixCache", "radix_cache"
        if rust:
            kinds = importlib.import_module(f"{MEM}.unified_cache.component_type").ComponentType
            options = {"tree_components": (kinds.FULL,), "tree_core_backend": "rust"}
            name, module = "UnifiedRadixCache", "unified_radix_cache"
        self.cache = getattr(importlib.import_module(f"{MEM}.{module}"), name)(
            params(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.slots,
                page_size=1,
                **options,
            )
        )
        self._mock_calls = _num_mock_calls()

    def request(
        self, prompt: Sequence[int], full: Sequence[int], clock: Callable[[], int]
    ) -> tuple[int, int]:
        """One request's life. Returns (nanoseconds in the tree, cached tokens)."""
        cache = self.cache
        prompt_key, full_key = self._key(array("q", prompt)), self._key(array("q", full))
        began = clock()
        hit = cache.match_prefix(self._match(key=prompt_key))
        node, matched = hit.last_device_node, hit.device_prefix_len
        lock = cache.lock(node) if self.rust else cache.inc_lock_ref(node)
        short = len(full) - matched - self.slots.free_slots
        if short > 0:
            cache.evict(self._evict(num_tokens=short))
        spent = clock() - began
        self.slots.free_slots -= len(full) - matched
        values = self._values[: len(full)]
        began = clock()
        if self.rust:  # frees by itself what it finds twice
            cache.insert(self._insert(key=full_key, value=values, prev_prefix_len=matched))
            cache.unlock(lock)
        else:
            present = cache.insert(self._insert(key=full_key, value=values)).prefix_len
            self.slots.free_slots += present - matched
            cache.dec_lock_ref(node)
        return spent + clock() - began, matched

    def check(self) -> None:
        assert self._mock_calls == _num_mock_calls(), "a stand-in was measured"
        in_tree = self.cache.evictable_size() + self.cache.protected_size()
        assert self.cache.protected_size() == 0
        assert in_tree + self.slots.free_slots == self.slots.size

    def evict(self, num_tokens: int, clock: Callable[[], int]) -> int:
        began = clock()
        self.cache.evict(self._evict(num_tokens=num_tokens))
        return clock() - began


def _num_mock_calls() -> int:
    return sum(len(mock.mock_calls) for mock in _MOCKS)


def load(folder: Path) -> str:
    """Make the wheel importable. Returns its version."""
    import torch  # before the stand-ins, so that its own probes for packages stay honest

    torch.set_num_threads(1)
    sys.meta_path.insert(0, _Finder(folder))
    common: Any = importlib.import_module("sglang.srt.utils.common")
    common.ceil_align = lambda n, k: -(-n // k) * k
    utils: Any = importlib.import_module("sglang.srt.utils")
    utils.assert_int64_array = lambda *_: None
    shards: Any = importlib.import_module(f"{MEM}.allocator.page_interleave")
    shards.page_interleave_shard_size = lambda _: 1
    (info,) = folder.glob("sglang-*.dist-info")
    return info.name.removeprefix("sglang-").removesuffix(".dist-info")
