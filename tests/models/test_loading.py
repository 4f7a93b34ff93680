"""A converted folder as an engine: what is refused by name, and what a checked run fills in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radchat.config import Size
from radchat.engine.convert import convert
from radchat.engine.dtypes import resolve_dtype
from radchat.engine.model import build_engine, load
from radchat.errors import UsageError
from tests.models.making import hf_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    hf_folder(source)
    (source / "tokenizer_config.json").write_text(
        '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}'
    )
    convert(source, tmp_path / "tiny", {"name": "tiny"})
    return tmp_path / "tiny"


@pytest.mark.parametrize("name", ["int8", "junk", ""])
def test_a_dtype_that_is_none_is_a_fault_of_the_command_line(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="want auto, fp32, bf16 or int4") as refused:
        load(folder, name)
    assert refused.value.exit_code == 2
    assert resolve_dtype("auto") in ("fp32", "bf16")


@pytest.mark.parametrize("value", ["1", "0", None])
def test_a_checked_run_poisons_its_pool_from_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    model = load(folder, "fp32")
    if value is None:
        monkeypatch.delenv("RADCHAT_CHECK", raising=False)
    else:
        monkeypatch.setenv("RADCHAT_CHECK", value)
    engine = build_engine(model, kv_budget=Size(tokens=64))
    assert (engine._poison is not None) is (value == "1")
    if value == "1":  # else memory holds what it held, perhaps another's NaN
        assert torch.isnan(engine.pool.data[:, :, 1:]).all()
    told = build_engine(model, kv_budget=Size(tokens=64), check=value != "1").pool.data
    assert bool(torch.isnan(told[:, :, 1:]).all()) is (value != "1")
