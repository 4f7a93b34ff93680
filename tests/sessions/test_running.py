"""What was shown is on disk before it is shown; disks fill up; processes are killed."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from radchat_sessions.content import text_part
from radchat_sessions.errors import SaveFailed
from radchat_sessions.messages import NewAnswer
from radchat_sessions.running import AppendFile, Leftover, RunningFiles
from radchat_sessions.store import Store
from tests.sessions.talk import Clock, Talk, given


class FlakyDisk:
    """Takes ``room`` bytes, then says ENOSPC; counts fsyncs. ``short``: at most so many a write."""

    def __init__(self, room: int = 10**9, short: int = 10**9) -> None:
        self.room, self.short = room, short
        self.syncs = 0

    def open(self, path: Path) -> AppendFile:
        disk = self

        class File(AppendFile):
            def write(self, data: bytes) -> int:
                take = min(len(data), disk.room, disk.short)
                if take == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                disk.room -= take
                return super().write(data[:take])

            def sync(self) -> None:
                disk.syncs += 1
                super().sync()

        return File(path)


def words_of(left: Leftover) -> str:
    return "".join(part["text"] for part in left.parts)


def test_a_leftover_becomes_a_message_with_finish_reason_abort(
    talk: Talk, open_store: Callable[[], Store]
) -> None:
    begun = talk.begin("tell me")
    answer_id = begun.answer_ids[0]
    talk.store.append_ids(answer_id, [104, 109], "hm", "reasoning")
    talk.store.append_ids(answer_id, [111], "o")
    talk.store.append_ids(answer_id, [110, 99], "nc")
    talk.store.append_ids(answer_id, [101], "")
    talk.store.close()
    again = open_store()
    (recovered,) = again.recovered
    message = again.message(answer_id)
    assert recovered.message == message
    assert message.finish_reason == "abort"
    assert list(again.out(answer_id) or ()) == [104, 109, 111, 110, 99, 101]
    assert (message.reasoning, message.text) == ("hm", "onc")
    assert message.extra == {"recovered": True}
    assert again.head(talk.id).message == answer_id
    assert again.running() == []
    assert again.verify() == []


def test_recovery_happens_once(talk: Talk, open_store: Callable[[], Store]) -> None:
    begun = talk.begin("tell me")
    talk.store.append_ids(begun.answer_ids[0], [104], "h")
    talk.store.close()
    open_store().close()
    third = open_store()
    assert third.recovered == []
    assert third.message(begun.answer_ids[0]).text == "h"


def test_an_answer_that_never_began_leaves_only_the_question(
    talk: Talk, open_store: Callable[[], Store]
) -> None:
    begun = talk.begin("tell me")
    talk.store.close()
    again = open_store()
    assert again.recovered[0].message is None
    assert again.head(talk.id).message == begun.messages[0]
    assert again.verify() == []


def test_all_answers_of_one_prompt_are_recovered(
    talk: Talk, open_store: Callable[[], Store]
) -> None:
    begun = talk.begin("pick", answers=[NewAnswer("main"), NewAnswer(None), NewAnswer(None)])
    for n, answer_id in enumerate(begun.answer_ids[:2]):
        talk.store.append_ids(answer_id, [48 + n], str(n))
    talk.store.close()
    again = open_store()
    assert [m.text for m in again.messages(talk.id)] == ["pick", "0", "1"]
    assert again.verify() == []


def test_a_torn_record_is_cut_at_every_byte(
    talk: Talk, open_store: Callable[[], Store], home: Path
) -> None:
    begun = talk.begin("tell me")
    answer_id = begun.answer_ids[0]
    for n in range(3):
        talk.store.append_ids(answer_id, [97 + n], chr(97 + n))
    talk.store.close()
    saved = {
        suffix: (home / f"running/{answer_id}{suffix}").read_bytes() for suffix in (".ids", ".text")
    }
    files = RunningFiles(home / "torn", lambda: 0.0)
    (home / "torn").mkdir()
    for suffix, whole in saved.items():
        other = next(s for s in saved if s != suffix)
        (home / f"torn/x{other}").write_bytes(saved[other])
        for size in range(len(whole) + 1):
            (home / f"torn/x{suffix}").write_bytes(whole[:size])
            left = files.read("x")
            records = size // 4 if suffix == ".ids" else whole[:size].count(b"\n")
            if suffix == ".ids":
                assert list(left.ids) == [97, 98, 99][:records]
                assert left.cut_bytes == size % 4
            else:
                assert words_of(left) == "abc"[:records]
                assert (left.cut_bytes == 0) == (size == 0 or whole[:size].endswith(b"\n"))


@pytest.mark.parametrize(
    "damage", [b"\0" * 6, b"[1]\n\xff\xfe", b'["text", 7]\n', b"null\n", b"{}\n"]
)
def test_a_page_lost_to_a_power_cut_costs_the_words_after_it_and_no_start(
    talk: Talk, open_store: Callable[[], Store], home: Path, damage: bytes
) -> None:
    """The file may have grown before all of it was on the disk: what can't be read is cut."""
    begun = talk.begin("tell me")
    answer_id = begun.answer_ids[0]
    for letter in "abcdef":
        talk.store.append_ids(answer_id, [ord(letter)], letter)
    talk.store.close()
    path = home / f"running/{answer_id}.text"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + damage + b"".join(lines[4:]))
    store = open_store()
    (recovered,) = store.recovered
    assert recovered.cut_bytes == len(damage) + len(b"".join(lines[4:]))
    message = given(recovered.message)
    assert message.text == "abc"
    assert list(given(store.out(message.id))) == [ord(letter) for letter in "abcdef"]
    assert store.verify() == []
    assert Talk(store, talk.session).turn("and on", "yes").text == "yes"


