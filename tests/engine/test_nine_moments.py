"""The article's figure as a story on the real engine: see examples/nine_moments.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from radchat.engine.engine import Engine
from radchat.engine.prefix_cache import PrefixCache
from tests.engine.bench import TinyModel
from tests.fakes import ByteTokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "nine_moments.py"


@pytest.fixture(scope="module")
def story() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nine_moments", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["nine_moments"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_nine_moments_of_the_articles_figure(story: ModuleType) -> None:
    model = TinyModel("llama", torch.float32)
    pages = story.NUM_PAGES + 1
    engine = Engine(
        model,
        model.pool(pages),
        PrefixCache(pages),
        ByteTokenizer().text,
        check=True,
    )
    told = []
    for moment in story.moments(engine, lambda text: list(text.encode())):
        told.append(moment)
        print(f"\n{moment.title}   (reused {moment.reused})")
        lines = list(story.picture(engine, lambda ids: bytes(list(ids)).decode(errors="replace")))
        assert len(lines) == len(list(engine.cache.nodes()))
        print("\n".join(lines))
    one, two, three, four, five, six, seven, eight, nine = told
    turn = story.SYSTEM + story.TURN + story.ANSWER
    chat = turn + story.TURN + story.ANSWER
    question = story.EXAMPLES + story.QUESTION + story.ANSWER

    assert one.cached == {}
    assert two.cached == {"chat 1": turn - 1}, "the last sampled token has no KV yet"
    assert three.reused == turn - 1
    assert four.reused == story.SYSTEM
    assert four.cached == {"chat 1": chat - 1, "chat 2": turn - 1}
    assert five.reused == turn - 1
    assert turn <= five.cached["chat 1"] < chat - 1, "the end of chat 1 made room"
    assert five.cached["chat 2"] == chat - 1
    assert six.reused == 0
    assert six.cached == five.cached | {"question 1": question - 1}
    assert seven.reused == story.EXAMPLES
    assert seven.cached["chat 1"] == five.cached["chat 1"]
    assert eight.reused == turn, "what was left of the first chat is used"
    assert eight.cached["chat 2"] < seven.cached["chat 2"], "chat 2 made room"
    assert all(eight.cached[f"question {n}"] == question - 1 for n in (1, 2, 3))
    assert nine.reused == question - 1
    assert nine.cached["question 2"] == nine.cached["question 3"] == story.EXAMPLES
    assert turn <= nine.cached["chat 1"] < eight.cached["chat 1"]
