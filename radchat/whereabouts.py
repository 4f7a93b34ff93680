"""Where a command runs: in which terminal and folder. Light."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from radchat.protocol import Where


def where() -> Where:
    """Which terminal and folder this command runs in, for "the current session"."""
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:  # removed under us
        folder = os.environ.get("PWD", "/")
    return {"terminal": terminal(), "folder": folder}


def terminal() -> str:
    """A name for this terminal that no other one has had: numbers of panes and ttys come again.

    A tmux pane with its server, or a tty with the login session that has it. Without a terminal (a
    script, cron) the commands of one login session or one script stand for it, so that an
    `ask -c` finds the session of the `ask` before.
    """
    pane = os.environ.get("TMUX_PANE")
    if pane:
        server = os.environ.get("TMUX", "").split(",")  # socket, pid, session
        return f"{pane} of {server[1]}" if len(server) > 1 else pane
    login = f"sid:{os.getsid(0)}"
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return f"{os.ttyname(descriptor)} {login}"
    return login
