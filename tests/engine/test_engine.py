"""The engine's manners: events, endings, counters. The model is scripted; the rest is real, and
recounts everything and poisons free pages after every step.
"""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from radchat.engine import philox
from radchat.engine.detokenize import Detokenizer, StopChecker
from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import (
    MAX_CHOICES,
    Event,
    Finished,
    FinishReason,
    Ids,
    Priority,
    Progress,
    Request,
    SamplingParams,
    Started,
    Tokens,
)
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.errors import InvalidInput, RadchatError
from tests.fakes import (
    END,
    ByteTokenizer,
    LogicalClock,
    ScriptedModel,
    drain,
    finished,
    greedy,
    hashed,
    output,
    says,
    script,
    scripted_engine,
    text,
)

PAGE = 16
OPEN = 257  # the control id that ends each prompt for ``says``


def words(said: str) -> Ids:
    return ByteTokenizer().encode(said)


def opening(said: str = "a question of some length, to cover pages") -> Ids:
    return words(said) + array("I", [OPEN])


def ask(
    name: str = "a", ids: Ids | None = None, max_tokens: int | None = 8, **more: Any
) -> Request:
    n = more.pop("n", 1)
    return Request(name, opening() if ids is None else ids, greedy(max_tokens, **more), n=n)


def run(engine: Engine, *requests: Request) -> list[Event]:
    for request in requests:
        engine.submit(request)
    return drain(engine)


def computed(engine: Engine) -> int:
    assert isinstance(engine.model, ScriptedModel)
    return engine.model.tokens_computed


def random_scores(ids: Sequence[int]) -> Mapping[int, float]:
    """A few units wide, different after every sequence."""
    generator = random.Random(hashed(ids) * 1000 + len(ids))
    return {token: generator.gauss(0, 2) for token in range(97, 123)}


# -- what a request is told -----------------------------------------------------------------------


def test_events_come_in_order_started_progress_tokens_finished() -> None:
    engine = scripted_engine(says("hi"), options=SchedulerOptions(chunk_tokens=32))
    events = run(engine, ask(stop_ids=frozenset({END})))
    length = len(opening())
    assert events[0] == Started("a", length, 0)
    assert events[1:3] == [Progress("a", 32, length), Progress("a", length, length)]
    assert [e.ids for e in events[3:6] if isinstance(e, Tokens)] == [(104,), (105,), (END,)]
    end = events[6]
    assert isinstance(end, Finished)
    assert (end.reason, end.kept, end.stopped, end.last) == (FinishReason.STOP, 3, True, True)
    assert text(events, "a") == "hi"
    assert len(events) == 7


def test_usage_says_what_was_found_and_what_was_computed() -> None:
    engine = scripted_engine()
    first = finished(run(engine, ask()), "a").usage
    length = len(opening())
    assert (first.input_tokens, first.cached_tokens, first.device) == (length, 0, 0)
    assert (first.computed, first.output_tokens) == (length, 8)
    longer = opening() + words("and more")
    second = finished(run(engine, ask("b", longer)), "b").usage
    assert (second.device, second.computed) == (length, len(longer) - length)
    assert computed(engine) == first.computed + second.computed + 2 * 7 == engine.rows_run


def test_progress_of_a_warm_prompt_begins_where_the_cache_ends() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=PAGE))
    run(engine, ask())
    longer = opening() + words("x" * 30)
    events = run(engine, ask("b", longer))
    assert events[0] == Started("b", len(longer), len(opening()))
    done = [event.computed_tokens for event in events if isinstance(event, Progress)]
    assert done == [48, 64, len(longer)]


# -- where an answer ends -------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 2, 17, 100])
def test_max_tokens_is_the_number_of_tokens(max_tokens: int) -> None:
    events = run(scripted_engine(), ask(max_tokens=max_tokens))
    end = finished(events, "a")
    assert end.reason is FinishReason.LENGTH
    assert len(output(events, "a")) == end.kept == end.usage.output_tokens == max_tokens


