"""Files go back and forth with the conversation, byte for byte, also after a kill."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.agent.files.checkpoints import FileCheckpoints
from radchat.agent.files.rewind import Past, files_of, finish
from radchat.agent.files.rewind import rewind_to as rewind
from radchat.agent.files.workspace import Folder
from radchat.agent.types import Call, Preview
from tests.agent.calls import Entries

Tree = dict[str, tuple[str, int, bytes]]


def tree_of(root: Path) -> Tree:
    found: Tree = {}
    for folder, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(folder, name)
            info = path.lstat()
            mode = stat.S_IMODE(info.st_mode)
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = ("link", 0, os.fsencode(path.readlink()))
            elif path.is_dir():
                found[key] = ("folder", mode, b"")
            else:
                found[key] = ("file", mode, path.read_bytes())
    return found


def mess(root: Path, dice: random.Random) -> list[Path]:
    """Something that a command may do; the paths it is about."""
    names = ["a", "b", "d/c", "d/e/f", "g"]
    path = root / dice.choice(names)
    what = dice.choice(["write", "write", "append", "remove", "mode", "link", "folder", "tree"])
    if what == "tree" and (root / "d").is_dir() and not (root / "d").is_symlink():
        shutil.rmtree(root / "d")
        return [root / "d"]
    if any(parent.is_symlink() or parent.is_file() for parent in path.parents if parent != root):
        return []
    if path.is_dir() and not path.is_symlink():
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    exists = os.path.lexists(path)
    if what in ("remove", "link", "folder") and exists:
        path.unlink()
    if what == "link":
        path.symlink_to(dice.choice(["a", "nowhere", "/etc/hostname"]))
    elif what == "folder":
        path.mkdir()
    elif what == "mode" and path.is_file() and not path.is_symlink():
        path.chmod(dice.choice([0o600, 0o755, 0o400]))
    elif what in ("write", "append", "tree") and not path.is_symlink():
        data = dice.choice([b"", b"x\r\n", bytes(range(256)), dice.randbytes(40)])
        if path.exists():
            path.chmod(0o644)
        old = path.read_bytes() if what == "append" and path.exists() else b""
        path.write_bytes(old + data)
    return [path]


class Work:
    """An agent's calls, each a change of the folder; where it stands is a list of calls."""

    def __init__(self, base: Path, dice: random.Random) -> None:
        self.root = base / "project"
        self.root.mkdir()
        self.dice = dice
        self.entries = Entries(base / "kept")
        self.checkpoints = FileCheckpoints(Folder.of(self.root), self.entries)
        self.path: list[str] = []
        self.trees: dict[tuple[str, ...], Tree] = {(): tree_of(self.root)}
        self.num = 0

    def step(self) -> None:
        self.num += 1
        call = Call(f"c{self.num}", "shell", {})
        self.checkpoints.before(call, "m", Preview("shell"))
        for _ in range(self.dice.randrange(1, 4)):
            mess(self.root, self.dice)
        self.checkpoints.after(call, "m")
        self.path.append(call.id)
        self.trees[tuple(self.path)] = tree_of(self.root)

    def go(self, path: tuple[str, ...]) -> None:
        done = rewind(self.root, self.entries, path)
        assert not done.left
        self.path = list(path)
        assert tree_of(self.root) == self.trees[path]


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 10**6))
def test_any_walk_through_the_steps_gives_the_files_of_each(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)
    work = Work(tmp_path_factory.mktemp("w"), dice)
    for _ in range(12):
        if dice.random() < 0.6 or len(work.trees) == 1:
            work.step()
        else:
            work.go(dice.choice(sorted(work.trees)))
    for path in sorted(work.trees):
        work.go(path)


