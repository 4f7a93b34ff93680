"""Random lives of engines over one KV folder: turns, forks, evictions, restarts, damage, budgets.

A token's KV is its id, so whatever is restored can be read: after every step all that the tree
says it has of every path is compared with the path's ids. Answers depend on all ids before them,
counters are those of the model's own count, and a store that watches says who asked to write what.
"""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from radchat.engine.block_store import BLOCK_TOKENS
from radchat.engine.engine import Engine
from radchat.engine.request import Event, Finished, FinishReason, Ids, Request
from radchat.engine.scheduler_options import SchedulerOptions
from radchat_sessions.kv_blocks import key_of
from radchat_sessions.kv_files import Files
from radchat_sessions.kv_store import KVFolder, KVStore
from tests.fakes import LogicalClock, drain, flush, greedy, hashed, output, scripted_engine
from tests.machines import run
from tests.sessions.kv import evict

MAX_LEN = 900  # tokens of a path: three blocks and a half
LARGE = 1 << 30
_HALVES = str.maketrans("0123456789abcdef", "0" * 8 + "1" * 8)

some = st.integers(0, 99)  # which path, which file: taken modulo how many there are
cut = st.one_of(
    st.integers(0, MAX_LEN),
    st.sampled_from([n * BLOCK_TOKENS + d for n in (1, 2, 3) for d in (-1, 0, 1, 17)]),
)
tail = st.one_of(st.integers(1, 40), st.integers(200, 600))
kinds = st.sampled_from(["flip", "cut", "swap", "gone"])
places = st.floats(0, 0.999)  # in a file
often = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([False, False, False, True])
letters = st.integers(0, 3)  # few tails: paths meet


def of_two(parent: str, ids: bytes) -> str:
    """A hash that says next to nothing (RC-08)."""
    return key_of(parent, ids)[0].translate(_HALVES) * 32


