"""KV on disk is read by the model that made it and by no other: RC-07 and PS-03, by fingerprint."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Quant

from radchat.config import Size
from radchat.engine.convert import convert
from radchat.engine.fingerprint import fingerprint, kind_of
from radchat.engine.kv_pool import DTYPE_NAMES
from radchat.engine.model import build_engine, load
from radchat.engine.request import Request
from radchat_sessions.kv_store import KVStore
from tests.fakes import drain, finished, flush, greedy, output
from tests.models.making import gguf_file, hf_folder, model

IDS = array("I", random.Random(1).choices(range(3, 250), k=300))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Converted folders and a dtype: all of one display name and one shape."""
    root = tmp_path_factory.mktemp("models")
    about = {"name": "tiny"}
    sources: dict[str, Callable[[Path], object]] = {
        "this": hf_folder,
        "other weights": lambda path: hf_folder(path, seed=1),
        "other RoPE": lambda path: hf_folder(path, rope_theta=5000.0),
        "other tokenizer": lambda path: hf_folder(path, backwards=True),
    }
    for name, make in sources.items():
        make(root / "src" / name)
        convert(root / "src" / name, root / name, about)
    config, weights = model("llama")
    for quant in (Quant.Q8_0, Quant.Q4_1):
        name = quant.name
        convert(gguf_file(root / f"{name}.gguf", config, weights, quant=quant), root / name, about)
    found = {path: (root / path, "fp32") for path in (*sources, "Q8_0", "Q4_1")}
    return found | {"other dtype": (root / "this", "bf16"), "4 bits": (root / "Q4_1", "int4")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KVStore]:
    store = KVStore.open(tmp_path / "kv", budget=1 << 30, hourly=None, reserve=0)
    yield store
    store.close()


def answer(store: KVStore | None, folder: Path, dtype: str) -> tuple[int, list[int]]:
    """Of a fresh daemon: tokens that came from disk, and the ids. What it computed is kept."""
    loaded = load(folder, dtype)
    kind = kind_of(dtype, "cpu", DTYPE_NAMES[loaded.decoder.dtype])
    assert loaded.fingerprint == fingerprint(folder, dtype, kind)
    blocks = None if store is None else store.of(loaded.fingerprint)
    engine = build_engine(loaded, kv_budget=Size(1 << 24), check=True, blocks=blocks)
    engine.submit(Request("a", IDS, greedy(4)))
    events = drain(engine)
    engine.keep("s/main", IDS)
    assert flush(engine)
    engine.close()
    return finished(events, "a").usage.disk, output(events, "a")


def test_fingerprints_differ_wherever_kv_would(models: dict[str, tuple[Path, str]]) -> None:
    found = {fingerprint(folder, dtype) for folder, dtype in models.values()}
    assert len(found) == len(models)


def test_a_model_finds_its_own_kv_and_no_others(
    models: dict[str, tuple[Path, str]], store: KVStore
) -> None:
    cold = {name: answer(None, *each)[1] for name, each in models.items()}
    for name, each in models.items():
        assert answer(store, *each) == (0, cold[name]), f"{name}, after those before it"
    for name, each in models.items():
        disk, ids = answer(store, *each)
        assert disk == len(IDS) - 1, f"{name}, after itself"
        assert ids == cold[name] or each[1] != "fp32", name  # one row alone is rounded otherwise


def test_kv_of_a_newer_format_is_a_miss(
    models: dict[str, tuple[Path, str]], store: KVStore
) -> None:
    this = models["this"]
    cold = answer(store, *this)[1]
    for file in (store.folder / fingerprint(*this)).rglob("*.safetensors"):
        file.write_bytes(file.read_bytes().replace(b"radchat-kv-1", b"radchat-kv-2"))
    assert answer(store, *this) == (0, cold)
