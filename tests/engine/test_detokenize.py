import random
from array import array
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders

from radchat.engine.detokenize import StopChecker, WindowDetokenizer
from radchat.engine.tokenizer import Tokenizer
from tests.engine.text_toys import LAYOUTS, tokenizer_json

CONTROL = ("<|start|>", "<|end|>")
TOKENIZERS = {name: Tokenizer.from_json(tokenizer_json(name, CONTROL)) for name in LAYOUTS}
BYTES = TOKENIZERS["gpt2"]
FALLBACK = TOKENIZERS["metaspace-always"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
FAST = settings(max_examples=150, derandomize=True, deadline=None, database=None)


def single_bytes(tokenizer: Tokenizer, text: str) -> list[int]:
    """One id a byte, as a model may well emit them."""
    table = tokenizer._table
    assert table is not None
    by_byte = {data: i for i, data in enumerate(table) if len(data) == 1}
    return [by_byte[bytes([b])] for b in text.encode()]


def streamed(tokenizer: Tokenizer, ids: Any, after: Any = ()) -> str:
    stream = tokenizer.detokenizer(after)
    return "".join([stream.push(i) for i in ids]) + stream.flush()


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte-level", "byte-fallback"])
@FAST
@given(text=TEXTS)
def test_single_byte_ids_stream_to_the_text_they_were_made_of(tokenizer: Any, text: Any) -> None:
    ids = single_bytes(tokenizer, text)
    stream = tokenizer.detokenizer()
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) == text == tokenizer.decode(ids)
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text
    assert stream.flush() == ""


@pytest.mark.parametrize("text", ["🙂", "👨‍👩‍👧‍👦", "한", "العربية"])
def test_a_character_is_sent_when_its_last_byte_has_come_and_not_before(text: Any) -> None:
    ids = single_bytes(BYTES, text)
    stream = BYTES.detokenizer()
    at = 0
    for character in text:
        for _ in character.encode()[:-1]:
            assert stream.push(ids[at]) == ""
            at += 1
        assert stream.push(ids[at]) == character
        at += 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_of_any_text_equal_its_one_shot_decoding(layout: Any) -> None:
    tokenizer = TOKENIZERS[layout]
    dice = random.Random(5)
    korean = "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고 "
    for _ in range(200):
        text = "".join(dice.choice(korean + "abc the é— \n🙂") for _ in range(40))
        ids = list(tokenizer.encode_text(text))
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)
        assert tokenizer.decode(ids).strip() == text.strip()


def test_no_syllable_is_lost_at_ten_thousand_random_cuts_of_korean_text() -> None:
    text = "다람쥐 헌 쳇바퀴에 타고파 " * 4
    ids = single_bytes(BYTES, text)
    dice = random.Random(3)
    for _ in range(10_000 // 50):
        stream = BYTES.detokenizer()
        parts = []
        for n, i in enumerate(ids):
            parts.append(stream.push(i))
            if dice.random() < 50 / len(ids):  # a cut: the rest goes to a fork, or to a fresh one
                stream = stream.copy() if n % 2 else BYTES.detokenizer(ids[: n + 1])
        assert "".join(parts) == text


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte-level", "byte-fallback"])
def test_an_end_inside_a_character_is_one_replacement_and_going_on_completes_it(
    tokenizer: Any,
) -> None:
    ids = single_bytes(tokenizer, "ok 🙂")
    for cut in (1, 2, 3):
        kept = ids[: len(ids) - cut]
        assert streamed(tokenizer, kept) == tokenizer.decode(kept) == "ok \ufffd"
        assert streamed(tokenizer, ids[len(ids) - cut :], after=kept) == "🙂"


def test_a_forked_stream_goes_its_own_way() -> None:
    ids = single_bytes(BYTES, "한🙂")
    stream = BYTES.detokenizer()
    assert stream.push(ids[0]) == ""
    other = stream.copy()
    assert stream.push(ids[1]) + stream.push(ids[2]) == "한"
    assert other.flush() == "\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize(
    "layout", [name for name in LAYOUTS if "metaspace" in name or "norm" in name]
)
def test_the_first_space_of_an_answer_survives(layout: Any) -> None:
    tokenizer = TOKENIZERS[layout]
    raw = RawTokenizer.from_str(tokenizer_json(layout, CONTROL))
    dice = random.Random(7)
    for _ in range(100):
        words = [dice.choice((" the", " cat", "s", " ", "x", "é")) for _ in range(6)]
        ids = raw.encode("say" + "".join(words), add_special_tokens=False).ids
        cut = dice.randrange(1, len(ids) + 1)
        whole = raw.decode(ids, skip_special_tokens=False)
        prompt = raw.decode(ids[:cut], skip_special_tokens=False)
        if "\ufffd" in prompt:
            continue
        assert prompt + streamed(tokenizer, ids[cut:], after=ids[:cut]) == whole


