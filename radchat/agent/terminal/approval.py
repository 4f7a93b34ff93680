"""The question whether a call may run. All of it is seen: on the screen, or as far as it says.

The answer is one key, pressed after the question was there (asking.py); any other key leaves the
question standing. No is the answer of Esc, of Ctrl+C, and of a terminal that goes away. Where
nothing is painted the answer is a line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from radchat.agent.terminal.asking import STOP, Typing, calm, read_key, read_line
from radchat.agent.terminal.body import Row, painted, rows_of
from radchat.agent.terminal.seen import oddities, seen_line
from radchat.agent.types import Approval, Call, Preview, Question, Remember, Verdict
from radchat.chat.footer import counted
from radchat.chat.view import DIM, RESET
from radchat.chat.width import wrap

BOLD, WARNING = "\x1b[1m", "\x1b[33m"
AROUND = 9  # rows of a screen that the body leaves
LEAST_ROWS = 6  # of a body
SCOPES: dict[str, Remember] = {"y": "once", "s": "session", "p": "project", "u": "user"}
SAID = {"": "n", "no": "n", "yes": "y"}  # in a line
WORDS = {"once": "once", "session": "for this session", "project": "for this project",
         "user": "in every folder"}  # fmt: skip


@dataclass
class TerminalApprover:
    """``write``: to the terminal, text that is clean. ``size``: its columns and rows. ``page``:
    shows rows on the whole screen; None where there are no screens, and a line is an answer.
    """

    write: Callable[[str], None]
    typing: Typing
    size: Callable[[], tuple[int, int]]
    page: Callable[[str, Callable[[int], list[Row]]], None] | None = None
    paints: bool = False
    label: str = ""  # of one of several tries
    _turn: threading.Lock = field(default_factory=threading.Lock)  # one question at a time

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval:
        with self._turn:
            title = call.name if preview.body_kind == "command" else preview.title
            hidden = self._show(f"{self.label}{title}", preview)
            for line in oddities(f"{title}\n{preview.body}"):
                self._say(f"! {line}", WARNING)
            self._say(f"  {verdict.why}", DIM)
            if verdict.rules:
                self._say(f"  s, p, u would allow {', '.join(verdict.rules)} from now on", DIM)
            return self._answer(title, preview, verdict, hidden)

    def ask(self, question: Question) -> str | None:
        """A question of the model's; a number stands for one of its choices."""
        with self._turn:
            for line in f"{self.label}the model asks: {question.text}".split("\n"):
                self._say(line, BOLD)
            for number, choice in enumerate(question.choices, 1):
                self._say(f"  {number}  {choice}")
            calm(self.typing)
            said = read_line(self.write, "answer (Ctrl+C: none) ")
        if said is not None and said.isdecimal() and 0 < int(said) <= len(question.choices):
            return question.choices[int(said) - 1]
        return said or None

    # -- what is asked about -----------------------------------------------------------------------

    def _show(self, title: str, preview: Preview) -> int:
        """How many of its rows are not on the screen."""
        columns, height = self.size()
        self._say(title, BOLD)
        rows = rows_of(preview, columns)
        room = max(height - AROUND, LEAST_ROWS)
        hidden = len(rows) - room
        if hidden <= 0:
            self._rows(rows)
            return 0
        tail = room // 3
        self._rows(rows[: room - tail])
        self._say(f"  [{counted(hidden, 'row')} not shown here: v shows all of it]", WARNING)
        self._rows(rows[len(rows) - tail :])
        return hidden

    def _show_all(self, title: str, preview: Preview) -> None:
        if self.page is not None:
            self.page(seen_line(title), lambda columns: rows_of(preview, columns))
        else:
            self.write("\n")
            self._rows(rows_of(preview, self.size()[0]))

    # -- the answer --------------------------------------------------------------------------------

    def _answer(self, title: str, preview: Preview, verdict: Verdict, hidden: int) -> Approval:
        scopes = SCOPES if verdict.rules else {"y": SCOPES["y"]}
        keys = "[y] once  "
        keys += "[s] session  [p] project  [u] everywhere  " if verdict.rules else ""
        keys += "[n] no  [Esc] stop" + ("  [v] all of it" if hidden else "")
        while True:
            key = self._key(keys)
            if key == "v" and hidden:
                self._show_all(title, preview)
            elif key in scopes:
                self.write(f"allowed {WORDS[scopes[key]]}\n")
                rules = () if key == "y" else verdict.rules
                return Approval(True, scopes[key], rules)
            elif key == "n":
                said = read_line(self.write, "not allowed. What instead? (Enter: nothing) ")
                return Approval(False, feedback=said or "", stop=said is None)
            elif key == STOP:
                self.write("not allowed\n")
                return Approval(False, stop=True)

    def _key(self, keys: str) -> str:
        """Put the question; nothing that was typed before it is there is its answer."""
        try:
            calm(self.typing)
        except KeyboardInterrupt:
            return STOP
        question = f"allow it? {keys} "
        columns, _ = self.size()
        shown = "\n".join(wrap(question, max(columns - 1, 1)))
        if self.page is None:
            said = read_line(self.write, shown + "then Enter (Enter alone: no) ")
            return STOP if said is None else SAID.get(said.lower(), said.lower())
        self.write(shown)
        key = read_key(self.typing)
        self.write("\n")
        return key

    # -- writing -----------------------------------------------------------------------------------

    def _rows(self, rows: list[Row]) -> None:
        self.write("".join(f"{line}\n" for line in painted(rows, paints=self.paints)))

    def _say(self, text: str, style: str = "") -> None:
        columns, _ = self.size()
        for line in wrap(seen_line(text), max(columns - 1, 1)):
            self.write(f"{style}{line}{RESET}\n" if self.paints and style else f"{line}\n")
