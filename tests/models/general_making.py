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

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # by their three bits; the fourth is the sign


def general_folder(folder: Path, kind: str, **overrides: Any) -> dict[str, torch.Tensor]:
    """A folder as the hub ships it; its weights under the names of files, experts one by one."""
    named = {"architectures": [CLASSES[kind]], "vocab_size": VOCAB_SIZE}
    config = general_config(kind, **{**named, **overrides})
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


def mxfp4_folder(folder: Path) -> dict[str, torch.Tensor]:
    """gpt-oss with its experts packed as the hub has them; their plain values by name."""
    weights = general_folder(folder, "gpt_oss", quantization_config={"quant_method": "mxfp4"})
    generator = torch.Generator().manual_seed(1)
    wanted: dict[str, torch.Tensor] = {}
    for name in [n for n in weights if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = weights.pop(name).shape
        shape = (experts, columns, rows // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 126, shape, generator=generator, dtype=torch.uint8)
        weights |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        nibbles = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).long()
        values = FP4[nibbles & 7] * (1 - 2 * (nibbles >> 3))
        values = values * torch.exp2(scales.float() - 127).unsqueeze(-1)
        wanted[name] = values.flatten(-2).transpose(1, 2)
    save_file(
        {n: t if t.dtype == torch.uint8 else t.bfloat16() for n, t in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return wanted


def vision_folder(folder: Path) -> None:
    """Gemma 3 as the hub ships it: a text model with a part that sees, which no text uses."""
    import transformers

    text = general_config("gemma3", vocab_size=VOCAB_SIZE)
    sees = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    ids = {"image_token_index": 3, "boi_token_index": 4, "eoi_token_index": 5}
    both: Any = transformers.Gemma3Config
    cls: Any = transformers.Gemma3ForConditionalGeneration
    torch.manual_seed(0)
    made = cls(both(text_config=text, vision_config=sees, mm_tokens_per_image=4, **ids))
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
