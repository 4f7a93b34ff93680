"""What is cached of which message: against a plain reading, and by how many ids were read."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from radchat.daemon.held import Held, Snapshot, cuts, held_of, owners
from radchat.engine.cuts import common_ids
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Ids
from radchat_sessions.content import text_part
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from radchat_sessions.store import IN_MEMORY, Store

PER_TURN = 40  # ids of a user message, and of an answer


class Counting(Store):
    """Counts the ids that are read."""

    num_read = 0

    def prompt(self, prompt_id: str) -> Any:
        found = super().prompt(prompt_id)
        self.num_read += len(found.tail)
        return found

    def out(self, message_id: str) -> Any:
        found = super().out(message_id)
        self.num_read += len(found or ())
        return found

    def prompt_ids(self, prompt_id: str) -> Any:
        found = super().prompt_ids(prompt_id)
        self.num_read += len(found)
        return found


@pytest.fixture
def store() -> Any:
    store = Counting.open(IN_MEMORY)
    yield store
    store.close()


def words(dice: random.Random, num: int) -> Ids:
    return array("I", [dice.randrange(1, 50) for _ in range(num)])


class Talk:
    """A session whose turns are given as ids. ``rewrites``: a prompt keeps 10 ids of the one
    before it and says the rest in other words.
    """

    def __init__(self, store: Store, dice: random.Random, *, rewrites: bool = False) -> None:
        self.store, self.dice, self.rewrites = store, dice, rewrites
        self.id = store.create_session(clock="2026-01-01T00:00:00+00:00").id

    def turn(self, parent: str | None = None, *, stops: bool = False) -> str:
        """The answer. ``stops``: its last id is a stop token, said by the next turn's tail."""
        kept, tail = 0, array("I")
        if parent is not None:
            span = self.store.span(parent)
            assert span is not None
            before = self.store.message(parent)
            kept = 10 if self.rewrites else span.stop - before.stopped
            tail = words(self.dice, span.stop - kept) if self.rewrites else array("I")
        start = kept + len(tail)
        tail.extend(words(self.dice, PER_TURN))
        prompt = NewPrompt(
            tail,
            "tok",
            "set",
            base_message=parent,
            kept=kept,
            shares=((start, start + PER_TURN),),
        )
        begun = self.store.begin(
            self.id,
            parent=parent,
            new=[NewMessage.of("user", "hello")],
            prompt=prompt,
            answers=[NewAnswer("main")],
        )
        self.store.finish(
            begun.answer_ids[0],
            ids=words(self.dice, PER_TURN),
            parts=[text_part("x")],
            finish_reason="stop",
            stopped=stops,
        )
        return begun.answer_ids[0]

    def turns(self, number: int) -> list[str]:
        made: list[str] = []
        for _ in range(number):
            made.append(self.turn(made[-1] if made else None))
        return made


def put(cache: PrefixCache, ids: Ids) -> None:
    """As a request that computed all of them leaves them."""
    lease = cache.admit(ids)
    assert lease is not None
    assert cache.reserve(lease, len(ids))
    lease.copies.clear()
    lease.computed_len = len(ids)
    cache.finish(lease)


def ids_of(store: Store, message: str) -> Ids:
    ids = store.ids(message)
    assert ids is not None
    return ids


def plainly(store: Store, session: str, cache: PrefixCache) -> dict[str, int]:
    """Tokens cached of each message: probed on the whole of its own path."""
    found = {}
    for message, span in store.spans(session).items():
        held = min(cache.match_len(ids_of(store, message)), span.stop) - span.start
        if held > 0:
            found[message] = held
    return found


def tokens(held: dict[str, Held]) -> dict[str, int]:
    return {message: mine.device for message, mine in held.items()}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_held_is_what_a_probe_of_the_whole_path_finds(store: Counting, seed: int) -> None:
    dice = random.Random(seed)
    cache = PrefixCache(2000)
    talks = [Talk(store, dice, rewrites=number == 1) for number in range(3)]
    for each in talks:
        answers = each.turns(2)
        for _ in range(12):
            answers.append(each.turn(dice.choice(answers)))
        for answer in dice.sample(answers, 9):
            put(cache, ids_of(store, answer))
    for _ in range(30):
        snapshot = Snapshot(cache, "tok")
        every: dict[str, int] = {}
        for each in talks:
            held = held_of(store, each.id, snapshot)
            assert tokens(held) == plainly(store, each.id, cache)
            every |= tokens(held)
            ranks = sorted(mine.rank for mine in held.values() if mine.rank is not None)
            assert ranks == list(range(1, len(held) + 1))
        everything = held_of(store, None, snapshot)
        assert tokens(everything) == every
        served = owners(everything)
        for node in snapshot.nodes:
            inside = [
                m
                for m, mine in everything.items()
                if node.id in [n.id for n in snapshot.up(mine.match.node)]
                and mine.start < node.end
                and mine.start + mine.device > node.start
            ]
            assert sorted(served.get(node.id, [])) == sorted(inside)
        cache.evict(dice.randrange(1, 30))


