"""Mapping a converted folder: what was written comes back, what is broken is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from radchat.engine.convert import convert
from radchat.engine.fingerprint import KV_FORMAT, fingerprint
from radchat.engine.weights import load_packed, load_weights
from radchat.errors import ModelBroken
from tests.models.making import gguf_file, hf_folder, model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf_folder(tmp_path / "src")
    about = {"name": "tiny", "source": "/models/my model"}
    convert(tmp_path / "src", tmp_path / "tiny", about)
    return tmp_path / "tiny"


def test_weights_come_back_in_the_dtype_asked_for(tmp_path: Path, folder: Path) -> None:
    wanted = hf_folder(tmp_path / "again")
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        weights = load_weights(folder, dtype)
        assert set(weights) == set(wanted)
        assert all(torch.equal(weights[name], wanted[name].to(dtype)) for name in wanted)
        assert {tensor.dtype for tensor in weights.values()} == {dtype}


def test_only_a_four_bit_source_has_packed_weights(tmp_path: Path, folder: Path) -> None:
    assert load_packed(folder) == {}
    config, weights = model("llama")
    path = gguf_file(tmp_path / "m.gguf", config, weights, quant=Quant.Q4_1)
    convert(path, tmp_path / "packed", {"name": "packed"})
    packed = load_packed(tmp_path / "packed")
    assert packed["model.layers.0.mlp.up_proj.weight.nibbles"].dtype == torch.uint8


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_missing_file_is_named_with_the_command_that_repairs(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelBroken) as caught:
        load_weights(folder, torch.bfloat16)
    assert f"{folder / name} is missing" in caught.value.message
    assert "radchat models pull '/models/my model'" in caught.value.message


def test_a_short_file_is_named_with_both_sizes(folder: Path) -> None:
    path = folder / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 7)
    with pytest.raises(ModelBroken, match=f"has {size - 7:,} bytes instead of {size:,}"):
        load_weights(folder, torch.bfloat16)


def test_a_file_that_is_no_safetensors_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(ModelBroken, match=r"model\.safetensors is broken"):
        load_weights(folder, torch.bfloat16)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": "x", "files": {}}'])
def test_an_unreadable_radchat_json_is_a_broken_model(folder: Path, text: str) -> None:
    (folder / "radchat.json").write_text(text)
    with pytest.raises(ModelBroken, match=r"radchat\.json can't be read"):
        load_weights(folder, torch.bfloat16)


def test_a_folder_of_another_format_is_refused(folder: Path) -> None:
    path = folder / "radchat.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(ModelBroken, match="has format 2, not 1"):
        load_weights(folder, torch.bfloat16)
    with pytest.raises(ModelBroken, match="not a converted model"):
        load_weights(folder.parent, torch.bfloat16)


def test_the_fingerprint_is_of_the_content_alone(tmp_path: Path, folder: Path) -> None:
    first = fingerprint(folder, "bf16")
    convert(tmp_path / "src", tmp_path / "other-place", {"name": "other-name", "source": "hub/x"})
    assert fingerprint(tmp_path / "other-place", "bf16") == first
    config = json.loads((folder / "config.json").read_text())
    assert len(first) == 32

    def changed(edit: str, file: str, text: str) -> str:
        copy = tmp_path / edit
        shutil.copytree(folder, copy)
        (copy / file).write_text(text)
        about = json.loads((copy / "radchat.json").read_text())
        about["files"][file] = (copy / file).stat().st_size
        (copy / "radchat.json").write_text(json.dumps(about))
        return fingerprint(copy, "bf16")

    tokenizer = (folder / "tokenizer.json").read_text()
    unimportant = json.dumps(config | {"transformers_version": "9.9"})
    assert changed("written-by-another", "config.json", unimportant) == first
    hf_folder(tmp_path / "other-src", seed=1)
    convert(tmp_path / "other-src", tmp_path / "other-weights", {"name": "tiny"})
    different = {
        first,
        fingerprint(folder, "fp32"),
        fingerprint(folder, "int4"),
        fingerprint(folder, "int4", "fp32"),
        fingerprint(folder, "fp32", "gpu"),
        fingerprint(folder, "bf16", kv_format=KV_FORMAT + 1),
        fingerprint(tmp_path / "other-weights", "bf16"),
        changed("rope", "config.json", json.dumps(config | {"rope_theta": 5000.0})),
        changed("tokenizer", "tokenizer.json", tokenizer + " "),
    }
    assert len(different) == 9
