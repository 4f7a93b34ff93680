"""What stands at a path: a file with its bytes and mode, a link, a folder, nothing; and putting it
there again. Bytes are kept once each, by their SHA-256, in a folder of the session's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.agent.files.workspace import parent_of, read_bytes, write_bytes

MAX_FILE = 32 * 1024 * 1024  # bytes of a file that is kept


@dataclass(frozen=True, slots=True)
class State:
    """``kind``: file, link, folder, other, or "" for nothing. ``sha`` None: of a file that is too
    large to be kept, or can't be read.
    """

    kind: str = ""
    mode: int = 0
    sha: str | None = None
    target: str = ""  # of a link
    size: int = 0

    def to_json(self) -> dict[str, Any] | None:
        if not self.kind:
            return None
        found: dict[str, Any] = {"kind": self.kind, "mode": self.mode}
        if self.kind == "file":
            found |= {"sha": self.sha, "size": self.size}
        return found | ({"target": self.target} if self.kind == "link" else {})

    @classmethod
    def of_json(cls, found: Mapping[str, Any] | None) -> State:
        return cls() if found is None else cls(**found)

    @property
    def is_unkept(self) -> bool:
        """A file of which nobody has a copy."""
        return self.kind == "other" or (self.kind == "file" and self.sha is None)

    def may_be(self, other: State) -> bool:
        """Nothing says that it is another: of what is not kept, kind, mode and size are known."""
        if self.is_unkept or other.is_unkept:
            mine, theirs = (self.kind, self.mode, self.size), (other.kind, other.mode, other.size)
            return mine == theirs
        return self == other


NOTHING = State()


class Contents:
    """Bytes by their hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        path = self.folder / sha
        if not path.exists():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self.folder / f".{sha}.{secrets.token_hex(4)}"
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as out:
                out.write(data)
            part.replace(path)
        return sha

    def read(self, sha: str) -> bytes:
        """OSError where it is not there, or is not what it was."""
        data = (self.folder / sha).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha:
            raise OSError(f"the kept copy {sha[:12]} is damaged")
        return data


def look(path: Path, contents: Contents, *, keep: bool = True) -> State:
    """What stands there now. ``keep``: and keep its bytes."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    except OSError:
        return State("other")
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return State("link", 0, target=os.readlink(path))  # noqa: PTH115 - as it is, also no text
    if stat.S_ISDIR(found.st_mode):
        return State("folder", mode)
    if not stat.S_ISREG(found.st_mode):
        return State("other", mode)
    try:
        data = read_bytes(path, MAX_FILE)
    except OSError:
        return State("file", mode, None, size=found.st_size)
    sha = contents.keep(data) if keep else hashlib.sha256(data).hexdigest()
    return State("file", mode, sha, size=len(data))


def put(path: Path, wanted: State, contents: Contents) -> None:
    """Make it so. Raises OSError; a folder with something in it stays."""
    now = look(path, contents, keep=False)
    if now == wanted:
        return
    is_folder = "folder" in (now.kind, wanted.kind)  # all else is put over what is there
    if now.kind and now.kind != wanted.kind and (not wanted.kind or is_folder):
        _remove(path, now)
    if wanted.kind == "file":
        assert wanted.sha is not None
        write_bytes(path, contents.read(wanted.sha), wanted.mode, over_links=True)
    elif wanted.kind == "folder":
        with parent_of(path, make=True) as folder:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=folder)
            os.chmod(path.name, wanted.mode, dir_fd=folder)
    elif wanted.kind == "link":
        with parent_of(path, make=True) as folder:
            part = f".{path.name[:80]}.{secrets.token_hex(4)}.part"
            os.symlink(wanted.target, part, dir_fd=folder)
            os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(path: Path, now: State) -> None:
    with parent_of(path) as folder:
        if now.kind == "folder":
            os.rmdir(path.name, dir_fd=folder)
        else:
            os.unlink(path.name, dir_fd=folder)
        os.fsync(folder)