def test_an_answers_stop_token_is_found_on_the_path_of_the_next_turn(store: Counting) -> None:
    talk, cache = Talk(store, random.Random(1)), PrefixCache(100)
    first = talk.turn(stops=True)
    second = talk.turn(first)
    put(cache, ids_of(store, first)[:-1])  # a sampled stop token is never computed
    assert held_of(store, talk.id, Snapshot(cache, "tok"))[first].device == PER_TURN - 1
    put(cache, ids_of(store, second))  # whose tail says it in the template's words
    assert held_of(store, talk.id, Snapshot(cache, "tok"))[first].device == PER_TURN


def test_ids_of_another_tokenizer_mean_nothing_to_this_cache(store: Counting) -> None:
    talk, cache = Talk(store, random.Random(2)), PrefixCache(100)
    put(cache, ids_of(store, talk.turn()))
    assert held_of(store, talk.id, Snapshot(cache, "tok"))
    store.num_read = 0
    assert held_of(store, talk.id, Snapshot(cache, "other")) == {}
    assert store.num_read == 0


@pytest.mark.parametrize("rewrites", [False, True])
def test_each_id_is_read_once_however_long_the_talk(store: Counting, rewrites: bool) -> None:
    """A template that rewrites history stores each prompt whole: the ids stored are what counts."""
    dice, cache = random.Random(3), PrefixCache(2000)
    talk = Talk(store, dice, rewrites=rewrites)
    answers = talk.turns(25)
    stored = sum(len(store.prompt(p).tail) for p in store.stands(talk.id)) + 25 * PER_TURN
    for answer in answers:
        put(cache, ids_of(store, answer))
    store.num_read = 0
    held = held_of(store, talk.id, Snapshot(cache, "tok"))
    assert len(held) == 50
    assert store.num_read <= stored


def test_sessions_whose_beginning_is_not_cached_cost_no_more_than_it(store: Counting) -> None:
    dice, cache = random.Random(4), PrefixCache(2000)
    talks = [Talk(store, dice) for _ in range(30)]
    answers = [each.turns(20)[-1] for each in talks]
    put(cache, ids_of(store, answers[0]))
    store.num_read = 0
    held = held_of(store, None, Snapshot(cache, "tok"))
    assert {store.message(m).origin for m, mine in held.items() if mine.device > 8} == {talks[0].id}
    whole, beginnings = 20 * 2 * PER_TURN, 29 * PER_TURN
    assert store.num_read <= whole + beginnings


@pytest.mark.parametrize("seed", range(4))
def test_cuts_forget_what_follows_a_message_and_nothing_else(store: Counting, seed: int) -> None:
    dice, cache = random.Random(10 + seed), PrefixCache(2000)
    talk = Talk(store, dice)
    answers = talk.turns(3)
    for _ in range(10):
        answers.append(talk.turn(dice.choice(answers)))
    for answer in answers:
        put(cache, ids_of(store, answer))
    root = dice.choice(answers)
    doomed = {root}
    for message in store.messages(talk.id):  # parents before children
        if message.parent in doomed:
            doomed.add(message.id)
    snapshot = Snapshot(cache, "tok")
    before = held_of(store, talk.id, snapshot)
    paths = cuts(snapshot, before, doomed)
    assert len(paths) == len(  # one path an end
        {m for m in doomed if not any(x.parent == m for x in store.messages(talk.id))}
    )
    told = cache.forgettable(paths)
    assert told == sum(cache.forget(ids, start) for ids, start in paths)
    assert cache.forgettable(paths) == 0
    after = held_of(store, talk.id, Snapshot(cache, "tok"))
    for each, mine in before.items():
        left = after.get(each, Held()).device
        if each in doomed:  # but for what siblings say too
            assert left <= 2
        else:
            assert left == mine.device


def test_a_message_whose_first_words_another_says_takes_none_of_its_with_it(
    store: Counting,
) -> None:
    """It was never read by a model: the other's node is not cut where it ends."""
    dice, cache = random.Random(3), PrefixCache(200)
    talk = Talk(store, dice)
    stays = talk.turn()
    own = ids_of(store, stays)
    put(cache, own)
    prompt = store.message(stays).prompt
    assert prompt is not None
    begun = store.begin(
        talk.id,
        parent=store.message(stays).parent,
        prompt=prompt,
        answers=[NewAnswer(None)],
        expected=stays,
    )
    start = store.prompt(prompt).length
    said = array("I", [*own[start : start + 7], 99, 99])
    going = store.finish(
        begun.answer_ids[0], ids=said, parts=[text_part("x")], finish_reason="stop"
    ).message.id
    held = held_of(store, talk.id, Snapshot(cache, "tok"))
    assert held[going].device == 7
    for ids, start in cuts(Snapshot(cache, "tok"), held, {going}):
        cache.forget(ids, start)
    assert cache.match_len(own) == len(own)
    for ids, start in cuts(Snapshot(cache, "tok"), held, {going, stays}):
        cache.forget(ids, start)
    assert cache.match_len(own) == store.prompt(prompt).length


def test_common_ids_finds_the_first_difference() -> None:
    dice = random.Random(5)
    for _ in range(300):
        a = words(dice, dice.randrange(1, 70))
        b = array("I", a)
        where = dice.randrange(len(a) + 1)
        if where < len(a):
            b[where] += 100
        assert common_ids(a, b) == where