@pytest.mark.parametrize("max_tokens", [None, 10**9])
def test_without_a_limit_an_answer_ends_with_the_context(max_tokens: int | None) -> None:
    events = run(scripted_engine(context_length=100), ask(max_tokens=max_tokens))
    end = finished(events, "a")
    assert (end.reason, end.error) == (FinishReason.LENGTH, None)
    assert end.kept == 100 - len(opening())


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    events = run(scripted_engine(context_length=len(opening()) + 1), ask(max_tokens=None))
    assert finished(events, "a").kept == 1


def test_a_stop_id_is_kept_and_has_no_text() -> None:
    stops = frozenset({ord("l"), 3})
    events = run(scripted_engine(says("hello")), ask(stop_ids=stops))
    end = finished(events, "a")
    assert (end.reason, end.stopped, end.kept) == (FinishReason.STOP, True, 3)
    assert output(events, "a") == [*b"hel"]
    assert text(events, "a") == "he"


def pieces(cuts: Sequence[int], said: str) -> list[str]:
    edges = [0, *cuts, len(said)]
    return [said[a:b] for a, b in itertools.pairwise(edges)]


class PieceModel:
    """Ids 300 … stand for pieces of text."""

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts
        self.said = ""

    def push(self, token_id: int) -> str:
        return self.parts[token_id - 97]

    def flush(self) -> str:
        return ""

    def copy(self) -> PieceModel:
        return PieceModel(self.parts)


def piece_engine(parts: list[str]) -> Engine:
    """Says ids 97, 98, …, whose texts are the given pieces."""
    engine = scripted_engine(says(list(range(97, 97 + len(parts)))), pool_tokens=160, check=False)
    checker = ByteTokenizer().text
    engine._delivery._text = lambda request: (PieceModel(parts), checker(request)[1])
    return engine


SAID = "The quick brown fox jumps"


def test_a_stop_string_cut_anywhere_ends_the_text_exactly_before_it() -> None:
    cuts = [[a] for a in range(1, len(SAID))]
    cuts += [[a, b] for a in range(8, 20) for b in range(a + 1, 21)]
    cuts.append([12, 15, 17])
    for each in cuts:
        parts = pieces(each, SAID)
        stops = ("own fox", "own foxes", "nothing")
        events = run(piece_engine(parts), ask("a", max_tokens=len(parts), stop=stops))
        end = finished(events, "a")
        assert text(events, "a") == "The quick br", parts
        assert end.reason is FinishReason.STOP
        assert not end.stopped
        begins = [0, *each]
        assert end.kept == sum(begin < len("The quick br") for begin in begins), parts


def test_text_held_back_for_a_stop_string_that_never_comes_is_shown_at_the_end() -> None:
    events = run(scripted_engine(says("a brown f")), ask(max_tokens=9, stop=("brown fox",)))
    assert text(events, "a") == "a brown f"
    assert finished(events, "a").text == "brown f"
    assert finished(events, "a").kept == 9


def test_after_a_stop_string_only_the_kept_ids_stay_in_the_tree() -> None:
    engine = scripted_engine(says("one two three"))
    end = finished(run(engine, ask(max_tokens=13, stop=("two",))), "a")
    assert end.kept == len("one ")
    assert engine.probe(opening() + words("one two three")) == len(opening()) + 4


def test_a_character_over_several_tokens_becomes_text_when_it_is_whole() -> None:
    said = "é👩‍👩‍👧한글 مرحبا"
    number = len(said.encode())
    events = run(scripted_engine(says(said)), ask(max_tokens=number))
    assert text(events, "a") == said
    assert "�" not in "".join(e.text for e in events if isinstance(e, Tokens))


def test_an_answer_cut_inside_a_character_ends_with_one_mark_and_can_be_continued() -> None:
    engine = scripted_engine(says("ab😀c"))
    events = run(engine, ask(max_tokens=4))
    assert text(events, "a") == "ab�"
    assert finished(events, "a").kept == 4
    going_on = opening() + array("I", output(events, "a"))
    more = run(engine, Request("b", going_on, greedy(3), said=4))
    assert text(more, "b") == "😀c"


