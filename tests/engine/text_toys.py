"""Small tokenizers made in memory and templates of ours, in the shape of the real families."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from radchat.engine.conversation import Settings
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
CLOCK = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the cat sleeps in the warm sun.\n\n",
    "Hello there! How are you today? I'm fine, thanks; it's 12:30 and 345 people came.\n",
    "You are a helpful assistant. Tools: weather, search. The answer is in the system.",
    "user assistant system tool function name arguments content role message",
]
LLAMA3_RULE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LAYOUTS = (
    *("gpt2", "llama3", "metaspace-always", "metaspace-never", "metaspace-first"),
    *("prefix-normalizer", "space-normalizer", "rstrip", "lstrip", "mixed"),
)


@cache
def _learned(layout: str) -> str:
    """The JSON of a tokenizer without added tokens."""
    if layout in ("gpt2", "llama3", "rstrip", "lstrip", "mixed"):
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=layout != "llama3")
        tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=layout == "llama3"))
        tokenizer.pre_tokenizer = (
            pre_tokenizers.Sequence(
                [pre_tokenizers.Split(tokenizers.Regex(LLAMA3_RULE), "isolated"), byte_level]
            )
            if layout == "llama3"
            else byte_level
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
    else:
        tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
        if layout.startswith("metaspace"):
            scheme = layout.split("-")[1]
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        else:
            steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
            if layout == "prefix-normalizer":
                steps.insert(0, normalizers.Prepend("▁"))
            tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            show_progress=False,
            special_tokens=["<unk>", *(f"<0x{b:02X}>" for b in range(256))],
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = []
    if "unk_token" in spec["model"] and layout not in ("gpt2", "llama3"):
        spec["model"]["unk_token"] = None
    return json.dumps(spec)


def tokenizer_json(
    layout: str, control: tuple[str, ...], plain: tuple[str, ...] = (), *, normalized: bool = False
) -> str:
    """``control`` are special added tokens, ``plain`` added ones that are not."""
    tokenizer = tokenizers.Tokenizer.from_str(_learned(layout))
    tokenizer.add_special_tokens(
        [
            AddedToken(
                name,
                normalized=normalized,
                rstrip=layout == "rstrip" or (layout == "mixed" and i % 2 == 0),
                lstrip=layout == "lstrip" or (layout == "mixed" and i % 3 == 0),
            )
            for i, name in enumerate(control)
        ]
    )
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in plain])
    text: str = tokenizer.to_str()
    return text


@dataclass(frozen=True)
class Family:
    name: str
    control: tuple[str, ...]
    plain: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""

    @property
    def source(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")


FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", ("<|im_start|>", "<|im_end|>"), eos="<|im_end|>"),
        Family(
            "qwen3",
            ("<|im_start|>", "<|im_end|>"),
            ("<think>", "</think>", "<tool_call>", "</tool_call>"),
            eos="<|im_end|>",
        ),
        Family(
            "smollm3",
            ("<|im_start|>", "<|im_end|>"),
            ("<think>", "</think>"),
            eos="<|im_end|>",
        ),
        Family(
            "llama3",
            ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            bos="<|begin_of_text|>",
            eos="<|eot_id|>",
        ),
        Family(
            "nemo",
            (
                *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
                *("[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            ),
            bos="<s>",
            eos="</s>",
        ),
        Family(
            "gemma",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            bos="<bos>",
            eos="<eos>",
        ),
        Family(
            "deepseek_r1",
            (
                *("<|bos|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>", "<|call_begin|>"),
                *("<|call_end|>", "<|output_begin|>", "<|output_end|>"),
            ),
            ("<think>", "</think>"),
            bos="<|bos|>",
            eos="<|end_of_sentence|>",
        ),
        Family(
            "gpt_oss",
            ("<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>", "<|return|>"),
            eos="<|return|>",
        ),
        Family(
            "seed_oss",
            (
                *("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"),
                *("<seed:tool_call>", "</seed:tool_call>"),
            ),
            bos="<seed:bos>",
            eos="<seed:eos>",
        ),
        Family(
            "glm",
            ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            ("<think>", "</think>", "<tool_call>", "</tool_call>"),
            eos="<|user|>",
        ),
        Family(
            "command_r",
            (
                *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
                *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
            ),
            bos="<BOS_TOKEN>",
            eos="<|END_OF_TURN_TOKEN|>",
        ),
        Family(
            "lfm",
            ("<|startoftext|>", "<|im_start|>", "<|im_end|>"),
            ("<think>", "</think>"),
            bos="<|startoftext|>",
            eos="<|im_end|>",
        ),
        Family("solar", ("<|begin|>", "<|content|>", "<|end|>"), eos="<|end|>"),
    )
}


@cache
def toy_tokenizer(name: str, layout: str = "gpt2") -> Tokenizer:
    family = FAMILIES[name]
    return Tokenizer.from_json(tokenizer_json(layout, family.control, family.plain), family.source)


@cache
def toy_template(name: str, layout: str = "gpt2") -> Template:
    family = FAMILIES[name]
    tokenizer = toy_tokenizer(name, layout)
    return Template(
        family.source,
        tokenizer,
        constants={"bos_token": family.bos, "eos_token": family.eos},
        eos_ids=[tokenizer.control[family.eos]],
    )


def plain_settings(**changes: object) -> Settings:
    return Settings(**{"clock": CLOCK, **changes})  # type: ignore[arg-type]
