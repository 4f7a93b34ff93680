"""What a grammar forces is not drawn, and nothing else is different for it."""

from __future__ import annotations

import itertools
import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from radchat.engine.batch import compose
from radchat.engine.grammar import Grammar, GrammarKind
from radchat.engine.grammars import Grammars
from radchat.engine.matcher import Mask, Matcher
from radchat.engine.request import Event, Finished, FinishReason, Priority, Request, Tokens
from radchat.errors import InvalidInput
from tests.engine.cramped import ROOMY, CrampedModel
from tests.engine.jumping import (
    LAYOUTS,
    PAGE,
    PERSON,
    Asked,
    any_token,
    asking,
    end_of,
    held_to,
    jumping_engine,
    tokenizer,
    told,
)
from tests.fakes import drain, finished, output, text

CALL = [{"name": "search", "parameters": {"type": "object", "properties": {"q": {"enum": ["a"]}}}}]


def some_grammar(dice: random.Random, layout: str) -> Any:
    kinds: list[tuple[GrammarKind, object]] = [
        ("json_schema", PERSON),
        ("json_schema", {"const": {"tools": ["weather — 漢字 😀"] * 3}}),
        ("json_schema", {"type": "array", "items": {"enum": ["yes", "no"]}, "maxItems": 4}),
        ("regex", r"The answer is [0-9]{1,3}\. (Thanks|Hello there); (.|\n){0,9}!!"),
        ("regex", r"漢字é(a|b)😀😀"),
        ("choices", ["weather", "weather in the sun", "search"]),
        ("tools", CALL),
    ]
    kind, source = dice.choice(kinds)
    return held_to(kind, source, layout)


def some_request(dice: random.Random, name: str, layout: str) -> Request:
    more: dict[str, Any] = {
        "seed": dice.getrandbits(64),
        "temperature": dice.choice([0.0, 0.7, 2.0]),
    }
    if dice.random() < 0.3:
        more["max_tokens"] = dice.randint(1, 40)
    if dice.random() < 0.3:
        more["stop"] = tuple(dice.sample(['"', "system", "e", "answer is", "字", '": ', "ea"], 2))
    if dice.random() < 0.2:
        more["repetition_penalty"] = 1.3
    if dice.random() < 0.2:
        more |= {"presence_penalty": 0.7, "frequency_penalty": -0.4}
    if dice.random() < 0.2:
        more["logit_bias"] = {dice.randrange(400): dice.choice([-100, 60])}
    if dice.random() < 0.1:
        more["logprobs"] = 1
    grammar = some_grammar(dice, layout) if dice.random() < 0.8 else None
    more["n"] = dice.choice([1, 1, 2, 4])
    more["priority"] = dice.choice(list(Priority))
    return asking(name, grammar, layout, words="hello there " * dice.randint(1, 9), **more)


def said(events: Sequence[Event], name: str) -> list[Tokens]:
    return [each for each in events if isinstance(each, Tokens) and each.request_id == name]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_small", [False, True])
def test_jumping_changes_no_id(layout: str, is_small: bool) -> None:
    """Whatever else is in the batch, and also where the pool is too small for all."""
    small = {"pool_tokens": 16 * 13, "growth_tokens": 0, "chunk_tokens": 32}
    forced = retractions = 0
    for seed in range(2 if is_small else 3):
        dice = random.Random(f"{layout} {is_small} {seed}")
        requests = [some_request(dice, f"r{number}", layout) for number in range(6)]
        asked = Asked(*requests, layout=layout, **(small if is_small else {}))
        forced += asked.engine[True].stats()["forced_tokens"]
        retractions += asked.engine[True].stats()["retractions"]
        assert asked.steps[0] <= asked.steps[1] or is_small
    assert forced > 50
    assert (retractions > 0) == is_small


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_answer_is_of_its_grammar_and_much_of_it_is_not_drawn(layout: str) -> None:
    asked = Asked(asking("a", held_to("json_schema", PERSON, layout), layout), layout=layout)
    events = asked.events[True]
    person = json.loads(text(events, "a"))
    assert set(person) == {"name", "system", "content"}
    end = finished(events, "a")
    assert (end.reason, end.stopped) == (FinishReason.STOP, True)
    assert end.kept == end.usage.output_tokens == len(output(events, "a"))
    forced = end.usage.forced_tokens
    assert 10 < forced < end.usage.output_tokens
    rows = [engine.rows_run for engine in asked.engine.values()]
    assert rows[0] <= rows[1], "a forced end runs no row, and no token runs twice"