def test_added_tokens_that_look_like_byte_letters_keep_their_text() -> None:
    tokenizer = Tokenizer.from_json(tokenizer_json("gpt2", CONTROL, ("<é>", "Ġx")))
    ids = [tokenizer.vocab_size - 2, tokenizer.vocab_size - 1]
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == "<é>Ġx"


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    assert streamed(BYTES, [BYTES.vocab_size + 5, *single_bytes(BYTES, "a")]) == "a"
    assert BYTES.decode([BYTES.vocab_size + 5]) == ""


def test_a_decoder_of_another_kind_streams_by_a_window() -> None:
    raw = RawTokenizer.from_str(tokenizer_json("metaspace-always", CONTROL))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Replace("zz", "z")]
    )  # fmt: skip
    tokenizer = Tokenizer.from_json(raw.to_str())
    assert isinstance(tokenizer.detokenizer(), WindowDetokenizer)
    dice = random.Random(1)
    for _ in range(100):
        text = "".join(dice.choice(("한글", " the", " cat", "🙂", "é", "\n")) for _ in range(8))
        ids = list(tokenizer.encode_text(text))
        cut = dice.randrange(len(ids))
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)
        assert tokenizer.decode(ids).strip() == text.strip()
        stream = tokenizer.detokenizer()
        head = "".join(stream.push(i) for i in ids[:cut])
        fork = stream.copy()
        rest = "".join(fork.push(i) for i in ids[cut:]) + fork.flush()
        assert head + rest == tokenizer.decode(ids)
    smile = single_bytes(FALLBACK, "🙂")
    assert streamed(tokenizer, smile[:2]) == tokenizer.decode(smile[:2]) == "\ufffd"


# -- stop strings ----------------------------------------------------------------------------


def run_stops(stops: Iterable[str], pieces: Iterable[str]) -> tuple[str, str | None]:
    checker = StopChecker(stops)
    out = ""
    for piece in pieces:
        text, matched = checker.push(piece)
        out += text
        assert checker.num_final == len(out)
        if matched:
            return out, checker.matched
    return out + checker.flush(), None


def cuts_of(text: str, num_parts: int) -> Iterator[list[str]]:
    for places in combinations(range(len(text) + 1), num_parts - 1):
        ends = (*places, len(text))
        yield [text[a:b] for a, b in zip((0, *places), ends, strict=True)]


@pytest.mark.parametrize(
    ("stops", "want"),
    [
        (("own fox",), "The quick br"),
        (("own fox", "own"), "The quick br"),
        (("own", "own fox"), "The quick br"),
        (("fox", "quick brown fox"), "The "),
        (("ck brown fox jumps", "brown"), "The quick "),
        (("never",), "The quick brown fox jumps"),
        (("jumpsx", "mps"), "The quick brown fox ju"),
        (("x", "fox"), "The quick brown "),
    ],
)
def test_a_stop_string_is_found_however_the_text_is_cut(stops: Any, want: Any) -> None:
    text = "The quick brown fox jumps"
    for num_parts in (1, 2, 3):
        for pieces in cuts_of(text, num_parts):
            assert run_stops(stops, pieces)[0] == want, pieces
    assert run_stops(stops, text)[0] == want


def test_the_pieces_of_the_report_give_exactly_the_text_before_the_stop() -> None:
    assert run_stops(["own fox"], ["The quick br", "own", " f", "ox jumps"])[0] == "The quick br"


def test_what_may_become_a_stop_is_held_back_and_given_at_the_end() -> None:
    checker = StopChecker(["END", "ENOUGH"])
    assert checker.push("the EN") == ("the ", False)
    assert checker.num_final == 4
    fork = checker.copy()
    assert checker.push("O") == ("", False)
    assert checker.flush() == "ENO"
    assert checker.num_final == 7
    assert fork.push("D!") == ("", True)
    assert (fork.matched, fork.num_final) == ("END", 4)
    assert fork.push("more") == ("", True)


@FAST
@given(
    text=st.text("ab", max_size=14),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 14), max_size=4),
)
def test_stops_do_not_depend_on_the_pieces(text: Any, stops: Any, cuts: Any) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    ends = [
        (at + len(stop), at)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at)
    ]
    want = text[: min(ends)[1]] if ends else text
    assert run_stops(stops, pieces)[0] == want
    assert run_stops(stops, list(text))[0] == want


def test_decoding_takes_arrays_as_the_engine_keeps_them() -> None:
    ids = array("I", single_bytes(BYTES, "한글"))
    assert BYTES.decode(ids) == "한글"
