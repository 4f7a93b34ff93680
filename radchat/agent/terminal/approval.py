"""The question whether a call may run. What is asked is shown whole, control characters as text.

The answer is one key, pressed after the question was there: what was typed before waits for the
next prompt, a paste is no answer, and every other key leaves the question standing. No is the
answer of Esc, of Ctrl+C, and of a terminal that goes away.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from radchat.agent.types import Approval, Call, Preview, Question, Remember, Verdict
from radchat.chat import keyboard
from radchat.chat.footer import counted
from radchat.chat.text import clean, one_line
from radchat.chat.view import DIM, RESET

RED, GREEN, CYAN, BOLD = "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[1m"
SHOWN = 120  # lines of a body; `v` shows the rest
END = 30  # of them, of its end
SETTLE_S = 0.05  # a key alone: nothing follows it so soon
SCOPES: dict[bytes, Remember] = {b"y": "once", b"s": "session", b"p": "project", b"u": "user"}
WORDS = {"once": "once", "session": "for this session", "project": "for this project",
         "user": "in every folder"}  # fmt: skip
KEYS = "[y] once  [s] session  [p] project  [u] everywhere  [n] no  [Esc] stop"


def body_lines(preview: Preview, *, paints: bool) -> Iterator[str]:
    """The whole of what is to run, or to change, safe to print."""
    for line in clean(preview.body).splitlines():
        if preview.body_kind == "diff":
            style = {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], "")
            is_head = line.startswith(("+++", "---"))
            style = BOLD if is_head else style
            yield f"  {style}{line}{RESET}" if paints and style else f"  {line}"
        else:
            yield f"  | {line}"


@dataclass
class TerminalApprover:
    """``write``: to the terminal, text that is clean; ``set_aside``: what was typed so far is for
    the next prompt.
    """

    write: Callable[[str], None]
    set_aside: Callable[[], None]
    paints: bool = False
    label: str = ""  # of one of several tries

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval:
        lines = list(body_lines(preview, paints=self.paints))
        hidden = len(lines) - SHOWN
        title = call.name if preview.body_kind == "command" else one_line(preview.title)
        self._say(f"{self.label}{title}", BOLD)
        if hidden > 0:
            self._lines(lines[: SHOWN - END])
            self._say(f"  [{counted(hidden, 'line')} not shown here: v shows all of it]", DIM)
            self._lines(lines[-END:])
        else:
            self._lines(lines)
        self._say(f"  {one_line(verdict.why)}", DIM)
        rules = ", ".join(one_line(rule) for rule in verdict.rules)
        if rules:
            self._say(f"  s, p, u would allow {rules} from now on", DIM)
        keys = KEYS + ("  [v] all of it" if hidden > 0 else "")
        while True:
            self.set_aside()  # before it is there: what comes once it is seen is its answer
            self.write(f"allow it? {keys} ")
            key = self._key()
            if key == b"v" and hidden > 0:
                self.write("\n")
                self._lines(lines)
                continue
            return self._answer(key, verdict)

    def _answer(self, key: bytes, verdict: Verdict) -> Approval:
        scope = SCOPES.get(key)
        if scope is not None:
            self.write(f"\nallowed {WORDS[scope]}\n")
            rules = () if scope == "once" else verdict.rules
            return Approval(True, scope, rules)
        if key != b"n":
            self.write("\nnot allowed\n")
            return Approval(False, stop=True)
        said = read_line(self.write, "\nnot allowed. What instead? (Enter: nothing) ")
        return Approval(False, feedback=said or "", stop=said is None)

    def ask(self, question: Question) -> str | None:
        """A question of the model's; a number stands for one of its choices."""
        self._say(f"{self.label}the model asks: {clean(question.text)}", BOLD)
        for number, choice in enumerate(question.choices, 1):
            self._say(f"  {number}  {one_line(choice)}")
        self.set_aside()
        said = read_line(self.write, "answer (Esc or Ctrl+C: none) ")
        if said is not None and said.strip().isdigit():
            number = int(said)
            if 0 < number <= len(question.choices):
                return question.choices[number - 1]
        return said or None

    def _key(self) -> bytes:
        """One that answers; b"" is no."""
        wanted = (*SCOPES, b"n", b"v")
        while True:
            try:
                data = os.read(sys.stdin.fileno(), 1024)
            except KeyboardInterrupt:
                return b""
            except OSError:
                return b""
            if not data or data in (b"\x03", b"\x04"):
                return b""
            if data[:1] == b"\x1b":
                if len(data) == 1 and not select.select([sys.stdin.fileno()], [], [], SETTLE_S)[0]:
                    return b""
                self._skip()
                continue
            # several at once are no key: a paste, or somebody's sleeve
            more = select.select([sys.stdin.fileno()], [], [], SETTLE_S)[0]
            if len(data) > 1 or more:
                self._skip()
                continue
            if data.lower() in wanted:
                return data.lower()

    @staticmethod
    def _skip() -> None:
        """What has come with it."""
        while select.select([sys.stdin.fileno()], [], [], SETTLE_S)[0]:
            if not os.read(sys.stdin.fileno(), 65536):
                return

    def _lines(self, lines: list[str]) -> None:
        self.write("".join(f"{line}\n" for line in lines))

    def _say(self, text: str, style: str = "") -> None:
        self.write(f"{style}{text}{RESET}\n" if self.paints and style else f"{text}\n")


def read_line(write: Callable[[str], None], mark: str) -> str | None:
    """In the terminal's own line editing. None: Ctrl+C, Ctrl+D, or it went away."""
    with keyboard.lent():
        write(mark)  # when Enter is Enter already: somebody may be quick
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
    if not line.endswith("\n"):
        write("\n")
        return None
    return clean(line).strip()
