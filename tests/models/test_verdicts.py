"""What is said of a folder before it is converted is what the converter says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radchat.architectures import check_class
from radchat.engine.convert import convert
from radchat.errors import ModelBroken
from radchat.models import stores
from tests.models.general_making import general_folder, mxfp4_folder, vision_folder
from tests.models.making import hf_folder
from tests.models.others import hub_snapshot

VERDICTS: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "mxfp4": (mxfp4_folder, None),
    "sees too": (vision_folder, None),
    "no class named": (lambda folder: general_folder(folder, "phi3", architectures=None), None),
    "no language model": (
        lambda folder: general_folder(folder, "phi3", architectures=["CLIPModel"]),
        "CLIPModel of 'phi3' is not a text model",
    ),
    "awq": (
        lambda folder: general_folder(folder, "phi3", quantization_config={"quant_method": "awq"}),
        "quantized by awq",
    ),
    "awq of the decoder's": (
        lambda folder: hf_folder(folder, quantization_config={"quant_method": "awq"}),
        "quantized by awq",
    ),
    "state": (
        lambda folder: general_folder(folder, "phi3", layer_types=["conv", "full_attention"]),
        "recurrent state",
    ),
    "odd": (lambda folder: general_folder(folder, "phi3", architectures=3), None),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_folder_is_offered_if_and_only_if_the_converter_takes_it(
    tmp_path: Path, case: str
) -> None:
    make, reason = VERDICTS[case]
    snapshot = hub_snapshot(tmp_path / ".cache/huggingface/hub", "org/x")
    make(snapshot)
    found = stores.find_in("hf", {"HOME": str(tmp_path)})[0]
    if reason is None:
        assert found.problem is None
        assert convert(snapshot, tmp_path / "out", {"name": "x"})["name"] == "x"
        return
    with pytest.raises(ModelBroken, match=reason) as refused:
        convert(snapshot, tmp_path / "out", {"name": "x"})
    assert found.problem == refused.value.message


def test_no_class_that_transformers_has_for_text_is_turned_away_by_its_name() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    assert len(KNOWN) > 100
    for kind, names in KNOWN.items():
        for name in [names] if isinstance(names, str) else names:
            check_class({"model_type": kind, "architectures": [name]})
