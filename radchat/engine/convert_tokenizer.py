"""Build ``tokenizer.json`` from a GGUF file's vocabulary.

GGUF names the pre-tokenizer (``tokenizer.ggml.pre``) and leaves its rules to the reader; with the
wrong rules some texts silently get other ids than the model was trained on. So an unknown name is
refused. Two families: byte-level BPE with merges (``gpt2``), SentencePiece with scores (``llama``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from radchat.errors import ModelBroken

# token types of GGUF
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# The splitting rules, as the models' authors published them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    regex: str | None = None  # None: GPT-2's own rule, which ByteLevel brings
    digits: bool = False  # every digit alone, before anything else
    whole_words: bool = False  # a piece that is a token is taken without merging


_RULES = {
    "gpt-2": _Rule(),
    "smollm": _Rule(digits=True),
    "starcoder": _Rule(digits=True),
    "llama-bpe": _Rule(_LLAMA3, whole_words=True),
    "llama3": _Rule(_LLAMA3, whole_words=True),
    "llama-v3": _Rule(_LLAMA3, whole_words=True),
    "qwen2": _Rule(_QWEN2),
    "deepseek-r1-qwen": _Rule(_QWEN2),
    "tekken": _Rule(_TEKKEN, whole_words=True),
}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    tokenizer: Tokenizer
    config: dict[str, Any]  # tokenizer_config.json
    stop_ids: list[int]  # end of turn and end of text


def build_tokenizer(meta: dict[str, Any]) -> GgufTokenizer:
    """Raises ModelBroken: no vocabulary, unknown splitter, a special id outside the vocabulary."""
    tokens = [str(token) for token in meta.get("tokenizer.ggml.tokens", [])]
    if not tokens:
        raise ModelBroken("the GGUF file holds no tokenizer")
    types = list(meta.get("tokenizer.ggml.token_type", [])) or [1] * len(tokens)
    specials = _special_ids(meta, len(tokens))
    kind = meta.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(meta, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(meta, tokens, types)
    else:
        raise ModelBroken(f"tokenizer {kind!r} of a GGUF file is not supported (gpt2, llama are)")
    added = []
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            control = token_type != _USER_DEFINED
            added.append(AddedToken(token, special=control, normalized=False))
    tokenizer.add_tokens(added)
    if tokenizer.get_vocab_size() != len(tokens):
        raise ModelBroken("the GGUF file's vocabulary holds a token twice")
    config = _config(meta, tokens, specials)
    _add_bos(tokenizer, config)
    stops = [specials[name] for name in ("eos", "eot", "eom") if name in specials]
    return GgufTokenizer(tokenizer, config, list(dict.fromkeys(stops)))


def _special_ids(meta: dict[str, Any], vocab_size: int) -> dict[str, int]:
    names = {
        "bos": "bos",
        "eos": "eos",
        "eot": "eot",
        "eom": "eom",
        "unk": "unknown",
        "pad": "padding",
    }
    found = {}
    for short, word in names.items():
        value = meta.get(f"tokenizer.ggml.{word}_token_id")
        if value is None:
            continue
        if not 0 <= int(value) < vocab_size:
            raise ModelBroken(
                f"the {word} token id {value} is outside the vocabulary of {vocab_size} tokens: "
                "the file's metadata is wrong"
            )
        found[short] = int(value)
    return found


def _byte_level(meta: dict[str, Any], tokens: list[str]) -> Tokenizer:
    name = meta.get("tokenizer.ggml.pre")
    rule = _RULES.get(str(name))
    if rule is None:
        raise ModelBroken(
            f"the GGUF file says its text is split by {name!r}, which radchat doesn't know "
            f"(known: {', '.join(_RULES)}); pull the model's Hugging Face folder instead"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = []
    for merge in meta.get("tokenizer.ggml.merges", []):
        left, _, right = str(merge).partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.digits else []
    if rule.regex is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.regex), behavior="isolated", invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.regex is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _sentencepiece(meta: dict[str, Any], tokens: list[str], types: list[int]) -> Tokenizer:
    scores = [float(score) for score in meta.get("tokenizer.ggml.scores", [])]
    if len(scores) != len(tokens):
        raise ModelBroken("the GGUF file's tokenizer has no score for every token")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(vocab, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if meta.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges(vocab: dict[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose whole scores best: every split of a token, best first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        if types[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-scores[index], vocab[left], vocab[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _config(meta: dict[str, Any], tokens: list[str], specials: dict[str, int]) -> dict[str, Any]:
    is_sentencepiece = meta.get("tokenizer.ggml.model") == "llama"
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", is_sentencepiece)),
        "add_eos_token": False,
    }
    for name in ("bos", "eos", "unk", "pad"):
        if name in specials:
            config[f"{name}_token"] = tokens[specials[name]]
    if "bos_token" not in config:
        config["add_bos_token"] = False
    return config


def _add_bos(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """``encode(…, add_special_tokens=True)`` puts a BOS in front where the file asks for one."""
    if not config["add_bos_token"]:
        return
    bos = config["bos_token"]
    template = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0",
        pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    if tokenizer.post_processor is None:
        tokenizer.post_processor = template
    else:
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, template])
