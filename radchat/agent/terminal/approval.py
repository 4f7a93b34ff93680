"""The question whether a call may run. All of it is seen: on the screen, or as far as it says.

The answer is one key, pressed after the question was there (asking.py); any other key leaves the
question standing. No is the answer of Esc, of Ctrl+C, and of a terminal that goes away. Where
nothing is painted the answer is a line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from radchat.agent.terminal.asking import STOP, Typing, calm, read_key, read_line
from radchat.agent.terminal.body import Row, painted, rows_of
from radchat.agent.terminal.seen import hewn, oddities, seen_line
from radchat.agent.types import Approval, Call, Preview, Question, Remember, Verdict
from radchat.chat.footer import counted
from radchat.chat.view import DIM, RESET
from radchat.chat.width import wrap

BOLD, WARNING = "\x1b[1m", "\x1b[33m"
LEAST_ROWS, LEAST_COLUMNS = 6, 10  # of a body
SCOPES: dict[str, Remember] = {"y": "once", "s": "session", "p": "project", "u": "user"}
SAID = {"": "n", "no": "n", "yes": "y"}  # in a line
WORDS = {"once": "once", "session": "for this session", "project": "for this project",
         "user": "in every folder"}  # fmt: skip


@dataclass
class TerminalApprover:
    """``write``: to the terminal, text that is clean. ``size``: its columns and rows. ``page``:
    shows rows on the whole screen, else they are written. ``in_lines``: an answer is a line.
    ``turn``: of all that may ask.
    """

    write: Callable[[str], None]
    typing: Typing
    size: Callable[[], tuple[int, int]]
    page: Callable[[str, Callable[[int], list[Row]]], None] | None = None
    in_lines: bool = False
    paints: bool = False
    label: str = ""  # of one of several tries
    turn: threading.Lock = field(default_factory=threading.Lock)

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval:
        with self.turn:
            title = call.name if preview.body_kind == "command" else preview.title
            title = f"{self.label}{title}"
            notes = [(f"! {line}", WARNING) for line in oddities(f"{title}\n{preview.body}")]
            notes.append((f"  {verdict.why}", DIM))
            if verdict.rules:
                rules = ", ".join(verdict.rules)
                notes.append((f"  s, p, u would allow {rules} from now on", DIM))
            hidden = self._show(title, preview, [text for text, _ in notes])
            for note in notes:
                self._say(*note)
            return self._answer(title, preview, verdict, hidden)

    def ask(self, question: Question) -> str | None:
        """A question of the model's; a number stands for one of its choices."""
        with self.turn:
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

    def _show(self, title: str, preview: Preview, notes: Sequence[str]) -> int:
        """How many of its rows are not on the screen: with all that is said of it, it is on one."""
        columns, height = self.size()
        self._say(title, BOLD)
        rows = rows_of(preview, columns)
        around = sum(len(self._broken(text)) for text in (title, *notes, _keys(1, notes)))
        room = max(height - around - 2, LEAST_ROWS)
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
        while True:
            try:
                key = self._key(_keys(hidden, verdict.rules))
            except KeyboardInterrupt:
                self.write("\n")
                key = STOP
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

    def _key(self, question: str) -> str:
        """Put the question; nothing that was typed before it is there is its answer."""
        calm(self.typing)
        shown = "\n".join(self._broken(question))
        if self.in_lines:
            said = read_line(self.write, shown + " then Enter (Enter alone: no) ")
            return STOP if said is None else SAID.get(said.lower(), said.lower())
        self.write(f"{shown} ")
        key = read_key(self.typing)
        self.write("\n")
        return key

    # -- writing -----------------------------------------------------------------------------------

    def _rows(self, rows: list[Row]) -> None:
        self.write("".join(f"{line}\n" for line in painted(rows, paints=self.paints)))

    def _say(self, text: str, style: str = "") -> None:
        for line in self._broken(text):
            self.write(f"{style}{line}{RESET}\n" if self.paints and style else f"{line}\n")

    def _broken(self, text: str) -> list[str]:
        """At words where there are any; a long name is cut where the line is full."""
        room = max(self.size()[0] - 1, LEAST_COLUMNS)
        return [row for line in wrap(seen_line(text), room) for row in hewn(line, room)]


def _keys(hidden: int, rules: Sequence[str]) -> str:
    more = "[s] session  [p] project  [u] everywhere  " if rules else ""
    all_of_it = "  [v] all of it" if hidden else ""
    return f"allow it? [y] once  {more}[n] no  [Esc] stop{all_of_it}"