def test_the_rows_run_are_those_of_the_usage() -> None:
    """Promise 2: of the prompt what was not cached; of the answer what stands before the last id
    that was drawn. What is forced behind that ends the answer, and no row runs for it.
    """
    request = asking("a", held_to("json_schema", PERSON))
    engine = jumping_engine()
    engine.submit(request)
    events = drain(engine)
    before, *last = itertools.dropwhile(lambda each: each.forced, reversed(said(events, "a")))
    assert not before.forced
    num_rows = sum(len(each.ids) for each in last)
    assert engine.rows_run == finished(events, "a").usage.computed + num_rows


# -- what ends an answer ends it inside a forced run ----------------------------------------------


FIXED = '{"system": "the answer é — 漢字", "content": [1, 2]}'


def fixed(layout: str = "gpt2", **more: Any) -> Request:
    """All of its answer is forced."""
    grammar = held_to("json_schema", {"const": json.loads(FIXED)}, layout)
    return asking("a", grammar, layout, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_answer_that_is_all_forced_runs_its_prompt_alone(layout: str) -> None:
    asked = Asked(fixed(layout), layout=layout)
    end = finished(asked.events[True], "a")
    assert text(asked.events[True], "a") == FIXED
    assert (end.reason, end.stopped) == (FinishReason.STOP, True)
    assert end.usage.forced_tokens == end.usage.output_tokens
    assert asked.engine[True].rows_run == len(fixed(layout).ids)
    assert asked.steps[0] == 1
    (run,) = said(asked.events[True], "a")
    assert run.forced
    assert run.ids[-1] == end_of(layout)


@pytest.mark.parametrize("layout", ["gpt2", "metaspace-always"])
def test_an_answer_that_is_whole_at_its_last_id_is_not_cut_off(layout: str) -> None:
    """Only its end is missing: that says nothing."""
    whole = output(Asked(fixed(layout), layout=layout).events[True], "a")[:-1]
    for most, reason in ((len(whole), FinishReason.STOP), (len(whole) - 1, FinishReason.LENGTH)):
        events = Asked(fixed(layout, max_tokens=most), layout=layout).events[True]
        end = finished(events, "a")
        assert (end.reason, end.stopped) == (reason, False)
        assert output(events, "a") == whole[:most]


@pytest.mark.parametrize("layout", ["gpt2", "metaspace-always"])
def test_length_is_looked_at_within_a_forced_run(layout: str) -> None:
    """vllm-project/vllm#37105. Also where it falls inside a character."""
    whole = output(Asked(fixed(layout), layout=layout).events[True], "a")
    halves = 0
    for most in range(1, len(whole) + 1):
        asked = Asked(fixed(layout, max_tokens=most), layout=layout)
        events = asked.events[True]
        end = finished(events, "a")
        assert output(events, "a") == whole[:most]
        is_all = most == len(whole)
        is_whole = most >= len(whole) - 1
        assert end.reason is (FinishReason.STOP if is_whole else FinishReason.LENGTH)
        assert text(events, "a") == tokenizer(layout).decode(whole[: most - is_all])
        halves += text(events, "a").endswith("\ufffd")
    assert halves > 3


@pytest.mark.parametrize("layout", ["gpt2", "metaspace-always"])
def test_stop_strings_are_looked_for_within_a_forced_run(layout: str) -> None:
    """The same, for every string that stands in the answer."""
    dice = random.Random(3)
    for _ in range(25):
        begin = dice.randrange(len(FIXED))
        stop = FIXED[begin : begin + dice.randint(1, 9)]
        events = Asked(fixed(layout, stop=(stop,)), layout=layout).events[True]
        end = finished(events, "a")
        assert text(events, "a") == FIXED[: FIXED.index(stop)]
        assert (end.reason, end.stopped) == (FinishReason.STOP, False)


def test_a_stop_id_is_looked_at_within_a_forced_run() -> None:
    whole = output(Asked(fixed()).events[True], "a")
    asked = Asked(fixed(stop_ids=frozenset({whole[6], end_of()})))
    end = finished(asked.events[True], "a")
    assert output(asked.events[True], "a") == whole[: whole.index(whole[6]) + 1]
    assert (end.reason, end.stopped) == (FinishReason.STOP, True)


def test_a_stop_string_that_begins_forced_and_ends_drawn() -> None:
    """What it keeps ends before the id that the match begins in, though that one had been run."""
    grammar = held_to("regex", "The answer is (yes|no|fine)!")
    events = Asked(asking("a", grammar, stop=("is yes", "is no", "is fine"))).events[True]
    end = finished(events, "a")
    assert text(events, "a") == "The answer "
    assert 0 < end.kept < end.usage.output_tokens


def test_a_model_without_an_end_stops_where_its_grammar_does() -> None:
    grammar = held_to("regex", "The answer is [ab]{2}!", ends=False)
    asked = Asked(asking("a", grammar, stop_ids=frozenset()))
    end = finished(asked.events[True], "a")
    assert text(asked.events[True], "a").endswith("!")
    assert (end.reason, end.stopped) == (FinishReason.STOP, False)
    assert end.kept == end.usage.output_tokens


def test_with_log_probabilities_each_id_is_drawn_and_has_its_own() -> None:
    events = Asked(fixed(logprobs=2)).events[True]
    tokens = said(events, "a")
    assert [each.logprobs[0].id for each in tokens] == output(events, "a")
    assert finished(events, "a").usage.forced_tokens == 0


# -- several answers ------------------------------------------------------------------------------


def test_samples_share_what_is_forced_before_their_first_draw() -> None:
    """It is each one's own, and runs once."""
    grammar = held_to("regex", "The answer is (yes|no|fine|weather)[a-z]{5}!")
    request = asking("a", grammar, temperature=1.5, seed=5, n=4)
    asked = Asked(request)
    events = asked.events[True]
    first = [next(e for e in said(events, "a") if e.choice == c) for c in range(4)]
    assert all(each.forced and each.text.startswith("The answer") for each in first)
    assert len({tuple(output(events, "a", c)) for c in range(4)}) > 1
    common = len(first[0].ids)
    usages = [finished(events, "a", c).usage for c in range(4)]
    assert all(each.forced_tokens >= common for each in usages)
    rows = asked.engine[True].rows_run
    assert rows <= len(request.ids) + common + sum(u.output_tokens - common for u in usages)


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("which", [None, 0, 2])
def test_an_abort_at_any_step_leaves_nothing_behind(at: int, which: int | None) -> None:
    """Also of one that has said what is forced and was not born yet."""
    grammar = held_to("json_schema", PERSON)
    requests = [asking("a", grammar, temperature=1.5, n=3), asking("b", grammar, words="hi")]
    engine = jumping_engine(chunk_tokens=16)
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    for _ in range(at):
        events += engine.step()
    before = output(events, "a", 2)
    assert engine.abort("a", which)
    events += drain(engine)
    engine.check_idle()
    for choice in range(3):
        end = finished(events, "a", choice)
        is_cut = which is None or choice == which
        assert end.reason is (FinishReason.ABORT if is_cut else FinishReason.STOP)
        assert end.usage.output_tokens == len(output(events, "a", choice))
        if is_cut:
            assert end.kept == end.usage.output_tokens
            spoken = tokenizer().decode(output(events, "a", choice))
            assert text(events, "a", choice) == spoken
    if which != 0:
        assert output(events, "a", 2)[: len(before)] == before
    assert finished(events, "b").reason is FinishReason.STOP
    assert told(events, requests[1]) == told(Asked(requests[1]).events[False], requests[1])


# -- forced ids that do not run at once -----------------------------------------------------------


def test_forced_ids_that_find_no_place_in_a_step_are_not_lost() -> None:
    """vllm-project/vllm#36142: the foreground's prompts take all of the budget meanwhile."""
    answer = asking("a", held_to("json_schema", PERSON), priority=Priority.BACKGROUND)
    prompts = [
        asking(f"p{n}", None, ids=array("I", range(100 + n, 300 + n)), max_tokens=1)
        for n in range(3)
    ]
    engine = jumping_engine(chunk_tokens=16)
    engine.submit(answer)
    events: list[Event] = []
    while not (said(events, "a") and said(events, "a")[-1].forced):
        events += engine.step()
    before = len(output(events, "a"))
    for prompt in prompts:
        engine.submit(prompt)
    for _ in range(5):
        events += engine.step()
    assert len(output(events, "a")) == before, "it had to wait"
    events += drain(engine)
    engine.check_idle()
    assert told(events, answer) == told(Asked(answer).events[False], answer)


def test_a_forced_run_does_not_wait_behind_prompts() -> None:
    """Of its own priority: it goes with the rows of answers."""
    answer = asking("a", held_to("json_schema", PERSON))
    engine = jumping_engine(chunk_tokens=64)
    engine.submit(answer)
    alone = Asked(answer).engine[True].stats()["steps"]
    events = engine.step()
    for number in range(4):
        engine.submit(asking(f"p{number}", None, words=f"{number} " + "hello " * 200, max_tokens=1))
    steps = 1
    while not any(isinstance(e, Finished) and e.request_id == "a" for e in events):
        events += engine.step()
        steps += 1
    assert steps == alone
    drain(engine)


def test_a_long_forced_run_goes_in_chunks_beside_other_answers() -> None:
    long = held_to("json_schema", {"const": "hello there how are you " * 25})
    choice = held_to("regex", '"[ab]' + "weather search " * 30 + '[ab]"')
    other = asking("o", None, max_tokens=20)
    asked = Asked(asking("a", long), asking("b", choice, max_tokens=400), other, chunk_tokens=32)
    assert finished(asked.events[True], "b").usage.forced_tokens > 64
    assert asked.steps[0] < asked.steps[1]


@pytest.mark.parametrize("most", [16, 17, 24])
def test_a_step_that_was_too_big_for_the_device_loses_no_forced_id(most: int) -> None:
    size = tokenizer().vocab_size
    dice = random.Random(most)
    model = CrampedModel(
        lambda _: ROOMY if dice.random() < 0.3 else most,
        fatal=None,
        vocab_size=size,
        scores=partial(any_token, size),
    )
    grammar = held_to("json_schema", PERSON)
    requests = [asking(f"r{n}", grammar, words="hello " * n, n=1 + n % 2) for n in range(1, 5)]
    engine = jumping_engine(model=model)
    for request in requests:
        engine.submit(request)
    events = drain(engine)
    engine.check_idle()
    assert len(model.full) > 1
    assert told_all(events, requests) == told_all(Asked(*requests).events[False], requests)


def told_all(events: Sequence[Event], requests: Sequence[Request]) -> list[object]:
    return [told(events, request) for request in requests]


# -- going on, and other requests' view of it -----------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_cut_answer_goes_on_under_its_grammar(temperature: float) -> None:
    grammar = held_to("json_schema", PERSON)
    request = asking("a", grammar, temperature=temperature, seed=9)
    whole = output(Asked(request).events[False], "a")
    for cut in range(0, len(whole), 5):
        ids = request.ids + array("I", whole[:cut])
        rest = asking("a", grammar, ids=ids, said=cut, temperature=temperature, seed=9)
        assert output(Asked(rest).events[True], "a") == whole[cut:]


def test_what_is_said_must_be_of_the_grammar() -> None:
    engine = jumping_engine()
    grammar = held_to("json_schema", PERSON)
    ids = array("I", tokenizer().encode_text("hello"))
    with pytest.raises(InvalidInput, match="the 2 tokens that the answer has already are not of"):
        engine.submit(asking("a", grammar, ids=ids, said=2))
    assert not engine.has_work()


@pytest.mark.parametrize("at", range(1, 9))
def test_a_fork_of_a_running_answer_reads_its_forced_ids(at: int) -> None:
    """As far as they have run: ``show`` gives them to a request that repeats them."""
    request = asking("a", held_to("json_schema", PERSON), words="hello " * 20)
    engine = jumping_engine()
    engine.submit(request)
    events: list[Event] = []
    for _ in range(at):
        events += engine.step()
    spoken = output(events, "a")
    fork = asking("f", None, ids=request.ids + array("I", [*spoken, 70, 71, 72]), max_tokens=4)
    engine.submit(fork)
    events += drain(engine)
    engine.check_idle()
    own = Asked(request, fork)
    assert told_all(events, [request, fork]) == told_all(own.events[False], [request, fork])
    unrun = len(said(events, "a")[0].ids) if at == 1 else 16
    assert finished(events, "f").usage.device >= len(request.ids) + len(spoken) - unrun


# -- dead ends ------------------------------------------------------------------------------------


class Walled(Matcher):
    """Allows nothing more once so many ids are taken."""

    wall = 0

    def mask(self) -> Mask:
        mask = super().mask()
        if self.count >= self.wall:
            self._trouble = "a wall"
            mask[:] = 0
        return mask

    def copy(self) -> Matcher:
        other = Walled(self._inner.deep_copy(), self.vocab_size, self._stop_ids)
        other.count, other.wall = self.count, self.wall
        return other


@pytest.mark.parametrize("jump", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("wall", [0, 12])
def test_a_dead_end_ends_the_answer_and_keeps_what_was_said(wall: int, n: int, jump: bool) -> None:
    grammar = held_to("regex", "[a-z ]{3,90}")
    matcher = grammar.matcher()
    walled = Walled(matcher._inner.deep_copy(), matcher.vocab_size, matcher._stop_ids)
    walled.wall = wall
    request = asking("a", replace(grammar, base=walled), n=n, temperature=1.0)
    other = asking("b", None, max_tokens=30)
    engine = jumping_engine()
    engine.submit(replace(request, jump=jump))
    engine.submit(other)
    events = drain(engine)
    engine.check_idle()
    for choice in range(n):
        end = finished(events, "a", choice)
        assert (end.reason, end.error) == (FinishReason.DEAD_END, "a wall")
        assert end.kept == wall == len(output(events, "a", choice))
        assert text(events, "a", choice) == tokenizer().decode(output(events, "a", choice))
    assert told(events, other) == told(Asked(other).events[False], other)


def test_a_recount_sees_an_id_that_the_grammar_missed() -> None:
    engine = jumping_engine()
    engine.submit(asking("a", held_to("json_schema", PERSON)))
    engine.step()
    (choice,) = engine._scheduler.running
    assert choice.matcher is not None
    choice.matcher.rollback(1)
    with pytest.raises(AssertionError, match="ids the grammar missed"):
        engine.step()


def test_what_cannot_have_a_grammar_is_refused() -> None:
    engine = jumping_engine()
    request = asking("a", held_to("json_schema", PERSON))
    with pytest.raises(InvalidInput, match="fill warm: wants no grammar"):
        engine.submit(replace(request, fill="warm"))
    other = Grammars(tokenizer(), tokenizer().vocab_size + 40).compile(Grammar("regex", "a"))
    with pytest.raises(InvalidInput, match="compiled for another model"):
        engine.submit(replace(request, grammar=other))
    assert not engine.has_work()


def test_a_sibling_that_goes_before_it_was_born_leaves_half_a_character_alone() -> None:
    grammar = held_to("regex", "漢?(漢|漣)(漢|漣)!")
    request = asking("a", grammar, n=3, temperature=1.0)
    engine = jumping_engine()
    engine.submit(request)
    events = engine.step()
    assert engine.abort("a", 0)
    events += drain(engine)
    spoken = tokenizer().decode(output(events, "a", 0))
    assert spoken == text(events, "a", 0) == "\ufffd"
    whole = Asked(request).events[False]
    for choice in (1, 2):
        assert text(events, "a", choice) == text(whole, "a", choice)
        assert output(events, "a", choice) == output(whole, "a", choice)


def test_the_grammars_own_end_ends_an_answer_whatever_its_stop_ids() -> None:
    asked = Asked(fixed(stop_ids=frozenset()))
    end = finished(asked.events[True], "a")
    assert (end.reason, end.stopped) == (FinishReason.STOP, True)


def test_few_forced_ids_go_with_the_rows_of_answers_and_many_with_the_prompts() -> None:
    engine = jumping_engine(chunk_tokens=512)
    grammar = held_to("regex", "[ab]" + "weather " * 12 + "[ab]" + "search " * 200 + "[ab]!")
    engine.submit(asking("a", grammar, max_tokens=2000))
    sizes: list[int] = []
    while engine.has_work():
        engine.step()
        for choice in engine._scheduler.running:
            work = compose(
                {Priority.FOREGROUND: [choice], Priority.BACKGROUND: []},
                page_size=PAGE,
                chunk_tokens=40,
                scoring_chunk=PAGE,
                urgency=None,
            )
            assert sum(each.end - each.start for each in work) <= 40
            sizes.append(choice.rows)
    assert max(sizes) > 100
