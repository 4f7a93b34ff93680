"""Queue order, followers, chunks, retraction: on the real engine around a scripted model."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from radchat.engine.choice import Choice, Group
from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.queue_order import Waiting, queue_order
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Priority,
    Progress,
    Request,
    Started,
    Tokens,
)
from radchat.engine.sampling import Seen
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.words import Words
from radchat.errors import ContextOverflow, InvalidInput
from tests.fakes import (
    ByteTokenizer,
    LogicalClock,
    ScriptedModel,
    drain,
    finished,
    greedy,
    output,
    scripted_engine,
)

PAGE = 16
BACKGROUND = Priority.BACKGROUND


def prompt(seed: int, length: int) -> Ids:
    generator = random.Random(seed)
    return array("I", [generator.randrange(97, 123) for _ in range(length)])


def ask(
    name: str, ids: Ids, max_tokens: int = 4, priority: Priority = Priority.FOREGROUND, **more: Any
) -> Request:
    return Request(name, ids, greedy(max_tokens), priority=priority, **more)


def solo(ids: Ids, max_tokens: int) -> list[int]:
    """What a request puts out when it has an engine to itself."""
    engine = scripted_engine()
    engine.submit(ask("solo", ids, max_tokens))
    return output(drain(engine), "solo")


def started(events: Sequence[Event]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, Started)]


def computed(engine: Engine) -> int:
    assert isinstance(engine.model, ScriptedModel)
    return engine.model.tokens_computed


# -- the order of the queue -----------------------------------------------------------------------


def waiting(
    serial: int,
    matched: int,
    length: int = 100,
    *,
    priority: Priority = Priority.FOREGROUND,
    arrived: float = 0.0,
    is_overdue: bool = False,
) -> Waiting:
    request = Request(str(serial), prompt(serial, length), greedy(4))
    words = Words(*ByteTokenizer().text(request))
    group = Group(request, serial, arrived, limit=4, live=1)
    choice = Choice(group, 0, request.ids, words, Seen())
    return Waiting(choice, matched, priority, is_overdue)


def serials(
    entries: Sequence[Waiting], policy: str = "lpm", now: float = 0.0, **more: Any
) -> list[int]:
    ordered = queue_order(entries, policy, now, 10.0, **more)
    return [entry.choice.group.serial for entry in ordered]


def test_the_longest_match_goes_first_then_the_highest_hit_rate_then_arrival() -> None:
    entries = [
        waiting(1, 10),
        waiting(2, 50, 100),
        waiting(3, 50, 60),
        waiting(4, 10),
        waiting(5, 80, 400),
    ]
    assert serials(entries) == [5, 3, 2, 1, 4]


def test_foreground_goes_before_background_whatever_the_match() -> None:
    entries = [waiting(1, 90, priority=BACKGROUND), waiting(2, 0), waiting(3, 5)]
    assert serials(entries) == [3, 2, 1]


def test_a_cold_request_passes_hot_ones_once_it_has_waited_long_enough_for_its_work() -> None:
    cold = waiting(1, 0, 100)  # ten seconds of work at ten tokens a second
    for age, want in [(0.0, [2, 1]), (159.0, [2, 1]), (161.0, [1, 2])]:
        assert serials([cold, waiting(2, 90, arrived=age)], now=age) == want


def test_a_hot_request_ages_faster_than_a_cold_one() -> None:
    entries = [waiting(1, 0, 100), waiting(2, 90, 100), waiting(3, 99, 100, arrived=400.0)]
    assert serials(entries, now=400.0) == [2, 1, 3]


def test_what_is_overdue_goes_first_in_order_of_arrival() -> None:
    entries = [
        waiting(1, 99),
        waiting(2, 0, is_overdue=True, priority=BACKGROUND),
        waiting(3, 0, is_overdue=True),
    ]
    assert serials(entries) == [2, 3, 1]


def test_fcfs_is_the_order_of_arrival_and_random_a_fixed_draw() -> None:
    entries = [waiting(serial, 10 * serial) for serial in (3, 1, 4, 2)]
    assert serials(entries, "fcfs") == [1, 2, 3, 4]
    draws = {tuple(serials(entries, "random", seed=seed)) for seed in range(20)}
    assert len(draws) > 5
    assert serials(entries, "random", seed=3) == serials(entries[::-1], "random", seed=3)
    with pytest.raises(InvalidInput, match="policy"):
        serials(entries, "lifo")


# -- none starves ---------------------------------------------------------------------------------


def hot_admissions_before_the_cold_start(options: SchedulerOptions, **cold: Any) -> int:
    """One hot request arrives each step, for ever; how many start before the one cold request?"""
    engine = scripted_engine(options=options)
    head = prompt(0, 200)
    engine.submit(ask("head", head, 1))
    drain(engine)
    engine.submit(ask("cold", prompt(1, 300), 1, **cold))
    names: list[str] = []
    for number in range(1000):
        engine.submit(ask(f"hot{number}", head + prompt(number + 2, 3), 2))
        names += started(engine.step())
        if "cold" in names:
            return names.index("cold")
    raise AssertionError("starved")


@pytest.mark.parametrize("bound", [1, 7, 32])
def test_a_cold_request_starts_within_the_stated_number_of_hot_ones(bound: int) -> None:
    """SC-01."""
    options = SchedulerOptions(max_running=1, max_passed=bound)
    assert hot_admissions_before_the_cold_start(options) == bound


def test_a_background_request_starts_within_eight_times_that_bound() -> None:
    options = SchedulerOptions(max_running=1, max_passed=3)
    assert hot_admissions_before_the_cold_start(options, priority=BACKGROUND) <= 24


def test_time_alone_lets_a_cold_request_start_much_sooner() -> None:
    clock = LogicalClock()
    engine = scripted_engine(
        options=SchedulerOptions(max_running=1, max_passed=10_000),
        clock=clock,
        on_forward=lambda rows: clock.advance(0.01 + rows / 1000),
    )
    head = prompt(0, 200)
    engine.submit(ask("head", head, 1))
    drain(engine)
    engine.submit(ask("cold", prompt(1, 300), 1))
    names: list[str] = []
    for number in range(1000):
        engine.submit(ask(f"hot{number}", head + prompt(number + 2, 3), 1))
        names += started(engine.step())
        if "cold" in names:
            break
    assert 0 < names.index("cold") < 500


# -- chunks and batches ---------------------------------------------------------------------------


def test_chunks_end_on_page_edges_and_keep_to_the_budget() -> None:
    rows: list[int] = []
    options = SchedulerOptions(chunk_tokens=50)
    engine = scripted_engine(options=options, on_forward=rows.append)
    engine.submit(ask("a", prompt(0, 150), 1))
    done = [event.computed_tokens for event in drain(engine) if isinstance(event, Progress)]
    assert done == [48, 96, 144, 150]
    assert rows == [48, 48, 48, 6]


def test_a_chunk_after_a_match_inside_a_page_ends_on_an_edge_again() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=64))
    ids = prompt(0, 200)
    engine.submit(ask("a", ids[:37], 1))
    drain(engine)
    engine.submit(ask("b", ids, 1))
    done = [event.computed_tokens for event in drain(engine) if isinstance(event, Progress)]
    assert done == [96, 160, 200]


def test_a_running_answer_goes_on_while_another_prompt_is_computed() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=32))
    engine.submit(ask("talks", prompt(0, 10), 50))
    engine.step()
    engine.submit(ask("reads", prompt(1, 300), 1))
    for _ in range(9):
        step = engine.step()
        assert [e for e in step if isinstance(e, Tokens) and e.request_id == "talks"]
        assert [e for e in step if isinstance(e, Progress) and e.request_id == "reads"]


def test_a_short_prompt_overtakes_a_long_one_which_still_moves() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=128))
    engine.submit(ask("long", prompt(0, 1000), 1))
    engine.step()
    engine.submit(ask("short", prompt(1, 150), 1))
    done: dict[str, list[int]] = {"long": [], "short": []}
    for _ in range(3):
        for event in engine.step():
            if isinstance(event, Progress):
                done[event.request_id].append(event.computed_tokens)
    assert done == {"short": [96, 150], "long": [160, 224, 352]}


@pytest.mark.parametrize(("seconds", "first"), [(0.0, "short"), (1.5, "long")])
def test_a_long_prompt_that_has_waited_enough_is_overtaken_no_more(
    seconds: float, first: str
) -> None:
    clock = LogicalClock()
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=128), clock=clock)
    engine.submit(ask("long", prompt(0, 1000), 1))
    engine.step()
    clock.advance(seconds)  # at a thousand tokens a second
    engine.submit(ask("short", prompt(1, 150), 1))
    touched = [e.request_id for e in engine.step() if isinstance(e, Progress)]
    assert touched[0] == first


def test_a_budget_that_answers_use_up_still_lets_a_prompt_go_on() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=PAGE))
    for number in range(20):
        engine.submit(ask(f"talks{number}", prompt(number, 5), 60))
    while engine.stats()["waiting"]:
        engine.step()
    engine.submit(ask("reads", prompt(99, 100), 1))
    assert finished(drain(engine), "reads").reason is FinishReason.LENGTH


def test_foreground_chunks_take_the_budget_before_background_answers_and_chunks() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=64))
    engine.submit(ask("back", prompt(0, 20), 100, BACKGROUND))
    engine.step()
    engine.submit(ask("back2", prompt(1, 200), 1, BACKGROUND))
    engine.submit(ask("front", prompt(2, 256), 1))
    for _ in range(4):
        touched = {e.request_id for e in engine.step() if isinstance(e, Tokens | Progress)}
        assert touched == {"front"}
    assert {e.request_id for e in engine.step() if isinstance(e, Tokens | Progress)} == {
        "back",
        "back2",
    }


# -- followers ------------------------------------------------------------------------------------

HEAD, OWN, CHILDREN = 2000, 20, 8


def own_words(child: int) -> Ids:
    """No two children begin alike."""
    return array("I", [48 + child]) + prompt(child, OWN - 1)


@pytest.mark.parametrize("turns_apart", [0, 1, 3])
@pytest.mark.parametrize("policy", ["lpm", "fcfs", "random"])
def test_children_of_one_cold_prefix_compute_it_once(turns_apart: int, policy: str) -> None:
    """SC-06, together and some turns apart."""
    engine = scripted_engine(pool_tokens=6000, options=SchedulerOptions(policy=policy))
    head = prompt(0, HEAD)
    events: list[Event] = []
    for number in range(CHILDREN):
        engine.submit(ask(f"{number}", head + own_words(number), 1))
        for _ in range(turns_apart):
            events += engine.step()
    events += drain(engine)
    assert computed(engine) == HEAD + CHILDREN * OWN
    usages = [finished(events, f"{number}").usage for number in range(CHILDREN)]
    assert sum(usage.computed for usage in usages) == HEAD + CHILDREN * OWN
    assert sorted(usage.device for usage in usages) == [0] + [HEAD] * (CHILDREN - 1)


def test_siblings_do_not_wait_when_following_is_off_and_the_duplicates_go() -> None:
    engine = scripted_engine(options=SchedulerOptions(follow=False))
    ids = prompt(0, 200)
    for name in "ab":
        engine.submit(ask(name, ids, 30))
    events = drain(engine)
    assert computed(engine) == 2 * (200 + 29)
    assert output(events, "a") == output(events, "b") == solo(ids, 30)
    assert engine.stats()["pages"]["evictable"] == -(-(200 + 29) // PAGE)


def test_when_the_leader_ends_the_first_follower_goes_on_from_what_is_in_the_tree() -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=64))
    head = prompt(0, 400)
    for number in range(3):
        engine.submit(ask(f"{number}", head + prompt(number + 1, 10), 1))
    engine.step()
    engine.step()
    engine.abort("0")
    events = drain(engine)
    assert started(events) == ["1", "2"]
    assert finished(events, "1").usage.device == 128
    assert finished(events, "2").usage.device == 400
    assert computed(engine) == 400 + 2 * 10


@pytest.mark.parametrize("follows", [True, False])
def test_a_follower_lends_its_priority_to_a_leader_in_the_background(follows: bool) -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=64))
    shared = prompt(0, 300)
    engine.submit(ask("leader", shared + own_words(1), 1, BACKGROUND))
    engine.step()
    engine.submit(ask("other", prompt(2, 640), 1))  # foreground: goes before the leader
    head = shared if follows else prompt(9, 300)
    engine.submit(ask("follower", head + own_words(2), 1))
    ends = [event.request_id for event in drain(engine) if isinstance(event, Finished)]
    assert ends == (["leader", "follower", "other"] if follows else ["follower", "other", "leader"])


def test_strangers_with_a_common_first_word_do_not_wait_for_each_other() -> None:
    engine = scripted_engine()
    for number in range(4):
        engine.submit(ask(f"{number}", prompt(0, 3) + prompt(number + 1, 60), 1))
    assert len(started(engine.step())) == 4


def test_a_request_in_another_namespace_neither_follows_nor_reuses() -> None:
    engine = scripted_engine()
    ids = prompt(0, 100)
    engine.submit(ask("a", ids, 1))
    engine.submit(ask("b", ids, 1, namespace="other"))
    assert len(started(engine.step())) == 2
    engine.submit(ask("c", ids, 1, namespace="other"))
    assert finished(drain(engine), "c").usage.device == 99
    assert computed(engine) == 201


def test_a_new_turn_on_a_running_answer_reuses_what_is_generated_so_far() -> None:
    engine = scripted_engine()
    ids = prompt(0, 50)
    engine.submit(ask("a", ids, 40))
    for _ in range(20):
        engine.step()
    so_far = array("I", solo(ids, 40)[:18])
    engine.submit(ask("b", ids + so_far + prompt(1, 5), 1))
    assert finished(drain(engine), "b").usage.device == 68


# -- memory ---------------------------------------------------------------------------------------


def test_the_only_running_request_that_fills_the_pool_ends_with_what_it_has() -> None:
    """SC-02."""
    engine = scripted_engine(pool_tokens=200)
    ids = prompt(0, 60)
    engine.submit(ask("long", ids, 500))
    events = drain(engine)
    end = finished(events, "long")
    assert end.reason is FinishReason.LENGTH
    assert end.error is not None
    assert "208" in end.error
    # every slot holds a token, and the last one drawn needs none
    assert end.kept == len(output(events, "long")) == 208 - 60 + 1
    assert output(events, "long") == solo(ids, 500)[: end.kept]
    engine.submit(ask("next", prompt(1, 50), 5))
    assert finished(drain(engine), "next").usage.output_tokens == 5
    engine.check_idle()


def test_a_prompt_as_long_as_the_pool_gets_its_one_token() -> None:
    engine = scripted_engine(pool_tokens=208)
    engine.submit(ask("whole", prompt(0, 208), 10))
    end = finished(drain(engine), "whole")
    assert (end.reason, end.kept) == (FinishReason.LENGTH, 1)


def test_a_prompt_that_does_not_fit_now_waits_and_completes() -> None:
    """SC-03."""
    engine = scripted_engine(pool_tokens=320)
    engine.submit(ask("first", prompt(0, 200), 60))
    engine.step()
    engine.submit(ask("second", prompt(1, 150), 5))
    events = engine.step()
    assert started(events) == []
    events += drain(engine)
    assert finished(events, "first").usage.output_tokens == 60
    assert output(events, "second") == solo(prompt(1, 150), 5)
    assert engine.stats()["retractions"] == 0


def test_a_waiting_foreground_prompt_puts_background_answers_back() -> None:
    engine = scripted_engine(pool_tokens=320)
    for name in ("old", "new"):
        engine.submit(ask(name, prompt(len(name), 60 + len(name[0])), 60, BACKGROUND))
    engine.submit(ask("older", prompt(9, 60), 60, BACKGROUND))
    engine.step()
    engine.submit(ask("front", prompt(1, 150), 5))
    events = engine.step()
    assert started(events) == ["front"]
    assert engine.stats()["retractions"] > 0
    events += drain(engine)
    assert output(events, "front") == solo(prompt(1, 150), 5)


@pytest.mark.parametrize(
    "options",
    [
        SchedulerOptions(policy="fcfs"),
        SchedulerOptions(max_passed=0),  # all are overdue: in order of arrival too
    ],
)
def test_nobody_is_put_back_in_the_step_that_admits_him(options: SchedulerOptions) -> None:
    """A foreground prompt finds room taken by the background one that was just let in."""
    engine = scripted_engine(pool_tokens=320, options=options)
    engine.submit(ask("runs", prompt(0, 60), 30))
    engine.step()
    engine.submit(ask("older", prompt(1, 60), 5, BACKGROUND))
    events = engine.step()
    engine.submit(ask("back", prompt(2, 60), 5, BACKGROUND))
    engine.submit(ask("front", prompt(3, 120), 5))
    events += drain(engine)
    for name, seed, length in [("older", 1, 60), ("back", 2, 60), ("front", 3, 120)]:
        assert output(events, name) == solo(prompt(seed, length), 5)
    assert engine.stats()["retractions"] == 1  # the older one, which had run


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("chunk", [32, 512])
def test_requests_of_which_not_all_fit_all_finish_without_repeats_or_gaps(
    priority: Priority, chunk: int
) -> None:
    """SC-04."""
    options = SchedulerOptions(chunk_tokens=chunk, growth_tokens=PAGE)
    engine = scripted_engine(pool_tokens=480, options=options)
    prompts = [prompt(number, 40 + 3 * number) for number in range(4)]
    for number, ids in enumerate(prompts):
        engine.submit(ask(f"{number}", ids, 110, priority))
    events: list[Event] = []
    most = 0
    while engine.has_work():
        events += engine.step()
        alive = [*engine._scheduler.running, *engine._scheduler.waiting]
        most = max([most, *(choice.retractions for choice in alive)])
    assert 0 < most <= options.max_retractions
    for number, ids in enumerate(prompts):
        assert output(events, f"{number}") == solo(ids, 110)
        assert finished(events, f"{number}").usage.computed == len(ids)
        assert (
            len([e for e in events if isinstance(e, Started) and e.request_id == f"{number}"]) == 1
        )
    engine.check_idle()


def test_the_newest_background_request_is_put_back_first() -> None:
    options = SchedulerOptions(growth_tokens=0)
    engine = scripted_engine(pool_tokens=16 * 12, options=options)
    engine.submit(ask("front", prompt(0, 30), 100))
    engine.step()
    engine.submit(ask("back1", prompt(1, 30), 100, BACKGROUND))
    engine.step()
    engine.submit(ask("back2", prompt(2, 30), 100, BACKGROUND))
    engine.step()
    engine.submit(ask("front2", prompt(3, 30), 20))
    while not engine.stats()["retractions"]:
        engine.step()
    assert {c.request.id for c in engine._scheduler.waiting} == {"back2"}
    drain(engine)


@pytest.mark.parametrize("priority", list(Priority))
def test_after_its_last_retraction_a_request_runs_to_its_end(priority: Priority) -> None:
    options = SchedulerOptions(max_retractions=1, growth_tokens=0)
    engine = scripted_engine(pool_tokens=16 * 14, options=options)
    for number in range(5):
        engine.submit(ask(f"{number}", prompt(number, 30), 100, priority))
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
        alive = [*engine._scheduler.running, *engine._scheduler.waiting]
        assert all(choice.retractions <= 1 for choice in alive)
    assert engine.stats()["retractions"] > 0
    for number in range(5):
        assert output(events, f"{number}") == solo(prompt(number, 30), 100)


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_a_chat_never_waits_for_the_background_however_often_that_was_put_back(
    policy: str,
) -> None:
    """More thoughts than fit, and a person who asks again and again: each answer begins in the next
    step, or in the one after where somebody has just been put back, and misses none.
    """
    options = SchedulerOptions(policy=policy, max_retractions=1)
    engine = scripted_engine(pool_tokens=400, options=options)
    head = list(prompt(0, 100))
    thoughts = [array("I", [*head, *prompt(1 + number, 20)]) for number in range(12)]
    for number, ids in enumerate(thoughts):
        engine.submit(ask(f"{number}", ids, 60, BACKGROUND))
    events = engine.step()
    chats = most = 0
    while engine.has_work():
        chat = f"chat {chats}"
        engine.submit(ask(chat, prompt(100 + chats, 100), 4))
        chats += 1
        steps = [engine.step() for _ in range(12)]
        said = [len(output(new, chat)) for new in steps]
        assert said[:4] == [1] * 4 or said[:5] == [0, 1, 1, 1, 1]
        events += [event for new in steps for event in new]
        waiting = engine._scheduler.waiting
        most = max([most, *(choice.retractions for choice in waiting)])
    assert most >= options.max_retractions
    for number, ids in enumerate(thoughts):
        assert output(events, f"{number}") == solo(ids, 60)
    engine.check_idle()


def test_a_prompt_longer_than_the_pool_or_the_context_is_refused_with_both_numbers() -> None:
    """SC-05."""
    engine = scripted_engine(pool_tokens=208, context_length=300)
    with pytest.raises(ContextOverflow) as pool:
        engine.submit(ask("pool", prompt(0, 209)))
    assert (pool.value.data["prompt_tokens"], pool.value.data["limit"]) == (209, 208)
    assert "209" in pool.value.message
    assert "208" in pool.value.message
    for length in (300, 301):  # no room for an answer, no room at all
        with pytest.raises(ContextOverflow) as context:
            engine.submit(ask("context", prompt(0, length)))
        assert context.value.data == {"prompt_tokens": length, "limit": 300}
    assert not engine.has_work()


def test_fifty_idle_chats_never_lock_the_pool() -> None:
    """RL-01."""
    engine = scripted_engine(pool_tokens=640)
    chats = [prompt(number, 40) for number in range(50)]
    for number, ids in enumerate(chats):
        engine.submit(ask(f"chat{number}", ids, 10))
        chats[number] = ids + array("I", output(drain(engine), f"chat{number}"))
    engine.submit(ask("long", prompt(99, 500), 20))
    assert finished(drain(engine), "long").usage.output_tokens == 20
    for number in (0, 49):
        turn = chats[number] + prompt(number, 6)
        engine.submit(ask("again", turn, 8))
        assert output(drain(engine), "again") == solo(turn, 8)
    assert engine.pool.data.shape[2] == 641 // PAGE + 1  # the budget is a ceiling
    engine.check_idle()


# -- a long queue ---------------------------------------------------------------------------------


class Counting(PrefixCache):
    """Counts the looks into the tree and the attempts to be admitted."""

    matches = 0
    admissions = 0

    def match_raw(self, raw: bytes, namespace: str = "") -> int:
        self.matches += 1
        return super().match_raw(raw, namespace)

    def admit(self, ids: Ids, namespace: str = "", *, over_pins: bool = False) -> Lease | None:
        self.admissions += 1
        return super().admit(ids, namespace, over_pins=over_pins)


def counting_engine(pool_tokens: int, **options: Any) -> tuple[Engine, Counting]:
    cache = Counting(pool_tokens // PAGE + 1, PAGE)
    pool = KVPool(1, cache.num_pages, PAGE, 1, 1, torch.float32)
    engine = Engine(
        ScriptedModel(),
        pool,
        cache,
        ByteTokenizer().text,
        options=SchedulerOptions(**options),
        clock=LogicalClock(),
        check=False,
    )
    return engine, cache


QUEUE, STEPS = 200, 40


def looks(engine: Engine, cache: Counting) -> list[tuple[int, int]]:
    """(matches, attempts to admit) of each of STEPS steps in which only answers go on."""
    while started(engine.step()):
        pass
    counts = []
    for _ in range(STEPS):
        cache.matches = cache.admissions = 0
        assert started(engine.step()) == []
        counts.append((cache.matches, cache.admissions))
    assert engine.stats()["waiting"] >= QUEUE
    return counts


def test_a_long_queue_is_not_looked_at_while_all_places_are_taken() -> None:
    engine, cache = counting_engine(4096, max_running=4)
    head = prompt(0, 100)
    for number in range(4 + QUEUE):
        engine.submit(ask(f"{number}", head + prompt(number + 1, 20), 200))
    assert looks(engine, cache) == [(0, 0)] * STEPS


def test_a_long_queue_is_tried_again_only_when_the_tree_or_the_room_has_changed() -> None:
    engine, cache = counting_engine(960)
    head = prompt(0, 100)
    for number in range(5 + QUEUE):
        engine.submit(ask(f"{number}", head + prompt(number + 1, 100), 120))
    counts = looks(engine, cache)
    assert sum(matches for matches, _ in counts) <= 2 * QUEUE  # of 8,000 pairs of step and request
    assert sum(admissions for _, admissions in counts) <= STEPS
    # and when those who run end, the next in line start at once
    for choice in list(engine._scheduler.running):
        engine.abort(choice.request.id)
    assert started(engine.step())


@pytest.mark.parametrize("priority", list(Priority))
def test_each_request_of_a_long_queue_gets_its_turn(priority: Priority) -> None:
    engine, _ = counting_engine(640, max_running=5)
    for number in range(60):
        mixed = Priority.FOREGROUND if number % 3 else priority
        engine.submit(ask(f"{number}", prompt(number, 60 + number), 8, mixed))
    events = drain(engine)
    assert sorted(map(int, started(events))) == list(range(60))
    for number in (0, 1, 30, 59):
        assert output(events, f"{number}") == solo(prompt(number, 60 + number), 8)


def test_a_request_follows_the_one_that_shares_most_and_forgets_who_was_put_back() -> None:
    cache = PrefixCache(200, PAGE)
    head = prompt(0, 160)
    ids = head + prompt(1, 40)
    cold = admitted(cache, prompt(2, 90), 1)
    near = admitted(cache, head[:96] + prompt(3, 20), 2)
    nearest = admitted(cache, head + prompt(4, 20), 3)
    choice = queued(ids, 4)
    choice.kin.look(choice, [cold, near, nearest])
    assert choice.kin.leader(choice, 0, PAGE) is nearest
    assert choice.kin.leader(choice, 160, PAGE) is None  # nothing left to wait for
    assert nearest.lease is not None
    cache.abort(nearest.lease)
    nearest.lease = None
    assert choice.kin.leader(choice, 0, PAGE) is near
    again = admitted(cache, head + prompt(4, 20), 5)
    choice.kin.look(choice, [cold, near, again])
    assert choice.kin.leader(choice, 0, PAGE) is again


def test_an_answer_is_shown_to_who_repeats_it_and_to_nobody_else() -> None:
    cache = PrefixCache(200, PAGE)
    ids = prompt(0, 50)
    talks = admitted(cache, array("I", ids), 1)
    assert talks.lease is not None
    talks.ids.extend([7, 8, 9, 10])
    talks.lease.computed_len = 53
    repeats, differs, asks = (
        queued(ids + array("I", more), n + 2) for n, more in enumerate([[7, 8, 5], [6, 8], []])
    )
    for choice, want in [(repeats, [talks]), (differs, []), (asks, [])]:
        choice.kin.look(choice, [talks])
        assert list(choice.kin.repeated(choice, 50)) == want
    assert list(repeats.kin.repeated(repeats, 52)) == []


def queued(ids: Ids, serial: int) -> Choice:
    choice = waiting(serial, 0, len(ids)).choice
    choice.group.request.ids = ids
    choice.ids = array("I", ids)
    choice.queue()
    return choice


def admitted(cache: PrefixCache, ids: Ids, number: int) -> Choice:
    choice = queued(ids, number)
    choice.lease = cache.admit(choice.ids)
    choice.admitted = number
    return choice


def cut_inside_a_page(num_choices: int = 2) -> tuple[Engine, list[Ids]]:
    """A pool of three pages whose tree holds the first page of a path and copies of it, one for
    each further sample; and the paths.
    """
    engine = scripted_engine(pool_tokens=3 * PAGE)
    ids = prompt(1, PAGE // 2)
    engine.submit(ask("first", ids, 4, n=num_choices))
    events = drain(engine)
    return engine, [ids + array("I", output(events, "first", c)) for c in range(num_choices)]


@pytest.mark.parametrize("num_choices", [2, 3, 5])
def test_samples_that_fit_the_pool_one_by_one_all_come_to_their_end(num_choices: int) -> None:
    """Cut inside a page, a path holds that page twice: that is no reason to call the pool full."""
    engine = scripted_engine(pool_tokens=3 * PAGE)
    engine.submit(ask("r", prompt(1, PAGE // 2), 5 * PAGE // 2, n=num_choices))
    events = drain(engine)
    for choice in range(num_choices):
        end = finished(events, "r", choice)
        assert (end.reason, end.error) == (FinishReason.LENGTH, None)
        assert len(output(events, "r", choice)) == 5 * PAGE // 2


def test_a_prompt_that_fits_the_pool_but_not_its_own_path_there_is_computed_anew() -> None:
    engine, paths = cut_inside_a_page()
    for path in paths:
        ids = path + prompt(2, 3 * PAGE - 1 - len(path))
        assert engine.probe(ids) > PAGE // 2, "it would begin with both pages"
        engine.submit(ask("again", ids, 1))
        events = drain(engine, max_steps=50)
        assert finished(events, "again").error is None
        assert output(events, "again") == solo(ids, 1)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fits_a_tiny_pool_by_itself_ends_as_it_would_by_itself(seed: int) -> None:
    """Samples, prompts cut out of each other anywhere, cancels; pools of three to eight pages."""
    dice = random.Random(seed)
    num_pages = dice.randint(3, 8)
    engine = scripted_engine(pool_tokens=num_pages * PAGE)
    said = [prompt(9, num_pages * PAGE)]
    wanted: dict[str, tuple[Ids, int, int]] = {}
    events: list[Event] = []
    for number in range(12):
        text = dice.choice(said)
        ids = text[: dice.randint(1, min(len(text), num_pages * PAGE - 2))]
        if dice.random() < 0.5:
            ids = ids[: len(ids) // 2 + 1] + prompt(dice.randint(0, 2), dice.randint(0, PAGE))
        ids = ids[: num_pages * PAGE - 2]
        most = dice.randint(1, num_pages * PAGE - len(ids))
        name, num_choices = f"r{number}", dice.choice([1, 1, 2, 3])
        urgency = dice.choice(list(Priority))
        engine.submit(ask(name, ids, most, urgency, n=num_choices))
        wanted[name] = (ids, most, num_choices)
        said.append(ids)
        for _ in range(dice.randint(0, 6)):
            events += engine.step()
        if dice.random() < 0.15 and engine.abort(name):
            del wanted[name]
    events += drain(engine, max_steps=3000)
    for name, (ids, most, num_choices) in wanted.items():
        expected = solo(ids, most)
        for choice in range(num_choices):
            assert finished(events, name, choice).error is None
            assert output(events, name, choice) == expected
    assert engine.cache.locked == 0
