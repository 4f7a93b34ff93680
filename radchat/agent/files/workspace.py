"""Paths that a model gives, and the only ways in which files are opened and written here.

A path is resolved once, symlinks and all, to the real path that a person approves. From then on it
is opened part by part without following links: one that is swapped in later is an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from radchat.errors import InvalidInput

MAX_PATH = 4096  # bytes, as Linux has it
MAX_READ = 64 * 1024 * 1024  # bytes of a file that is read whole
# what programs make by the thousand and nobody writes: not looked into unless it is named
SKIPPED = frozenset(
    [
        *(".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache"),
    ]
)


@dataclass(frozen=True, slots=True)
class Folder:
    """``root``: real path. ``alias``: another path that means it: a copy stands for its original,
    whose paths the model may have read.
    """

    root: Path
    alias: Path | None = None

    @classmethod
    def of(cls, path: Path, alias: Path | None = None) -> Folder:
        return cls(Path(os.path.realpath(path)), alias)

    def resolve(self, text: str) -> Path:
        """The real path; of what is not there yet, that of the nearest folder that is. Raises
        InvalidInput for what can be no path.
        """
        if "\0" in text:
            raise InvalidInput(f"{text!r}: a path has no NUL in it")
        try:
            num = len(os.fsencode(text))
        except UnicodeEncodeError:
            raise InvalidInput(f"{text!r}: half a surrogate pair is in no path") from None
        if num > MAX_PATH:
            raise InvalidInput(f"a path of {num:,} bytes is too long (at most {MAX_PATH:,})")
        given = Path(os.path.expanduser(text))  # noqa: PTH111 - raises for an unknown user
        if self.alias is not None and given.is_absolute():
            with contextlib.suppress(ValueError):
                given = self.root / given.relative_to(self.alias)
        try:
            return Path(os.path.realpath(self.root / given))
        except OSError as error:
            raise InvalidInput(f"{text}: {error.strerror or error}") from error

    def is_inside(self, path: Path) -> bool:
        return path == self.root or self.root in path.parents

    def shown(self, path: Path) -> str:
        """Relative to the root, where it is inside."""
        return os.path.relpath(path, self.root) if self.is_inside(path) else str(path)


# -- opening ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def parent_of(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a real path's folder, every part of it opened without following links.
    ``make``: folders that are not there are made. Raises OSError.
    """
    at = os.open(path.anchor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[1:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                below = os.open(part, flags, dir_fd=at)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(part, dir_fd=at)
                below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def read_bytes(path: Path, most: int = MAX_READ) -> bytes:
    """Of an ordinary file. Raises OSError for all others, and for one that is too large."""
    with parent_of(path) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(path.name, flags, dir_fd=folder), "rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
            data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return data


def write_bytes(
    path: Path, data: bytes, mode: int | None = None, *, over_links: bool = False
) -> None:
    """Whole or not at all: beside it, to the disk, then in its place. Its mode stays, where it is
    there; ``mode``: of a new one. ``over_links``: also in the place of a link. Raises OSError.
    """
    with parent_of(path, make=True) as folder:
        try:
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        is_file = found is not None and stat.S_ISREG(found.st_mode)
        is_link = found is not None and stat.S_ISLNK(found.st_mode)
        if found is not None and not (is_file or (is_link and over_links)):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        found = found if is_file else None
        part = f".{path.name[:80]}.{secrets.token_hex(4)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(part, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(data)
                out.flush()
                if found is not None:
                    _keep_owner(out.fileno(), found)
                kept = mode if mode is not None or found is None else stat.S_IMODE(found.st_mode)
                if kept is not None:
                    os.fchmod(out.fileno(), kept)
                os.fsync(out.fileno())
            os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
        os.fsync(folder)


def _keep_owner(file: int, found: os.stat_result) -> None:
    own = os.fstat(file)
    if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(file, found.st_uid, found.st_gid)


def reason(error: OSError) -> str:
    """In a few words, without the path."""
    return (error.strerror or str(error)).lower()


# -- walking ---------------------------------------------------------------------------------------


def walk(
    root: Path,
    *,
    all_folders: bool = False,
    without: Collection[Path] = (),
    on_skipped: Callable[[os.DirEntry[str]], None] = lambda _entry: None,
) -> Iterator[os.DirEntry[str]]:
    """All below ``root``, folders before what is in them, in the order of names. Links are entries
    and never followed; ``all_folders``: what is SKIPPED else, too; ``without``: folders that are as
    if they were not there. ``on_skipped`` is told of each that is SKIPPED.
    """
    left_out = {str(path) for path in without}
    open_ = [iter(_entries(str(root)))]  # no recursion: a command can make 2,000 folders deep
    while open_:
        entry = next(open_[-1], None)
        if entry is None:
            open_.pop()
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.path in left_out:
            continue
        if is_folder and entry.name in SKIPPED and not all_folders:
            on_skipped(entry)
            continue
        yield entry
        if is_folder:
            open_.append(iter(_entries(entry.path)))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """None of one that can't be looked into."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
