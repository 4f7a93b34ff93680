"""Restored = warm = cold, id for id, with the real store and real arithmetic: after a restart,
after every kind of damage to a block in the middle, after the whole folder went.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import torch

from radchat.engine.decoder import Decoder
from radchat.engine.engine import Engine
from radchat.engine.forward import Forward
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Ids, Request, Span, Usage
from radchat.engine.scheduler_options import SchedulerOptions
from radchat_sessions.kv_store import KVStore
from tests.engine.bench import EXACT, PAGE, TinyModel, prompt
from tests.engine.tiny import tiny_model
from tests.fakes import ByteTokenizer, LogicalClock, drain, finished, flush, greedy, output
from tests.sessions.kv import evict

BLOCK = 256
LENGTH = 4  # ids of an answer
PATH = prompt(1, 3 * BLOCK + 40)
NEXT = PATH + prompt(2, 30)  # the next turn
DAMAGED = 1  # the block in the middle


class LongModel(TinyModel):
    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__(kind, dtype)
        self.context_length = 2048

    def _open(self, kind: str) -> Forward:
        config, weights, _ = tiny_model(kind, max_position_embeddings=2048)
        return Decoder(config, weights, self.dtype)


@cache
def model(dtype: torch.dtype) -> LongModel:
    return LongModel("llama", dtype)


@cache
def cold(ids: bytes, dtype: torch.dtype) -> list[int]:
    return model(dtype).answer(array("I", ids), LENGTH)


class Bench:
    """Engines that come and go over one folder of KV."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder, self.dtype = folder, dtype
        self.model = model(dtype)
        self.names = count()
        self.fingerprint = str(dtype).removeprefix("torch.")
        self.start()

    def start(self) -> None:
        self.store = KVStore.open(self.folder, budget=1 << 30, hourly=None, reserve=0)
        pool = self.model.pool(128)
        self.engine = Engine(
            self.model,
            pool,
            PrefixCache(pool.num_pages, PAGE),
            ByteTokenizer().text,
            options=SchedulerOptions(chunk_tokens=128),
            clock=LogicalClock(),  # so that computing counts as slow, whatever this machine does
            check=True,
            blocks=self.store.of(self.fingerprint),
        )

    def stop(self) -> None:
        assert flush(self.engine)
        self.engine.check_idle()
        self.engine.close()
        self.store.close()

    def ask(self, ids: Ids) -> Usage:
        """The answer is the cold one; the decoder's own count is what the usage says."""
        request = Request(f"r{next(self.names)}", ids, greedy(LENGTH))
        want = cold(ids.tobytes(), self.dtype)
        before = self.model.decoder.tokens_computed
        self.engine.submit(request)
        events = drain(self.engine)
        assert output(events, request.id) == want
        end = finished(events, request.id)
        rows = self.model.decoder.tokens_computed - before
        assert rows == end.usage.computed + LENGTH - 1
        assert end.usage.device + end.usage.disk + end.usage.computed == len(ids)
        self.spans = end.spans
        return end.usage

    def files(self) -> list[Path]:
        """Of the path's blocks, in order."""
        folder = self.store.of(self.fingerprint)
        return [
            self.folder / self.fingerprint / block.key[:2] / f"{block.key}.safetensors"
            for block in folder.lookup(PATH.tobytes(), 0)
        ]


@pytest.fixture(scope="module")
def with_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[torch.dtype], Path]:
    """A folder with the path's blocks, made once for each dtype."""

    @cache
    def make(dtype: torch.dtype) -> Path:
        made = Bench(tmp_path_factory.mktemp("made") / "kv", dtype)
        assert made.ask(PATH).computed == len(PATH)
        made.engine.keep("s/main", PATH)
        made.stop()
        return made.folder

    return make


@pytest.fixture(params=EXACT, ids=str)
def bench(
    request: pytest.FixtureRequest, with_path: Callable[[torch.dtype], Path], tmp_path: Path
) -> Iterator[Bench]:
    """Just started over the path's blocks."""
    shutil.copytree(with_path(request.param), tmp_path / "kv")
    made = Bench(tmp_path / "kv", request.param)
    yield made
    made.stop()


