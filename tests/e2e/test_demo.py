"""`radchat demo` on the real model: it runs through, and what it says is the model's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.homes import Home, Shell

pytestmark = pytest.mark.model

RIGHT = ("Marigold", "Ada Quill", "green", "Tomas", "three", "62")


@pytest.fixture(scope="module")
def home(sources: str, smollm2: Path) -> Iterator[Home]:
    home = Home(sources, {"smollm2-135m": smollm2})
    yield home
    home.close()


def test_the_demo_answers_sanely_in_short_and_each_question_differently(home: Home) -> None:
    tour = Shell(home, "demo").json("demo")
    answers = tour["answers"]
    texts = [answer["text"] for answer in answers]
    assert len(texts) == len(set(texts)) == len(RIGHT)
    for text in texts:
        assert text.strip()
        assert len(text.strip().splitlines()) <= 3
    right = [word in text for text, word in zip(texts, RIGHT, strict=True)]
    assert sum(right) >= len(RIGHT) - 1, texts  # bf16 rounds otherwise on another make of CPU
    for answer in answers:
        cache = answer["cache"]
        assert sum(cache.values()) == answer["usage"]["input_tokens"], "numbers that add up"
    first, *others, last = answers
    assert first["cache"]["device"] == 0
    assert all(answer["cache"]["computed"] < 40 for answer in (*others, last)), "only new words"
    assert last["cache"]["disk"] > 400, "after the restart its KV comes from disk"


def test_the_demo_shows_its_commands_the_tree_and_the_restart(home: Home) -> None:
    shown = Shell(home, "piped")("demo")
    assert "\x1b" not in shown.out
    assert "$ radchat ask -c" in shown.out
    assert "$ radchat fork 2 -n colour" in shown.out
    assert "shared by all branches" in shown.out
    assert "The words and their KV are on disk" in shown.out
    assert re.search(r"@demo_story.* 39\d   D ", shown.out), "the tree after the restart"
    assert re.search(r"^main@.* from disk", shown.out, re.MULTILINE)
    assert "this recomputes" not in shown.out
    assert "go on: radchat chat -r demo-" in shown.out