def test_output_that_is_no_number_ends_its_request_and_no_other() -> None:
    def scores(ids: Sequence[int]) -> Mapping[int, float]:
        return {97: math.nan} if bytes(ids[:3]) == b"bad" and len(ids) > 10 else {98: 1.0}

    engine = scripted_engine(scores=scores)
    events = run(engine, ask("bad", opening("bad")), ask("good", opening("fine")))
    assert finished(events, "bad").reason is FinishReason.ERROR
    assert "position" in (finished(events, "bad").error or "")
    assert output(events, "good") == [98] * 8
    engine.check_idle()


# -- several choices ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 100])
def test_samples_of_one_prompt_add_nothing_to_its_computation(length: int) -> None:
    engine = scripted_engine(scores=random_scores)
    ids = array("I", [97 + i % 26 for i in range(length)])
    params = SamplingParams(seed=42, max_tokens=10)
    events = run(engine, Request("a", ids, params, n=4))
    assert computed(engine) == length + 4 * 9
    assert len([e for e in events if isinstance(e, Started)]) == 1
    ends = [finished(events, "a", choice) for choice in range(4)]
    assert [end.last for end in ends] == [False, False, False, True]
    assert all(end.usage.computed == length for end in ends)


def test_choices_differ_repeat_and_are_those_of_single_requests() -> None:
    params = SamplingParams(seed=42, max_tokens=12)
    request = Request("a", opening(), params, n=4)
    events = run(scripted_engine(scores=random_scores), request)
    outs = [output(events, "a", choice) for choice in range(4)]
    assert len({tuple(out) for out in outs}) == 4
    again = run(scripted_engine(scores=random_scores), request)
    assert [output(again, "a", choice) for choice in range(4)] == outs
    for choice in range(4):
        alone = Request("b", opening(), params, first_choice=choice)
        assert output(run(scripted_engine(scores=random_scores), alone), "b") == outs[choice]


def test_noise_is_that_of_the_tokens_own_place_in_the_sequence() -> None:
    params = SamplingParams(seed=8, max_tokens=6)
    ids = opening()
    engine = scripted_engine(scores=random_scores)
    out = output(run(engine, Request("a", ids, params, first_choice=2)), "a")
    whole = list(ids)
    for token in out:
        logits = torch.full((engine.model.vocab_size,), -20.0, dtype=torch.float64)
        for each, score in random_scores(whole).items():
            logits[each] = score
        u = torch.from_numpy(philox.uniforms_of_all(8, len(whole), 2, len(logits)))
        assert token == int((logits - (-u.log()).log()).argmax())
        whole.append(token)


@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_a_choice_continued_later_goes_on_as_it_would_have(penalty: float) -> None:
    def params(max_tokens: int) -> SamplingParams:
        return SamplingParams(seed=7, max_tokens=max_tokens, frequency_penalty=penalty)

    whole = Request("a", opening(), params(20), first_choice=3)
    out = output(run(scripted_engine(scores=random_scores), whole), "a")
    ids = opening() + array("I", out[:9])
    rest = Request("b", ids, params(11), first_choice=3, said=9)
    assert output(run(scripted_engine(scores=random_scores), rest), "b") == out[9:]


def test_choices_that_find_no_room_to_fork_wait_and_lose_nothing() -> None:
    params = SamplingParams(seed=1, max_tokens=30)
    request = Request("a", opening(), params, n=6)
    roomy = run(scripted_engine(scores=random_scores), request)
    tight = scripted_engine(scores=random_scores, pool_tokens=112)
    events = run(tight, request)
    for choice in range(6):
        assert output(events, "a", choice) == output(roomy, "a", choice)
        assert text(events, "a", choice) == text(roomy, "a", choice)
    tight.check_idle()


def test_more_choices_than_may_run_at_once_take_turns() -> None:
    params = SamplingParams(seed=1, max_tokens=5)
    request = Request("a", opening(), params, n=MAX_CHOICES)
    engine = scripted_engine(scores=random_scores, options=SchedulerOptions(max_running=20))
    engine.submit(request)
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
        assert engine.stats()["running"] <= 20
    outs = {tuple(output(events, "a", choice)) for choice in range(MAX_CHOICES)}
    assert len(outs) > MAX_CHOICES // 2
    assert all(len(out) == 5 for out in outs)