def test_a_torn_file_is_recovered_and_the_next_turn_works(
    talk: Talk, open_store: Callable[[], Store], home: Path
) -> None:
    begun = talk.begin("tell me")
    answer_id = begun.answer_ids[0]
    talk.store.append_ids(answer_id, [97, 98], "ab")
    talk.store.close()
    path = home / "running" / f"{answer_id}.ids"
    path.write_bytes(path.read_bytes()[:-1])
    again = open_store()
    assert again.recovered[0].cut_bytes == 3
    assert list(again.out(answer_id) or ()) == [97]
    Talk(again, talk.session).turn("go on", "yes")
    assert again.verify() == []


def test_files_are_synced_at_most_once_a_second(tmp_path: Path, clock: Clock) -> None:
    disk = FlakyDisk()
    files = RunningFiles(tmp_path, clock, disk.open)
    for _ in range(100):
        clock.now += 0.025
        files.append("a", [1], "", "text")
    assert disk.syncs == 2
    clock.now -= 500  # a clock set back does not stop it
    files.append("a", [1], "", "text")
    assert disk.syncs == 3
    files.close()


def test_every_step_is_in_the_file_before_the_next(tmp_path: Path, clock: Clock) -> None:
    files = RunningFiles(tmp_path, clock)
    for n in range(5):
        files.append("a", [n, n], f"{n}", "text")
        left = files.read("a")
        assert len(left.ids) == 2 * (n + 1)
        assert words_of(left) == "01234"[: n + 1]
    files.close()


def test_short_writes_are_completed(tmp_path: Path, clock: Clock) -> None:
    files = RunningFiles(tmp_path, clock, FlakyDisk(short=3).open)
    files.append("a", [1, 2, 3], "words", "text")
    assert list(files.read("a").ids) == [1, 2, 3]
    assert words_of(files.read("a")) == "words"
    files.close()


@pytest.mark.parametrize("room", range(0, 60, 3))
def test_a_full_disk_loses_nothing_once_there_is_room_again(
    tmp_path: Path, clock: Clock, room: int
) -> None:
    disk = FlakyDisk(room=room)
    files = RunningFiles(tmp_path, clock, disk.open)
    failures = []
    for n in range(4):
        try:
            files.append("a", [n], f"{n}", "text")
        except SaveFailed as error:
            failures.append(error.message)
    left = files.read("a")
    assert list(left.ids) == list(range(len(left.ids)))
    assert "0123".startswith(words_of(left))
    assert failures
    assert all("No space left" in failure for failure in failures)
    disk.room = 10**9
    files.append("a", [4], "4", "text")
    assert list(files.read("a").ids) == [0, 1, 2, 3, 4]
    assert words_of(files.read("a")) == "01234"
    files.close()


