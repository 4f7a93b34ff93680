"""Tiny models of the general path on disk, as the hub ships them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engine.general_toys import general_config, general_weights
from tests.models.making import TEMPLATE, VOCAB_SIZE, tokenizer_json

CLASSES = {
    "gemma3": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


def general_folder(folder: Path, kind: str, **overrides: Any) -> dict[str, torch.Tensor]:
    """A folder as the hub ships it; its weights under the names of files, experts one by one."""
    config = general_config(kind, architectures=[CLASSES[kind]], vocab_size=VOCAB_SIZE, **overrides)
    weights = files_weights(kind)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


def files_weights(kind: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, tensor in general_weights(kind, VOCAB_SIZE).items():
        if name == "lm_head.weight" and kind == "gemma3":  # tied
            continue
        if kind != "qwen3_moe" or ".experts." not in name:
            found[name] = tensor.clone()
            continue
        layer, _, part = name.rpartition(".experts.")
        for number, expert in enumerate(tensor):
            if part == "gate_up_proj":
                gate, up = expert.chunk(2)
                found[f"{layer}.experts.{number}.gate_proj.weight"] = gate.clone()
                found[f"{layer}.experts.{number}.up_proj.weight"] = up.clone()
            else:
                found[f"{layer}.experts.{number}.{part}.weight"] = expert.clone()
    return found
