"""Random lives of a byte store against a plain model of it: what it holds, and what goes first.

The model is exact: a dict of what is on disk, with the order of last use. Everything is compared
after every step, files read included; what is damaged is still listed, until somebody reads it.
"""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radchat_sessions.kv_blocks import Block
from radchat_sessions.kv_files import Damaged
from radchat_sessions.kv_store import KVFolder
from tests.machines import run
from tests.sessions.kv import B, Opener, evict, kv_of, quick_folder, raw_of, size_of, write

FOLDERS = ("model-a", "model-b")
LARGEST = 3 * B + 2  # ids of a path
paths = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=LARGEST)
folders = st.sampled_from(FOLDERS)
shares = st.sampled_from([0.6, 0.9, 1.0, 1.3, 1000.0, 1000.0])  # of what is held, as a budget
pick = st.integers(0, 10**6)


class Name(NamedTuple):
    """Of a block: all ids up to its end say which one it is."""

    folder: str
    path: tuple[int, ...]

    @property
    def start(self) -> int:
        return (len(self.path) - 1) // B * B

    @property
    def parent(self) -> Name:
        return Name(self.folder, self.path[: self.start])

    def begins(self, other: Name) -> bool:
        """Is of the same place as ``other``, which is longer or the same."""
        return (self.folder, self.start) == (other.folder, other.start) and (
            other.path[: len(self.path)] == self.path
        )


@dataclass(frozen=True)
class Kept:
    data: bytes
    used: int
    damaged: str = ""  # how


class KVMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = quick_folder()
        self.lives = 0
        self.opener = Opener(self.home / "0")
        self.budget = 10**6
        self.store = self.opener(budget=self.budget)
        self.kept: dict[Name, Kept] = {}
        self.strays: dict[Name, Kept] = {}  # files without a row
        self.swept = False  # all of them looked at, in this life
        self.keys: dict[Name, str] = {}
        self.ticks = 0
        self.salt = 0
        self.turn = 0

    def teardown(self) -> None:
        self.opener.close()
        shutil.rmtree(self.home)

    # -- the model ---------------------------------------------------------------------------------

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def key(self, name: Name) -> str:
        found = self.keys.get(name)
        if found is None:
            *_, (_, parent, ids) = self.store.pieces(raw_of(name.path))
            found = self.keys[name] = self.store.key_of(parent, ids)
        return found

    def size(self, name: Name) -> int:
        return size_of(name.path, name.folder)

    def held(self) -> int:
        return sum(self.size(name) for name in self.kept)

    def parents(self, names: dict[Name, Kept]) -> set[Name]:
        return {name.parent for name in names}

    def going(self, num_bytes: int | None, spared: set[Name]) -> list[Name]:
        """What goes to free so many bytes, None: all; by brute force."""
        left, gone, freed = dict(self.kept), [], 0
        while left and (num_bytes is None or freed < num_bytes):
            inner = self.parents(left)
            leaves = [name for name in left if name not in inner and name not in spared]
            if not leaves:
                break
            next_one = min(leaves, key=lambda name: left[name].used)
            del left[next_one]
            gone.append(next_one)
            freed += self.size(next_one)
        return gone

    def shrink(self, num_bytes: int, spared: set[Name] | None = None) -> list[Name]:
        gone = self.going(num_bytes, spared or set())
        for name in gone:
            del self.kept[name]
        return gone

    def add(self, name: Name, data: bytes, used: int) -> None:
        for shorter in [each for each in self.kept if each.begins(name)]:
            del self.kept[shorter]
            self.strays.pop(shorter, None)
        self.strays.pop(name, None)
        self.kept[name] = Kept(data, used)

    def covered(self, name: Name) -> Name | None:
        return min((each for each in self.kept if name.begins(each)), default=None)

    def folder(self, name: str) -> KVFolder:
        return self.store.of(name)

    def place(self, name: Name) -> Path:
        return self.store.place(name.folder, self.key(name))

    def chosen(self, number: int) -> Name:
        names = sorted(self.kept)
        return names[number % len(names)]

    # -- writing and reading -----------------------------------------------------------------------

    @rule(folder=folders, path=paths)
    def write(self, folder: str, path: list[int]) -> None:
        self.write_block(Name(folder, tuple(path)))

    @initialize(written=st.lists(st.tuples(folders, paths), min_size=4, max_size=8))
    def begin(self, written: list[tuple[str, list[int]]]) -> None:
        for folder, path in written:
            self.write_path(folder, path)

    @rule(folder=folders, path=paths)
    def write_path(self, folder: str, path: list[int]) -> None:
        for end in [*range(B, len(path), B), len(path)]:
            self.write_block(Name(folder, tuple(path[:end])))

    @precondition(lambda self: self.kept)
    @rule(number=pick, more=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=B))
    def grow_a_tail(self, number: int, more: list[int]) -> None:
        name = self.chosen(number)
        self.write_block(Name(name.folder, (*name.path, *more)[: name.start + B]))

    def write_block(self, name: Name) -> None:
        self.salt += 1
        done = write(self.folder(name.folder), list(name.path), salt=self.salt)
        assert self.store.trouble is None
        there = self.covered(name)
        if there is not None:
            assert done
            self.kept[there] = replace(self.kept[there], used=self.tick())
            return
        size = self.size(name)
        assert done == self.room_for(name, size)
        if done:
            self.add(name, kv_of(name.path, name.start, self.salt), self.tick())

    def room_for(self, name: Name, size: int) -> bool:
        strays = sum(self.file_size(each) for each in self.strays)
        if size + strays > self.budget:
            return False
        above: set[Name] = set()
        parent = name.parent
        while parent.path:
            above.add(parent)
            parent = parent.parent
        self.shrink(self.held() + strays + size - self.budget, above)
        return self.held() + strays + size <= self.budget

    def file_size(self, name: Name) -> int:
        """What lies there, which damage may have made longer or shorter, or a folder."""
        place = self.place(name)
        return place.stat().st_size if place.is_file() else 0

    @rule(folder=folders, path=paths, room=st.integers(0, 600))
    def write_to_a_full_disk(self, folder: str, path: list[int], room: int) -> None:
        name = Name(folder, tuple(path))
        if self.covered(name) is not None or self.size(name) <= room:
            return
        self.opener.disk.full = room
        assert not write(self.folder(folder), path)
        self.opener.disk.full = None
        if self.room_for(name, self.size(name)):
            assert self.store.trouble is not None
            assert not write(self.folder(folder), path)  # it pauses
            self.opener.clock.now += 60
        self.store.trouble = None

    @rule(folder=folders, path=paths, step=st.sampled_from(["create", "sync", "rename"]))
    def write_to_a_disk_that_fails(self, folder: str, path: list[int], step: str) -> None:
        name = Name(folder, tuple(path))
        if self.covered(name) is not None:
            return
        self.opener.disk.fails = {step: errno.EIO}
        assert not write(self.folder(folder), path)
        self.opener.disk.fails = {}
        self.room_for(name, self.size(name))
        self.opener.clock.now += 60
        self.store.trouble = None

    @precondition(lambda self: self.kept)
    @rule(number=pick, cut=st.integers(0, B))
    def read(self, number: int, cut: int) -> None:
        name = self.chosen(number)
        path = name.path[: len(name.path) - cut]
        for block in self.folder(name.folder).blocks(raw_of(path)):
            there = self.named(name.folder, block)
            kept = self.kept[there]
            data = self.folder(name.folder).read(block)
            if kept.damaged:
                assert data is None
                del self.kept[there]
            else:
                assert data is not None
                assert bytes(data) == kept.data
                self.kept[there] = replace(kept, used=self.tick())

    def named(self, folder: str, block: Block) -> Name:
        return next(
            name for name in self.kept if name.folder == folder and self.key(name) == block.key
        )

    # -- going -------------------------------------------------------------------------------------

    @rule(num_bytes=st.integers(1, 900))
    def evict(self, num_bytes: int) -> None:
        gone = self.shrink(num_bytes)
        expected = sum(len(n.path) - n.start for n in gone), sum(self.size(n) for n in gone)
        assert evict(self.store, num_bytes) == expected

    @rule(share=shares)
    def change_the_budget(self, share: float) -> None:
        self.budget = self.store.budget = int(share * max(self.held(), 2000))
        self.shrink(self.held() - self.budget)

    @precondition(lambda self: self.kept)
    @rule(number=pick)
    def delete(self, number: int) -> None:
        name = self.chosen(number)
        raw = raw_of(name.path)
        block = next(b for b in self.folder(name.folder).blocks(raw) if b.key == self.key(name))
        self.folder(name.folder).delete(block)
        doomed, before = {name}, 0
        while len(doomed) > before:
            before = len(doomed)
            doomed |= {each for each in self.kept if each.parent in doomed}
        for each in doomed:
            del self.kept[each]

    @precondition(lambda self: len(self.kept) > 4)
    @rule(folder=st.one_of(folders, folders, st.none()))
    def clear(self, folder: str | None) -> None:
        self.store.clear(folder)
        for names in (self.kept, self.strays):
            for name in [each for each in names if folder in (None, each.folder)]:
                del names[name]

    # -- damage ------------------------------------------------------------------------------------

    @precondition(lambda self: self.kept)
    @rule(
        number=pick,
        other=pick,
        how=st.sampled_from(["flip", "cut", "longer", "gone", "folder", "swapped", "of another"]),
    )
    def damage(self, number: int, other: int, how: str) -> None:
        name = self.chosen(number)
        place = self.place(name)
        alike = [n for n in self.kept if n != name and self.size(n) == self.size(name)]
        alike.sort(key=lambda n: (n.folder != name.folder, n))
        there = alike[other % len(alike)] if alike else name
        if self.kept[name].damaged or self.kept[there].damaged:
            return
        if how in ("swapped", "of another") and there == name:
            how = "cut"
        self.kept[name] = replace(self.kept[name], damaged=how)
        if how in ("gone", "folder"):
            place.unlink()
            if how == "folder":
                place.mkdir()
                (place / "x").touch()
        elif how == "swapped":
            self.kept[there] = replace(self.kept[there], damaged=how)
            one, two = place.read_bytes(), self.place(there).read_bytes()
            place.write_bytes(two)
            self.place(there).write_bytes(one)
        elif how == "of another":
            shutil.copyfile(self.place(there), place)
        else:
            raw = bytearray(place.read_bytes())
            at = other % len(raw)
            if how == "cut":
                del raw[at:]
            elif how == "longer":
                raw.append(0)
            else:
                raw[at] ^= 1 << other % 8
            place.write_bytes(raw)

    @rule()
    def verify(self) -> None:
        self.store.budget = self.budget  # after a restart it may be over
        self.shrink(self.held() - self.budget)
        damaged = {name for name, kept in self.kept.items() if kept.damaged}
        keys = sorted(self.key(name) for name in damaged if self.kept[name].damaged != "gone")
        for name in damaged:
            del self.kept[name]
        found = self.store.verify()
        assert sorted(key for key, _ in found.bad) == keys
        self.sweep(found.adopted, found.swept)

    # -- restarts ----------------------------------------------------------------------------------

    def open(self) -> None:
        self.store = self.opener(budget=self.budget)
        self.swept = False

    @rule(share=st.one_of(st.none(), shares))
    def restart(self, share: float | None) -> None:
        self.budget = self.budget if share is None else int(share * max(self.held(), 2000))
        self.open()

    @rule(half_written=st.binary(max_size=8))
    def kill(self, half_written: bytes) -> None:
        """What lies on the disk at this moment is what the next one finds."""
        (self.opener.folder / "tmp" / "x").write_bytes(half_written)
        self.lives += 1
        image = self.home / str(self.lives)
        shutil.copytree(self.opener.folder, image)
        self.opener.close()
        self.opener = Opener(image)
        self.open()

    @precondition(lambda self: self.kept)
    @rule(number=pick)
    def kill_between_file_and_row(self, number: int) -> None:
        name = self.chosen(number)
        if self.kept[name].damaged:
            return
        assert self.store._index is not None
        self.store._index.remove(name.folder, self.key(name))
        self.kill(b"")
        self.strays[name] = self.kept.pop(name)

    @precondition(lambda self: len(self.kept) > 2)
    @rule(how=st.sampled_from(["gone", "no database", "of another format"]))
    def lose_the_index(self, how: str) -> None:
        self.opener.close()
        path = self.opener.folder / "index.db"
        if how == "gone":
            path.unlink()
        elif how == "no database":
            path.write_bytes(b"no database" * 1000)
        else:
            raw = bytearray(path.read_bytes())
            raw[60:64] = b"\0\0\0\7"  # where SQLite keeps user_version
            path.write_bytes(raw)
        self.open()
        self.strays |= {name: kept for name, kept in self.kept.items() if kept.damaged != "gone"}
        self.kept = {}

    @rule(limit=st.integers(1, 5))
    def tidy(self, limit: int) -> None:
        self.shrink(self.held() - self.budget)
        sweep = self.store._sweep
        while self.store.tidy(limit):
            pass
        if not self.swept:
            self.sweep(sweep.adopted, sweep.swept)

    @rule(folder=folders, beginning=paths)
    def sweep_what_goes(self, folder: str, beginning: list[int]) -> None:
        raw = raw_of(beginning)
        assert self.store.sweep(lambda name, path: name == folder and path.startswith(raw))
        for name, stray in list(self.strays.items()):
            goes = name.folder == folder and raw_of(name.path).startswith(raw)
            if goes or stray.damaged:
                del self.strays[name]

    def sweep(self, adopted: int, swept: int) -> None:
        """What the store has done, folder by folder, and how often it says it has."""
        self.swept = True
        lost = {name for name, kept in self.kept.items() if kept.damaged == "gone"}
        all_of_them = sorted(lost | self.strays.keys(), key=lambda n: (n.folder, self.key(n)))
        for _, shard in groupby(all_of_them, key=lambda n: (n.folder, self.key(n)[:2])):
            strays = []
            for name in shard:
                if name in lost:
                    del self.kept[name]
                else:
                    strays.append(name)
            for name in strays:
                stray = self.strays.pop(name)
                fits = self.held() + self.size(name) <= self.budget
                if stray.damaged or self.covered(name) or not fits:
                    swept -= 1
                else:
                    self.add(name, stray.data, 0)
                    adopted -= 1
        assert (adopted, swept) == (0, 0)
        # when they were last used says the file system, to its own precision
        assert self.store._index is not None
        names = {(name.folder, self.key(name)): name for name in self.kept}
        for row in self.store._index.rows():
            name = names[row.fingerprint, row.key]
            self.kept[name] = replace(self.kept[name], used=self.tick())

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def it_holds_what_the_model_holds_in_the_order_in_which_it_would_go(self) -> None:
        order = self.going(None, set())
        assert [(e.fingerprint, e.key, e.num_bytes) for e in self.store.entries()] == [
            (name.folder, self.key(name), self.size(name)) for name in order
        ]
        damage = any(kept.damaged for kept in self.kept.values())
        self.store.check(files=not damage and not self.strays)
        stats = self.store.stats()
        assert (stats.blocks, stats.bytes) == (len(self.kept), self.held())
        assert stats.tokens == sum(len(name.path) - name.start for name in self.kept)
        assert not list((self.opener.folder / "tmp").iterdir())

    @invariant()
    def every_path_gets_what_was_written_for_it_or_nothing(self) -> None:
        asked = {(name.folder, name.path) for name in self.kept}
        self.turn += 1
        for number, (folder, path) in enumerate(sorted(asked)):
            asked.add(
                [
                    (folder, path[:-1]),
                    (folder, (*path, 1)),
                    (folder, (*path[:-1], 3 - path[-1])),
                    (FOLDERS[folder == FOLDERS[0]], path),
                ][(self.turn + number) % 4]
            )
        for folder, path in sorted(asked):
            self.ask(folder, path)

    def ask(self, name: str, path: tuple[int, ...]) -> None:
        folder, raw = self.folder(name), raw_of(path)
        covered: set[int] = set()
        for at in range(0, len(path), B):
            shared = [
                sum(1 for _ in takewhile(eq_pair, zip(kept.path[at:], path[at:], strict=False)))
                for kept in self.kept
                if (kept.folder, kept.start) == (name, at) and kept.path[:at] == path[:at]
            ]
            covered |= set(range(at, at + max(shared, default=0)))
        spans = folder.spans(raw)
        assert [token for begin, end in spans for token in range(begin, end)] == sorted(covered)
        assert all(one[1] < other[0] for one, other in pairwise(spans))
        for start in range(len(path)):
            end = next(at for at in range(start, len(path) + 1) if at not in covered)
            blocks = folder.lookup(raw, start)
            assert (blocks[-1].end if blocks else start) == end
            assert folder.has(raw, start) == (end == len(path))
        for block in folder.blocks(raw):
            kept = self.kept[self.named(name, block)]
            try:
                data = self.store._verified(name, block)
            except (Damaged, OSError):
                assert kept.damaged
            else:
                assert not kept.damaged
                assert data == kept.data


def eq_pair(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def test_random_lives_of_a_byte_store_agree_with_a_plain_model() -> None:
    run(KVMachine, examples=70, steps=25, shrinks=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_long_random_lives_of_a_byte_store_agree_with_a_plain_model() -> None:
    run(KVMachine, examples=600, steps=60)
