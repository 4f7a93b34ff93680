"""Asks, at the terminal it is run in, whether a call may run; prints what was answered, as JSON.

approving.py PREVIEW(json) [typed-ahead-bytes]
"""

from __future__ import annotations

import array
import dataclasses
import fcntl
import json
import sys
import termios
import time

from radchat.agent.terminal.approval import TerminalApprover
from radchat.agent.types import Call, Preview, Question, Verdict
from radchat.chat import keyboard


def waiting() -> int:
    """Bytes typed and not read."""
    found = array.array("i", [0])
    fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, found)
    return found[0]


def main() -> None:
    asked = json.loads(sys.argv[1])
    ahead = int(sys.argv[2]) if len(sys.argv) > 2 else 0

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    aside: list[str] = []
    with keyboard.quiet(marks_pastes=True):
        write("begun\n")
        while waiting() < ahead:
            time.sleep(0.01)
        approver = TerminalApprover(write, lambda: aside.append(keyboard.not_read()))
        if "question" in asked:
            answer = approver.ask(Question(asked["question"], tuple(asked["choices"])))
            write(f"ANSWER {json.dumps(answer)}\n")
        else:
            preview = Preview(**asked)
            verdict = Verdict("ask", "it runs\x1b[2J it", ("shell(rm:*)", "write(a)"))
            found = approver.approve(Call("c", "shell", {}), preview, verdict)
            write(f"ANSWER {json.dumps(dataclasses.asdict(found))}\n")
        write(f"ASIDE {json.dumps(''.join(aside))}\n")
    mode = termios.tcgetattr(sys.stdin.fileno())[3]
    write(f"ECHO {bool(mode & termios.ECHO)} {bool(mode & termios.ICANON)}\n")


if __name__ == "__main__":
    main()
