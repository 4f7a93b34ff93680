"""Conversion for the general path: hub folders in, models that start from a map out."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radchat.config import Size
from radchat.engine.convert import convert
from radchat.engine.convert_general import read_general
from radchat.engine.decoder import Decoder
from radchat.engine.general import GeneralModel, open_module
from radchat.engine.model import LoadedModel, build_engine, load, needs
from radchat.engine.request import Request, SamplingParams
from radchat.errors import ModelBroken
from radchat.models.pull import pull
from radchat.models.registry import read_entry, resolve
from radchat.paths import Places
from tests.engine.general_toys import general_config, general_weights
from tests.engine.running import Running, some_ids
from tests.fakes import drain, output
from tests.models.fake_hub import fake_hub
from tests.models.general_making import CLASSES, files_weights, general_folder, mxfp4_folder
from tests.models.making import TEMPLATE, VOCAB_SIZE, hf_folder, tokenizer_json
from tests.models.test_pull import HERE

ABOUT = {"name": "tiny"}


def by_transformers(folder: Path, ids: list[int]) -> torch.Tensor:
    """Logits of the folder as transformers itself opens it."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("kind", CLASSES)
def test_a_hub_folder_says_what_transformers_says_of_it(tmp_path: Path, kind: str) -> None:
    general_folder(tmp_path / "src", kind)
    about = convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert about["runs_on"] == "transformers"
    assert about["transformers"].startswith("5.")
    assert about["context_length"] == 512
    model = load(tmp_path / "out", "fp32")
    assert isinstance(model.decoder, GeneralModel)
    ids = some_ids(60)
    want = by_transformers(tmp_path / "src", ids)
    got = Running(model.decoder).extend(ids)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    engine = build_engine(model, kv_budget=Size(tokens=256), check=True)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    engine.submit(Request("it", array("I", ids), params))
    assert output(drain(engine), "it") == [int(want[-1].argmax())]


def test_every_later_start_maps_the_weights_and_finds_its_own_kv(tmp_path: Path) -> None:
    """Experts are fused once, at conversion: a start copies nothing, whatever the class wants."""
    general_folder(tmp_path / "src", "qwen3_moe")
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    names = set(load_file(tmp_path / "out/model.safetensors"))
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    assert not [name for name in names if ".experts.0." in name]
    assert needs(tmp_path / "out", "fp32", Size(tokens=16)).kv == 16 * 2 * 2 * 2 * 16 * 4
    first, second = load(tmp_path / "out", "fp32"), load(tmp_path / "out", "fp32")
    assert first.fingerprint == second.fingerprint
    assert load(tmp_path / "out", "bf16").fingerprint != first.fingerprint


def test_llama_shaped_models_keep_to_the_decoder_and_say_so(tmp_path: Path) -> None:
    hf_folder(tmp_path / "src")
    assert convert(tmp_path / "src", tmp_path / "out", ABOUT)["runs_on"] == "decoder"
    assert isinstance(load(tmp_path / "out", "fp32").decoder, Decoder)
    old = json.loads((tmp_path / "out/radchat.json").read_text())
    del old["runs_on"]  # as folders of before the general path are
    (tmp_path / "out/radchat.json").write_text(json.dumps(old))
    assert read_entry(tmp_path / "out").runs_on == "decoder"
    assert isinstance(load(tmp_path / "out", "fp32").decoder, Decoder)


def test_gpt_oss_in_mxfp4_is_unpacked_to_the_value(tmp_path: Path) -> None:
    wanted = mxfp4_folder(tmp_path / "src")
    about = convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert about["dtype_source"] == "MXFP4"
    found = load_file(tmp_path / "out/model.safetensors")
    assert len(wanted) == 4
    for name, values in wanted.items():
        assert torch.equal(found[name].float(), values), name
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert load(tmp_path / "out", "bf16").dtype == "bf16"


