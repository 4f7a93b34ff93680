"""All that came of a process, found by its parents in /proc, and ended: none gets away.

The supervisor is a subreaper: what a process leaves behind becomes its child, whatever session it
went to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

PATIENCE_S = 5.0  # to die after SIGKILL: longer only in the midst of a disk that does not answer


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    group: int
    session: int
    is_alive: bool  # not a zombie
    threads: int


def everything() -> list[Process]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes 20 ms to import
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    words = file.read().rpartition(b")")[2].split()
                parent, group, session = map(int, words[1:4])
                is_alive = words[0] not in (b"Z", b"X")
                found.append(Process(int(name), parent, group, session, is_alive, int(words[17])))
    return found


def descendants(of: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in everything():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [of]
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [process.pid for process in below]
    return found


def tell(processes: list[Process], what: signal.Signals) -> None:
    """By groups first: a group gets a signal at once, so that no fork in it comes away."""
    own = os.getpgrp()
    for group in {process.group for process in processes} - {own, 0}:
        with contextlib.suppress(OSError):
            os.killpg(group, what)
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process.pid, what)


def reap(statuses: dict[int, int]) -> None:
    """Every child that has ended, with its wait status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[found[0]] = found[1]


def living(statuses: dict[int, int]) -> list[Process]:
    """Of this process' descendants, those that have not ended."""
    reap(statuses)
    return [process for process in descendants(os.getpid()) if process.is_alive]


def wait_gone(statuses: dict[int, int], seconds: float) -> list[Process]:
    """Those that are still there after that long at most."""
    until = time.monotonic() + seconds
    pause = 0.001
    while (left := living(statuses)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return left


def end(statuses: dict[int, int], grace_s: float) -> int:
    """End every descendant: asked first where there is a grace. How many would not go."""
    if grace_s and (there := living(statuses)):
        tell(there, signal.SIGTERM)
        wait_gone(statuses, grace_s)
    until = time.monotonic() + PATIENCE_S
    while (left := living(statuses)) and time.monotonic() < until:
        tell(left, signal.SIGKILL)
        wait_gone(statuses, 0.02)
    return len(left)


def go_first() -> None:
    """Before a bomb of forks, where we may: else there's no turn for whoever ends it."""
    with contextlib.suppress(OSError):
        how = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, how, os.sched_param(1))
