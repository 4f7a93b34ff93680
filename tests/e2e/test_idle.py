"""An open chat that nobody types in costs nothing."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.e2e.conftest import EXACT
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.waiting import PATIENCE


def wake_ups(pid: int) -> int:
    """Times that a thread of the process went to wait; each was woken before."""
    told = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        line = next(x for x in status.read_text().splitlines() if x.startswith("voluntary"))
        told += int(line.split()[1])
    return told


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_chat_writes_nothing_and_sleeps(shell: Shell, home: Home) -> None:
    """Nor does its daemon do more than look at its clock, lock and socket."""
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", *EXACT]
    with Terminal(command, env, cwd=shell.folder) as chat:
        chat.wait_for("> ", PATIENCE)
        chat.type("hello\r")
        chat.wait_for("main@", PATIENCE)
        chat.settle(4.0, PATIENCE)  # what it said is on disk by then
        written, pids = len(chat.raw), (chat.child.pid, home.pid)
        began = time.monotonic()
        woken, used = [wake_ups(pid) for pid in pids], [cpu_s(pid) for pid in pids]
        chat.settle(2.0, 3.0)
        passed = time.monotonic() - began
        assert chat.raw[written:] == b""
        assert wake_ups(pids[0]) - woken[0] <= 1 * passed
        assert wake_ups(pids[1]) - woken[1] <= 10 * passed
        assert cpu_s(pids[0]) - used[0] <= 0.01 * passed + 0.01
        assert cpu_s(pids[1]) - used[1] <= 0.05 * passed + 0.01
        chat.type("/bye\r")
        assert chat.wait_end(PATIENCE) == 0