def test_one_token_choices_need_no_fork() -> None:
    engine = scripted_engine(scores=random_scores, pool_tokens=64)
    events = run(engine, Request("a", opening(), SamplingParams(max_tokens=1), n=50))
    assert sum(isinstance(event, Finished) for event in events) == 50
    assert computed(engine) == len(opening())


def test_aborting_a_request_ends_every_choice_once_born_or_not() -> None:
    for steps in range(6):
        engine = scripted_engine(options=SchedulerOptions(chunk_tokens=PAGE, max_running=2))
        engine.submit(Request("a", opening(), greedy(20), n=5))
        events = [event for _ in range(steps) for event in engine.step()]
        assert engine.abort("a")
        assert not engine.abort("a")
        events += drain(engine)
        ends = [event for event in events if isinstance(event, Finished)]
        assert sorted(end.choice for end in ends) == [0, 1, 2, 3, 4]
        assert [end.last for end in ends] == [False] * 4 + [True]
        engine.check_idle()


# -- cancelling -----------------------------------------------------------------------------------


def test_twenty_cancelled_prompts_do_not_hold_up_a_short_one() -> None:
    engine = scripted_engine(pool_tokens=20_000, options=SchedulerOptions(chunk_tokens=64))
    generator = random.Random(0)
    longs = [array("I", [n, *generator.choices(range(97, 123), k=599)]) for n in range(20)]
    for number, ids in enumerate(longs):
        engine.submit(ask(f"long{number}", ids))
    for _ in range(3):
        engine.step()
    for number in range(20):
        assert engine.abort(f"long{number}")
    engine.submit(ask("short", opening("hello"), max_tokens=3))
    events = [event for _ in range(3) for event in engine.step()]
    assert finished(events, "short").kept == 3
    assert not any(isinstance(e, Tokens) and e.request_id != "short" for e in events)
    for number, ids in enumerate(longs):
        assert finished(events, f"long{number}").reason is FinishReason.ABORT
        assert engine.probe(ids) % 64 == 0  # whole chunks only
    assert sum(engine.probe(ids) for ids in longs) == 3 * 64
    engine.check_idle()


def test_a_cancelled_answer_keeps_its_words_and_its_kv() -> None:
    engine = scripted_engine(says("a long answer that nobody wants"))
    engine.submit(ask(max_tokens=40))
    events = [event for _ in range(9) for event in engine.step()]
    engine.abort("a")
    assert engine.stats()["pages"]["locked"] == 0
    events += drain(engine)
    end = finished(events, "a")
    assert (end.reason, end.kept) == (FinishReason.ABORT, 9)
    assert text(events, "a") == "a long an"
    so_far = opening() + array("I", output(events, "a"))
    assert engine.probe(so_far) == len(so_far) - 1


def test_cancelling_what_is_not_there_is_no_error() -> None:
    engine = scripted_engine()
    assert not engine.abort("nobody")
    run(engine, ask())
    assert not engine.abort("a")
    assert not engine.has_work()


# -- what is refused ------------------------------------------------------------------------------

REFUSED: list[tuple[str, Callable[[], Request]]] = [
    ("empty", lambda: ask("x", array("I"))),
    ("vocabulary", lambda: ask("x", array("I", [1, 260]))),
    ("typecode", lambda: ask("x", array("B", [1, 2]))),
    ("n", lambda: ask("x", n=0)),
    ("n", lambda: ask("x", n=MAX_CHOICES + 1)),
    ("running already", lambda: ask("good")),
    ("first_choice", lambda: Request("x", opening(), greedy(1), first_choice=-1)),
    ("said", lambda: Request("x", opening(), greedy(1), said=99)),
    ("temperature", lambda: Request("x", opening(), SamplingParams(temperature=math.nan))),
    ("logit_bias", lambda: ask("x", logit_bias={260: 1.0})),
    ("stop_ids", lambda: ask("x", stop_ids=frozenset({-1}))),
]


