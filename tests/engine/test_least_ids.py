"""The bound must hold for every text and layout, and be worth something where it is given."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.engine.conversation import Turn
from radchat.engine.least_ids import LeastIds
from radchat.engine.template import Template
from radchat.engine.tokenizer import Encoded, Tokenizer, probe_string
from radchat.errors import ContextOverflow
from tests.engine.text_toys import (
    CORPUS,
    FAMILIES,
    LAYOUTS,
    plain_settings,
    tokenizer_json,
    toy_template,
    toy_tokenizer,
)

CONTROL = ("<|im_start|>", "<|im_end|>", "<s>")
PLAIN = ("<think>", "   ")
TOKENIZERS = {
    layout: Tokenizer.from_json(tokenizer_json(layout, CONTROL, PLAIN)) for layout in LAYOUTS
}
# what the layouts treat in ways of their own: spaces, their mark, halves of characters, rare bytes
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(["▁", "▁▁▁", " ", "    ", "\n\n", "\t", "<s>", "<0x41>", "é", "e\u0301"]),
        st.sampled_from([word for line in CORPUS for word in line.split(" ")]),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(text=TEXTS, seed=st.integers(0, 10**6))
def test_no_text_and_no_rendering_has_fewer_ids_than_the_bound(
    layout: str, text: str, seed: int
) -> None:
    ours = TOKENIZERS[layout]
    assert ours.least_ids(text) <= len(ours.encode_text(text))
    rendering = probe_string(random.Random(seed), list(CONTROL)) + ours.mask(text + "<s>")
    assert ours.least_ids(rendering) <= len(ours.encode(rendering).ids)


def composing() -> Tokenizer:
    spec = json.loads(tokenizer_json("gpt2", CONTROL))
    spec["normalizer"] = {"type": "NFC"}
    return Tokenizer.from_json(json.dumps(spec))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(text=st.text(alphabet="eaK\u0301\u0327\u212b\u212a\u1112\u1161\u11ab x1", max_size=60))
def test_text_that_the_tokenizer_composes_first_is_counted_composed(text: str) -> None:
    ours = composing()
    assert ours.least_ids(text) <= len(ours.encode_text(text))


def test_the_bound_is_a_fair_part_of_the_ids() -> None:
    ours = composing()
    for tokenizer in (ours, TOKENIZERS["gpt2"], TOKENIZERS["metaspace-never"]):
        text = "the quick brown fox jumps over 12 lazy dogs. é " * 50
        assert tokenizer.least_ids(text) * 8 > len(tokenizer.encode_text(text))


def changed(**parts: Any) -> dict[str, Any]:
    return {**json.loads(tokenizer_json("gpt2", CONTROL)), **parts}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"},
                    {"type": "ByteLevel"},
                ],
            }
        },
        {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0}}},
    ],
)
def test_a_layout_that_may_lose_bytes_is_given_no_bound(parts: dict[str, Any]) -> None:
    assert LeastIds(changed(), [b"a"]).of("aaa") == 3
    assert LeastIds(changed(**parts), [b"a"]).of("aaa") == 0
    assert LeastIds(changed(), None).of("aaa") == 0


def test_bytes_that_have_no_token_of_their_own_weigh_nothing() -> None:
    spec = changed()
    del spec["model"]["vocab"]["z"]
    table = [b"a", b"z", b"zz"]
    assert LeastIds(spec, table).of("zzz") == 0
    assert LeastIds(changed(), table).of("zzz") == 2


class Counting(Tokenizer):
    """A tokenizer that counts the characters it was given to tokenize."""

    num_chars = 0

    def encode(self, rendering: str, after: Any = ()) -> Encoded:
        self.num_chars += len(rendering)
        return super().encode(rendering, after)


def counting_template() -> tuple[Template, Counting]:
    family = FAMILIES["chatml"]
    tokenizer = Counting.from_json(
        tokenizer_json("gpt2", family.control, family.plain), family.source
    )
    assert isinstance(tokenizer, Counting)
    template = Template(family.source, tokenizer)
    tokenizer.num_chars = 0
    return template, tokenizer


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    template, tokenizer = counting_template()
    with pytest.raises(ContextOverflow) as refused:
        template.prompt([], [Turn("user", "word " * 10_000)], plain_settings(), limit=500)
    assert tokenizer.num_chars == 0
    least = refused.value.data["prompt_tokens"]
    assert least >= 500
    assert f"at least {least:,} tokens" in refused.value.message
    assert "the context holds 500" in refused.value.message


def test_what_may_fit_is_tokenized_whole_and_told_exactly() -> None:
    template, tokenizer = counting_template()
    prompt = template.prompt([], [Turn("user", "word " * 100)], plain_settings(), limit=500)
    assert tokenizer.num_chars > 500
    unbounded = template.prompt([], [Turn("user", "word " * 100)], plain_settings())
    assert prompt.ids == unbounded.ids


def test_the_ids_that_the_path_has_already_count_with_the_bound_of_the_tail() -> None:
    template = toy_template("chatml")
    tokenizer = toy_tokenizer("chatml")
    first = template.prompt([], [Turn("user", "word " * 90)], plain_settings())
    out = tokenizer.encode_text("yes", first.ids)
    path = [Turn("user", "word " * 90), Turn("assistant", "yes", prompt=first.record, out=out)]
    length = len(first.ids) + len(out)
    again = template.prompt(path, [Turn("user", "and?")], plain_settings(), limit=length + 30)
    assert again.how == "append"
    with pytest.raises(ContextOverflow) as refused:
        template.prompt(path, [Turn("user", "and?")], plain_settings(), limit=length + 1)
    assert length < refused.value.data["prompt_tokens"] <= len(again.ids)


@pytest.mark.model
def test_a_megabyte_for_the_real_model_is_refused_unread(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    text = "The quick brown fox jumps over the lazy dog 1234. " * 400
    assert len(tokenizer.encode_text(text)) / 5 < tokenizer.least_ids(text)
    assert tokenizer.least_ids(text) < len(tokenizer.encode_text(text))
    assert tokenizer.least_ids(text * 50) > 8192
