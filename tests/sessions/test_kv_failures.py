"""Disks fill up, files are damaged, folders go, processes are killed: that costs time, no more."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radchat_sessions.kv_shelf import INDEX_BYTES
from radchat_sessions.kv_store import RESERVE, KVStore, KVUnavailable
from tests.sessions.kv import (
    GIB,
    B,
    F,
    Opener,
    evict,
    files_of,
    kv_of,
    quick_folder,
    raw_of,
    read_path,
    size_of,
    write,
    write_path,
)

PATH = list(range(100, 110))
WHOLE = [kv_of(PATH[:4], 0), kv_of(PATH[:8], 4), kv_of(PATH, 8)]


@pytest.fixture
def opener() -> Iterator[Opener]:
    home = quick_folder()
    made = Opener(home / "cache" / "kv")
    yield made
    made.close()
    shutil.rmtree(home)


def spans(store: KVStore, path: list[int] = PATH) -> list[tuple[int, int]]:
    return store.of(F).spans(raw_of(path))


def tidy(store: KVStore) -> None:
    while store.tidy():
        pass


# -- writes that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("create", errno.ENOSPC, "the disk is full: KV is not written"),
        ("create", errno.EROFS, "kv is read-only: KV is not written"),
        ("create", errno.EACCES, "kv may not be written: KV is not written"),
        ("write", errno.ENOSPC, "the disk is full: KV is not written"),
        ("write", errno.EDQUOT, "the disk quota is used up: KV is not written"),
        ("sync", errno.EIO, "kv: Input/output error: KV is not written"),
        ("rename", errno.EROFS, "kv is read-only: KV is not written"),
        ("sync_folder", errno.EIO, "kv: Input/output error: KV is not written"),
        ("make_folder", errno.ENOSPC, "the disk is full: KV is not written"),
    ],
)
def test_a_write_that_fails_leaves_nothing_and_is_tried_again_after_a_pause(
    opener: Opener, caplog: pytest.LogCaptureFixture, call: str, error: int, says: str
) -> None:
    store = opener()
    folder = store.of(F)
    assert write(folder, PATH[:4])
    opener.disk.fails = {call: error}
    for _ in range(3):
        assert not write(folder, PATH[:8])
        assert store.trouble is not None
        assert store.trouble.endswith(says)
        opener.clock.now += 31
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [store.trouble]
    assert not write(folder, PATH[:8])
    opener.disk.fails = {}
    assert not write(folder, PATH[:8])  # a pause, so that a full disk is not asked all the time
    assert len(files_of(store)) == 1
    store.check()
    assert read_path(folder, PATH) == WHOLE[:1]
    opener.clock.now += 31
    assert write(folder, PATH[:8])
    assert store.trouble is None
    store.check()


@pytest.mark.parametrize("room", [0, 1, 63, 300, 479])
def test_a_disk_that_is_full_after_some_bytes(opener: Opener, room: int) -> None:
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    opener.disk.full = room
    assert size_of(PATH[:8]) == 480
    assert not write(folder, PATH[:8])
    store.check()
    assert opener().of(F).spans(raw_of(PATH)) == [(0, 4)]


def test_a_row_that_can_not_be_written_takes_its_file_along(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    assert store._index is not None
    store._index._db.execute("PRAGMA query_only = ON")
    assert not write(folder, PATH[:8])
    assert store.trouble == f"{opener.folder} is read-only: KV is not written"
    assert read_path(folder, PATH) == WHOLE[:1]
    store._index._db.execute("PRAGMA query_only = OFF")
    store.check()
    opener.clock.now += 31
    assert write(folder, PATH[:8])


def test_what_can_not_be_deleted_still_counts(opener: Opener) -> None:
    store = opener()
    write_path(store.of(F), PATH)
    opener.disk.fails = {"remove": errno.EACCES}
    assert evict(store, 1) == (0, 0)
    assert store.trouble is not None
    store.budget = 1
    assert store.clear() == (0, 0)
    assert store.stats().blocks == 3
    opener.disk.fails = {}
    store.check()
    store.budget = 1
    assert store.stats().blocks == 0


# -- budgets ---------------------------------------------------------------------------------------


def test_files_never_have_more_than_the_budget_and_the_oldest_unused_goes(opener: Opener) -> None:
    budget = 2500
    store = opener(budget=budget)
    folder = store.of(F)
    write_path(folder, PATH)
    for number in range(12):
        assert write(folder, [number, 0, 0, 0])
        assert sum(path.stat().st_size for path in files_of(store)) <= budget
        assert read_path(folder, PATH) == WHOLE  # used all the time
    store.check()
    assert store.stats().bytes == sum(path.stat().st_size for path in files_of(store))


def test_a_path_longer_than_the_budget_keeps_its_beginning(opener: Opener) -> None:
    store = opener(budget=1500)
    folder = store.of(F)
    path = list(range(20))
    assert write_path(folder, path) == [True, True, True, False, False]
    assert spans(store, path) == [(0, 12)]
    assert write(folder, [9])  # another path takes the place of its end
    assert spans(store, path) == [(0, 8)]
    assert store.trouble is None


def test_what_was_used_last_is_known_after_a_restart(opener: Opener) -> None:
    folder = opener().of(F)
    for first in (1, 2, 3):
        write(folder, [first])
    read_path(folder, [1])
    store = opener()
    assert [entry.ids for entry in store.entries()] == [raw_of([2]), raw_of([3]), raw_of([1])]
    assert evict(store, 1) == (1, size_of([2]))
    assert spans(store, [2]) == []


def test_the_hourly_budget_holds_over_a_restart(opener: Opener) -> None:
    hourly = size_of([1]) * 2
    store = opener(hourly=hourly)
    assert [write(store.of(F), [first]) for first in (1, 2, 3)] == [True, True, False]
    assert store.trouble is None
    store = opener(hourly=hourly)
    assert store.stats().written_bytes == hourly
    assert not write(store.of(F), [3])
    opener.clock.now += 59 * 60
    assert not write(store.of(F), [3])
    opener.clock.now += 61
    assert store.stats().written_bytes == 0
    assert write(store.of(F), [3])
    store.hourly = None
    assert all(write(store.of(F), [first]) for first in range(10, 20))
    opener.clock.now -= 10**6  # a clock that was set back
    store.hourly = hourly
    assert write(store.of(F), [4])


def test_a_disk_nearly_full_is_left_to_conversations(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    for first in (1, 2, 3):
        write(folder, [first])
    opener.disk_bytes = RESERVE + 3 * size_of([1]) + 10
    assert write(folder, [4])  # KV makes room for KV
    assert spans(store, [1]) == []
    opener.disk_bytes = RESERVE
    assert not write(folder, [5])
    assert store.trouble == "the disk is nearly full: KV is not written"
    assert store.stats().blocks == 3  # for nothing they would not go
    opener.disk_bytes = RESERVE + 2 * size_of([1])
    store.make_room()
    assert store.stats().blocks == 2
    opener.disk_bytes = RESERVE - 1
    store.make_room()
    assert store.stats().blocks == 0


def test_a_disk_too_full_to_open_the_index_loses_the_oldest_files(opener: Opener) -> None:
    """Full is: this process may make no file longer, until there is room again."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def free(folder: Path) -> int:
        found = Opener.free(opener, folder)
        if found >= INDEX_BYTES:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        return found

    store = opener()
    folder = store.of(F)
    for first in (1, 2, 3):
        write(folder, [first])
        place = store.place(F, folder.lookup(raw_of([first]), 0)[0].key)
        os.utime(place, (first, first))
    opener.close()
    opener.disk_bytes = INDEX_BYTES + size_of([1])
    store = opener()
    assert len(files_of(store)) == 3  # it could be opened
    opener.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        store = KVStore.open(
            opener.folder, budget=GIB, hourly=None, free=free, files=opener.disk, block_tokens=B
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    opener.stores.append(store)
    assert len(files_of(store)) == 1
    assert read_path(store.of(F), [1]) == [None]
    assert read_path(store.of(F), [3]) == [kv_of([3], 0)]
    tidy(store)
    store.check()


def on_disk(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_budget_is_a_ceiling_whatever_became_of_the_index(opener: Opener) -> None:
    """Index and log count, and files without a row, which nobody has seen yet."""
    opener.disk.index_bytes = None
    budget = 1 << 20
    for life in range(4):
        store = opener(budget=budget)
        for number in range(40):
            write_block_of(store, [life, number, 0, 0], 40_000)
            assert on_disk(opener.folder) <= budget
        opener.close()
        (opener.folder / "index.db").unlink()
    store = opener(budget=budget)
    tidy(store)
    assert on_disk(opener.folder) <= budget
    for number in range(40):
        assert write_block_of(store, [9, number, 0, 0], 40_000)  # now they can make room
        assert on_disk(opener.folder) <= budget
    store.check()


def write_block_of(store: KVStore, ids: list[int], num_bytes: int) -> bool:
    shape = (num_bytes // (len(ids) * 8), 2, len(ids), 1, 1)
    data = bytes(shape[0] * len(ids) * 8)
    return store.of(F).write(raw_of(ids), 0, data, shape=shape, dtype="fp32")


def test_the_hourly_budget_holds_when_the_index_is_lost(opener: Opener) -> None:
    hourly = size_of([1]) * 2
    assert [write(opener(hourly=hourly).of(F), [first]) for first in (1, 2, 3)] == [1, 1, 0]
    opener.close()
    (opener.folder / "index.db").unlink()
    store = opener(hourly=hourly)
    tidy(store)
    assert store.stats().written_bytes == hourly
    assert not write(store.of(F), [3])
    opener.close()
    (opener.folder / "written").write_bytes(b"\xff no numbers")
    assert write(opener(hourly=hourly).of(F), [3])


def test_a_count_that_can_not_be_kept_costs_no_block(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener(hourly=GIB)
    (opener.folder / "written").mkdir()
    assert write(store.of(F), [1])
    assert write(store.of(F), [2])
    assert store.stats().written_bytes == size_of([1]) * 2
    assert store.trouble is None
    (record,) = caplog.records
    assert "written" in record.message


# -- files that are not what they were -------------------------------------------------------------


def gone(path: Path) -> None:
    path.unlink()


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def pipe_in_its_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_in_its_place(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    "damage",
    [
        gone,
        folder_in_its_place,
        pipe_in_its_place,
        link_in_its_place,
        empty,
        longer,
        huge,
    ],
)
def test_what_lies_under_a_name_instead_is_a_miss_and_goes(
    opener: Opener, damage: Callable[[Path], None]
) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    block = folder.lookup(raw_of(PATH), 4)[0]
    damage(store.place(F, block.key))
    assert folder.read(block) is None
    assert store.num_bad == 1
    assert folder.read(block) is None  # gone by now
    assert store.num_bad == 1
    assert spans(store) == [(0, 4), (8, 10)]
    store.place(F, block.key).with_name("elsewhere").unlink(missing_ok=True)
    store.check()
    assert write(folder, PATH[:8])
    assert read_path(folder, PATH) == WHOLE
    store.check()


def test_every_flipped_bit_and_every_cut_is_noticed(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    (block,) = folder.lookup(raw_of(PATH), 0)
    place = store.place(F, block.key)
    whole = place.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        for content in (bytes(changed), whole[:at]):
            place.write_bytes(content)
            assert folder.read(block) is None, at
            assert not place.exists()
            assert write(folder, PATH[:4])
    assert store.num_bad == 2 * len(whole)


def test_swapped_files_and_another_models_block_under_the_name(opener: Opener) -> None:
    store = opener()
    ours, other = store.of(F), store.of("e" * 8)
    write_path(ours, PATH)
    write(ours, [1, 2, 3, 4])
    write(other, PATH[:4], salt=1)
    (one,) = ours.lookup(raw_of(PATH[:4]), 0)
    (two,) = ours.lookup(raw_of([1, 2, 3, 4]), 0)
    places = store.place(F, one.key), store.place(F, two.key)
    contents = [place.read_bytes() for place in places]
    places[0].write_bytes(contents[1])
    places[1].write_bytes(contents[0])
    assert ours.read(one) is ours.read(two) is None
    assert write(ours, PATH[:4])
    shutil.copyfile(store.place("e" * 8, one.key), places[0])
    assert ours.read(one) is None
    assert store.num_bad == 3
    assert read_path(other, PATH[:4]) == [kv_of(PATH[:4], 0, 1)]
    # and one of the same model and place, whose ids begin as those asked for, but go on otherwise
    write(ours, [5, 6, 7])
    (three,) = ours.lookup(raw_of([5, 6]), 0)
    write(ours, [5, 6, 8])
    (four,) = ours.lookup(raw_of([5, 6, 8]), 0)
    shutil.copyfile(store.place(F, four.key), store.place(F, three.key))
    assert ours.read(three) is None


@pytest.mark.parametrize(
    ("error", "bad"), [(errno.EACCES, 1), (errno.EIO, 1), (errno.EMFILE, 0), (errno.ENOMEM, 0)]
)
def test_a_file_that_can_not_be_read(opener: Opener, error: int, bad: int) -> None:
    """That there are too many open files says nothing about this one."""
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    (block,) = folder.lookup(raw_of(PATH), 0)
    opener.disk.fails = {"read": error}
    assert folder.read(block) is None
    opener.disk.fails = {}
    assert store.num_bad == bad
    assert spans(store) == ([] if bad else [(0, 4)])
    assert read_path(folder, PATH) == ([] if bad else WHOLE[:1])


def test_what_can_be_neither_read_nor_deleted_is_no_longer_listed(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    (block,) = folder.lookup(raw_of(PATH), 0)
    opener.disk.fails = {"read": errno.EACCES, "remove": errno.EACCES}
    assert folder.read(block) is None
    assert spans(store) == []
    opener.disk.fails = {}
    assert write(folder, PATH[:4])
    store.check()


def test_a_file_whose_row_is_gone_is_tried_again_when_idle(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    tidy(store)  # nobody looks through all folders any more
    write(folder, PATH[:4])
    (block,) = folder.lookup(raw_of(PATH), 0)
    place = store.place(F, block.key)
    place.write_bytes(b"damaged")
    opener.disk.fails = {"remove": errno.EROFS}
    assert folder.read(block) is None
    tidy(store)
    assert place.exists()
    assert store.trouble is None
    opener.disk.fails = {}
    assert write(folder, [1])  # one file that stays is no reason to write nothing
    tidy(store)
    assert not place.exists()
    store.check()


def test_what_had_to_go_and_could_not_is_never_adopted(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    tidy(store)
    write_path(folder, PATH)
    opener.disk.fails = {"remove": errno.EROFS}
    folder.delete(folder.lookup(raw_of(PATH), 4)[0])
    assert spans(store) == [(0, 4)]
    assert store.trouble is not None
    assert not store.sweep(lambda _fingerprint, _path: False)  # they are there still
    assert len(files_of(store)) == 3
    opener.disk.fails = {}
    opener.clock.now += 31
    tidy(store)
    assert len(files_of(store)) == 1
    assert spans(store) == [(0, 4)]
    opener.disk.fails = {"remove": errno.EROFS}
    folder.delete(folder.lookup(raw_of(PATH), 0)[0])
    opener.disk.fails = {}
    assert store.sweep(lambda _fingerprint, _path: False)
    assert files_of(store) == []
    store.check()


def test_each_kind_of_damage_is_logged_once(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener()
    folder = store.of(F)
    for first in range(5):
        write(folder, [first])
        gone(store.place(F, folder.lookup(raw_of([first]), 0)[0].key))
        assert read_path(folder, [first]) == [None]
    assert store.num_bad == 5
    (record,) = caplog.records
    assert "its file is gone" in record.message
    assert record.levelno == logging.WARNING


# -- the index -------------------------------------------------------------------------------------


def no_database(index: Path) -> None:
    index.write_bytes(b"this is no database" * 1000)


def newer(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def cut(index: Path) -> None:
    os.truncate(index, 20_000)


def without_a_table(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("DROP TABLE totals")
    db.close()


@pytest.mark.parametrize("damage", [gone, empty, no_database, newer, cut, without_a_table])
def test_an_index_of_no_use_is_made_anew_and_blocks_are_adopted_when_idle(
    opener: Opener, damage: Callable[[Path], None]
) -> None:
    write_path(opener().of(F), PATH)
    opener.close()
    damage(opener.folder / "index.db")
    opener.clock.now += 5
    store = opener()
    assert read_path(store.of(F), PATH) in ([], WHOLE)
    tidy(store)
    assert store.made_at == opener.clock.now
    assert read_path(store.of(F), PATH) == WHOLE
    store.check()
    assert sorted(path.name for path in opener.folder.iterdir()) == [
        F,
        "index.db",
        "index.db-shm",
        "index.db-wal",
        "lock",
        "tmp",
        "written",
    ]


def test_an_index_that_breaks_while_it_is_open(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    assert store._index is not None
    store._index.forget_removed()
    size = (opener.folder / "index.db").stat().st_size
    with (opener.folder / "index.db").open("r+b") as file:
        file.write(os.urandom(size))
    store._index._db.execute("PRAGMA cache_size = 0")
    store._index._db.execute("PRAGMA shrink_memory")
    assert read_path(folder, [*PATH, 1]) in ([], WHOLE)
    write(folder, [1])
    opener.clock.now += 31
    assert write(folder, [2])
    tidy(store)
    assert read_path(folder, PATH) == WHOLE
    store.check()


def test_a_question_does_not_wait_for_another_program_that_holds_the_index(
    opener: Opener,
) -> None:
    store = opener()
    folder = store.of(F)
    write(folder, PATH[:4])
    other = sqlite3.connect(opener.folder / "index.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = threading.Thread(target=write, args=(folder, PATH[:8]))
    writing.start()
    try:
        while not any(call == "rename" for call, _ in opener.disk.calls[-3:]):
            time.sleep(0.001)
        for _ in range(20):
            assert spans(store) == [(0, 4)]
            assert store.stats().blocks == 1
        assert writing.is_alive()
    finally:
        other.execute("ROLLBACK")
        other.close()
        writing.join()
    assert spans(store) == [(0, 8)]
    assert store.trouble is None


def test_a_question_is_a_miss_while_the_index_waits_for_the_disk(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    blocks = folder.lookup(raw_of(PATH), 0)
    assert store._index is not None
    with store._index.lock:  # as who empties the log has it, or a commit that hangs
        answers = answers_of(
            lambda: folder.lookup(raw_of(PATH), 0),
            lambda: folder.spans(raw_of(PATH)),
            lambda: folder.has(raw_of(PATH), 8),
            lambda: store.stats().blocks,
            lambda: [bytes(folder.read(block) or b"") for block in blocks],
        )
    assert answers == [[], [], False, 3, WHOLE]
    assert spans(store) == [(0, 10)]


def answers_of(*questions: Callable[[], object]) -> list[object]:
    """Asked by another thread, which must not wait for ever."""
    found: list[object] = []
    asking = threading.Thread(
        target=lambda: found.extend(question() for question in questions), daemon=True
    )
    asking.start()
    asking.join(20)
    return found


def test_the_log_is_emptied_when_idle_and_not_in_between(opener: Opener) -> None:
    store = opener()
    log = opener.folder / "index.db-wal"
    for number in range(300):
        before = log.stat().st_size
        write(store.of(F), [number])
        assert log.stat().st_size > before
    tidy(store)
    assert log.stat().st_size == 0


# -- the folder ------------------------------------------------------------------------------------


def test_a_folder_that_is_removed_under_us_is_made_anew(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    blocks = folder.lookup(raw_of(PATH), 0)
    opener.clock.now += 5
    shutil.rmtree(opener.folder.parent)
    assert store.stats().blocks == 0
    assert [folder.read(block) for block in blocks] == [None] * 3
    assert store.num_bad == 0  # nothing was damaged
    assert spans(store) == []
    assert store.made_at == opener.clock.now
    assert write_path(folder, PATH) == [True] * 3
    assert read_path(folder, PATH) == WHOLE
    store.check()
    with pytest.raises(KVUnavailable, match="another radchat"):
        KVStore.open(opener.folder, budget=GIB, hourly=None)
    assert spans(opener()) == [(0, 10)]


def test_a_folder_that_is_removed_and_taken_by_another(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    shutil.rmtree(opener.folder)
    other = KVStore.open(opener.folder, budget=GIB, hourly=None, block_tokens=4)
    assert write(other.of(F), [1])
    assert not write(folder, PATH[:4])
    assert store.trouble is not None
    assert store.trouble.startswith(f"another radchat (pid {os.getpid()}) keeps its KV in")
    assert read_path(folder, PATH) == []
    assert store.stats().blocks == 0
    assert not write(folder, PATH[:4])
    other.check()
    other.close()
    opener.clock.now += 31
    assert write(folder, PATH[:4])
    assert spans(store, [1]) == [(0, 1)]
    store.check()


def test_a_folder_belongs_to_one_process(opener: Opener) -> None:
    opener()
    code = (
        "import sys; from pathlib import Path; from radchat_sessions.kv_store import *\n"
        "try: KVStore.open(Path(sys.argv[1]), budget=1, hourly=None)\n"
        "except KVUnavailable as error: print(error.message)"
    )
    where = str(Path(sys.modules[KVStore.__module__].__file__ or "").parents[1])
    said = subprocess.run(
        [sys.executable, "-P", "-c", code, str(opener.folder)],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == (
        f"another radchat (pid {os.getpid()}) keeps its KV in {opener.folder}: "
        "stop it, or set RADCHAT_CACHE_DIR to another folder\n"
    )


def test_a_lock_that_is_held_for_a_moment_is_waited_for(opener: Opener) -> None:
    ending = opener()
    soon = threading.Timer(0.05, ending.close)
    soon.start()
    KVStore.open(opener.folder, budget=GIB, hourly=None).close()
    soon.join()


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    gate, hangs = threading.Event(), threading.Event()

    def hang(call: str, _path: Path) -> None:
        if call == "sync":
            hangs.set()
            gate.wait()

    store = opener()
    write(store.of(F), [1])
    opener.disk.before = hang
    writing = threading.Thread(target=write, args=(store.of(F), PATH[:4]))
    writing.start()
    try:
        assert hangs.wait(20)
        assert spans(store, [1]) == [(0, 1)]
        store.close()
        assert writing.is_alive()
        assert spans(store, [1]) == []
        assert "does not answer" in caplog.text
    finally:
        gate.set()
        writing.join()


@pytest.mark.parametrize(
    ("error", "says"), [(errno.EROFS, "is read-only"), (errno.ENOSPC, "the disk is full")]
)
def test_a_folder_that_can_not_be_made(opener: Opener, error: int, says: str) -> None:
    opener.disk.fails = {"make_folder": error}
    with pytest.raises(KVUnavailable, match=says):
        opener()
    opener.disk.fails = {}
    opener()
    opener.close()
    opener.disk.fails = {"remove": error}
    with pytest.raises(KVUnavailable, match=says):
        opener()
    opener.disk.fails = {}
    assert opener().stats().blocks == 0  # and the lock was let go


def test_nothing_is_done_after_the_end(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    store.close()
    store.close()
    assert folder.lookup(raw_of(PATH), 0) == []
    assert not write(folder, PATH[:4])
    assert store.entries() == []
    assert (store.tidy(), evict(store, 1), store.clear()) == (0, (0, 0), (0, 0))
    assert store.verify() == (0, 0, [], 0, 0)


# -- kills -----------------------------------------------------------------------------------------


def test_a_kill_at_any_moment_of_a_write_leaves_a_whole_store(opener: Opener) -> None:
    """A tail is replaced by a longer one, in a store that is full, so that another block goes."""
    images: list[Path] = []

    def keep(call: str, _: Path) -> None:
        if call != "read":
            images.append(opener.folder.with_name(f"image-{len(images)}"))
            shutil.copytree(opener.folder, images[-1])

    store = opener()
    folder = store.of(F)
    write(folder, [1, 2])
    write_path(folder, PATH[:9])
    store.budget = store.stats().bytes
    opener.disk.before = keep
    assert write(folder, PATH)
    opener.disk.before = lambda _call, _path: None
    assert len(images) > 8
    for image in images:
        again = KVStore.open(image, budget=GIB, hourly=None, block_tokens=4)
        assert not list((image / "tmp").iterdir())
        assert read_path(again.of(F), PATH[:8]) == WHOLE[:2]
        for block in again.of(F).lookup(raw_of(PATH), 8):
            assert again.of(F).read(block) in (kv_of(PATH[:9], 8), WHOLE[2], None)
        assert again.verify().bad == []
        again.check()
        again.close()


def test_files_without_a_row_are_adopted_as_far_as_there_is_room_or_swept(opener: Opener) -> None:
    store = opener()
    for number, path in enumerate((PATH[:4], [1], [2], [3])):
        write(store.of(F), path)
        place = store.place(F, store.of(F).lookup(raw_of(path), 0)[0].key)
        os.utime(place, (number, number))
    opener.close()
    (opener.folder / "index.db").unlink()
    junk = opener.folder / F / "ab" / f"ab{'0' * 30}.safetensors"
    junk.parent.mkdir(exist_ok=True)
    junk.write_bytes(b"junk")
    store = opener()
    assert store.entries() == []
    tidy(store)
    assert [entry.ids for entry in store.entries()] == [
        raw_of(ids) for ids in (PATH[:4], [1], [2], [3])
    ]
    assert not junk.exists()
    store.check()
    opener.close()
    (opener.folder / "index.db").unlink()
    store = opener(budget=3 * size_of([1]))
    tidy(store)
    assert 2 <= store.stats().blocks <= 3
    store.check()


def holders_of(store: KVStore, ids: list[int]) -> int:
    return len(holders(store.folder, raw_of(ids)))


def without_rows(opener: Opener, *paths: list[int]) -> KVStore:
    """A store whose index was lost after these were written."""
    for path in paths:
        write_path(opener().of(F), path)
    opener.close()
    (opener.folder / "index.db").unlink()
    return opener()


def test_a_sweep_deletes_what_it_is_told_to_of_files_without_a_row_and_nothing_else(
    opener: Opener,
) -> None:
    store = without_rows(opener, PATH, [1, 2, 3, 4, 5])
    write(store.of(F), [9, 9])
    junk = store.place(F, "ab" + "0" * 30)
    junk.parent.mkdir(exist_ok=True)
    junk.write_bytes(raw_of(PATH))
    half = opener.folder / "tmp" / "half"
    half.write_bytes(raw_of(PATH))
    asked: list[tuple[str, bytes]] = []

    def goes(fingerprint: str, path: bytes) -> bool:
        asked.append((fingerprint, path))
        return path.startswith(raw_of(PATH[:5]))

    opener.disk.calls.clear()
    assert store.sweep(goes)
    assert sorted(asked) == sorted(
        (F, raw_of(path)) for path in (PATH[:4], PATH[:8], PATH, [1, 2, 3, 4], [1, 2, 3, 4, 5])
    )
    assert not junk.exists()
    assert not half.exists()
    assert holders_of(store, PATH[:5]) == 0
    gone = [name[:2] for call, name in opener.disk.calls if call == "remove" and name != "tmp"]
    synced = {name for call, name in opener.disk.calls if call == "sync_folder"}
    assert len(gone) == 3
    assert synced == set(gone)  # so that they stay removed if the power goes
    tidy(store)
    assert (spans(store), spans(store, [1, 2, 3, 4, 5])) == ([(0, 4)], [(0, 5)])
    assert spans(store, [9, 9]) == [(0, 2)]
    store.check()


def test_a_write_that_fails_leaves_the_same_block_that_has_no_row(opener: Opener) -> None:
    store = without_rows(opener, PATH[:4])
    opener.disk.fails = {"rename": errno.EIO}
    assert not write(store.of(F), PATH[:4])
    opener.disk.fails = {}
    opener.clock.now += 31
    tidy(store)
    assert read_path(store.of(F), PATH[:4]) == WHOLE[:1]
    store.check()


def test_a_sweep_does_not_wait_for_a_full_disk_nor_for_what_was_seen_before(
    opener: Opener,
) -> None:
    store = without_rows(opener, PATH)
    opener.disk.full = 0
    assert not write(store.of(F), [1])
    assert store.sweep(lambda _fingerprint, _path: True)
    assert holders_of(store, PATH[:4]) == 0
    opener.disk.full = None
    opener.clock.now += 31
    tidy(store)
    # a file whose row went while it could not be removed
    write_path(store.of(F), PATH)
    opener.disk.fails = {"read": errno.EIO, "remove": errno.EROFS}
    assert read_path(store.of(F), PATH) == [None] * 3
    assert not store.sweep(lambda _fingerprint, _path: True)
    opener.disk.fails = {"read": errno.EMFILE}
    assert not store.sweep(lambda _fingerprint, _path: True)
    assert len(files_of(store)) == 3
    opener.disk.fails = {}
    assert store.sweep(lambda _fingerprint, _path: True)
    assert holders_of(store, PATH[:4]) == 0
    store.check()
    store.close()
    assert not store.sweep(lambda _fingerprint, _path: True)


def test_what_is_adopted_is_under_its_own_name_and_nobody_elses(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    assert write(folder, PATH[:4])
    place = store.place(F, folder.lookup(raw_of(PATH), 0)[0].key)
    for other in (
        place.with_name(f"{place.name[:2]}{'0' * 30}{place.suffix}"),
        store.place("e" * 8, place.stem),
    ):
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, other)
    assert write(folder, [1])
    short = store.place(F, folder.lookup(raw_of([1]), 0)[0].key)
    kept = short.read_bytes()
    assert write(folder, [1, 2])
    short.parent.mkdir(exist_ok=True)
    short.write_bytes(kept)  # as if the kill came before it was removed
    store = opener()
    while store.tidy(1):
        pass
    assert store.stats().blocks == 2
    store.check()


def test_opening_and_looking_up_touch_no_more_files_with_many_blocks(opener: Opener) -> None:
    counts = []
    for number in (3, 200):
        folder = opener().of(F)
        for first in range(number):
            write(folder, [first])
        opener.close()
        opener.disk.calls.clear()
        opener().of(F).lookup(raw_of([1]), 0)
        counts.append(list(opener.disk.calls))
    assert counts[0] == counts[1]
    assert len(counts[0]) < 6


def test_verify_reads_everything_and_says_what_it_did(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    write(folder, [1])
    place = store.place(F, folder.lookup(raw_of([1]), 0)[0].key)
    place.write_bytes(place.read_bytes()[:-1])
    write(folder, [2, 2])
    write(folder, [3, 3])
    two, three = (store.place(F, folder.lookup(raw_of(ids), 0)[0].key) for ids in ([2, 2], [3, 3]))
    shutil.copyfile(two, three)
    stray = store.place(F, "ab" + "0" * 30)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"")
    seen: list[tuple[int, int]] = []
    found = store.verify(lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]
    assert found.bad == [
        (place.stem, "it is too short"),
        (three.stem, "it is of another place"),
    ]
    assert (found.blocks, found.adopted, found.swept) == (4, 0, 1)
    assert found.bytes == store.stats().bytes
    store.check()


def test_after_a_deletion_its_ids_are_nowhere_on_the_disk(opener: Opener) -> None:
    secret = [7_301_001, 7_301_002, 7_301_003]
    store = opener()
    folder = store.of(F)
    write_path(folder, [*PATH[:4], *secret])
    write(folder, [*PATH[:4], *secret, 1])
    assert holders(opener.folder, raw_of(secret))
    folder.delete(folder.lookup(raw_of([*PATH[:4], *secret]), 4)[0])
    assert holders(opener.folder, raw_of(secret)) == []
    write(folder, secret)
    store.clear()
    assert holders(opener.folder, raw_of(secret)) == []


def holders(folder: Path, content: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


# -- threads ---------------------------------------------------------------------------------------


def test_readers_get_whole_blocks_or_nothing_while_others_write_and_evict(opener: Opener) -> None:
    store = opener(budget=4000)
    folder = store.of(F)
    paths = [[first, *range(9)] for first in range(6)]
    done, failures = threading.Event(), []
    hits = 0

    def read() -> None:
        nonlocal hits
        try:
            while not done.is_set():
                for path in paths:
                    for block in folder.lookup(raw_of(path), 0):
                        data = folder.read(block)
                        if data is not None:
                            hits += 1
                            of = path[: block.start + block.num_tokens]
                            assert bytes(data) == kv_of(of, block.start)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(60):
            write_path(folder, paths[number % 6])
            evict(store, 300)
            store.stats()
            if number % 20 == 7:
                store.tidy()
            if number % 20 == 14:
                store.verify()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert hits > 50
    assert (store.num_bad, store.trouble) == (0, None)
    store.check()