def test_what_is_refused_harms_no_request_in_flight() -> None:
    engine = scripted_engine()
    engine.submit(ask("good", max_tokens=40))
    events: list[Event] = []
    for name, make in REFUSED:
        events += engine.step()
        with pytest.raises(RadchatError, match=name):
            engine.submit(make())
    events += drain(engine)
    assert finished(events, "good").kept == 40
    assert {event.request_id for event in events} == {"good"}
    with pytest.raises(InvalidInput):
        engine.submit(ask("x", array("I")))
    assert not engine.has_work()


# -- counters -------------------------------------------------------------------------------------


def leave_by_eos(engine: Engine) -> None:
    run(engine, ask(stop_ids=frozenset(range(97, 123))))


def leave_by_stop_string(engine: Engine) -> None:
    run(engine, ask(max_tokens=50, stop=("a", "e", "i", "o", "u")))


def leave_by_length(engine: Engine) -> None:
    run(engine, ask("one", max_tokens=1), ask("many", max_tokens=40))


def leave_queued(engine: Engine) -> None:
    engine.submit(ask())
    engine.abort("a")
    drain(engine)


def leave_in_prefill(engine: Engine) -> None:
    engine.submit(ask(ids=opening("z" * 90)))
    engine.step()
    engine.abort("a")
    drain(engine)


def leave_in_decode(engine: Engine) -> None:
    engine.submit(ask(max_tokens=40, n=3))
    for _ in range(12):
        engine.step()
    engine.abort("a")
    drain(engine)


def leave_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput):
        engine.submit(ask(ids=array("I", [999])))


def leave_retracted(engine: Engine) -> None:
    for number in range(4):
        engine.submit(ask(f"{number}", opening(str(number)), max_tokens=100))
    drain(engine)
    assert engine.stats()["retractions"] > 0


def leave_retracted_and_cancelled(engine: Engine) -> None:
    for number in range(4):
        engine.submit(ask(f"{number}", opening(str(number)), max_tokens=100))
    while not engine.stats()["retractions"]:
        engine.step()
    for number in range(4):
        engine.abort(f"{number}")
    drain(engine)


def leave_full(engine: Engine) -> None:
    assert finished(run(engine, ask(max_tokens=500)), "a").error is not None


def leave_with_logprobs(engine: Engine) -> None:
    run(engine, ask("one", prompt_logprobs=True), ask("two", prompt_logprobs=True, logprobs=2))


@pytest.mark.parametrize(
    "leave", [value for name, value in dict(globals()).items() if name.startswith("leave_")]
)
@pytest.mark.parametrize("twice", [False, True])
def test_counters_balance_after_every_kind_of_ending(
    leave: Callable[[Engine], None], twice: bool
) -> None:
    """RC-04."""
    options = SchedulerOptions(chunk_tokens=PAGE, growth_tokens=0)
    engine = scripted_engine(pool_tokens=208, options=options)
    for _ in range(1 + twice):
        leave(engine)
        engine.check_idle()
        pages = engine.stats()["pages"]
        assert pages["locked"] == 0
        assert pages["free"] + pages["evictable"] == pages["total"] == 13
    assert engine.clear() == pages["evictable"]
    assert engine.stats()["pages"]["free"] == 13
    assert engine.cache.nodes() == []


