"""The command line of bubblewrap for a policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from radchat.agent.sandbox.policy import Policy

SECCOMP_FD = 90  # enter.py has the filter there
ROOTS_WAY_WITH_FILES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID")


def wrapped(program: str, policy: Policy, argv: Sequence[str], cwd: Path) -> list[str]:
    words = [program, "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    words += [] if policy.network else ["--unshare-net"]
    words += ["--cap-drop", "ALL"]
    if os.getuid() == 0:
        words += [word for each in ROOTS_WAY_WITH_FILES for word in ("--cap-add", each)]
    words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    mounts = [(path, _hide(path)) for path in policy.hidden if path.exists()]
    mounts += [(path, ["--bind", str(path), str(path)]) for path in policy.writable]
    mounts += [(path, ["--ro-bind", str(path), str(path)]) for path in policy.kept]
    if policy.alias is not None:  # a copy stands at its original's place
        root, alias = policy.workspace, policy.alias
        mounts.append((alias, ["--bind", str(root), str(alias)]))
        for path in policy.kept:
            there = str(alias / path.relative_to(root)) if root in path.parents else str(path)
            mounts.append((Path(there), ["--ro-bind", str(path), there]))
        cwd = alias / cwd.relative_to(root) if root in (cwd, *cwd.parents) else cwd
    for _, mount in sorted(mounts, key=lambda each: len(each[0].parts)):  # a folder, then what's in
        words += mount
    return [*words, "--seccomp", str(SECCOMP_FD), "--chdir", str(cwd), "--", *argv]


def _hide(path: Path) -> list[str]:
    if path.is_dir():
        return ["--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]
