"""Weights in 4 bits: the same model as with them unpacked, counted as small as they are."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from radchat.config import Size
from radchat.engine.convert import convert
from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.device import CPU, Device
from radchat.engine.dtypes import auto_dtype, resolve_dtype, values_dtype
from radchat.engine.linear import Linear, Linear4
from radchat.engine.memory import WORK_BYTES, Need
from radchat.engine.model import LoadedModel, build_engine, choose_dtype, load, needs
from radchat.engine.request import Ids, Request
from radchat.engine.weights import load_packed, load_weights
from radchat.errors import ModelBroken, UsageError
from radchat_kernels.executor import Packed4
from radchat_kernels.torch_int4 import unpack
from tests.engine.running import Running, some_ids
from tests.fakes import Cuda, drain, greedy, output
from tests.models.making import gguf_file, hf_folder, model

CASES = [
    ("llama", Quant.Q4_0, {"tie_word_embeddings": True}),
    ("llama", Quant.Q4_1, {}),
    ("qwen2", Quant.Q4_1, {}),  # with biases
]


def made(folder: Path, kind: str, quant: Quant, **overrides: bool) -> tuple[DecoderConfig, Path]:
    config, weights = model(kind, **overrides)
    convert(gguf_file(folder / "m.gguf", config, weights, quant=quant), folder / "m", {"name": "m"})
    return DecoderConfig.from_hf(config), folder / "m"


@pytest.fixture
def four(tmp_path: Path) -> Path:
    return made(tmp_path, "llama", Quant.Q4_1)[1]


def unpacked(folder: Path) -> dict[str, Tensor]:
    """All weights in float32, exactly as the GGUF file has them where it had 4 bits."""
    weights, packed = load_weights(folder, torch.float32), load_packed(folder)
    for name in {name.rpartition(".")[0] for name in packed}:
        parts = (packed[f"{name}.{part}"] for part in ("nibbles", "scales", "zeros"))
        weights[name] = unpack(Packed4(*parts), torch.float32)
    return weights


@pytest.mark.parametrize(("kind", "quant", "overrides"), CASES)
def test_a_model_in_4_bits_is_the_one_with_its_weights_unpacked(
    tmp_path: Path, kind: str, quant: Quant, overrides: dict[str, bool]
) -> None:
    config, folder = made(tmp_path, kind, quant, **overrides)
    ids = some_ids(40)
    plain = Running(Decoder(config, unpacked(folder), torch.float32))
    weights, packed = load_weights(folder, None), load_packed(folder)
    four = Running(Decoder(config, weights, torch.float32, packed=packed))
    for begin, end in ((0, 33), (33, 34), (34, 40)):
        got, wanted = four.extend(ids[begin:end]), plain.extend(ids[begin:end])
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)
        assert wanted.std() > 0.5
    stored = Running(Decoder(config, load_weights(folder, None), torch.float32))
    assert (stored.extend(ids) - Running(plain.decoder).extend(ids)).abs().max() > 1e-3


def test_what_has_a_part_that_is_not_packed_is_a_plain_product(four: Path) -> None:
    config = DecoderConfig.from_hf(model("llama")[0])
    packed = {
        name: tensor
        for name, tensor in load_packed(four).items()
        if not name.startswith("model.layers.0.self_attn.v_proj")
    }
    decoder = Decoder(config, load_weights(four, None), torch.float32, packed=packed)
    first, second = decoder._layers
    assert (type(first._qkv), type(first._o)) == (Linear, Linear4)
    assert (type(second._qkv), type(second._gate_up)) == (Linear4, Linear4)


def test_packed_rows_that_are_too_few_are_refused(four: Path) -> None:
    config = DecoderConfig.from_hf(model("llama")[0])
    name = "model.layers.1.mlp.up_proj.weight"
    packed = load_packed(four)
    packed[f"{name}.nibbles"] = packed[f"{name}.nibbles"][:-1]
    with pytest.raises(ModelBroken, match=f"{name} has 95 rows in 4 bits, config.json asks 96"):
        Decoder(config, load_weights(four, None), torch.float32, packed=packed)


def answered(loaded: LoadedModel, ids: Ids) -> list[int]:
    engine = build_engine(loaded, kv_budget=Size(tokens=256), check=True)
    assert engine.pool.dtype == loaded.decoder.dtype
    engine.submit(Request("a", ids, greedy(8)))
    return output(drain(engine), "a")


def test_a_folder_loads_in_4_bits(four: Path) -> None:
    loaded = load(four, "int4")
    assert (loaded.asked_dtype, loaded.dtype) == ("int4", "int4")
    assert loaded.decoder.dtype == values_dtype("int4")
    assert len({loaded.fingerprint, load(four, "bf16").fingerprint}) == 2
    ids = array("I", random.Random(2).choices(range(3, 250), k=60))
    # on a CPU a layer is unpacked as the plain dtype holds it
    plain = "bf16" if CPU.multiplies_bf16 else "fp32"
    if plain == "bf16":
        assert answered(loaded, ids) == answered(load(four, plain), ids)
    else:
        assert len(answered(loaded, ids)) == 8


def test_weights_are_counted_as_they_are_held(four: Path) -> None:
    config, weights = model("llama")
    matrices = {name for name, tensor in weights.items() if tensor.ndim == 2}
    linears = sum(weights[name].numel() for name in matrices if "embed" not in name)
    rest = sum(tensor.numel() for tensor in weights.values()) - linears
    width = values_dtype("int4").itemsize
    wanted = linears // 2 + linears // 32 * 4 + rest * width
    assert needs(four, "int4").weights == wanted
    assert load(four, "int4").num_bytes == wanted
    on_gpu = needs(four, "int4", device=GPU)
    assert on_gpu.weights == linears // 2 + linears // 32 * 4 + rest * 2
    assert on_gpu.good_kv == config["max_position_embeddings"] * 2 * 2 * 2 * 16 * 2
    assert needs(four, "bf16").weights == 2 * (linears + rest)


def test_a_source_without_4_bits_is_told_and_what_to_type(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    convert(tmp_path / "src", tmp_path / "plain", {"name": "plain"})
    for open_ in (load, needs):
        with pytest.raises(
            UsageError, match="plain has no 4-bit weights, its source is BF16"
        ) as no:
            open_(tmp_path / "plain", "int4")
        assert "take another --dtype" in no.value.message
        assert no.value.exit_code == 2


def test_a_broken_packed_file_says_how_to_repair_it(four: Path) -> None:
    path = four / "packed.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"x" + data[9:])
    with pytest.raises(ModelBroken, match=r"packed\.safetensors is broken .* models pull"):
        load(four, "int4")
    load(four, "bf16")


GB = 10**9
GPU = Device("cuda", Cuda())


def test_auto_takes_4_bits_on_a_gpu_that_is_too_small() -> None:
    plain, in_4_bits = Need("m", 16 * GB, 0, GB), Need("m", 6 * GB, 0, GB)
    enough = 17 * GB + WORK_BYTES
    for free, packed, wanted in (
        (80 * GB, in_4_bits, "bf16"),
        (enough, in_4_bits, "bf16"),
        (enough - 1, in_4_bits, "int4"),
        (8 * GB, in_4_bits, "int4"),
        (8 * GB, None, "bf16"),  # which is refused then, with the numbers
    ):
        assert auto_dtype(free, plain, packed, GPU) == wanted, free
        assert auto_dtype(free, plain, packed, CPU) == resolve_dtype("auto"), free


def test_a_gpu_that_only_emulates_bf16_is_not_given_it_unasked() -> None:
    old = Device("cuda", Cuda(is_old=True))
    assert (resolve_dtype("auto", old), resolve_dtype("auto", GPU)) == ("fp32", "bf16")
    assert resolve_dtype("bf16", old) == "bf16"
    assert (values_dtype("int4", old), values_dtype("int4", GPU)) == (torch.float32, torch.bfloat16)


def test_auto_asks_what_the_folder_has_and_needs(four: Path, tmp_path: Path) -> None:
    need = needs(four, "bf16", device=GPU)
    assert choose_dtype(four, "auto", need.good, device=GPU) == "bf16"
    assert choose_dtype(four, "auto", need.good - 1, device=GPU) == "int4"
    assert choose_dtype(four, "fp32", 0, device=GPU) == "fp32"
    assert choose_dtype(four, "auto", 0) in ("bf16", "fp32")
    hf_folder(tmp_path / "src")
    convert(tmp_path / "src", tmp_path / "plain", {"name": "plain"})
    assert choose_dtype(tmp_path / "plain", "auto", 0, device=GPU) == "bf16"
