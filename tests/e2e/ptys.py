"""Real shells in real terminals: an interactive bash or zsh that finds `radchat` on its PATH."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Terminal
from tests.e2e.homes import Home
from tests.waiting import PATIENCE

PROMPT = "ready> "
SHELLS = {
    "bash": ("--noprofile", "--norc", "-i"),
    "zsh": ("-f", "-i"),
}


def binaries(home: Home) -> Path:
    """A folder with a `radchat` in it, as an installation has."""
    folder = home.root / "bin"
    folder.mkdir(exist_ok=True)
    radchat = folder / "radchat"
    if radchat.exists():
        return folder
    radchat.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m radchat "$@"\n')
    radchat.chmod(0o755)
    return folder


def env_of(home: Home, **more: str) -> dict[str, str]:
    """As in a terminal window: no tmux, this home, `radchat` on the PATH."""
    env = {key: value for key, value in home.env.items() if key != "TMUX_PANE"}
    env |= {"TERM": "xterm-256color", "PATH": f"{binaries(home)}:{env['PATH']}"}
    return env | more


def need(shell: str) -> str:
    """The shell's program; bash must be there, a machine without zsh skips its tests."""
    found = shutil.which(shell)
    if found is None and shell == "zsh":
        pytest.skip("zsh is not installed")
    assert found is not None, f"{shell} is not installed"
    return found


class Window(Terminal):
    """A terminal window with an interactive shell in it."""

    def __init__(self, home: Home, shell: str = "bash", folder: Path | None = None, **env: str):
        folder = folder or home.root
        folder.mkdir(parents=True, exist_ok=True)
        self.shell = shell
        super().__init__(
            [need(shell), *SHELLS[shell]],
            env_of(home, PS1=PROMPT, HOME=str(home.root), **env),
            columns=160,
            cwd=folder,
        )
        self._number = 0
        if shell == "zsh":  # its line editor must not paint ahead of what we read
            self.type(f"unsetopt prompt_sp beep; PROMPT='{PROMPT}'\r")
        else:
            self.type(f"bind 'set enable-bracketed-paste off'; PS1='{PROMPT}'\r")
        self.run("true")

    def run(self, command: str, code: int | None = 0) -> str:
        """Type a command; what it wrote to the terminal, when its prompt is there again."""
        self._number += 1
        start = len(self.raw)
        mark = f"done{self._number}"
        self.type(f"{command}; echo {mark}'='$?\r")
        ended = re.compile(rf"^{mark}=(\d+)\r?$".encode(), re.MULTILINE)
        self.wait_for(lambda t: ended.search(t.raw, start) is not None, PATIENCE)
        found = ended.search(self.raw, start)
        assert found is not None
        text = re.sub(rb"\x1b\[[\d;?]*[A-Za-z]|\r", b"", self.raw[start : found.start()]).decode()
        assert code is None or int(found[1]) == code, text
        return text

    def interrupt(self) -> None:
        """Ctrl+C, and wait for the prompt after it."""
        start = len(self.raw)
        self.type("\x03")
        self.wait_for(lambda t: PROMPT.encode() in t.raw[start:], PATIENCE)
