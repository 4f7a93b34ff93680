"""Several answers on one prefix: computed once, in the same steps, ended one by one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence

import pytest

from radchat.engine.engine import Engine
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Request,
    SamplingParams,
    Started,
    Tokens,
)
from radchat.engine.scheduler_options import SchedulerOptions
from tests.fakes import ScriptedModel, drain, finished, greedy, output, scripted_engine

PAGE = 16


def prompt(seed: int, length: int) -> Ids:
    generator = random.Random(seed)
    return array("I", [generator.randrange(97, 123) for _ in range(length)])


def words(branch: int, length: int) -> Ids:
    """That no other branch begins with."""
    return array("I", [97 + branch, *prompt(branch, length - 1)])


def any_letter(ids: Sequence[int]) -> Mapping[int, float]:
    dice = random.Random(bytes(str(list(ids)), "ascii"))
    return {letter: dice.random() * 4 for letter in range(97, 123)}


def model_of(engine: Engine) -> ScriptedModel:
    assert isinstance(engine.model, ScriptedModel)
    return engine.model


def ends(events: Sequence[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


# -- one prefix ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shared", [100, 101, 1500])
def test_branches_compute_a_cold_prefix_once_and_a_warm_one_not_at_all(num_shared: int) -> None:
    branches, length = 8, 20
    shared = prompt(1, num_shared)
    own = [words(branch, 5 + branch) for branch in range(branches)]
    num_own = sum(map(len, own))
    engine = scripted_engine(pool_tokens=1 << 14)
    model = model_of(engine)
    for is_warm in (False, True):
        run, steps = model.tokens_computed, model.steps
        for branch, ids in enumerate(own):
            engine.submit(Request(f"{branch}", shared + ids, greedy(length)))
        events = drain(engine)
        decoded = branches * (length - 1)
        prompts = branches if is_warm else num_shared + num_own  # warm: the last token of each
        assert model.tokens_computed - run == prompts + decoded
        chunks = 0 if is_warm else -(-(num_shared + num_own) // 512)
        assert model.steps - steps <= length + chunks + 1, "not in the same steps"
        for branch in range(branches):
            assert len(output(events, f"{branch}")) == length
        began = [event for event in events if isinstance(event, Started)]
        assert len(began) == branches


# -- the end of one --------------------------------------------------------------------------------


@pytest.mark.parametrize("page_steps", range(8))
@pytest.mark.parametrize("gone", [(0,), (2,), (3,), (0, 1), (3, 0), (1, 2, 3), (0, 1, 2)])
def test_one_of_several_ends_and_the_others_say_what_they_would_have(
    page_steps: int, gone: tuple[int, ...]
) -> None:
    """Cancelled while it waits, in the prompt, at the first token and after: RC-04."""
    request = Request("a", prompt(1, 50), SamplingParams(seed=3, max_tokens=9), n=4)
    options = SchedulerOptions(chunk_tokens=PAGE)
    whole = scripted_engine(scores=any_letter, options=options)
    whole.submit(request)
    undisturbed = drain(whole)

    engine = scripted_engine(scores=any_letter, options=options)
    engine.submit(request)
    events = [event for _ in range(page_steps) for event in engine.step()]
    for choice in gone:
        assert engine.abort("a", choice)
        assert not engine.abort("a", choice), "it has ended"
    said = {choice: output(events, "a", choice) for choice in gone}
    events += drain(engine)
    assert sorted(end.choice for end in ends(events)) == [0, 1, 2, 3]
    assert [end.last for end in ends(events)] == [False] * 3 + [True]
    for choice in range(4):
        end, full = finished(events, "a", choice), output(undisturbed, "a", choice)
        if choice in gone:
            assert (end.reason, end.kept) == (FinishReason.ABORT, len(said[choice]))
            assert output(events, "a", choice) == said[choice] == full[: len(said[choice])]
        else:
            assert (end.reason, output(events, "a", choice)) == (FinishReason.LENGTH, full)
    engine.check_idle()
    assert engine.cache.locked == 0


@pytest.mark.parametrize("page_steps", range(6))
def test_all_ended_one_by_one_are_as_a_request_ended_as_a_whole(page_steps: int) -> None:
    engine = scripted_engine(scores=any_letter, options=SchedulerOptions(chunk_tokens=PAGE))
    engine.submit(Request("a", prompt(1, 50), greedy(30), n=3))
    events = [event for _ in range(page_steps) for event in engine.step()]
    assert not engine.abort("a", 3)
    assert not engine.abort("b", 0)
    for choice in (1, 0, 2):
        assert engine.abort("a", choice)
    assert not engine.abort("a")
    assert engine.cache.locked == 0
    run = model_of(engine).tokens_computed
    events += drain(engine)
    assert model_of(engine).tokens_computed == run, "nothing is computed for nobody"
    assert [end.last for end in ends(events)] == [False, False, True]
    engine.check_idle()


def test_an_unborn_choice_that_was_ended_is_never_drawn_and_takes_no_room() -> None:
    engine = scripted_engine(scores=any_letter, pool_tokens=6 * PAGE)
    engine.submit(Request("a", prompt(1, 40), SamplingParams(seed=3, max_tokens=20), n=5))
    for choice in (0, 1, 3, 4):
        assert engine.abort("a", choice)
    events = drain(engine)
    heard = {event.choice for event in events if isinstance(event, Tokens)}
    assert heard == {2}
    assert model_of(engine).tokens_computed == 40 + 19
    engine.check_idle()


def test_the_first_of_a_cold_prefix_may_end_and_the_next_goes_on_where_it_was() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=PAGE))
    shared = prompt(1, 100)
    for branch in range(3):
        engine.submit(Request(f"{branch}", shared + words(branch, 4), greedy(5)))
    events = [event for _ in range(3) for event in engine.step()]
    assert engine.abort("0")
    events += drain(engine)
    assert model_of(engine).tokens_computed == 100 + 2 * 4 + 2 * 4
    assert [len(output(events, name)) for name in "012"] == [0, 5, 5]
    engine.check_idle()


# -- more than fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("are_samples", [False, True])
def test_64_branches_come_to_their_end_also_where_few_have_room_at_a_time(
    are_samples: bool,
) -> None:
    """They wait, are put back and go on: SC-03, SC-04. A prefix of 6 pages, 3 or so each."""
    branches, length, shared = 64, 30, prompt(1, 100)
    own = [
        words(branch % 26, 4 + branch % 9) + words(branch // 26, 2) for branch in range(branches)
    ]
    drawn = SamplingParams(seed=5, temperature=0.8, max_tokens=length)

    def answers(pool_tokens: int) -> tuple[Engine, list[Event], list[list[int]]]:
        engine = scripted_engine(scores=any_letter, pool_tokens=pool_tokens)
        if are_samples:
            engine.submit(Request("a", shared, drawn, n=branches))
            names = [("a", choice) for choice in range(branches)]
        else:
            for branch, ids in enumerate(own):
                engine.submit(Request(f"{branch}", shared + ids, drawn))
            names = [(f"{branch}", 0) for branch in range(branches)]
        events = drain(engine)
        return engine, events, [output(events, *name) for name in names]

    engine, events, said = answers(20 * PAGE)
    assert said == answers(1 << 16)[2], "whoever waited or was put back says nothing else"
    assert [len(each) for each in said] == [length] * branches
    assert [end.reason for end in ends(events)] == [FinishReason.LENGTH] * branches

    stats = engine.stats()
    assert 0 < stats["retractions"] <= 2 * branches
    assert (stats["running"], stats["waiting"]) == (0, 0)
    whole = {end.request_id: end.usage for end in ends(events)}.values()
    for usage in whole:
        assert usage.device + usage.host + usage.disk + usage.computed == usage.input_tokens
    beginnings = {tuple(ids[: end + 1]) for ids in own for end in range(len(ids))}
    once = len(shared) + (0 if are_samples else len(beginnings))
    assert once <= sum(usage.computed for usage in whole) <= once + branches * PAGE
    assert engine.cache.locked == 0
    engine.check_idle()
