"""Whose tokens are on disk, and which blocks go with messages: against a plain reading."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.disk_paths import Doomed, Lines, delete, doomed_paths, num_in, on_disk
from radchat.engine.cuts import common_ids
from radchat.engine.request import Ids
from radchat_sessions.content import pack_ids, unpack_ids
from radchat_sessions.kv_blocks import ROOT, Block
from radchat_sessions.kv_blocks import common_ids as common_bytes
from radchat_sessions.kv_store import KVFolder, KVStore
from radchat_sessions.store import IN_MEMORY, Store
from tests.daemon.test_methods_held import PER_TURN, Talk, ids_of

BLOCK = 16  # tokens


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store.open(IN_MEMORY)
    yield store
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[KVStore]:
    disk = KVStore.open(tmp_path / "kv", budget=1 << 30, hourly=None, block_tokens=BLOCK)
    yield disk
    disk.close()


def write(blocks: KVFolder, ids: Ids) -> None:
    for start in range(0, len(ids), BLOCK):
        num = min(BLOCK, len(ids) - start)
        data = bytes(2 * 4 * num)
        raw = pack_ids(ids[: start + num])
        assert blocks.write(raw, start, data, shape=(1, 2, num, 1, 1), dtype="fp32")


def grown(store: Store, dice: random.Random, *, rewrites: bool) -> tuple[Talk, list[str]]:
    """A session with forks, and its answers."""
    talk = Talk(store, dice, rewrites=rewrites)
    answers = [talk.turn()]
    for _ in range(12):
        answers.append(talk.turn(dice.choice(answers[-4:]), stops=dice.random() < 0.5))
    return talk, answers


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_on_disk_as_its_own_path_says(
    store: Store, disk: KVStore, seed: int
) -> None:
    dice = random.Random(seed)
    talk, answers = grown(store, dice, rewrites=seed % 3 == 2)
    blocks = disk.of("f" * 32)
    for answer in dice.sample(answers, 6):
        ids = ids_of(store, answer)
        write(blocks, ids[: dice.randrange(1, len(ids))])
    found = on_disk(store, talk.id, blocks, "tok")
    for message, span in store.spans(talk.id).items():
        plain = blocks.spans(pack_ids(ids_of(store, message)))
        num = num_in(found[message].ranges if message in found else (), span.start, span.stop)
        least = num_in(plain, span.start, span.stop)
        assert abs(num - least) <= 1, message  # the stop token: looked for in what follows
    assert on_disk(store, talk.id, blocks, "another") == {}


def test_a_long_talk_is_one_walk(store: Store, disk: KVStore) -> None:
    talk = Talk(store, random.Random(1))
    answers = talk.turns(50)
    walks = []

    class Counting(KVFolder):
        def best(self, raw: bytes) -> list[Block]:
            walks.append(len(raw))
            return super().best(raw)

    write(disk.of("f" * 32), ids_of(store, answers[-1]))
    found = on_disk(store, talk.id, Counting(disk, "f" * 32), "tok")
    assert len(found) == 100
    assert walks == [50 * 2 * PER_TURN * 4]


def whole_paths(disk: KVStore) -> dict[str, bytes]:
    """The ids of each block's path up to its end, by key, where all of it is there."""
    entries = {entry.key: entry for entry in disk.entries()}
    paths = {}
    for key, entry in entries.items():
        raw, parent = entry.ids, entry.parent
        while parent != ROOT and parent in entries:
            raw, parent = entries[parent].ids + raw, entries[parent].parent
        assert parent == ROOT
        paths[key] = raw
    return paths


@pytest.mark.parametrize("seed", range(8))
def test_with_messages_go_the_blocks_that_no_other_path_has(
    store: Store, disk: KVStore, seed: int
) -> None:
    dice = random.Random(seed)
    talks = [grown(store, dice, rewrites=seed % 4 == 3) for _ in range(2)]
    # a session of its own that shares the beginning of the first
    shared = dice.choice(talks[0][1])
    other = store.create_session(
        clock="2026-01-01T00:00:00+00:00", fork_of=(talks[0][0].id, shared)
    ).id
    everything = [answer for _, answers in talks for answer in answers]
    for name in ("a" * 32, "b" * 32):
        for answer in dice.sample(everything, 12):
            write(disk.of(name), ids_of(store, answer))
    session = talks[0][0].id
    what = store.remove(session, dry_run=True)
    assert what.messages
    assert store.message_ids(other)
    paths = doomed_paths(store, session, set(what.messages))
    before, tokens = whole_paths(disk), disk.stats().tokens
    freed = delete(disk, paths)
    store.remove(session)
    after = whole_paths(disk)
    left = [pack_ids(ids) for ids in _read(store)]
    for key, raw in before.items():
        stays = any(path.startswith(raw) for path in left)
        assert (key in after) == stays, len(unpack_ids(raw))
    assert freed[0] == tokens - disk.stats().tokens


def _read(store: Store) -> Iterator[Any]:
    """All that a model has read, or said, in what is left."""
    for message, span in store.spans(None).items():
        yield store.prompt_ids(span.prompt)
        yield ids_of(store, message)


@pytest.mark.parametrize("seed", range(6))
def test_how_much_of_each_path_stays_as_a_plain_reading_finds(seed: int) -> None:
    dice = random.Random(seed)

    def path() -> Ids:
        return array("I", [dice.randrange(2) for _ in range(dice.randrange(1, 9))])

    going, staying = [path() for _ in range(12)], [path() for _ in range(8)]
    lines = Lines([pack_ids(ids) for ids in going])
    for ids in staying:
        match = lines.nothing
        for at in range(0, len(ids), 3):  # in steps, and back by one in between
            match = lines.follow(lines.cut(match, max(0, at - 1)), ids[max(0, at - 1) : at + 3])
            if match.end < min(at + 3, len(ids)):
                break
        lines.mark(match)
    plain = [max(common_ids(unpack_ids(raw), ids) for ids in staying) for raw in lines.paths]
    assert lines.marked() == plain
    doomed = Doomed(lines.paths, plain)
    for ids in (*going, *staying, *(path() for _ in range(50))):
        for_each = zip(lines.paths, plain, strict=True)
        goes = any(common_ids(unpack_ids(raw), ids) > stays for raw, stays in for_each)
        assert doomed.goes(pack_ids(ids)) == goes


def test_many_answers_to_one_question_are_not_compared_each_with_each() -> None:
    dice = random.Random(1)
    base = array("I", [dice.randrange(50_000) for _ in range(500)])
    tails = [array("I", [dice.randrange(50_000) for _ in range(20)]) for _ in range(200)]
    compared: list[int] = []

    def counting(one: bytes, other: bytes) -> int:
        compared.append(1)
        return common_bytes(one, other)

    lines = Lines([pack_ids(base + tail) for tail in tails], counting)
    lines.mark(lines.follow(lines.nothing, base))
    assert lines.marked() == [500] * 200
    assert len(compared) <= 202