def test_a_broken_surrogate_in_a_running_answer_is_replaced(tmp_path: Path, clock: Clock) -> None:
    files = RunningFiles(tmp_path, clock)
    files.append("a", [1], "x\ud800", "text")
    assert words_of(files.read("a")) == "x\ufffd"
    files.close()


def test_finished_and_abandoned_answers_leave_no_file(talk: Talk, home: Path) -> None:
    begun = talk.begin("pick", answers=[NewAnswer("main"), NewAnswer(None)])
    for answer_id in begun.answer_ids:
        talk.store.append_ids(answer_id, [1], "x")
    assert len(list((home / "running").iterdir())) == 4
    talk.finish(begun.answer_ids[0], "done")
    talk.store.abandon(begun.answer_ids[1])
    assert list((home / "running").iterdir()) == []


def test_files_of_answers_already_finished_are_swept(
    talk: Talk, open_store: Callable[[], Store], home: Path
) -> None:
    begun = talk.begin("q")
    talk.store.append_ids(begun.answer_ids[0], [97], "a")
    stray = home / "running" / f"{'0' * 32}.ids"
    stray.write_bytes(b"\1\0\0\0")
    talk.store.close()
    open_store()
    assert list((home / "running").iterdir()) == []


def test_running_files_are_private(talk: Talk, home: Path) -> None:
    begun = talk.begin("q")
    talk.store.append_ids(begun.answer_ids[0], [97], "a")
    assert {p.stat().st_mode & 0o777 for p in (home / "running").iterdir()} == {0o600}
    assert (home / "running").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in home.glob("radchat.db*")} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_running_folder_deleted_under_the_answer_is_made_again(
    tmp_path: Path, clock: Clock
) -> None:
    files = RunningFiles(tmp_path / "running", clock)
    files.append("a", [1, 2], "ab", "text")
    for path in (tmp_path / "running").iterdir():
        path.unlink()
    (tmp_path / "running").rmdir()
    clock.now += 2
    files.append("a", [3], "c", "text")
    assert list(files.read("a").ids) == [1, 2, 3]
    assert words_of(files.read("a")) == "abc"
    files.close()


def test_what_runs_can_be_listed(talk: Talk) -> None:
    begun = talk.begin("q")
    (running,) = talk.store.running(talk.id)
    assert (running.id, running.parent, running.branch) == (
        begun.answer_ids[0],
        begun.messages[0],
        "main",
    )
    assert talk.store.running("nobody") == []


def test_a_full_database_changes_nothing_and_the_answer_can_be_saved_later(talk: Talk) -> None:
    begun = talk.begin("q")
    answer_id = begun.answer_ids[0]
    talk.store.append_ids(answer_id, [97], "a")
    db = talk.store._db._connection
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    before = talk.store.messages(talk.id)
    long = "x" * 200_000
    for _ in range(2):
        with pytest.raises(SaveFailed, match="disk is full"):
            talk.finish(answer_id, long)
        assert talk.store.messages(talk.id) == before
        assert [r.id for r in talk.store.running()] == [answer_id]
    with pytest.raises(SaveFailed, match="disk is full"):
        talk.begin(long)
    assert talk.store.messages(talk.id) == before
    db.execute("PRAGMA max_page_count = 1000000")
    assert talk.finish(answer_id, long).text == long
    assert talk.store.verify() == []


def test_a_turn_that_could_not_be_saved_is_saved_later_under_the_ids_it_was_shown_with(
    talk: Talk,
) -> None:
    db = talk.store._db._connection
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    long = "y" * 200_000
    with pytest.raises(SaveFailed):
        talk.begin(long, answers=[NewAnswer("main", id="a" * 32)])
    db.execute("PRAGMA max_page_count = 1000000")
    talk.begin(long, answers=[NewAnswer("main", id="a" * 32)])
    talk.store.finish("a" * 32, ids=array("I", [97]), parts=[text_part("a")], finish_reason="stop")
    assert talk.words(talk.head) == [long, "a"]


def test_a_store_needs_no_running_folder(tmp_path: Path) -> None:
    with_none = Store.open(tmp_path / "x.db", running_dir=None, synchronous="OFF")
    assert with_none.recovered == []
    with_none.close()
