"""The events of many answers, shown: columns that fill at once, or one whole answer after another.

On a terminal that can show a screen (columns_screen.py) nothing is written while it is up; what
stays in the scrollback is written when it has gone. Elsewhere an answer is written as soon as it
and those before it are whole. Everything about the answers goes to stderr, as in view.py.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from radchat.chat.branches import Branch, Branches, named, shared_line
from radchat.chat.columns import Render, Whole, printed
from radchat.chat.footer import SEPARATOR, counted
from radchat.chat.host import Host
from radchat.chat.text import one_line
from radchat.chat.view import RESET, Answer, View, progress
from radchat.client import Client
from radchat.protocol import Event
from radchat.wire import EventStream

BOLD = "\x1b[1m"


@dataclass
class ManyView(View):
    """``cancel`` ends the request, or one ``choice`` of it; ``width`` is that of stdout, None
    where it is no terminal.
    """

    shows_screen: bool = False
    cancel: Callable[..., object] = lambda **_which: None
    width: Callable[[], int | None] = lambda: None
    paints_out: bool = False  # style on stdout
    command: str = "radchat "  # before the name of one that goes on: "/" in a chat
    branches: Branches = field(default_factory=Branches)
    _held: list[str] = field(default_factory=list)  # notes, until the screen has gone
    _is_up: bool = False
    _num_written: int = 0
    _is_told: bool = False

    def __post_init__(self) -> None:
        self._say, self.note = self.note, self._note

    def follow(self, events: Iterable[Event]) -> Answer:
        for event in events:
            self.show(event)
            if event.name == "init" and self.shows_screen:
                assert isinstance(events, EventStream)
                self._on_screen(events)
        self.finish()
        return self.answer

    def finish(self) -> None:
        """Write what is left to be written, also of answers cut short; then how it went."""
        self.status("")
        if self._is_told:
            return
        self._is_told = True
        for each in self.branches.all:
            each.is_left = True
        if self.shows_text:
            self._write_rest()
        if self.at_end is not None:
            self.at_end()
        if self.answer.done and self.shows_text:
            self._tell_end()

    def cancelled(self, session: str = "") -> str:
        if not self.answer.init:
            return "cancelled"
        said, left = self.branches.said, self.branches.unanswered
        if not (said or left):
            return "cancelled: nothing was said, and nothing is kept"
        place = f"{session}{SEPARATOR}{named(said or left)}" if session else named(said or left)
        if not said:
            what = "the questions are" if left[1:] else "the question is"
            line = f"cancelled before an answer: {what} kept in {place}"
            return f"{line}; {self._way_back(left)}" if self.continues else line
        on = f"; `{self.command}switch {said[0].number}` goes to one" if self.continues else ""
        return f"cancelled: what came so far is kept in {place}{on}"

    def _way_back(self, left: Sequence[Branch]) -> str:
        answers = f"`{self.command}retry` there answers {'one' if left[1:] else 'it'}"
        return f"`{self.command}switch {left[0].number}`, and {answers}"

    # --- events ---

    def _on_init(self, data: dict[str, Any]) -> None:
        self.answer.init = data
        self.branches.begin(data)

    def _on_start(self, data: dict[str, Any]) -> None:
        for each in self.branches.together(data):
            each.doing = "reading the prompt"

    def _on_progress(self, data: dict[str, Any]) -> None:
        self.branches.progress(data)
        if not self._is_up:
            self.status(progress(data))

    def _on_reasoning(self, data: dict[str, Any]) -> None:
        self._hear(data, thought=True)

    def _on_delta(self, data: dict[str, Any]) -> None:
        self._hear(data)

    def _hear(self, data: dict[str, Any], *, thought: bool = False) -> None:
        self.answer.heard = True
        branch = self.branches.of(data)
        if branch is not None:
            branch.hear(data, thought=thought)
            self._show_counts()

    def _on_message(self, data: dict[str, Any]) -> None:
        self.answer.messages.append(data)
        branch = self.branches.of(data)
        if branch is not None:
            branch.end(data)
            self._write_ready()
            self._show_counts()

    def _on_done(self, data: dict[str, Any]) -> None:
        self.answer.done = data

    def _note(self, text: str) -> None:
        if self._is_up:
            self._held.append(text)
        else:
            self._say(text)

    # --- the screen ---

    def _on_screen(self, events: EventStream) -> None:
        from radchat.chat.columns_screen import ColumnsScreen

        request = self.answer.init.get("request")
        screen = ColumnsScreen(
            self.branches,
            events,
            self.show,
            lambda **which: self.cancel(request=request, **which),
            header=header(self.answer.init, self.branches),
            notes=self._held,
            shows_thoughts=self.shows_reasoning,
            colors=self.paints_out,
        )
        self.status("")
        self._is_up = True
        try:
            screen.run()
        finally:
            self._is_up, self.is_cancelled = False, screen.is_over
            for text in self._held:
                self._say(text)

    def _show_counts(self) -> None:
        """Not among what the reader of a pipe may be writing to the same terminal."""
        if not self._is_up and not (self._num_written and self.width() is None):
            self.status(self.branches.counts)

    # --- what stays ---

    def _write_ready(self) -> None:
        """Where there is no screen: the answers that are whole, as far as all before them are."""
        while self.shows_text and not self.shows_screen:
            left = self.branches.all[self._num_written :]
            if not left or not left[0].has_ended:
                return
            self._write_plain(left[0])

    def _write_plain(self, branch: Branch) -> None:
        self._num_written += 1
        if not branch.is_said:
            return
        self.status("")
        text, columns, render = branch.text.removesuffix("\n"), self.width(), self._render
        if render is not None and columns is not None:
            text = "\n".join(render(text, columns))
        self._write(f"{branch.label}{branch.at}\n{text}\n\n")

    def _write_rest(self) -> None:
        columns = self.width() if self.shows_screen else None
        if columns is None:
            for each in self.branches.all[self._num_written :]:
                self._write_plain(each)
            return
        answers = [
            Whole(each.label, each.at, each.state, self.branches.ask(each), each.text)
            for each in self.branches.said
        ]
        title = f"{BOLD}{{}}{RESET}".format if self.paints_out else str
        lines = printed(answers, columns, render=self._render, title=title)
        self._write("".join(f"{line}\n" for line in lines))

    @property
    def _render(self) -> Render | None:
        if not self.renders:
            return None
        from radchat.chat.markdown import rendered

        return rendered

    def _tell_end(self) -> None:
        each, left = self.branches.all, self.branches.unanswered
        if len(each) == 1 and self.shows_footer:
            self._write_footer(self.answer.done)
        if self.is_cancelled:
            return  # ``cancelled`` says it in a line
        self._tell_cut()
        if len(each) > 1:
            self.note(shared_line(len(each), self.answer.done))
        if left:
            on = f"; {self._way_back(left)}" if self.continues else ""
            self.note(f"without an answer: {named(left)}{on}")
        if self.continues and self.branches.said:
            self.note(", ".join(self._ways_on()))

    def _tell_cut(self) -> None:
        """Why, and which: by numbers."""
        why: dict[str, list[str]] = {}
        for each in self.branches.all:
            if each.is_full(self._limit):
                why.setdefault("cut off, the context is full", []).append(str(each.number))
            elif each.is_cut:
                after = f"cut off after {counted(each.num_tokens, 'token')}"
                why.setdefault(after, []).append(str(each.number))
        for told, numbers in why.items():
            self.note(f"{told}: {', '.join(numbers)}")

    def _ways_on(self) -> Iterator[str]:
        said = self.branches.said
        first, *more = (each.number for each in said)
        to = f"switch {more[0]}` goes to one" if more else f"switch {first}` goes there"
        yield f"`{self.command}{to}"
        if any(each.is_cut and not each.is_full(self._limit) for each in said):
            yield f"`{self.continues}` there goes on with it"
        if more:
            yield f"`{self.command}compare {first} {more[0]}` sets two side by side"

    @property
    def _limit(self) -> int | None:
        """Of the context, tokens."""
        return (self.answer.done.get("context") or {}).get("limit")


def header(init: dict[str, Any], branches: Branches) -> str:
    """What is asked, and where."""
    each, at = branches.all, init.get("parent")
    what = f"{len(each)} what-ifs"
    if branches.are_samples:
        what = counted(len(each), "answer")
        at = at if each[0].ask else init.get("user")
        what += f" to {each[0].ask}" if each[0].ask else ""
    model = " ".join(str(init[key]) for key in ("model", "dtype") if init.get(key))
    parts = (str(init.get("name") or ""), f"{what} at {str(at)[:4]}" if at else what, model)
    return one_line(SEPARATOR.join(part for part in parts if part))


def shows_columns(host: Host) -> bool:
    """As other screens, and also where text is piped in: keys come from the terminal that stdout
    is.
    """
    is_able = not host.plain and host.env.get("TERM", "") not in ("dumb", "")
    return host.shows_screens or (host.columns is not None and is_able and _is_readable(sys.stdout))


def _is_readable(terminal: TextIO) -> bool:
    """Not where it was opened to be written only: `> /dev/tty`."""
    return fcntl.fcntl(terminal.fileno(), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def many_view(
    args: Mapping[str, Any],
    host: Host,
    client: Callable[[], Client],
    shown: Mapping[str, Any],
    *,
    command: str = "radchat ",
) -> ManyView:
    """Of what a view of one answer is made of, and the terminal; ``client`` is asked to cancel."""
    return ManyView(
        answer=Answer(stays=args["kind"] == "what-if"),
        **shown,
        shows_screen=shows_columns(host) and shown.get("shows_text", True),
        cancel=lambda **which: client().call("cancel", **which),
        width=lambda: host.columns,
        paints_out=host.paints(sys.stdout),
        command=command,
    )
