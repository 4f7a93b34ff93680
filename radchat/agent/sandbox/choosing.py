"""Which sandbox this machine has: tried, not guessed.

bubblewrap where it works (some systems forbid it what it needs); else Landlock with a seccomp
filter; else none, and then no command runs unless the user says so (`--no-sandbox`).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radchat.agent.sandbox import landlock, temporary
from radchat.agent.sandbox.policy import WAYS_OUT, Kind, find_bwrap, own_code, private
from radchat.agent.sandbox.runner import CannotRun, SandboxRunner
from radchat.agent.sandbox.syscalls import ARCHES
from radchat.errors import ConfigInvalid
from radchat.paths import Places

PROBE_S = 10.0
OF_LANDLOCK = (
    "names of files can be listed everywhere, .git of the folder can be written, and there is no "
    "/dev/shm and no new terminal"
)
OWN_CODE = "radchat's own code is in this folder, and commands can change what runs next time"
NO_SCOPE = ", and signals to your other processes get through"


@dataclass(frozen=True, slots=True)
class Found:
    """``name`` None: there is none, and ``why`` says it."""

    name: Kind | None
    why: str
    limits: str = ""  # what it can't keep a command from, or can't give it
    danger: str = ""  # of these, what to know before anything runs


def find(env: Mapping[str, str], root: Path) -> Found:
    """For commands in ``root``. Something is run in each, until one works: some 50 ms."""
    root = root.resolve()
    system, machine = os.uname().sysname, os.uname().machine
    if system != "Linux":
        return Found(None, f"commands of an agent run on Linux only yet, not on {system}")
    if machine not in ARCHES:
        return Found(None, f"no filter of system calls for {machine} yet: {WAYS_OUT}")
    bwrap = _why_no_bwrap(env, root)
    if bwrap is None:
        return Found("bwrap", "bubblewrap works here")
    abi = landlock.version()
    why = _why_no_landlock(env, abi)
    if why is None:
        limits = OF_LANDLOCK + ("" if abi >= landlock.HOLDS_SIGNALS else NO_SCOPE)
        danger = OWN_CODE if own_code(root) else ""
        limits += f"; {danger}" if danger else ""
        return Found("landlock", f"Landlock {abi} and seccomp ({bwrap})", limits, danger)
    return Found(None, f"no sandbox works here ({bwrap}; {why}): {WAYS_OUT}")


def open_runner(
    places: Places,
    root: Path,
    env: Mapping[str, str],
    *,
    without: bool = False,
    network: bool = False,
    alias: Path | None = None,
) -> tuple[SandboxRunner | None, Found]:
    """For commands in ``root``. None: they can't run, and ``why`` says it. ``without``: as
    --no-sandbox asks for. ``alias``: the folder that ``root`` is a copy of.
    """
    found = Found("none", "--no-sandbox: commands can do all that you can")
    if not without or os.uname().sysname != "Linux":
        found = find(env, root)
    if found.name is None:
        return None, found
    temporary.sweep()
    try:
        own = private(places)
        return SandboxRunner(found.name, root, own, env, network=network, alias=alias), found
    except ConfigInvalid as error:
        return None, Found(None, error.message)


def _why_no_bwrap(env: Mapping[str, str], root: Path) -> str | None:
    if find_bwrap(env, root) is None:
        return "bubblewrap is not installed"
    why = _tried("bwrap", env)
    return f"bubblewrap does not work here: {why}" if why else None


def _why_no_landlock(env: Mapping[str, str], abi: int) -> str | None:
    if abi < landlock.LEAST:
        return f"the kernel's Landlock is {abi or 'off'}, {landlock.LEAST} is wanted"
    why = _tried("landlock", env)
    return f"Landlock does not work here: {why}" if why else None


def _tried(kind: Kind, env: Mapping[str, str]) -> str | None:
    with tempfile.TemporaryDirectory(prefix="radchat-try-") as folder:
        runner = SandboxRunner(kind, Path(folder), (), env)
        try:
            ran = runner.run(
                ["/bin/sh", "-c", ":"],
                cwd=Path(folder),
                timeout_s=PROBE_S,
                cancel=threading.Event(),
            )
        except CannotRun as error:
            return error.message
        finally:
            runner.close()
    said = ran.head.decode("utf-8", "replace").strip().splitlines()
    return None if ran.code == 0 else (said[-1] if said else "no word why")
