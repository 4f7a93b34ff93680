"""Conversion: what goes in comes out, by the right name and row; or a clear refusal."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from radchat.engine.convert import Outside, convert
from radchat.engine.convert_write import create_private
from radchat.engine.model_config import DecoderConfig
from radchat.errors import ModelBroken, RadchatError
from tests.models.making import (
    TEMPLATE,
    VOCAB_SIZE,
    gguf_file,
    hf_folder,
    model,
    tokenizer_json,
)

ABOUT = {"name": "tiny"}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return set(found) == set(wanted) and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name])
        for name in wanted
    )


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.float16, torch.bfloat16),
    ],
)
def test_a_hugging_face_folder_keeps_its_weights(
    tmp_path: Path, dtype: torch.dtype, stored: torch.dtype
) -> None:
    weights = hf_folder(tmp_path / "src", dtype=dtype)
    about = convert(tmp_path / "src", tmp_path / "out", ABOUT)
    found = load_file(tmp_path / "out/model.safetensors")
    assert same(found, {name: tensor.to(stored) for name, tensor in weights.items()})
    assert about["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert about["context_length"] == 512
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE
    config = (tmp_path / "src/config.json").read_bytes()
    assert (tmp_path / "out/config.json").read_bytes() == config


def test_shards_become_one_file(tmp_path: Path) -> None:
    weights = hf_folder(tmp_path / "src")
    names = sorted(weights)
    (tmp_path / "src/model.safetensors").unlink()
    index: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{number}.safetensors"
        save_file({name: weights[name] for name in part}, tmp_path / "src" / file)
        index |= dict.fromkeys(part, file)
    path = tmp_path / "src/model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert same(load_file(tmp_path / "out/model.safetensors"), weights)
    (tmp_path / "src/model-00001.safetensors").unlink()
    with pytest.raises(ModelBroken, match=r"model-00001\.safetensors is missing"):
        convert(tmp_path / "src", tmp_path / "again", ABOUT)


def test_pytorch_files_are_read(tmp_path: Path) -> None:
    weights = hf_folder(tmp_path / "src")
    (tmp_path / "src/model.safetensors").unlink()
    torch.save(weights, tmp_path / "src/pytorch_model.bin")
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert same(load_file(tmp_path / "out/model.safetensors"), weights)


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    weights = hf_folder(tmp_path / "src", tie_word_embeddings=True)
    both = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(both, tmp_path / "src/model.safetensors")
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert same(load_file(tmp_path / "out/model.safetensors"), weights)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_gives_the_hugging_face_weights_and_config(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    config, weights = model(kind, tie_word_embeddings=tied)
    path = gguf_file(tmp_path / "m.gguf", config, weights)
    about = convert(path, tmp_path / "out", ABOUT)
    assert same(load_file(tmp_path / "out/model.safetensors"), weights)
    made = json.loads((tmp_path / "out/config.json").read_text())
    assert DecoderConfig.from_hf(made) == DecoderConfig.from_hf(config)
    assert about["dtype_source"] == "F32"
    assert made["eos_token_id"] == 2
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize("quant", [Quant.Q4_0, Quant.Q4_1])
def test_packed_linears_are_exactly_the_files_values(tmp_path: Path, quant: Quant) -> None:
    config, weights = model("llama", tie_word_embeddings=False)
    path = gguf_file(tmp_path / "m.gguf", config, weights, quant=quant)
    convert(path, tmp_path / "out", ABOUT)
    packed = load_file(tmp_path / "out/packed.safetensors")
    linears = {name for name in weights if weights[name].ndim == 2} - {"model.embed_tokens.weight"}
    assert {name.rpartition(".")[0] for name in packed} == linears
    rounded = load_file(tmp_path / "out/model.safetensors")
    for name in linears:
        nibbles = packed[f"{name}.nibbles"]
        values = torch.stack([nibbles & 15, nibbles >> 4], dim=-1).flatten(1).float()
        scales, zeros = (
            packed[f"{name}.{part}"].float().repeat_interleave(32, dim=1)
            for part in ("scales", "zeros")
        )
        # quantizing works on rows, so the reference may quantize the rows in Hugging Face's order
        data = gguf.quants.quantize(weights[name].numpy(), quant)
        wanted = torch.from_numpy(gguf.quants.dequantize(data, quant))
        assert torch.equal(scales * values + zeros, wanted), name
        assert torch.equal(rounded[name], wanted.bfloat16()), name


def llama3_factors(head_dim: int, theta: float, factor: float) -> np.ndarray[Any, Any]:
    """Frequency by frequency, as the formula is published."""
    out = []
    for i in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / head_dim)
        if wavelength < 8192 / 4.0:
            out.append(1.0)
        elif wavelength > 8192 / 1.0:
            out.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            out.append(1.0 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def test_llama3_rope_is_recovered_from_its_factors(tmp_path: Path) -> None:
    config, weights = model("llama", rope_theta=500000.0)
    factors = llama3_factors(config["head_dim"], 500000.0, 8.0)
    path = gguf_file(tmp_path / "m.gguf", config, weights, extra={"rope_freqs.weight": factors})
    convert(path, tmp_path / "out", ABOUT)
    rope = json.loads((tmp_path / "out/config.json").read_text())["rope_parameters"]
    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    other = {"rope_freqs.weight": np.linspace(1, 5, factors.size, dtype=np.float32)}
    path = gguf_file(tmp_path / "other.gguf", config, weights, extra=other)
    with pytest.raises(ModelBroken, match="RoPE factors"):
        convert(path, tmp_path / "no", ABOUT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"arch": "gpt2"}, "architecture 'gpt2'"),
        ({"meta": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ({"meta": {"split.count": 3}}, "one part of 3"),
        ({"meta": {"tokenizer.ggml.pre": "martian"}}, "'martian'.*doesn't know"),
        ({"meta": {"tokenizer.ggml.pre": None}}, "None.*doesn't know"),
        ({"meta": {"tokenizer.ggml.model": "t5"}}, "tokenizer 't5'"),
        ({"meta": {"tokenizer.ggml.tokens": None}}, "no tokenizer"),
        ({"meta": {"tokenizer.ggml.eos_token_id": VOCAB_SIZE}}, "outside the vocabulary"),
        ({"meta": {"tokenizer.ggml.eot_token_id": 4_000_000_000}}, "outside the vocabulary"),
        ({"meta": {"llama.rope.scaling.type": "longrope"}}, "longrope"),
        ({"meta": {"llama.block_count": 3}}, r"lacks the tensor model\.layers\.2\."),
        ({"meta": {"llama.context_length": None}}, r"lacks llama\.context_length"),
        ({"extra": {"blk.0.ssm_a.weight": np.zeros(4, np.float32)}}, "belongs to no model"),
    ],
)
def test_a_gguf_file_that_cannot_be_right_is_refused(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    config, weights = model("llama")
    path = gguf_file(tmp_path / "m.gguf", config, weights, **arguments)
    with pytest.raises(ModelBroken, match=words):
        convert(path, tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", [3, 100, 20_000, 0.9])
def test_a_cut_gguf_file_is_refused(tmp_path: Path, keep: float) -> None:
    config, weights = model("llama")
    path = gguf_file(tmp_path / "m.gguf", config, weights)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(ModelBroken, match="not a whole GGUF file"):
        convert(path, tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba2", "state_size": 16}, "recurrent"),
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized by gptq"),
        ({"eos_token_id": [2, VOCAB_SIZE]}, f"eos_token_id {VOCAB_SIZE} is outside"),
        ({"hidden_size": 32, "head_dim": 16}, "has shape"),
    ],
)
def test_a_folder_that_cannot_be_right_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    hf_folder(tmp_path / "src")
    path = tmp_path / "src/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelBroken, match=words):
        convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("text", "words"), [("{'a': 1}", "can't be read"), ("[]", "is not a JSON")]
)
def test_a_file_that_is_no_json_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    hf_folder(tmp_path / "src")
    (tmp_path / "src" / name).write_text(text)
    with pytest.raises(ModelBroken, match=f"{name} {words}"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


def test_integer_weights_are_refused_by_name(tmp_path: Path) -> None:
    weights = hf_folder(tmp_path / "src")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.uint8)
    save_file(weights, tmp_path / "src/model.safetensors")
    with pytest.raises(ModelBroken, match=r"'model\.norm\.weight' is stored as U8"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT)


class FullDisk(io.FileIO):
    """A file on a disk that has ``room`` bytes left, counted over all files of a test."""

    room = 0

    def write(self, data: Any) -> int:
        FullDisk.room -= len(data)
        if FullDisk.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("room", [0, 10_000, 150_000])
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    hf_folder(tmp_path / "src")
    FullDisk.room = room
    outside = Outside(open_file=lambda path: FullDisk(path, "wb"))
    with pytest.raises(RadchatError, match=r"no room left.*RADCHAT_CACHE_DIR"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT, outside)
    assert not (tmp_path / "out").exists()


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    opened = []

    def opener(path: Path) -> Any:
        opened.append(path)
        return create_private(path)

    outside = Outside(open_file=opener, free_bytes=lambda _: 1_000_000)
    with pytest.raises(RadchatError, match="MB needed, 1 MB free"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT, outside)
    assert opened == []
    assert not (tmp_path / "out").exists()


def test_files_are_private_and_listed_with_their_sizes(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    about = convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        if path.name != "radchat.json":
            assert about["files"][path.name] == path.stat().st_size
    assert json.loads((tmp_path / "out/radchat.json").read_text()) == about


def test_named_templates_give_the_default_one(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    (tmp_path / "src/tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert (tmp_path / "out/chat_template.jinja").read_text() == "d"


def test_a_folder_without_tokenizer_json_gets_one_from_its_older_files(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    (tmp_path / "src/tokenizer.json").unlink()
    table = json.loads(tokenizer_json())["model"]
    (tmp_path / "src/vocab.json").write_text(json.dumps(table["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in table["merges"])
    (tmp_path / "src/merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "src/tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    made = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    wanted = Tokenizer.from_str(tokenizer_json())
    for text in ("Sep  4", "to 123", "é🙂"):
        assert made.encode(text).ids == wanted.encode(text).ids
    assert not (tmp_path / "out/.tokenizer").exists()
