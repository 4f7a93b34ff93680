"""What a command may reach, for either sandbox; and the environment it finds."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from radchat.paths import Places

Kind = Literal["bwrap", "landlock", "none"]
GiB = 1024**3

# of the user's environment: what programs need to be found and to speak; nothing that may be secret
PASSED = (
    "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV",
    "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME", "GOROOT", "GOPATH", "CARGO_HOME",
    "RUSTUP_HOME",
)  # fmt: skip
# nobody is there to page for, to edit, or to type a password
SET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    # a file that is edited and run within a second would be run as it was
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}


WAYS_OUT = "install bubblewrap, or --no-sandbox runs commands without one"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one command and all it starts."""

    file_bytes: int = 4 * GiB
    processes: int = 512
    grace_s: float = 0.3  # between being asked to end, and ended


@dataclass(frozen=True, slots=True)
class Policy:
    """``workspace`` and ``temporary`` are writable, ``hidden`` is not readable, all else read-only.

    Real paths.
    """

    workspace: Path
    temporary: Path
    hidden: tuple[Path, ...]
    network: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    alias: Path | None = None  # of a copy: where its original is, and bwrap shows the copy

    @property
    def writable(self) -> tuple[Path, ...]:
        return self.workspace, self.temporary

    @property
    def kept(self) -> tuple[Path, ...]:
        """In the workspace, and not to be written: these decide what git runs later, and what runs
        around the sandbox.
        """
        git = self.workspace / ".git"
        hooks = tuple(path for path in (git / "config", git / "hooks") if path.exists())
        return hooks + own_code(self.workspace)

    def problem(self, kind: Kind) -> str | None:
        """Why it can't be kept."""
        if kind == "none":
            return None
        if self.workspace in self.hidden:
            return f"{self.workspace} is radchat's own: no command may run there"
        within = next((each for each in self.hidden if self.workspace in each.parents), None)
        if kind == "landlock" and within:  # its rules only allow
            return f"Landlock can't hide {within}, which is in {self.workspace}: {WAYS_OUT}"
        return None

    def environ(self, env: Mapping[str, str]) -> dict[str, str]:
        passed = {name: env[name] for name in env if name in PASSED or name.startswith("LC_")}
        own = {"TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.temporary / "cache")}
        return {**passed, "PATH": env.get("PATH") or os.defpath, **SET, **own}

    def order(self, kind: str, argv: Sequence[str], cwd: Path, timeout_s: float) -> dict[str, Any]:
        """For enter.py."""
        return {
            "kind": kind,
            "argv": list(argv),
            "cwd": str(cwd),
            "timeout_s": timeout_s,
            "grace_s": self.bounds.grace_s,
            "file_bytes": self.bounds.file_bytes,
            "processes": self.bounds.processes,
            "writable": [str(path) for path in self.writable],
            "hidden": [str(path) for path in self.hidden],
            "network": self.network,
        }


def own_code(root: Path) -> tuple[Path, ...]:
    """What of radchat and its Python lies in a folder, as it does for who works on radchat."""
    mine = Path(__file__).resolve().parents[2], Path(sys.prefix).resolve()
    return tuple(path for path in mine if path.is_relative_to(root))


def find_bwrap(env: Mapping[str, str], root: Path) -> str | None:
    """On the path, but not in a folder that commands may write: this one runs outside."""
    folders = (env.get("PATH") or os.defpath).split(os.pathsep)
    sound = [each for each in folders if each.startswith("/")]
    real = [each for each in sound if not Path(os.path.realpath(each)).is_relative_to(root)]
    return shutil.which("bwrap", path=os.pathsep.join(real)) if real else None


def private(places: Places) -> tuple[Path, ...]:
    """What radchat keeps of its user: conversations, settings, rules, keys and sockets."""
    folders = [places.data, places.state, places.config, places.kv, places.socket().parent]
    folders += [places.run] if places.run else []
    found = dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders)
    return tuple(path for path in found if not any(above in found for above in path.parents))