class Unsynced(Files):
    """No machine stops here, so nothing waits for the disk; and budgets are for blocks alone."""

    def sync(self, descriptor: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def index_size(self, path: Path) -> int:
        return 0


class Watched:
    """The real store of one fingerprint; nothing but kept paths may be written."""

    def __init__(self, inner: KVFolder, kept: Sequence[bytes]) -> None:
        self._inner, self._kept = inner, kept
        self.wrong: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, raw: bytes, start: int, data: bytearray, **more: Any) -> bool:
        if not any(path.startswith(raw) for path in self._kept):
            self.wrong.append(start)
        return self._inner.write(raw, start, data, **more)


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kv-"))
        self.paths: list[Ids] = [array("I")]
        self.kept: list[bytes] = []  # ever
        self.budget = LARGE
        self.named = 0
        self.engine: Engine | None = None

    @initialize(
        pool_tokens=st.sampled_from([1024, 1600, 4096]),
        chunk=st.sampled_from([64, 512]),
        collides=seldom,
    )
    def start(self, pool_tokens: int, chunk: int, collides: bool) -> None:
        self.pool_tokens, self.chunk, self.collides = pool_tokens, chunk, collides
        self._open()
        self.turn(0, 0, 0, 800)
        self.keep(-1, "s/a", 5)

    def _open(self) -> None:
        self.store = KVStore.open(
            self.folder,
            budget=self.budget,
            hourly=None,
            reserve=0,
            files=Unsynced(),
            key_of=of_two if self.collides else key_of,
        )
        self.blocks = Watched(self.store.of("f"), self.kept)
        self.clock = LogicalClock()
        self.engine = scripted_engine(
            pool_tokens=self.pool_tokens,
            options=SchedulerOptions(chunk_tokens=self.chunk),
            clock=self.clock,
            blocks=self.blocks,
        )

    def _close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.store.close()
            assert not self.blocks.wrong, "ids that were not kept were to be written"

    def teardown(self) -> None:
        self._close()
        shutil.rmtree(self.folder)

    # -- requests -----------------------------------------------------------------------------

    def path(self, which: int, at: int, letter: int, length: int) -> Ids:
        head = self.paths[which % len(self.paths)][:at]
        more = min(length, MAX_LEN - len(head))
        return head + array("I", [97 + letter + i % 7 for i in range(max(1, more))])

    def request(self, ids: Ids, **more: Any) -> Request:
        self.named += 1
        return Request(f"r{self.named}", ids, greedy(2), **more)

    def run(self, *requests: Request) -> list[Event]:
        assert self.engine is not None
        before = self.engine.rows_run
        for request in requests:
            self.engine.submit(request)
        events = drain(self.engine)
        rows = 0
        for request in requests:
            end = self.ended(request, events)
            usage = end.usage
            if request.fill == "answer":
                whole = list(request.ids)
                for token in output(events, request.id):
                    assert token == hashed(whole)
                    whole.append(token)
                self.paths.append(array("I", whole))
            if request.fill != "load":
                covered = usage.device + usage.disk + usage.computed
                assert covered == usage.input_tokens == len(request.ids)
            rows += usage.computed + max(0, usage.output_tokens - 1)
        if not self.engine.stats()["retractions"]:
            assert self.engine.rows_run - before == rows, "the independent count"
        del self.paths[:-12]
        self.read_all()
        return events

    def ended(self, request: Request, events: Sequence[Event]) -> Finished:
        (end,) = (e for e in events if isinstance(e, Finished) and e.request_id == request.id)
        assert end.error is None
        at = 0
        for span in end.spans:
            assert span.start == at < span.end
            at = span.end
        return end

    def read_all(self) -> None:
        """All that is cached of every path is that path's."""
        engine = self.engine
        assert engine is not None
        engine.check_idle()
        slots = engine.pool.data[0, 0].view(-1)
        size = engine.cache.page_size
        for ids in self.paths:
            table, num = engine.cache.pages_of(ids.tobytes())
            at = torch.arange(num)
            found = slots[torch.tensor(table, dtype=torch.int64)[at // size] * size + at % size]
            assert torch.equal(found, torch.tensor(ids[:num], dtype=found.dtype))

    @rule(which=some, at=cut, letter=letters, length=tail)
    def turn(self, which: int, at: int, letter: int, length: int) -> None:
        self.run(self.request(self.path(which, at, letter, length)))

    @rule(which=some, at=cut, length=tail, num=st.integers(2, 3))
    def forks(self, which: int, at: int, length: int, num: int) -> None:
        self.run(*(self.request(self.path(which, at, n, length)) for n in range(num)))

    @rule(which=some, how=st.sampled_from(["load", "warm"]), beside=st.booleans())
    def fill(self, which: int, how: Any, beside: bool) -> None:
        ids = self.path(which, MAX_LEN, 0, 1)
        turn = [self.request(ids + array("I", [5]))] if beside else []
        self.run(self.request(ids, fill=how), *turn)

    @rule(which=some, steps=st.integers(0, 5))
    def cancel(self, which: int, steps: int) -> None:
        engine, request = self.engine, self.request(self.path(which, MAX_LEN, 1, 9))
        assert engine is not None
        engine.submit(request)
        events: list[Event] = []
        for _ in range(steps):
            events += engine.step()
        if engine.abort(request.id):
            events += drain(engine)
            assert self.ended(request, events).reason is FinishReason.ABORT
        self.read_all()

    # -- disk and device ----------------------------------------------------------------------

    @rule(which=some, name=st.sampled_from(["s/a", "s/b", "t/a"]), num_saves=st.integers(0, 5))
    def keep(self, which: int, name: str, num_saves: int) -> None:
        ids = self.paths[which % len(self.paths)]
        if ids:
            assert self.engine is not None
            self.kept.append(ids.tobytes())
            self.engine.keep(name, ids)
            for _ in range(num_saves):
                self.engine.save()
            self.read_all()

    @rule(prefix=st.sampled_from(["s/", "s/a", "t/"]))
    def unkeep(self, prefix: str) -> None:
        assert self.engine is not None
        self.engine.unkeep(prefix)

    @rule(pages=st.integers(1, 60))
    def evict(self, pages: int) -> None:
        assert self.engine is not None
        self.engine.cache.evict(pages)
        self.read_all()

    @rule(num_bytes=st.integers(1, 5000))
    def evict_from_disk(self, num_bytes: int) -> None:
        evict(self.store, num_bytes)

    @rule(budget=st.sampled_from([0, 6000, 12000, LARGE]))
    def budget_changes(self, budget: int) -> None:
        self.budget = self.store.budget = budget

    @rule(hourly=st.sampled_from([0, None]), seconds=st.sampled_from([0, 100]))
    def hourly_changes(self, hourly: int | None, seconds: float) -> None:
        self.store.hourly = hourly
        self.clock.advance(seconds)

    @rule(which=some, how=kinds, at=places)
    def damage(self, which: int, how: str, at: float) -> None:
        files = sorted((self.folder / "f").rglob("*.safetensors"))
        if not files:  # no precondition: when a block is written is up to its thread
            return
        path, other = files[which % len(files)], files[(which + 1) % len(files)]
        with suppress(FileNotFoundError):  # the writer replaces a tail meanwhile
            self.spoil(path, other, how, at)

    def spoil(self, path: Path, other: Path, how: str, at: float) -> None:
        raw = bytearray(path.read_bytes())
        if how == "flip" and raw:
            raw[int(at * len(raw))] ^= 4
            path.write_bytes(raw)
        elif how == "cut":
            path.write_bytes(raw[: int(at * len(raw))])
        elif how == "swap":
            path.write_bytes(other.read_bytes())
        else:
            path.unlink()

    @rule(
        which=some,
        flushes=often,
        damaged=st.lists(st.tuples(some, kinds, places), max_size=2),
        loses=seldom,
        how=st.sampled_from(["load", "warm", "answer"]),
    )
    def restart(
        self,
        which: int,
        flushes: bool,
        damaged: list[tuple[int, str, float]],
        loses: bool,
        how: Any,
    ) -> None:
        assert self.engine is not None
        self.keep(which, "u/a", 0)
        if flushes and flush(self.engine):
            assert self.engine.stats()["disk"]["staged_bytes"] == 0
        self._close()
        for each in damaged:
            self.damage(*each)
        if loses:
            (self.folder / "index.db").unlink()
        self._open()
        while loses and self.store.tidy():
            pass
        for ids in list(self.paths):
            if not ids:
                continue
            device, disk = self.engine.probe_tiers(ids)
            request = self.request(ids, fill=how)
            usage = self.ended(request, self.run(request)).usage
            assert usage.device + usage.disk <= device + disk


def test_whatever_happened_what_is_restored_is_right_or_missing() -> None:
    run(DiskMachine, examples=70, steps=25, shrinks=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_time_of_it() -> None:
    run(DiskMachine, examples=1500, steps=40)
