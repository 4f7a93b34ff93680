"""Tokenizers built from GGUF metadata split text as the model's authors did."""

from __future__ import annotations

from typing import Any

import pytest

from radchat.engine.convert_tokenizer import build_tokenizer
from radchat.errors import ModelBroken
from tests.models.making import MERGES, SPECIALS, VOCAB_SIZE, vocabulary


def byte_meta(pre: str, **more: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCAB_SIZE - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


# by hand, from each rule: Ġ is a space, Ċ a newline, č a return, ĉ a tab
PIECES = {
    "smollm": {
        "Sep  4": ["Sep", "ĠĠ", "4"],
        "a 1234": ["a", "Ġ", "1", "2", "3", "4"],
        "it's\r\n\tx": ["it", "'s", "čĊ", "ĉ", "x"],
        "½ x": ["Â½", "Ġx"],
    },
    "gpt-2": {"Sep  4": ["Sep", "Ġ", "Ġ4"], "a 1234": ["a", "Ġ1234"]},
    "llama-bpe": {
        "Sep  4": ["Sep", "Ġ", "Ġ", "4"],
        "a 1234567": ["a", "Ġ", "123", "456", "7"],
        "IT'S x": ["IT", "'S", "Ġx"],
        "a.\n\nb": ["a", ".ĊĊ", "b"],
        "(x": ["(x"],
    },
    "qwen2": {"a 1234": ["a", "Ġ", "1", "2", "3", "4"], "\n  b": ["Ċ", "Ġ", "Ġb"]},
    "tekken": {"camelCase": ["camel", "Case"], "a 12": ["a", "Ġ", "1", "2"], "./\n": ["./Ċ"]},
}


@pytest.mark.parametrize("pre", PIECES)
def test_text_is_cut_by_the_rule_the_file_names(pre: str) -> None:
    splitter = build_tokenizer(byte_meta(pre)).tokenizer.pre_tokenizer
    assert splitter is not None
    for text, pieces in PIECES[pre].items():
        assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces, text


def test_digits_stand_alone_before_any_merge() -> None:
    smollm = build_tokenizer(byte_meta("smollm")).tokenizer
    gpt2 = build_tokenizer(byte_meta("gpt-2")).tokenizer
    assert smollm.encode("123").tokens == ["1", "2", "3"]
    assert gpt2.encode("123").tokens == ["123"]  # the same merges, the other rule


def test_control_tokens_are_one_id_and_text_survives_the_round_trip() -> None:
    built = build_tokenizer(byte_meta("smollm"))
    text = "<|im_start|>user\nçà va? 👩‍👩‍👧  4\r\n\t<|im_end|>"
    encoding = built.tokenizer.encode(text, add_special_tokens=False)
    assert (encoding.ids[0], encoding.ids[-1]) == (1, 2)
    assert built.tokenizer.decode(encoding.ids, skip_special_tokens=False) == text
    assert built.stop_ids == [2]
    assert built.config["bos_token"] == SPECIALS[1]


def test_a_bos_goes_in_front_only_where_the_file_asks_for_it() -> None:
    plain = build_tokenizer(byte_meta("smollm", add_bos_token=False)).tokenizer
    asked = build_tokenizer(byte_meta("smollm", add_bos_token=True)).tokenizer
    text = plain.encode("to").ids
    assert asked.encode("to").ids == [1, *text]
    assert asked.encode("to", add_special_tokens=False).ids == text


def test_end_of_turn_ids_are_all_stop_ids() -> None:
    built = build_tokenizer(byte_meta("smollm", eot_token_id=0, eom_token_id=2))
    assert built.stop_ids == [2, 0]


def test_user_defined_tokens_are_matched_in_text_but_are_not_control() -> None:
    tokens = [*vocabulary(), "<think>"]
    types = [3] * 3 + [1] * (VOCAB_SIZE - 3) + [4]
    built = build_tokenizer(byte_meta("smollm", tokens=tokens, token_type=types))
    assert built.tokenizer.encode("<think>").ids == [VOCAB_SIZE]
    assert built.tokenizer.decode([VOCAB_SIZE], skip_special_tokens=True) == "<think>"


def spm_meta(**more: Any) -> dict[str, Any]:
    pieces = {"▁": -1.0, "h": -9.0, "e": -9.0, "y": -9.0, "he": -3.0, "ey": -2.0, "▁he": -4.0}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


def test_sentencepiece_joins_the_best_scored_pair_first() -> None:
    tokenizer = build_tokenizer(spm_meta()).tokenizer

    def encode(text: str) -> list[str]:
        return list(tokenizer.encode(text, add_special_tokens=False).tokens)

    assert encode("hey") == ["▁", "h", "ey"]  # ey (-2) before he (-3)
    assert encode("he he") == ["▁he", "▁he"]
    assert encode("é") == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.encode("he").ids[0] == 1
    for text in ("hey", "he  hey", "é y🙂"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_a_space_prefix_adds_none() -> None:
    tokenizer = build_tokenizer(spm_meta(add_space_prefix=False)).tokenizer
    assert tokenizer.encode("he", add_special_tokens=False).tokens == ["he"]
    assert tokenizer.decode(tokenizer.encode("he").ids) == "he"


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "padding", "eot"])
def test_a_special_id_beyond_the_vocabulary_is_refused(name: str) -> None:
    with pytest.raises(ModelBroken, match=f"{name} token id 99999 is outside"):
        build_tokenizer(byte_meta("smollm", **{f"{name}_token_id": 99999}))


def test_scores_that_do_not_match_the_vocabulary_are_refused() -> None:
    with pytest.raises(ModelBroken, match="no score for every token"):
        build_tokenizer(spm_meta(scores=[0.0]))


def test_a_vocabulary_with_a_token_twice_is_refused() -> None:
    tokens = [*vocabulary()[:-1], vocabulary()[3]]
    with pytest.raises(ModelBroken):
        build_tokenizer(byte_meta("smollm", tokens=tokens, merges=[]))
