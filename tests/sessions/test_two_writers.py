"""Two who speak at once where the branch stands: two branches, one told, nothing lost (CO-01)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from radchat_sessions.store import Store
from tests.sessions.talk import Talk, given

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 100


def check(talk: Talk, tip: str, told: list[bool]) -> None:
    """Of the two turns one went on with main, the other beside it; both are whole."""
    store = talk.store
    branches = {branch.name: branch.message for branch in store.branches(talk.id)}
    assert set(branches) == {"main", "main-2"}
    assert sorted(told) == [False, True]
    said = [talk.words(message)[-2:] for message in branches.values()]
    assert sorted(said) == [["from one", "to one"], ["from two", "to two"]]
    for message in branches.values():
        path = store.path(message)
        assert [m.parent for m in path[-2:]] == [tip, path[-2].id]
        assert store.ids(given(message)) == talk.expected_ids(given(message))
    assert len(store.messages(talk.id)) == len(store.path(tip)) + 4
    assert store.running(talk.id) == []


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_in_whatever_order_they_begin_and_end(seed: int) -> None:
    draw = random.Random(seed)
    store = Store.open(":memory:")
    talk = Talk(store)
    for number in range(draw.randint(1, 3)):
        talk.turn(f"question {number}", f"answer {number}")
    tip = talk.tip
    steps = ["one", "one", "two", "two"]
    draw.shuffle(steps)
    answers: dict[str, str] = {}
    told = []
    for who in steps:
        if who in answers:
            talk.finish(answers[who], f"to {who}")
        else:
            begun = talk.begin(f"from {who}", parent=tip)
            answers[who] = begun.answer_ids[0]
            told.append(talk.placed(begun).moved_on)
    check(talk, tip, told)
    assert store.verify() == []
    store.close()


def test_two_processes_that_write_one_database_at_the_same_moment(tmp_path: Path) -> None:
    """One hundred times. The daemon is the only writer; if ever it were not, nothing is lost."""
    database = tmp_path / "two.db"
    store = Store.open(database)
    talks = [Talk(store) for _ in range(ROUNDS)]
    for talk in talks:
        talk.turn("start", "begun")
    tips = [talk.tip for talk in talks]
    sources = os.pathsep.join(str(ROOT / each) for each in (".", "kernels", "sessions"))
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sessions.writer", str(database), who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": sources},
            cwd=ROOT,
            text=True,
        )
        for who in ("one", "two")
    ]
    firsts: set[int] = set()
    try:
        for talk, tip in zip(talks, tips, strict=True):
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write(f"{talk.id} {tip}\n")
            for writer in writers[:: -1 if len(firsts) == 1 else 1]:
                assert writer.stdin is not None
                writer.stdin.flush()
            told = []
            for writer in writers:
                assert writer.stdout is not None
                branch, moved_on = writer.stdout.readline().split()
                told.append(moved_on == "True")
                assert (branch == "main-2") == told[-1]
            firsts.add(told.index(False))
            check(talk, tip, told)
    finally:
        for writer in writers:
            writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert firsts == {0, 1}  # now this one, now that one was first
    assert store.verify() == []
    store.close()
