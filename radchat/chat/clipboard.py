"""A text into the clipboard: by the desktop's own tool, else by the terminal (OSC 52)."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TextIO

from radchat.errors import InvalidInput

# A terminal gives up on longer sequences, most of them silently: xterm's limit is the lowest known.
OSC_LIMIT: Final = 74_994  # bytes, as base64
TIMEOUT_S: Final = 5.0
# a tool, its arguments, and the variable that says there is a desktop for it
_TOOLS: Sequence[tuple[Sequence[str], str | None]] = (
    (("wl-copy",), "WAYLAND_DISPLAY"),
    (("xclip", "-selection", "clipboard"), "DISPLAY"),
    (("xsel", "--clipboard", "--input"), "DISPLAY"),
    (("pbcopy",), None),
    (("tmux", "load-buffer", "-w", "-"), "TMUX"),  # which answers no OSC 52 of its programs
)


def copy(
    text: str,
    terminal: TextIO | None,
    env: Mapping[str, str],
    which: Callable[[str], str | None] = shutil.which,
) -> str:
    """Put ``text`` there; what took it. ``terminal`` None: there is none to ask.

    Raises InvalidInput where nothing takes it.
    """
    for command, variable in _TOOLS:
        if (variable is None or env.get(variable)) and which(command[0]) and _run(command, text):
            return command[0]
    if terminal is None or env.get("TERM", "dumb") in ("", "dumb"):
        raise InvalidInput("no clipboard here: no wl-copy, xclip or pbcopy, and no terminal to ask")
    coded = base64.b64encode(text.encode()).decode()
    if len(coded) > OSC_LIMIT:
        raise InvalidInput(
            f"too long for the terminal's clipboard: {len(coded):,} bytes, and {OSC_LIMIT:,} go "
            "(/export FILE writes it)"
        )
    terminal.write(f"\x1b]52;c;{coded}\x07")
    terminal.flush()
    return "the terminal (OSC 52), if it allows it"


def _run(command: Sequence[str], text: str) -> bool:
    """Whether the tool took it; those of X stay behind to serve it, so they get no pipe of ours."""
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
