"""Which sandbox this machine has: tried, not guessed.

bubblewrap where it works (some systems forbid it what it needs); else Landlock with a seccomp
filter; else none, and then no command runs unless the user says so (`--no-sandbox`).
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from radchat.agent.sandbox import enter

Name = Literal["bwrap", "landlock", "none"]
TRIED_S = 5.0
WAYS_OUT = "install bubblewrap, or --no-sandbox runs commands without one"


@dataclass(frozen=True, slots=True)
class Found:
    """``name`` None: there is none, and ``why`` says it."""

    name: Name | None
    why: str

    @property
    def limits(self) -> str:
        """What it can't keep a command from."""
        if self.name == "landlock":
            return (
                "modes, owners and times of files outside can still be changed; .git of the "
                "folder can be written"
            )
        return ""


def find(env: Mapping[str, str]) -> Found:
    """Of Linux only."""
    if platform.system() != "Linux":
        return Found(None, f"no sandbox for {platform.system()} yet: {WAYS_OUT}")
    bwrap = _why_no_bwrap(env)
    if bwrap is None:
        return Found("bwrap", "bubblewrap works here")
    landlock = _why_no_landlock()
    if landlock is None:
        return Found("landlock", f"Landlock {enter.abi()} and seccomp ({bwrap})")
    return Found(None, f"no sandbox works here ({bwrap}; {landlock}): {WAYS_OUT}")


def _why_no_bwrap(env: Mapping[str, str]) -> str | None:
    path = shutil.which("bwrap", path=env.get("PATH"))
    if path is None:
        return "bubblewrap is not installed"
    arguments = [path, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        tried = subprocess.run(
            [*arguments, "--proc", "/proc", "--dev", "/dev", "true"],
            capture_output=True,
            timeout=TRIED_S,
            check=False,
        )
        if tried.returncode == 0:
            return None
        said = tried.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"bubblewrap does not work here: {said[-1] if said else tried.returncode}"
    return "bubblewrap does not work here"


def _why_no_landlock() -> str | None:
    if platform.machine() not in enter.ARCHES:
        return f"no filter of system calls for {platform.machine()}"
    version = enter.abi()
    if version < enter.LEAST_ABI:
        return f"the kernel's Landlock is {version or 'off'}, {enter.LEAST_ABI} is wanted"
    return None