def test_other_quantised_weights_are_refused(tmp_path: Path) -> None:
    general_folder(tmp_path / "src", "phi3", quantization_config={"quant_method": "awq"})
    with pytest.raises(ModelBroken, match="quantized by awq are not supported"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


def test_a_model_that_fails_its_check_leaves_nothing(tmp_path: Path) -> None:
    weights = general_folder(tmp_path / "src", "phi3")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, tmp_path / "src/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelBroken, match="other logits with radchat's attention"):
        convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert not (tmp_path / "out").exists()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    general_folder(tmp_path / "src", "phi3", auto_map=auto)
    (tmp_path / "src/evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    convert(tmp_path / "src", tmp_path / "out", ABOUT)
    load(tmp_path / "out", "fp32")
    assert not mark.exists()
    config = json.loads((tmp_path / "src/config.json").read_text())
    (tmp_path / "src/config.json").write_text(json.dumps(config | {"model_type": "evil"}))
    with pytest.raises(ModelBroken, match="radchat never runs such code"):
        convert(tmp_path / "src", tmp_path / "again", ABOUT)
    assert not mark.exists()


def test_a_longrope_models_context_ends_where_earlier_keys_would_change(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    more = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    general_folder(tmp_path / "src", "phi3", **more)
    about = convert(tmp_path / "src", tmp_path / "out", ABOUT)
    assert about["context_length"] == 64
    assert "64 of 512 tokens: past them RoPE 'longrope'" in about["context_limit"]
    assert load(tmp_path / "out", "fp32").context_length == 64
    ids = some_ids(64)
    want = by_transformers(tmp_path / "src", ids)
    got = Running(load(tmp_path / "out", "fp32").decoder).extend(ids)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def changed(folder: Path, weights: dict[str, torch.Tensor], version: str) -> None:
    """The converted folder with other weights, as ``version`` of transformers had made it."""
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    about = json.loads((folder / "radchat.json").read_text())
    about["files"]["model.safetensors"] = (folder / "model.safetensors").stat().st_size
    (folder / "radchat.json").write_text(json.dumps(about | {"transformers": version}))


def test_what_another_version_of_transformers_changed_is_told_with_how_to_renew(
    tmp_path: Path,
) -> None:
    general_folder(tmp_path / "src", "phi3")
    out = tmp_path / "out"
    now = convert(tmp_path / "src", out, ABOUT)["transformers"]
    weights = load_file(out / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    changed(out, weights | {"model.final_norm.weight": norm}, "5.0.0")
    with pytest.raises(ModelBroken, match=r"hold no model\.norm.*5\.0\.0.*radchat models pull"):
        load(out, "fp32")
    # so is a class that computes other than it did: the check of the conversion is made again
    changed(out, weights | {"model.norm.weight": norm * torch.nan}, "5.0.0")
    with pytest.raises(ModelBroken, match=r"other logits.*5\.0\.0.*radchat models pull"):
        load(out, "fp32")
    changed(out, weights | {"model.norm.weight": norm}, "5.0.0")
    load(out, "fp32")
    changed(out, weights | {"model.norm.weight": norm * torch.nan}, now)
    load(out, "fp32")  # the same version: checked once, at conversion


def test_a_hub_name_is_pulled_and_shown_as_what_it_runs_on(tmp_path: Path, own_home: Path) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(own_home)})
    general_folder(tmp_path / "src", "gemma3")
    files = {path.name: path.read_bytes() for path in (tmp_path / "src").iterdir()}
    with pytest.MonkeyPatch.context() as patch, fake_hub("org/tiny-gemma", files) as (url, _):
        patch.setenv("HF_ENDPOINT", url)
        entry = pull(places, "org/tiny-gemma", outside=HERE)
    assert entry.runs_on == "transformers"
    assert resolve(places, "tiny-gemma").to_json()["runs_on"] == "transformers"
    assert load(entry.folder, "fp32").vocab_size == 265


def test_of_a_multimodal_model_the_text_part_runs(tmp_path: Path) -> None:
    """Gemma 3 from 4B on comes with a vision tower and its text model's config one level down."""
    import transformers

    src, seen = tmp_path / "src", {"hidden_size": 32, "intermediate_size": 48}
    seen |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=general_config("gemma3", vocab_size=VOCAB_SIZE),
        vision_config=seen,
        mm_tokens_per_image=4,
        image_token_index=5,
        boi_token_index=6,
        eoi_token_index=7,
    )
    made: Any = transformers.Gemma3ForConditionalGeneration(config)
    state = made.state_dict()
    for name, weight in general_weights("gemma3", VOCAB_SIZE).items():
        state[name.replace("model.", "model.language_model.", 1)].copy_(weight)
    made.save_pretrained(src)
    (src / "tokenizer.json").write_text(tokenizer_json())
    (src / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    about = convert(src, tmp_path / "out", ABOUT)
    assert (about["architecture"], about["context_length"]) == ("gemma3", 512)
    decoder = load(tmp_path / "out", "fp32").decoder
    ids = [i + 8 for i in some_ids(60)]
    with torch.no_grad():
        want = made.eval()(torch.tensor([ids])).logits[0]
    assert want.std() > 0.5
    torch.testing.assert_close(Running(decoder).extend(ids), want, rtol=1e-4, atol=1e-4)


def test_what_is_read_holds_each_tied_weight_once(tmp_path: Path) -> None:
    general_folder(tmp_path / "src", "gemma3")
    names = [item.name for item in read_general(tmp_path / "src").items]
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names
    assert set(names) == set(files_weights("gemma3"))


# -- both paths -----------------------------------------------------------------------------------


@pytest.mark.model
def test_smollm2_says_the_same_on_both_paths(smollm2: Path) -> None:
    ours: LoadedModel = load(smollm2, "fp32")
    ids = list(ours.tokenizer.encode_text("Tallow is a small town on the bank of the Wend. " * 4))
    config = json.loads((smollm2 / "config.json").read_text())
    weights = load_file(smollm2 / "model.safetensors")
    general = GeneralModel(config, open_module(config, weights, torch.float32), torch.float32)
    mine, other = Running(ours.decoder), Running(general)
    for begin, end in ((0, 20), (20, 21), (21, len(ids))):
        want, got = mine.extend(ids[begin:end]), other.extend(ids[begin:end])
        assert (got - want).abs().max() < 2e-4
    assert other.greedy(12) == mine.greedy(12)