def restart(bench: Bench) -> None:
    bench.stop()
    bench.start()


def test_restored_is_warm_is_cold(bench: Bench) -> None:
    assert bench.ask(NEXT).disk == len(PATH)
    assert bench.ask(NEXT).device == len(NEXT) - 1
    fork = PATH[:500] + prompt(3, 20)
    assert bench.ask(fork).device == 500
    restart(bench)
    assert bench.ask(fork).disk == 500


def flip(place: Callable[[int], int]) -> Callable[[Path, Path], None]:
    def damage(path: Path, _other: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[place(len(raw))] ^= 1
        path.write_bytes(raw)

    return damage


def cut(path: Path, _other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def swap(path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def of_another_model(path: Path, _other: Path) -> None:
    """A whole block of the same ids, in its own folder rightly so, under this one's name."""
    store = KVStore.open(path.parents[3] / "another", budget=1 << 30, hourly=None, reserve=0)
    ids = PATH[: (DAMAGED + 1) * BLOCK].tobytes()
    num_bytes = 2 * 2 * BLOCK * 2 * 16 * 4
    folder = store.of("another")
    assert folder.write(
        ids, DAMAGED * BLOCK, bytearray(num_bytes), shape=(2, 2, BLOCK, 2, 16), dtype="fp32"
    )
    (block,) = folder.lookup(ids, DAMAGED * BLOCK)
    shutil.copy(store.folder / "another" / block.key[:2] / f"{block.key}.safetensors", path)
    store.close()


def gone(path: Path, _other: Path) -> None:
    path.unlink()


def a_folder(path: Path, _other: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "header": flip(lambda _length: 30),
    "data": flip(lambda length: length // 2),
    "ids": flip(lambda length: length - 2),
    "truncated": cut,
    "swapped": swap,
    "another model's": of_another_model,
    "missing": gone,
    "a folder": a_folder,
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("is_running", [False, True], ids=["between", "running"])
def test_a_damaged_block_costs_itself_and_changes_no_word(
    bench: Bench, kind: str, is_running: bool
) -> None:
    files = bench.files()
    assert len(files) == 4
    if not is_running:
        bench.stop()
    DAMAGES[kind](files[DAMAGED], files[2])
    if not is_running:
        bench.start()
    usage = bench.ask(NEXT)
    num_lost = 2 if kind == "swapped" else 1
    assert usage.disk == len(PATH) - num_lost * BLOCK
    end = (DAMAGED + num_lost) * BLOCK
    assert bench.spans[:3] == (
        Span(0, BLOCK, "disk"),
        Span(BLOCK, end, "computed"),
        Span(end, len(PATH), "disk"),
    )
    assert bench.store.num_bad == num_lost
    bench.engine.keep("s/main", PATH)  # computed again, it is written again
    restart(bench)
    assert bench.ask(NEXT).disk == len(PATH)


def test_a_folder_that_is_gone_at_start_is_a_cold_start(bench: Bench) -> None:
    bench.stop()
    shutil.rmtree(bench.folder)
    bench.start()
    assert bench.ask(NEXT).computed == len(NEXT)
    bench.engine.keep("s/main", NEXT)
    restart(bench)
    assert bench.ask(NEXT).disk == len(NEXT) - 1


def test_what_the_budget_took_from_the_end_is_computed(bench: Bench) -> None:
    evict(bench.store, 1)  # the leaf
    assert bench.ask(NEXT).disk == 3 * BLOCK
    bench.store.budget = 0
    bench.engine.clear()
    assert bench.ask(NEXT).computed == len(NEXT)
    bench.store.budget = 1 << 30


def test_kv_of_another_fingerprint_is_never_read(bench: Bench) -> None:
    bench.stop()
    right, bench.fingerprint = bench.fingerprint, "another"
    bench.start()
    assert bench.ask(NEXT).computed == len(NEXT)
    bench.stop()
    bench.fingerprint = right
    bench.start()
    assert bench.ask(NEXT).disk == len(PATH)
