"""The harness itself: a terminal ends its program, however slowly that dies."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.harness import Terminal, clean_env
from tests.waiting import alive

STUBBORN = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("here", flush=True)
while True:
    signal.pause()
"""


def test_a_program_that_outlives_its_terminal_is_killed_and_waited_for(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", STUBBORN], clean_env(tmp_path)) as terminal:
        terminal.wait_for("here")
        terminal.child.ptyproc.delayafterterminate = 0.0  # as on a machine that is very busy
    assert not alive(terminal.child.pid)
    assert terminal.child.signalstatus == 9
