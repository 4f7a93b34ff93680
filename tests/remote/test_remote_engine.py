"""The engine that is another program's: what it makes of what each make of server says."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.remote.engine import RemoteEngine
from radchat.daemon.remote.model import USUAL_CONTEXT
from radchat.daemon.remote.probe import base_of, dialect_of, probe
from radchat.engine.grammar import Grammar
from radchat.engine.request import Event, Finished, FinishReason, Request, SamplingParams, Tokens
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import ContextOverflow, InvalidInput, NotFound, RadchatError, Unreachable
from tests.daemon.services import models
from tests.remote.fakes import SAYS, Fake, serving, wait_for

MAKES = ("sglang", "vllm", "llamacpp", "openai")
GREEDY = SamplingParams(temperature=0.0, max_tokens=400)


@pytest.fixture(scope="module")
def folder() -> Path:
    return next(path for path in models().iterdir() if path.name.startswith("tiny"))


class Talk:
    def __init__(self, fake: Fake, folder: Path) -> None:
        self.tokenizer = Tokenizer(folder)
        served = probe(fake.url)
        self.engine = RemoteEngine(
            served,
            dialect_of(served.dialect),
            self.tokenizer,
            vocab_size=self.tokenizer.vocab_size,
            context_length=served.context_length or USUAL_CONTEXT,
            pause_s=0.01,
        )
        self._num = 0

    def ids(self, text: str) -> Any:
        return self.tokenizer.encode_text(text)

    def submit(self, text: Any, params: SamplingParams = GREEDY, **named: Any) -> str:
        self._num += 1
        ids = self.ids(text) if isinstance(text, str) else text
        self.engine.submit(Request(f"r{self._num}", array("I", ids), params, **named))
        return f"r{self._num}"

    def hear(self, num: int = 1) -> list[Event]:
        """All events until so many choices have ended."""
        events: list[Event] = []

        def all_ended() -> bool:
            events.extend(self.engine.step())
            return sum(isinstance(event, Finished) for event in events) >= num

        wait_for(all_ended, 60)
        assert self.engine.stats()["running"] == 0
        return events

    def ask(self, text: Any, params: SamplingParams = GREEDY, **named: Any) -> list[Event]:
        self.submit(text, params, **named)
        return self.hear(named.get("n", 1))


@contextlib.contextmanager
def talk(make: str, folder: Path, **named: Any) -> Iterator[tuple[Fake, Talk]]:
    with serving(make, folder, **named) as fake:
        it = Talk(fake, folder)
        try:
            yield fake, it
        finally:
            it.engine.close()


def said(events: list[Event], choice: int = 0) -> tuple[str, list[int], Finished]:
    mine = [e for e in events if isinstance(e, Tokens) and e.choice == choice]
    (end,) = (e for e in events if isinstance(e, Finished) and e.choice == choice)
    ids = [token for event in mine for token in event.ids]
    return "".join(event.text for event in mine) + end.text, ids[: end.kept], end


@pytest.mark.parametrize("increments", [False, True])
@pytest.mark.parametrize("make", MAKES)
def test_an_answer_is_its_servers_ids_and_its_words(
    folder: Path, make: str, increments: bool
) -> None:
    if increments and make != "sglang":
        return
    with talk(make, folder, increments=increments) as (fake, it):
        text, ids, end = said(it.ask("tell me"))
        assert text == SAYS
        assert it.tokenizer.decode(ids) == SAYS
        assert end.reason is FinishReason.STOP
        assert end.usage.is_remote
        assert end.usage.remote == 0  # measured: nothing was there
        if make != "openai":
            assert fake.asked[0].get("input_ids", fake.asked[0].get("prompt")) == list(
                it.ids("tell me")
            )
        # the next turn begins with all that was read and said
        more = [*it.ids("tell me"), *ids, *it.ids(" and then?")]
        _, _, end = said(it.ask(more, SamplingParams(temperature=0.0, max_tokens=3)))
        assert end.reason is FinishReason.LENGTH
        assert end.usage.output_tokens == 3
        assert end.usage.remote is not None
        assert end.usage.remote >= len(it.ids("tell me")) + (len(ids) if make != "openai" else 0)
        fake.faults.tells_cached = False
        _, _, end = said(it.ask("tell me"))
        assert end.usage.remote is None  # not known, and not zero


@pytest.mark.parametrize("make", MAKES)
def test_a_stop_string_and_a_stop_id_end_it(folder: Path, make: str) -> None:
    with talk(make, folder) as (fake, it):
        stops = SamplingParams(temperature=0.0, stop=("so is", "nowhere"))
        text, ids, end = said(it.ask("tell me", stops))
        assert text == "the fox is quick, and "
        assert it.tokenizer.decode(ids).startswith(text)
        assert "so is the" not in it.tokenizer.decode(ids)
        assert (end.reason, end.stopped) == (FinishReason.STOP, False)
        third = it.ids(SAYS)[2]
        _, ids, end = said(it.ask("tell me", SamplingParams(stop_ids=frozenset((third,)))))
        assert ids[-1] == third
        assert end.stopped
        assert fake.running == 0 or fake.most


def test_samples_are_asked_for_at_once_with_seeds_of_their_own(folder: Path) -> None:
    with talk("vllm", folder) as (fake, it):
        fake.faults.stall = threading.Event()
        it.submit("tell me", n=5)
        for text in ("one", "two", "three"):
            it.submit(text)
        wait_for(lambda: fake.running == 8)
        it.engine.check_idle()  # as the daemon does where nothing is to be taken
        assert it.engine.stats()["running"] == 8
        fake.faults.stall.set()
        events = it.hear(8)
        ends = [e for e in events if isinstance(e, Finished)]
        assert sum(end.last for end in ends) == 4
        assert fake.most == 8
        assert len({body["seed"] for body in fake.asked}) == 5


@pytest.mark.parametrize("make", MAKES)
def test_what_is_cancelled_ends_there_too(folder: Path, make: str) -> None:
    with talk(make, folder) as (fake, it):
        fake.faults.stall = threading.Event()
        name = it.submit("tell me")
        wait_for(lambda: fake.running == 1 and it.engine.has_work())
        assert it.engine.abort(name)
        _, ids, end = said(it.hear())
        assert end.reason is FinishReason.ABORT
        assert ids
        wait_for(lambda: fake.running == 0)
        assert fake.gone == 1
        assert not it.engine.abort(name)


@pytest.mark.parametrize("make", MAKES)
def test_characters_of_several_ids_are_whole(folder: Path, make: str) -> None:
    says = "é😀漢, and 😀😀 then"
    with talk(make, folder, says=says) as (fake, it):
        whole = it.ids(says)
        assert len(whole) > len(says)
        text, ids, _ = said(it.ask("tell me"))
        assert text == says
        assert ids == list(whole) or make == "openai"
        text, ids, end = said(it.ask("tell me", SamplingParams(stop=("漢",))))
        assert (text, end.reason) == ("é😀", FinishReason.STOP)
        assert it.tokenizer.decode(ids) in ("é😀", "é😀\ufffd")
        wait_for(lambda: fake.running == 0)


def test_what_is_cancelled_before_it_began_ends_too(folder: Path) -> None:
    with talk("vllm", folder) as (_, it):
        for _ in range(20):
            assert it.engine.abort(it.submit("tell me", n=2))
            events = it.hear(2)
            assert {e.reason for e in events if isinstance(e, Finished)} == {FinishReason.ABORT}
            assert sum(e.last for e in events if isinstance(e, Finished)) == 1


@pytest.mark.parametrize("make", ["sglang", "vllm", "llamacpp"])
def test_a_server_that_does_not_know_of_the_end_is_left(folder: Path, make: str) -> None:
    with talk(make, folder) as (fake, it):
        whole = it.ids(SAYS)
        num = next(n for n in range(len(whole)) if "is" in it.tokenizer.decode(whole[:n]))
        fake.faults.stall, fake.faults.stall_at = threading.Event(), num
        stops = SamplingParams(stop=("is",))
        text, _, end = said(it.ask("tell me", stops))
        assert (text, end.reason) == ("the fox ", FinishReason.STOP)
        wait_for(lambda: fake.running == 0)  # though it was never let go on
        assert (end.usage.remote is None) == (make == "vllm")  # it tells that last


def test_ids_of_another_vocabulary_are_refused_by_name(folder: Path) -> None:
    with talk("vllm", folder) as (fake, it):
        fake.faults.adds_to_ids = it.tokenizer.vocab_size
        _, ids, end = said(it.ask("tell me"))
        assert (end.reason, ids) == (FinishReason.ERROR, [])
        assert "its model is another one" in str(end.error)


def test_a_text_server_is_not_sent_what_its_route_does_not_know(folder: Path) -> None:
    with talk("openai", folder) as (fake, it):
        messages = [{"role": "user", "content": "hello"}]
        it.ask("hello", SamplingParams(top_k=5), messages=messages)
        assert "max_tokens" not in fake.asked[-1]  # what its template adds is not known here
        assert "top_k" not in fake.asked[-1]
        it.ask("hello", SamplingParams(max_tokens=7), messages=messages)
        assert fake.asked[-1]["max_tokens"] == 7
        told = it.engine.remarks(Request("r", it.ids("a"), SamplingParams(top_k=5)))
        assert any("top_k" in each for each in told)
        with pytest.raises(InvalidInput, match="bias"):
            it.submit("hello", SamplingParams(logit_bias={5: 1.0}))


def test_it_is_asked_again_before_the_first_token_and_never_after(folder: Path) -> None:
    with talk("llamacpp", folder) as (fake, it):
        fake.faults.refuse = [503, 429, 502]
        assert said(it.ask("tell me"))[0] == SAYS
        assert len(fake.asked) == 4
        fake.faults.refuse = [503] * 9
        _, _, end = said(it.ask("tell me"))
        assert end.reason is FinishReason.ERROR
        assert fake.url in str(end.error)
        assert len(fake.asked) == 8
        fake.faults.refuse = []
        fake.faults.cut_after = [0, 3]  # nothing was said yet; then something was
        text, ids, end = said(it.ask("tell me"))
        assert end.reason is FinishReason.ERROR
        assert len(ids) == 3
        assert SAYS.startswith(text)
        assert "is kept" in str(end.error)
        assert len(fake.asked) == 10
        fake.faults.refuse = [400]
        _, _, end = said(it.ask("tell me"))
        assert "not now" in str(end.error)
        assert len(fake.asked) == 11
        fake.faults.garbage = True
        _, ids, end = said(it.ask("tell me"))
        assert "no JSON" in str(end.error)
        assert len(ids) == 1


def test_what_can_not_be_asked_is_refused_before(folder: Path) -> None:
    with talk("sglang", folder) as (fake, it):
        engine = it.engine
        with pytest.raises(InvalidInput, match="log probabilities"):
            engine.check_request(Request("x", it.ids("a"), GREEDY, fill="score"))
        with pytest.raises(InvalidInput, match="empty"):
            it.submit(array("I"))
        with pytest.raises(ContextOverflow):
            it.submit(array("I", [1] * 3000))
        with pytest.raises(InvalidInput, match="its KV is there"):
            engine.pin("p", it.ids("a"))
        assert fake.asked == []


SCHEMA = '{"type": "object", "properties": {"a": {"type": "string"}}}'


class _Base:
    vocab_size = 0


class _Compiled:
    base = _Base()

    def __init__(self, kind: str, source: str) -> None:
        self.grammar = Grammar(kind, source)  # type: ignore[arg-type]


FORMS: dict[str, dict[tuple[str, str], Any]] = {
    "sglang": {
        ("json_schema", SCHEMA): lambda b: "json_schema" in b["sampling_params"],
        ("regex", "a+"): lambda b: b["sampling_params"]["regex"] == "a+",
        ("choices", '["a.", "b"]'): lambda b: b["sampling_params"]["regex"] == r"(a\.)|(b)",
        ("lark", "start: /a/"): None,
    },
    "vllm": {
        ("json_schema", SCHEMA): lambda b: b["structured_outputs"]["json"]["type"] == "object",
        ("regex", "a+"): lambda b: b["structured_outputs"] == {"regex": "a+"},
        ("choices", '["a", "b"]'): lambda b: b["structured_outputs"] == {"choice": ["a", "b"]},
        ("lark", "start: /a/"): None,
    },
    "llamacpp": {
        ("json_schema", SCHEMA): lambda b: b["json_schema"]["type"] == "object",
        ("choices", '["a\\"", "b"]'): lambda b: b["grammar"] == 'root ::= "a\\"" | "b"',
        ("regex", "[^a]+(x|yz)"): lambda b: "root ::= " in b["grammar"],
        ("regex", "(?=a)b"): None,
        ("lark", "start: /a/"): None,
    },
    "openai": {
        ("json_schema", SCHEMA): lambda b: b["response_format"]["type"] == "json_schema",
        ("regex", "a+"): None,
        ("choices", '["a", "b"]'): None,
    },
}


@pytest.mark.parametrize("make", MAKES)
def test_forms_are_asked_for_in_its_words_or_refused(folder: Path, make: str) -> None:
    with talk(make, folder) as (fake, it):
        for (kind, source), holds in FORMS[make].items():
            compiled: Any = _Compiled(kind, source)
            if holds is None:
                with pytest.raises(InvalidInput, match="can't be asked"):
                    it.submit("x", grammar=compiled)
                continue
            it.ask("x", grammar=compiled)
            assert holds(fake.asked[-1]), (kind, fake.asked[-1])


def test_a_text_server_gets_the_conversation_and_is_told_of_once(folder: Path) -> None:
    with talk("openai", folder) as (fake, it):
        messages = [{"role": "user", "content": "hello"}]
        request = Request("r", it.ids("hello"), GREEDY, messages=messages)
        (remark,) = it.engine.remarks(request)
        assert "takes text" in remark
        assert it.engine.remarks(request) == []
        it.ask("hello", messages=messages)
        assert fake.paths[-1] == "/v1/chat/completions"
        assert fake.asked[-1]["messages"] == messages
        it.ask("hello")
        assert (fake.paths[-1], fake.asked[-1]["prompt"]) == ("/v1/completions", "hello")


def test_a_probe_says_what_is_there(folder: Path) -> None:
    for make in MAKES:
        with serving(make, folder) as fake:
            for url in (fake.url, f"{fake.url}/v1", f"{fake.url}/v1/"):
                served = probe(url)
                assert (served.dialect, served.model, served.url) == (make, "fox", fake.url)
            assert served.context_length == (None if make == "openai" else 2048)
    with pytest.raises(Unreachable, match="nobody answers"):
        probe(fake.url)
    for bad in ("host:1", "ftp://x", "http://"):
        with pytest.raises(InvalidInput, match="want a URL"):
            base_of(bad)
    with pytest.raises(InvalidInput, match="RADCHAT_ENGINE_KEY"):
        base_of("http://me:secret@host")
    with pytest.raises(NotFound):
        dialect_of("latin")


def test_nothing_is_left_open(folder: Path) -> None:
    with serving("vllm", folder) as fake:
        before = None
        for _ in range(3):
            it = Talk(fake, folder)
            it.ask("hello", n=3)
            it.engine.close()
            num = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
            if before is not None:
                assert num[0] <= before[0] + 1
            before = num


def test_a_server_that_comes_back_is_used_again(folder: Path) -> None:
    with talk("sglang", folder) as (fake, it):
        port = fake.server.server_address[1]
        fake.close()
        _, _, end = said(it.ask("tell me"))
        assert end.reason is FinishReason.ERROR
        assert "is lost" in str(end.error)
        assert isinstance(end.error, str)
        assert port
        with pytest.raises(RadchatError):
            raise RadchatError(end.error)
