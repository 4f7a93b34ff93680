"""TM-07: the terminal is given back as it was, whichever keys ended what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.e2e.harness import Terminal, clean_env, radchat

# what is typed, and what is waited for before the next
BEFORE_THE_FIRST_WORD = (("go\r", "waiting in line"), ("\x03", "cancelled"))
IN_MID_REPLY = (("go\r", "word3"), ("\x03", "what came so far is kept"))
TWICE_QUICKLY = (("go\r", "word3"), ("\x03\x03", "cancelled"))
AT_AN_EMPTY_PROMPT = (("\x03", "Ctrl+D or /bye to exit"),)
IN_MID_LINE = (("half\x01\x04", "> alf"),)


@pytest.mark.parametrize(
    "keys", [BEFORE_THE_FIRST_WORD, IN_MID_REPLY, TWICE_QUICKLY, AT_AN_EMPTY_PROMPT, IN_MID_LINE]
)
def test_after_any_cancel_ctrl_d_ends_with_0_and_the_terminal_as_it_was(
    home: Path, daemon: FakeDaemon, keys: tuple[tuple[str, str], ...]
) -> None:
    def generate(args: dict[str, Any]) -> Any:
        if keys is BEFORE_THE_FIRST_WORD:
            for _ in range(1000):
                time.sleep(0.02)
                body = {"stage": "queue", "done": 0, "total": 0, "text": "in line"}
                yield Event("progress", body)
        yield from answer_events(_slowly())

    daemon.script |= {"models.load": [Event("done", {"model": "tiny"})], "generate": generate}
    command = " ".join(radchat("--daemon", str(daemon.path), "chat"))
    script = (
        f"trap : INT; before=$(stty -g); {command}; code=$?; "
        '[ "$before" = "$(stty -g)" ] && echo SAME $code'
    )
    with Terminal(["/bin/sh", "-c", script], clean_env(home, RADCHAT_MODEL="tiny")) as terminal:
        terminal.wait_for("> ")
        terminal.settle()
        for typed, shown in keys:
            terminal.type(typed)
            terminal.wait_for(shown)
            terminal.settle()
        terminal.type("\x05\x15")  # what stands there, or was offered again
        terminal.settle()
        terminal.type("\x04")
        terminal.wait_for("SAME 0")
        assert terminal.raw.rstrip().endswith(b"SAME 0")
        tail = terminal.raw[terminal.raw.rfind(b"\x1b[?2004") :]
        assert tail.startswith(b"\x1b[?2004l")  # bracketed paste is off again


def _slowly() -> Any:
    for number in range(1000):
        time.sleep(0.02)
        yield f"word{number} "