@pytest.mark.parametrize("seed", range(6))
def test_a_rewind_that_is_killed_anywhere_is_finished_by_the_next(
    seed: int, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    work = Work(tmp_path, random.Random(seed))
    for _ in range(4):
        work.step()
    goal = sorted(work.trees)[seed % 3]
    for moment in range(12):
        count = 0

        def kill(_path: str, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count > moment:
                raise Killed

        try:
            rewind(work.root, work.entries, goal, at_file=kill)
        except Killed:
            assert finish(work.root, work.entries) is not None
        assert tree_of(work.root) == work.trees[goal]
        assert finish(work.root, work.entries) is None
        work.go(max(work.trees, key=len))


def test_what_somebody_else_changed_is_left_and_named(tmp_path: Path) -> None:
    work = Work(tmp_path, random.Random(1))
    call = Call("c1", "write_file", {})
    files = (work.root / "mine", work.root / "yours")
    work.checkpoints.before(call, "m", Preview("w", writes=files))
    for file in files:
        file.write_text("agent")
    assert work.checkpoints.after(call, "m") == ("mine", "yours")
    (work.root / "yours").write_text("a person")
    assert files_of(work.entries, ["c1"]) == ["mine", "yours"]
    done = rewind(work.root, work.entries, ())
    assert done.restored == ("mine",)
    assert done.left == ("yours: changed since the agent left it",)
    assert not (work.root / "mine").exists()
    assert (work.root / "yours").read_text() == "a person"


def test_files_outside_and_new_folders_come_back_too(tmp_path: Path) -> None:
    work = Work(tmp_path, random.Random(1))
    outside = tmp_path / "outside"
    outside.write_text("before")
    call = Call("c1", "write_file", {})
    paths = (outside, work.root / "new" / "deep" / "f")
    work.checkpoints.before(call, "m", Preview("w", writes=paths))
    outside.write_text("after")
    paths[1].parent.mkdir(parents=True)
    paths[1].write_text("x")
    work.checkpoints.after(call, "m")
    rewind(work.root, work.entries, ())
    assert outside.read_text() == "before"
    assert list(work.root.iterdir()) == []
    rewind(work.root, work.entries, ("c1",))
    assert (outside.read_text(), paths[1].read_text()) == ("after", "x")


def test_a_call_whose_end_nobody_saw_counts_with_what_it_did(tmp_path: Path) -> None:
    work = Work(tmp_path, random.Random(1))
    work.checkpoints.before(Call("c1", "shell", {}), "m", Preview("shell"))
    (work.root / "half").write_text("x")
    FileCheckpoints(Folder.of(work.root), work.entries)  # the next process
    rewind(work.root, work.entries, ())
    assert not (work.root / "half").exists()


def test_what_is_too_large_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radchat.agent.files.checkpoints.MAX_FILE", 1000)
    told: list[str] = []
    work = Work(tmp_path, random.Random(1))
    (work.root / "large").write_bytes(b"x" * 5000)
    checkpoints = FileCheckpoints(Folder.of(work.root), work.entries, told.append)
    call = Call("c1", "shell", {})
    checkpoints.before(call, "m", Preview("shell"))
    (work.root / "large").write_bytes(b"y" * 6000)
    assert checkpoints.after(call, "m") == ("large",)
    assert told == ["large files are not kept, such as large: a rewind leaves them as they are"]
    done = rewind(work.root, work.entries, ())
    assert len(done.left) == 1
    assert (work.root / "large").read_bytes() == b"y" * 6000


def shell(work: Work, line: str, call: str = "c1") -> tuple[str, ...]:
    """A command, as the agent has it run."""
    asked = Call(call, "shell", {})
    work.checkpoints.before(asked, "m", Preview("shell"))
    subprocess.run(line, shell=True, cwd=work.root, check=True)
    return work.checkpoints.after(asked, "m")


def test_what_nobody_has_a_copy_of_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radchat.agent.files.checkpoints.MAX_FILE", 1000)
    monkeypatch.setattr("radchat.agent.files.states.MAX_FILE", 1000)
    work = Work(tmp_path, random.Random(1))
    (work.root / "large").write_bytes(b"x" * 5000)
    shell(work, "mv large renamed; echo new > small")
    done = rewind(work.root, work.entries, ())
    assert (work.root / "renamed").read_bytes() == b"x" * 5000
    assert done.restored == ("small",)
    assert [line.partition(":")[2] for line in done.left] == [" too large to have been kept"] * 2


def test_a_folder_that_is_not_looked_into_is_not_removed_under_another_name(tmp_path: Path) -> None:
    told: list[str] = []
    work = Work(tmp_path, random.Random(1))
    work.checkpoints = FileCheckpoints(Folder.of(work.root), work.entries, told.append)
    (work.root / ".git").mkdir()
    (work.root / ".git" / "HEAD").write_text("ref")
    shell(work, "mv .git git-old; echo new > small")
    rewind(work.root, work.entries, ())
    assert (work.root / "git-old" / "HEAD").read_text() == "ref"
    assert not (work.root / "small").exists()
    assert told == ["git-old was moved here and is not kept: a rewind leaves it"]


@pytest.mark.parametrize("line", ["rm b", "echo new > aa", "echo more > c"])
def test_beyond_what_is_looked_at_nothing_comes_or_goes(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radchat.agent.files.checkpoints.MAX_FILES", 5)
    work = Work(tmp_path, random.Random(1))
    for name in "abcdefgh":
        (work.root / name).write_text(name)
    shell(work, line)
    rewind(work.root, work.entries, ())
    for name in "abcdefgh":
        assert (work.root / name).read_text() == name


def test_the_journal_of_an_agent_is_not_among_its_files(tmp_path: Path) -> None:
    """An agent at work in the home folder, where radchat's own folders are."""
    work = Work(tmp_path, random.Random(1))
    work.entries = Entries(work.root / "data" / "agent" / "session")
    private = [work.root / "data"]
    work.checkpoints = FileCheckpoints(Folder.of(work.root), work.entries, private=private)
    (work.root / "f").write_text("before")
    for number in range(3):
        assert shell(work, f"echo {number} > f", f"c{number}") == ("f",)
    rewind(work.root, work.entries, ())
    assert (work.root / "f").read_text() == "before"
    rewind(work.root, work.entries, ("c0", "c1"))
    assert (work.root / "f").read_text() == "1\n"


def test_what_a_person_wrote_between_two_steps_is_kept_and_named(tmp_path: Path) -> None:
    work = Work(tmp_path, random.Random(1))
    (work.root / "f").write_text("first")
    shell(work, "echo agent > f", "c1")
    (work.root / "f").write_text("a person's")
    shell(work, "echo again > f", "c2")
    done = rewind(work.root, work.entries, ())
    assert (work.root / "f").read_text() == "first"
    (line,) = done.left
    assert line.startswith("f: changed by others between two steps: that is kept as f.kept-")
    assert (work.root / line.rpartition(" ")[2]).read_text() == "a person's"


@pytest.mark.parametrize("was", ["link", "file", "folder"])
@pytest.mark.parametrize("now", ["link", "file", "folder"])
def test_a_kill_in_the_midst_of_a_file_is_no_end(was: str, now: str, tmp_path: Path) -> None:
    make = {"link": "ln -s nowhere x", "file": "echo text > x", "folder": "mkdir -m 700 x"}
    work = Work(tmp_path, random.Random(1))
    subprocess.run(make[was], shell=True, cwd=work.root, check=True)
    before = tree_of(work.root)
    shell(work, f"rm -rf x; {make[now]}; chmod -R 711 x 2>/dev/null; true")
    past = Past.read(work.entries)
    work.entries.append({"rewind": "1", "undone": past.done, "redone": []})
    if before != tree_of(work.root):  # the old one is gone, the new one not there yet
        path = work.root / "x"
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    finish(work.root, work.entries)
    assert tree_of(work.root) == before


def test_a_disk_that_is_full_runs_nothing(tmp_path: Path) -> None:
    from tests.agent.fake_steps import Desk

    desk = Desk(tmp_path, [[("write_file", {"path": "f", "content": "x"})], "done"],
                mode="acceptEdits")  # fmt: skip
    real = desk.open_kept

    def full(session: str) -> Any:
        kept = real(session)
        assert kept.checkpoints is not None

        def before(*_args: Any) -> None:
            raise OSError(28, "No space left on device")

        kept.checkpoints.before = before  # type: ignore[assignment, method-assign]
        return kept

    desk.agent.open_kept = full
    assert desk.agent.turn("go").reason == "answer"
    desk.agent.close()
    assert not (desk.root / "f").exists()
    assert desk.sent()[0].text.startswith("not run: what it may change can't be kept first (no sp")