class Mix:
    """Random traffic on a small pool, with a model in which every id depends on all before it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = scripted_engine(
            pool_tokens=self.random.choice([320, 640, 1600]),
            context_length=400,
            options=SchedulerOptions(
                chunk_tokens=self.random.choice([16, 48, 512]),
                max_running=self.random.choice([2, 5, 64]),
                growth_tokens=self.random.choice([0, 64]),
                follow=self.random.random() < 0.8,
            ),
        )
        self.heads = [self.ids(self.random.randrange(1, 120)) for _ in range(3)]
        self.alive: dict[str, Request] = {}
        self.sent: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[tuple[str, int], Finished] = {}
        self.aborted: set[tuple[str, int]] = set()
        self.submitted = 0

    def ids(self, length: int) -> Ids:
        return array("I", self.random.choices([97, 98, 99], k=length))

    def submit(self) -> None:
        pick = self.random
        ids = array("I", pick.choice([*self.heads, array("I")])) + self.ids(pick.randrange(1, 40))
        if pick.random() < 0.3:  # go on behind an answer
            answers = [key for key in self.ended if key[0] in self.alive]
            if answers:
                key = pick.choice(answers)
                ids = self.alive[key[0]].ids + array("I", self.sent.get(key, []))
                ids = ids[:300] + self.ids(pick.randrange(1, 4))
        self.submitted += 1
        params = greedy(
            pick.choice([1, 2, 5, 30, 90]),
            stop=pick.choice([(), ("qu",), ("x", "zz")]),
            stop_ids=frozenset(pick.sample(range(97, 123), k=pick.choice([0, 0, 1]))),
            prompt_logprobs=pick.random() < 0.1,
        )
        request = Request(
            f"r{self.submitted}",
            ids,
            params,
            n=pick.choice([1, 1, 1, 2, 4]),
            priority=pick.choice(list(Priority)),
            namespace=pick.choice(["", "", "other"]),
        )
        self.alive[request.id] = request
        self.engine.submit(request)

    def step(self) -> None:
        if self.random.random() < 0.25 and self.engine.stats()["waiting"] < 8:
            self.submit()
        if self.alive and self.random.random() < 0.04:
            name = self.random.choice(list(self.alive))
            one = self.random.choice([None, self.random.randrange(self.alive[name].n)])
            if self.engine.abort(name, one):
                num = self.alive[name].n
                self.aborted |= {(name, each) for each in (range(num) if one is None else [one])}
        if self.random.random() < 0.02:
            self.engine.cache.evict(self.random.randrange(1, 30))
        self.take(self.engine.step())

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                key = (event.request_id, event.choice)
                assert key not in self.ended, "a token after the end"
                assert key not in self.aborted, "a token after a cancel"
                self.sent.setdefault(key, []).extend(event.ids)
            elif isinstance(event, Finished):
                key = (event.request_id, event.choice)
                assert key not in self.ended, "ended twice"
                self.ended[key] = event

    def check(self) -> None:
        """Every answer is what a function of its prompt says, as far as it went."""
        self.take(drain(self.engine))
        self.engine.check_idle()
        for name, request in self.alive.items():
            for choice in range(request.n):
                out = self.sent.get((name, choice), [])
                end = self.ended[name, choice]
                whole = list(request.ids)
                for token in out:
                    assert token == hashed(whole), (name, choice)
                    whole.append(token)
                assert end.kept <= len(out) == end.usage.output_tokens
                if (name, choice) not in self.aborted:
                    assert end.usage.device + end.usage.computed == len(request.ids)
                    assert end.reason is not FinishReason.ERROR
        assert len(self.ended) == sum(request.n for request in self.alive.values())
        assert computed(self.engine) == self.engine.rows_run


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_steps_of_random_traffic_keep_every_answer_and_every_counter(seed: int) -> None:
    mix = Mix(seed)
    for number in range(1, 1001):
        mix.step()
        if number % 250 == 0:
            mix.check()
    assert mix.submitted > 80


# -- the tree under the engine --------------------------------------------------------------------


def test_a_running_request_locks_the_part_it_matched_and_no_more() -> None:
    """RC-01."""
    engine = scripted_engine(page_size=1, pool_tokens=64)
    first = array("I", range(1, 11))
    run(engine, ask("a", first, max_tokens=1))
    engine.submit(ask("b", first[:6] + array("I", [20, 21]), max_tokens=30))
    engine.step()
    shared = [node for node in engine.cache.nodes() if node.end <= 6]
    assert [(node.start, node.end, node.lock_ref) for node in shared] == [(0, 6, 1)]
    assert [n.lock_ref for n in engine.cache.nodes() if list(n.tokens) == [7, 8, 9, 10]] == [0]
    engine.submit(ask("c", first[:8] + array("I", [30]), max_tokens=1))
    engine.step()
    assert [n.lock_ref for n in engine.cache.nodes() if (n.start, n.end) == (0, 6)] == [1]
    engine.abort("b")
    drain(engine)
    engine.check_idle()
    engine.clear()
    assert engine.stats()["pages"]["free"] == 64


ENDINGS: dict[str, dict[str, Any]] = {
    "length": {},
    "stop id": {"stop_ids": frozenset({ord("!")})},
    "stop string": {"stop": ("!",)},
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_next_turn_reuses_the_generated_part_too(ending: str) -> None:
    """RC-02."""
    ids = array("I", [97 + i % 26 for i in range(99)] + [OPEN])
    engine = scripted_engine(says("g" * 49 + "!"))
    end = finished(run(engine, ask("a", ids, max_tokens=50, **ENDINGS[ending])), "a")
    answer = words(("g" * 49 + "!")[: end.kept])
    turn = ids + answer + words("the next question")
    usage = finished(run(engine, ask("b", turn)), "b").usage
    assert usage.device in {len(ids) + end.kept - 1, len(ids) + end.kept}


def test_a_prompt_that_is_wholly_cached_computes_one_token_and_says_the_same() -> None:
    """RC-06."""
    for ids in (opening(), opening()[:20], words("x")):
        engine = scripted_engine()
        run(engine, ask("longer", opening()))
        first = output(run(engine, ask("a", ids)), "a")
        before = computed(engine)
        events = run(engine, ask("b", ids))
        assert output(events, "b") == first
        assert finished(events, "b").usage.device == len(ids) - 1
        assert computed(engine) - before == 1 + 7


def test_ids_of_two_namespaces_share_nothing() -> None:
    """RC-07."""
    engine = scripted_engine()
    run(engine, Request("a", opening(), greedy(4), namespace="one"))
    assert engine.probe(opening()) == engine.probe(opening(), "two") == 0
    assert engine.probe(opening(), "one") == len(opening())
    events = run(engine, Request("b", opening(), greedy(4), namespace="two"))
    assert finished(events, "b").usage.device == 0


def test_probing_and_planning_change_nothing() -> None:
    engine = scripted_engine()
    run(engine, ask("a"), ask("b", opening("another")))
    before = engine.cache.nodes()
    plan = engine.cache.eviction_plan()
    assert engine.probe(opening()) == len(opening())
    assert [node.end for node in engine.cache.path(opening())][-1] >= len(opening())
    assert engine.cache.nodes() == before
    assert sum(step.pages for step in plan) == engine.stats()["pages"]["evictable"]
    assert engine.cache.evict(2) == 2
    assert engine.stats()["pages"]["evictable"] == sum(step.pages for step in plan) - 2


def test_stats_are_numbers_that_add_up() -> None:
    clock = LogicalClock()
    engine = scripted_engine(clock=clock, on_forward=lambda rows: clock.advance(rows / 500))
    assert engine.stats()["prefill_tokens_per_s"] is None
    run(engine, ask("a"), ask("b", opening() + words("more")))
    stats = engine.stats()
    assert stats["prefill_tokens_per_s"] is None  # of prompts of nearly one length
    assert stats["pages"]["total"] * PAGE == stats["tokens"]["total"] == 4096
    assert stats["bytes"]["total"] == 4096 * stats["bytes_per_token"]
    assert stats["cached_tokens"] == len(opening())
    assert stats["hit_rate"] == stats["cached_tokens"] / stats["input_tokens"]
    assert (stats["requests"], stats["output_tokens"]) == (2, 16)
    assert stats["seconds"]["model"] == pytest.approx(stats["rows_run"] / 500)
    run(engine, ask("c", words("a longer prompt " * 20)))
    assert engine.stats()["prefill_tokens_per_s"] == pytest.approx(500)
    assert engine.prompt_cost is not None
    assert engine.prompt_cost.of(100) == pytest.approx(0.2)


# -- log probabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [16, 512])
def test_prompt_logprobs_have_an_entry_for_each_token_cold_and_warm(chunk: int) -> None:
    options = SchedulerOptions(chunk_tokens=chunk)
    engine = scripted_engine(scores=random_scores, options=options)
    ids = array("I", [97 + i * i % 26 for i in range(75)])
    other = ids[:40] + array("I", [97 + i % 26 for i in range(30)])

    def entries(name: str, prompt: Ids) -> tuple[Any, ...]:
        request = Request(name, prompt, greedy(3, prompt_logprobs=True, logprobs=2))
        end = finished(run(engine, request), name)
        assert (end.usage.device, end.usage.computed) == (0, len(prompt))
        assert end.prompt_logprobs is not None
        return end.prompt_logprobs

    cold = entries("cold", ids)
    entries("between", other)
    assert entries("warm", ids) == cold
    assert len(cold) == len(ids)
    assert cold[0] is None
    for position in range(1, len(ids)):
        scores = random_scores(ids[:position])
        total = math.log(sum(math.exp(v) for v in scores.values()) + 234 * math.exp(-20))
        assert cold[position].id == ids[position]
        assert cold[position].logprob == pytest.approx(scores[ids[position]] - total, abs=1e-4)
        assert len(cold[position].top) == 2
    before = computed(engine)
    end = finished(run(engine, Request("plain", ids, greedy(1))), "plain")
    assert (end.usage.device, computed(engine) - before) == (74, 1)


def test_logprobs_of_drawn_tokens_come_with_them() -> None:
    engine = scripted_engine(scores=random_scores)
    params = SamplingParams(seed=3, max_tokens=5, logprobs=3)
    events = run(engine, Request("a", opening(), params, n=2))
    for event in events:
        if isinstance(event, Tokens):
            (entry,) = event.logprobs
            assert (entry.id,) == event.ids
            assert len(entry.top) == 3
            assert entry.top[0][1] >= entry.logprob


def test_scripts_answer_by_prompt() -> None:
    one, two = opening("one"), opening("two")
    engine = scripted_engine(script({tuple(one): "first", tuple(two): "second"}))
    stops = frozenset({END})
    events = run(engine, ask("a", one, stop_ids=stops), ask("b", two, stop_ids=stops))
    assert (text(events, "a"), text(events, "b")) == ("first", "second")


# -- a decoder that fails -------------------------------------------------------------------------


class Failing:
    """A detokenizer of words in which one id, or the end, cannot be put into text."""

    def __init__(self, bad: int | None) -> None:
        self._bad = bad

    def push(self, token_id: int) -> str:
        if token_id == self._bad:
            raise LookupError(f"no piece {token_id}")
        return chr(token_id)

    def flush(self) -> str:
        if self._bad is None:
            raise ValueError("half a piece")
        return ""

    def copy(self) -> Failing:
        return Failing(self._bad)


@pytest.mark.parametrize("bad", [ord("l"), None])
def test_a_decoder_that_fails_ends_its_own_request_and_no_other(bad: int | None) -> None:
    def factory(request: Request) -> tuple[Detokenizer, StopChecker]:
        if request.id == "bad":
            return Failing(bad), StopChecker(())
        return ByteTokenizer().text(request)

    cache = PrefixCache(65, PAGE)
    pool = KVPool(1, 65, PAGE, 1, 1, torch.float32, poison=True)
    engine = Engine(ScriptedModel(says("hello")), pool, cache, factory, check=True)
    limited = Request("bad", opening(), greedy(4))
    events = run(engine, limited, ask("good", opening("another"), max_tokens=40))
    end = finished(events, "bad")
    assert end.reason is FinishReason.ERROR
    assert end.error is not None
    assert ("no piece" if bad else "half a piece") in end.error
    assert end.kept == len(output(events, "bad")) == (2 if bad else 4)
    assert text(events, "good") == "hello"
    assert engine.abort("bad") is False
    engine.check_idle()


def test_a_cancel_whose_last_words_fail_still_ends() -> None:
    cache = PrefixCache(65, PAGE)
    pool = KVPool(1, 65, PAGE, 1, 1, torch.float32, poison=True)
    engine = Engine(
        ScriptedModel(), pool, cache, lambda _: (Failing(None), StopChecker(())), check=True
    )
    engine.submit(ask("a", max_tokens=40))
    engine.step()
    assert engine.abort("a")
    end = finished(drain(engine), "a")
    assert end.reason is FinishReason.ERROR
    engine.check_idle()
