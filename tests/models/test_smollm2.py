"""The real model, converted from its 4-bit GGUF file (`make model` fetched it)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from radchat.engine.model_config import DecoderConfig
from radchat.engine.weights import load_packed, load_weights
from radchat.models.registry import read_entry
from radchat.models.sources import ALIASES

pytestmark = pytest.mark.model

# ids of the reference implementation's rules: digits alone, then GPT-2's splitting, then merges
GOLDEN = {
    "Sep  4": [27142, 256, 36],
    "1234567890": [33, 34, 35, 36, 37, 38, 39, 40, 41, 32],
    "naïve café — “x”": [3546, 46494, 37366, 1841, 619, 104, 573],
    "👩‍👩‍👧 hi 🙂": [
        *(10813, 235, 119, 321, 231),
        *(10813, 235, 119, 321, 231),
        *(10813, 235, 117, 15876, 47526),
    ],
    "a\r\nb\tc\n\n  d ": [81, 201, 198, 82, 197, 83, 8866, 287, 216],
    " lead": [1022],
    "12½": [33, 34, 16738],
}


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.mark.parametrize("text", GOLDEN)
def test_text_gets_the_ids_the_model_was_trained_on(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False).ids == GOLDEN[text]
    assert tokenizer.decode(GOLDEN[text], skip_special_tokens=False) == text


def test_every_digit_is_a_token_in_numbers_of_any_length(tokenizer: Tokenizer) -> None:
    for text in ("7", "2026", "3.14159", "1" * 300, "x12y34", "-40,000.5"):
        tokens = tokenizer.encode(text, add_special_tokens=False).tokens
        digits = sum(character.isdigit() for character in text)
        assert sum(any(c.isdigit() for c in token) for token in tokens) == digits, tokens


def test_the_chat_markers_are_single_control_tokens(tokenizer: Tokenizer, smollm2: Path) -> None:
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False).ids == [1]
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [2]
    generation = json.loads((smollm2 / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    assert "<|im_start|>" in (smollm2 / "chat_template.jinja").read_text()


def test_the_folder_holds_what_was_converted(smollm2: Path) -> None:
    entry = read_entry(smollm2)
    assert entry.problem is None
    assert (entry.parameters, entry.context_length) == (134_515_008, 8192)
    assert (entry.architecture, entry.dtype_source) == ("llama", "Q4_1")
    assert entry.license == "apache-2.0"
    assert entry.source_state == ALIASES["smollm2-135m"].member_sha256
    sizes = json.loads((smollm2 / "radchat.json").read_text())["files"]
    assert sizes["model.safetensors"] - 2 * 134_515_008 < 40_000  # bf16 and a header
    assert sizes["packed.safetensors"] - 66_355_200 < 90_000  # 106,168,320 weights in 5 bits


def test_all_210_matrices_are_packed_and_give_the_bf16_weights(smollm2: Path) -> None:
    shape = DecoderConfig.from_hf(json.loads((smollm2 / "config.json").read_text()))
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (30, 9, 3)
    weights, packed = load_weights(smollm2, torch.bfloat16), load_packed(smollm2)
    names = [name.removesuffix(".nibbles") for name in packed if name.endswith(".nibbles")]
    assert len(names) == 210
    assert len(weights) == 272
    for name in names:
        nibbles = packed[f"{name}.nibbles"]
        values = torch.stack([nibbles & 15, nibbles >> 4], dim=-1).flatten(1).float()
        scales, zeros = (
            packed[f"{name}.{part}"].float().repeat_interleave(32, dim=1)
            for part in ("scales", "zeros")
        )
        assert torch.equal((scales * values + zeros).bfloat16(), weights[name]), name


def test_the_ready_path_imports_no_transformers(smollm2: Path) -> None:
    script = (
        "import sys, torch; from pathlib import Path; from radchat.engine.weights import *\n"
        "load_weights(Path(sys.argv[1]), torch.bfloat16)\n"
        "print([name for name in ('transformers', 'gguf') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(smollm2)],
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    assert done.stdout.strip() == "[]"
