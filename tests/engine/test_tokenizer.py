import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import processors

from radchat.engine.tokenizer import Tokenizer, join_surrogates, probe_string
from radchat.errors import ModelBroken
from tests.engine.text_toys import FAMILIES, LAYOUTS, tokenizer_json

CONTROL = ("<|im_start|>", "<|im_end|>", "<|im|>", "<s>")
PLAIN = ("<think>", "</think>", "   ")
TEMPLATE = "{{ '<think>' }}{% if '</think>' in x %}{% endif %}"


def make(layout: str, plain: Any = PLAIN, **options: Any) -> tuple[Tokenizer, RawTokenizer]:
    text = tokenizer_json(layout, CONTROL, plain, **options)
    return Tokenizer.from_json(text, TEMPLATE), RawTokenizer.from_str(text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_run_by_run_gives_the_ids_of_the_whole_string(layout: Any) -> None:
    ours, raw = make(layout)
    dice = random.Random(layout)
    for _ in range(300):
        whole = probe_string(dice, [*CONTROL, *PLAIN[:2]])
        want = raw.encode(whole, add_special_tokens=False).ids
        assert list(ours.encode(whole).ids) == want, whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_end_encoded_later_gives_the_ids_of_the_whole_string(layout: Any) -> None:
    ours, _ = make(layout)
    dice = random.Random(layout)
    for _ in range(300):
        whole = probe_string(dice, [*CONTROL, *PLAIN[:2]])
        encoded = ours.encode(whole)
        for mark in encoded.marks:
            if whole[mark.start :].startswith(tuple(ours._lstrip)):
                continue  # it takes the white space before it, so it is not a place to cut
            tail = ours.encode(whole[mark.start :], encoded.ids[: mark.num_ids])
            assert encoded.ids[: mark.num_ids] + tail.ids == encoded.ids, whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_typed_control_tokens_stay_text_and_nothing_is_deleted(layout: Any) -> None:
    # without a token of spaces: some layouts write a space of their own after one
    ours, _ = make(layout, PLAIN[:2])
    dice = random.Random(layout)
    for _ in range(200):
        typed = probe_string(dice, [*CONTROL, *PLAIN[:2]])
        ids = ours.encode("<|im_start|>" + ours.mask(typed) + "<|im_end|>").ids
        assert sum(i in ours.control_ids for i in ids) == 2
        if "strip" in layout or layout == "mixed":
            typed = typed.strip()
        assert typed in ours.decode(ids)
        assert not ours.control_ids.intersection(ours.encode_text(typed))


def test_added_tokens_that_are_not_control_keep_matching_in_typed_text() -> None:
    ours, raw = make("gpt2")
    run_of_spaces = raw.token_to_id("   ")
    assert run_of_spaces in ours.encode_text("a   b")
    assert set(ours.control) == {*CONTROL, "<think>", "</think>"}


def test_of_control_tokens_that_begin_alike_the_longer_is_meant() -> None:
    text = tokenizer_json("gpt2", ("<a>", "<a><b>"))
    ours = Tokenizer.from_json(text)
    assert list(ours.encode("<a><b><a>").ids) == [ours.control["<a><b>"], ours.control["<a>"]]


def test_a_tokenizer_whose_control_tokens_take_part_in_normalizing_is_refused() -> None:
    with pytest.raises(ModelBroken, match="encoded apart"):
        make("prefix-normalizer", normalized=True)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelBroken, match="cannot be read"):
        Tokenizer(tmp_path)


def test_a_folder_is_loaded_with_its_template(tmp_path: Path) -> None:
    family = FAMILIES["qwen3"]
    text = tokenizer_json("gpt2", family.control, ("<odd>",))
    (tmp_path / "tokenizer.json").write_text(text)
    assert "<odd>" not in Tokenizer(tmp_path).control
    (tmp_path / "chat_template.jinja").write_text("{{ 'x<odd>y' }}")
    ours = Tokenizer(tmp_path)
    assert "<odd>" in ours.control
    assert ours.hash == Tokenizer.from_json(text).hash


def with_bos(text: str) -> str:
    raw = RawTokenizer.from_str(text)
    bos = raw.token_to_id("<s>")
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    return raw.to_str()


@pytest.mark.parametrize("layout", ["metaspace-always", "prefix-normalizer", "metaspace-first"])
def test_the_space_after_a_control_token_is_the_reference_tokenizers(layout: Any) -> None:
    ours, raw = make(layout)
    for whole in ("<s>text", "<s> text", "<s>  text<|im_end|>x", "text<s>", " text<s> x"):
        assert list(ours.encode(whole).ids) == raw.encode(whole, add_special_tokens=False).ids


def test_halves_of_a_surrogate_pair_are_joined_and_single_ones_replaced() -> None:
    assert join_surrogates("a\ud83d\ude42b") == "a🙂b"
    assert join_surrogates("a\ud83db\ude42") == "a\ufffdb\ufffd"
    assert join_surrogates("plain é") == "plain é"
    ours, _ = make("gpt2")
    assert ours.decode(ours.encode_text("x\ud83d")) == "x\ufffd"


def test_masks_are_random_but_what_is_hashed_is_not() -> None:
    (one, _), (other, _) = make("gpt2"), make("gpt2")
    text = "a<|im_end|>\0b"
    assert one.mask(text) != other.mask(text)
    assert one.unmask(one.mask(text)) == text
    assert one.canonical(one.mask(text)) == other.canonical(other.mask(text))
    assert one.canonical(one.mask(text)) != one.canonical(text)


def test_a_models_own_control_ids_are_told_from_text_that_looks_like_them() -> None:
    ours, _ = make("gpt2")
    ids = ours.encode("so<think>").ids + ours.encode_text("<|im_end|>")
    text = ours.decode_masked(ids)
    assert "<think>" in text
    assert "<|im_end|>" not in text
    assert ours.encode(text).ids == ids


def test_threads_may_share_a_tokenizer() -> None:
    ours, _ = make("gpt2")
    text = "<|im_start|>" + "the cat is in the sun " * 50 + "<|im_end|>"
    want = ours.encode(text).ids
    wrong: list[bool] = []

    def work() -> None:
        same = [ours.encode(text).ids == want and ours.decode(want) == text for _ in range(20)]
        wrong.append(not all(same))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 4


def test_vocabulary_size_counts_the_highest_id() -> None:
    ours, raw = make("gpt2")
    vocab = json.loads(raw.to_str())
    assert ours.vocab_size == max(token["id"] for token in vocab["added_tokens"]) + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_text_that_goes_on_in_the_middle_gets_no_space_of_the_tokenizers(layout: str) -> None:
    ours, _ = make(layout, PLAIN[:2])
    dice = random.Random(layout)
    for _ in range(200):
        head, text = "it is", probe_string(dice, [])
        before = ours.encode("<s>" + head).ids
        more = ours.encode_text(text, before)
        assert ours.decode(before + more) == ours.decode(before) + text
    assert ours.encode_text("x", ours.encode("<s>").ids) == ours.encode("<s>x").ids[1:]


def test_other_threads_run_while_a_long_text_is_tokenized() -> None:
    ours, _ = make("gpt2")
    text = "<|im_start|>" + "".join(f"word{i} and so on, " for i in range(20_000))
    beats = 0
    ended = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not ended.is_set():
            beats += 1
            time.sleep(0)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for encode in (ours.encode, ours.encode_text):
            before = beats
            encode(text)
            assert beats - before > 50, encode  # with the GIL held: none to three
    finally:
        ended.set()
        thread.join()
