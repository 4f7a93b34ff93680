"""The sandboxes of this machine, to be tried."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radchat.agent.sandbox import landlock
from radchat.agent.sandbox.policy import Bounds, Kind
from radchat.agent.sandbox.runner import MOST_KEPT, SandboxRunner
from radchat.agent.types import Ran

BWRAP = shutil.which("bwrap")
REASONS: dict[Kind, str | None] = {
    "bwrap": None if BWRAP else "bubblewrap is not installed",
    "landlock": None if landlock.version() >= landlock.LEAST else "the kernel's Landlock is off",
}
REAL = [
    pytest.param(kind, marks=pytest.mark.skipif(reason is not None, reason=reason or ""))
    for kind, reason in REASONS.items()
]
EVERY = [*REAL, "none"]
KINDS: list[Kind] = [kind for kind, reason in REASONS.items() if reason is None]


class Place:
    """A workspace, what is outside it, and radchat's own folder, which has a secret."""

    def __init__(self, root: Path) -> None:
        self.workspace, self.outside, self.home = root / "work", root / "outside", root / "home"
        for folder in (self.workspace, self.outside / "folder", self.home):
            folder.mkdir(parents=True)
        (self.home / "secret").write_text("what was said")
        (self.outside / "file").write_text("whole")
        self.clear()

    def clear(self) -> None:
        """The workspace as it was."""
        shutil.rmtree(self.workspace)
        self.workspace.mkdir()
        (self.workspace / "mine").write_text("mine")
        (self.workspace / "link").symlink_to(self.outside)

    def seen(self) -> dict[str, object]:
        """All that a command could change outside: names, kinds, contents, modes, owners, times."""
        found: dict[str, object] = {}
        for path in (self.outside, *sorted(self.outside.rglob("*"))):
            info = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            is_folder = path.is_dir()
            found[str(path.relative_to(self.outside))] = (
                info.st_mode, info.st_uid, info.st_nlink, data,
                None if is_folder and path != self.outside else info.st_mtime_ns,
            )  # fmt: skip
        return found

    @contextmanager
    def runner(
        self, kind: Kind, *, bounds: Bounds | None = None, most_kept: int = MOST_KEPT
    ) -> Iterator[SandboxRunner]:
        env = {**os.environ, "A_SECRET": "of the user"}
        runner = SandboxRunner(
            kind, self.workspace, [self.home], env, bounds=bounds, most_kept=most_kept
        )
        try:
            yield runner
        finally:
            runner.close()

    def run(
        self, kind: Kind, command: str, timeout_s: float = 20, bounds: Bounds | None = None
    ) -> Ran:
        with self.runner(kind, bounds=bounds) as runner:
            return run(runner, command, timeout_s)


def run(runner: SandboxRunner, command: str, timeout_s: float = 20) -> Ran:
    return runner.run(
        ["bash", "-c", command],
        cwd=runner.policy.workspace,
        timeout_s=timeout_s,
        cancel=threading.Event(),
    )


def running(word: str) -> list[int]:
    """Processes with it among their arguments."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(path.name))
    return found
