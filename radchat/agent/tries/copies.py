"""Copies of a folder for tries: beside radchat's cache, never inside the folder, and gone with the
run. One of a run that was killed is removed by the next; one that is kept is named, and left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radchat.agent.files.workspace import walk
from radchat.errors import RadchatError, UsageError
from radchat.paths import Places, private_folder

MOST_BYTES = 1024**3  # of all copies together, without being asked for
RUN, KEPT = "run-", "kept-"


def size_of(root: Path) -> tuple[int, int]:
    """Bytes and files below it; of links, themselves."""
    total = num = 0
    for entry in walk(root, all_folders=True):
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            total += found.st_blocks * 512
            num += not entry.is_dir(follow_symlinks=False)
    return total, num


def size_words(size: int) -> str:
    for unit, words in ((1024**3, "GiB"), (1024**2, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {words}"
    return f"{size / 1024:.0f} KiB"


@dataclass
class Copies:
    """Of one run, each a folder of its own: ``copies[0].root``."""

    folder: Path
    origin: Path
    roots: list[Path]
    _held: int

    @classmethod
    def make(cls, origin: Path, num: int, places: Places) -> Copies:
        """Raises RadchatError with what `cp` says; then nothing is left."""
        base = _base(origin, places)
        sweep(places)
        folder = Path(tempfile.mkdtemp(prefix=RUN, dir=base))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
        copies = cls(folder, origin, [], held)
        try:
            for number in range(1, num + 1):
                root = folder / str(number) / (origin.name or "root")
                root.parent.mkdir()
                _copy(origin, root)
                copies.roots.append(root)
        except BaseException:
            copies.close()
            raise
        return copies

    def keep(self, number: int) -> Path:
        """That copy is the user's from now on: nobody removes it."""
        kept = Path(tempfile.mkdtemp(prefix=KEPT, dir=self.folder.parent))
        root = self.roots[number]
        moved = kept / root.name
        root.rename(moved)
        self.roots[number] = moved
        return moved

    def close(self) -> None:
        remove(self.folder)
        os.close(self._held)


def sweep(places: Places) -> None:
    """What runs that were killed have left."""
    for base in _bases(places):
        for path in base.glob(f"{RUN}*"):
            with contextlib.suppress(OSError), _locked(path):
                remove(path)


def remove(path: Path) -> None:
    """Not by shutil: a command can make folders deeper than it goes, and take its own rights."""
    subprocess.run(["chmod", "-R", "u+rwX", "--", path], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises OSError where a run has it still."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def _bases(places: Places) -> tuple[Path, Path]:
    return places.cache / "tries", Path(tempfile.gettempdir()) / f"radchat-tries-{os.getuid()}"


def _base(origin: Path, places: Places) -> Path:
    """UsageError where every place for copies is in the folder itself."""
    for base in _bases(places):
        real = Path(os.path.realpath(base))
        if real != origin and origin not in real.parents:
            return private_folder(real)
    raise UsageError(f"there is no place for copies outside of {origin}: set TMPDIR to one")


def _copy(origin: Path, root: Path) -> None:
    """Links as links, modes and times as they are; blocks are shared where the disk can."""
    cp = shutil.which("cp") or "/bin/cp"
    words = [cp, "-a", "--reflink=auto", "--", str(origin), str(root)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RadchatError(f"{origin} can't be copied: {said[0] if said else 'cp failed'}")
