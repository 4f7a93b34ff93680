"""The beginning of a GGUF file, whoever wrote it."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat import architectures
from radchat.engine.convert_gguf import read_gguf
from radchat.models.found import look_at
from radchat.models.gguf_header import FILE_TYPES, MAX_BYTES, NotGguf, read_header
from tests.models.others import tiny_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _head(*keys: bytes, count: int | None = None, version: int = 3) -> bytes:
    number = len(keys) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, 0, number) + b"".join(keys)


ARCH = _text("general.architecture") + struct.pack("<I", 8) + _text("llama")


def test_it_says_what_the_whole_file_says(whole: Path) -> None:
    header = read_header(whole)
    full = read_gguf(whole)
    assert header.architecture == full.meta["general.architecture"] == "llama"
    assert header.quantisation == full.dtype_source == "Q8_0"
    assert header.context_length == full.config["max_position_embeddings"]
    assert (header.size_label, header.bytes) == ("0.1M", whole.stat().st_size)
    assert not any(key.startswith("tokenizer.") for key in header.meta)


def test_the_numbers_of_the_file_types_are_llama_cpps() -> None:
    theirs = {int(each): each.name.removeprefix("MOSTLY_") for each in gguf.LlamaFileType}
    theirs[0] = theirs.pop(0).removeprefix("ALL_")
    assert FILE_TYPES.items() <= theirs.items()


def test_what_the_header_promises_to_read_the_converter_reads() -> None:
    assert set(architectures.GGUF) == {"llama", "mistral", "qwen2", "qwen3"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "cut short"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (_head(ARCH, version=1), "version 1"),
        (_head(ARCH, version=3 << 24), "another byte order"),
        (_head(ARCH, count=2**63), "cut short"),
        (_head(struct.pack("<Q", 2**63) + b"x"), "makes no sense"),
        (_head(_text("a") + struct.pack("<I", 99)), "makes no sense"),
        (_head(_text("a") + struct.pack("<IQ", 8, 2**62)), "cut short"),
        (_head(_text("a") + struct.pack("<IIQ", 9, 4, 2**62)), "cut short"),
        (_head(_text("a") + struct.pack("<IIQ", 9, 8, 2**62)), "cut short"),
        (_head(_text("a") + struct.pack("<IIQ", 9, 9, 1)), "makes no sense"),
        (_head(_text("a") + struct.pack("<II", 4, 1)), "names no architecture"),
    ],
)
def test_a_header_that_cannot_be_right_says_why(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    begun = time.process_time()
    with pytest.raises(NotGguf, match=why):
        read_header(path)
    assert time.process_time() - begun < 0.5


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_byte_changed_anywhere_does_more_than_say_so(whole: Path, data: st.DataObject) -> None:
    original = whole.read_bytes()[:4096]
    at = data.draw(st.integers(0, len(original) - 9))
    new = data.draw(st.binary(min_size=1, max_size=8))
    cut = data.draw(st.integers(0, len(original)))
    path = whole.parent / "changed.gguf"
    path.write_bytes((original[:at] + new + original[at + len(new) :])[:cut])
    found = look_at("llamacpp:changed.gguf", path)
    assert found.problem is None or found.problem.isprintable() or found.architecture


def test_it_reads_no_more_than_the_beginning(tmp_path: Path) -> None:
    """Ten million tokens, and a hole for the weights: neither is looked at."""
    path = tmp_path / "big.gguf"
    tokens = _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 10_000_000)
    path.write_bytes(_head(ARCH, tokens, count=3))
    os.truncate(path, 60_000_000_000)
    assert read_header(path).architecture == "llama"
    long = _text("general.description") + struct.pack("<I", 8) + _text("x" * MAX_BYTES)
    path.write_bytes(_head(ARCH, long, count=9) + bytes(100_000))
    assert read_header(path).architecture == "llama"


@pytest.mark.parametrize("name", ["Model-1.5B.q4_k_m.gguf", "Model-Q4_K_M-imat.gguf"])
def test_the_name_tells_the_type_where_the_first_keys_do_not(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(_head(ARCH))
    assert read_header(tmp_path / name).quantisation == "Q4_K_M"


@pytest.mark.parametrize("before", [0, 1_000_000, 1_048_560, 1_048_576, 5_000_000])
def test_the_type_is_found_behind_a_long_vocabulary(tmp_path: Path, before: int) -> None:
    """Where llama-quantize puts it; also across the border of two chunks."""
    key = _text("general.file_type") + struct.pack("<II", 4, 15)
    tokens = _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 1) + _text("x" * before)
    (tmp_path / "model.gguf").write_bytes(_head(ARCH, tokens, key) + bytes(2_000_000))
    assert read_header(tmp_path / "model.gguf").quantisation == "Q4_K_M"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert look_at("x", tmp_path / "pipe.gguf").problem == "no regular file"
    assert look_at("x", tmp_path).problem == "no regular file"
    assert look_at("x", tmp_path / "none.gguf").problem == "no such file or directory"
    (tmp_path / "link.gguf").symlink_to("link.gguf")
    assert "symbolic links" in str(look_at("x", tmp_path / "link.gguf").problem)


@pytest.mark.parametrize(
    ("name", "meta", "why"),
    [
        ("mmproj-x.gguf", {}, "projector"),
        ("x.gguf", {"general.type": "mmproj"}, "projector"),
        ("x.gguf", {"general.type": "adapter"}, "adapter"),
        ("x.gguf", {"llama.pooling_type": 3}, "embedding"),
        ("x.gguf", {"llama.expert_count": 8}, "mixture of experts"),
        ("x-00001-of-00003.gguf", {}, "part 1 of 3"),
    ],
)
def test_what_is_no_model_to_talk_to_is_told_apart(
    tmp_path: Path, name: str, meta: dict[str, Any], why: str
) -> None:
    found = look_at("llamacpp:x", tiny_gguf(tmp_path / name, **meta))
    assert why in str(found.problem)


def test_an_architecture_the_converter_does_not_read_is_named(tmp_path: Path) -> None:
    for arch in ("gemma3", "bert", "clip"):
        path = tmp_path / f"{arch}.gguf"
        path.write_bytes(_head(_text("general.architecture") + struct.pack("<I", 8) + _text(arch)))
        problem = str(look_at("x", path).problem)
        assert {"gemma3": "gemma3", "bert": "embedding", "clip": "projector"}[arch] in problem
