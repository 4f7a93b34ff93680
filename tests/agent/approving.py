"""Asks, at the terminal it is run in, whether a call may run; prints what was answered, as JSON.

approving.py PREVIEW(json) [typed-ahead-bytes]
"""

from __future__ import annotations

import array
import dataclasses
import fcntl
import json
import os
import sys
import termios
import time
from collections.abc import Callable

from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import get_typeahead

from radchat.agent.terminal.approval import TerminalApprover
from radchat.agent.terminal.body import Row
from radchat.agent.terminal.pager import page
from radchat.agent.types import Call, Preview, Question, Verdict
from radchat.chat import keyboard, typed_ahead


def waiting() -> int:
    """Bytes typed and not read."""
    found = array.array("i", [0])
    fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, found)
    return found[0]


class Typing:
    """As a prompt puts it aside."""

    def __init__(self) -> None:
        self.source = create_input()
        self.kept = ""

    def take(self) -> None:
        typed_ahead.take(self.source)
        self.kept += "".join(key.data for key in get_typeahead(self.source))


def size() -> tuple[int, int]:
    found = os.get_terminal_size()
    return found.columns, found.lines


def shown_whole(title: str, rows: Callable[[int], list[Row]]) -> None:
    page(title, rows, colors=False)


def main() -> None:
    asked = json.loads(sys.argv[1])
    ahead = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    screens = os.environ["TERM"] != "dumb"

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    with keyboard.quiet(marks_pastes=screens):
        write("begun\n")
        while waiting() < ahead:
            time.sleep(0.01)
        typing = Typing()
        approver = TerminalApprover(
            write, typing, size, page=shown_whole if screens else None, in_lines=not screens
        )
        if "question" in asked:
            answer = approver.ask(Question(asked["question"], tuple(asked["choices"])))
            write(f"ANSWER {json.dumps(answer)}\n")
        else:
            preview = Preview(**asked)
            verdict = Verdict("ask", "it runs\x1b[2J it", ("shell(rm:*)", "write(a)"))
            found = approver.approve(Call("c", "shell", {}), preview, verdict)
            write(f"ANSWER {json.dumps(dataclasses.asdict(found))}\n")
        write(f"ASIDE {json.dumps(typing.kept)}\n")
    mode = termios.tcgetattr(sys.stdin.fileno())[3]
    write(f"ECHO {bool(mode & termios.ECHO)} {bool(mode & termios.ICANON)}\n")


if __name__ == "__main__":
    main()
