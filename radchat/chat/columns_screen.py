"""Many answers on a screen of their own, filling at once; keys select, scroll and stop them.

The events are read on a thread of their own, the screen has the main one. Whatever ends the reading
ends the screen, and is raised where ``run`` was called, the terminal being as it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from radchat.chat.branches import Branch, Branches
from radchat.chat.columns import Cell, Line, painted, plan
from radchat.chat.footer import SEPARATOR
from radchat.chat.keyboard import is_quiet
from radchat.chat.screen import Screen
from radchat.chat.text import one_line
from radchat.chat.turn import LAST_WORDS_S
from radchat.errors import RadchatError
from radchat.protocol import Event
from radchat.wire import EventStream

KEYS = (  # from long to short
    "Left Right 1-9 select   Up Down PgUp scroll   Esc stop it   Ctrl+C stop all",
    "Left Right   Up Down   Esc stop   Ctrl+C all",
    "Esc stop   Ctrl+C all",
)


class ColumnsScreen:
    """``take`` is given each event before it is painted; ``cancel()`` ends all of the answers,
    ``cancel(choice=n)`` one; ``notes`` are shown as they come.
    """

    def __init__(
        self,
        branches: Branches,
        events: EventStream,
        take: Callable[[Event], None],
        cancel: Callable[..., object],
        *,
        header: str,
        notes: Sequence[str],
        shows_thoughts: bool = True,
        colors: bool = True,
    ) -> None:
        self.is_over = False  # all were stopped
        self._branches, self._events, self._take, self._cancel = branches, events, take, cancel
        self._header, self._notes, self._shows_thoughts = header, notes, shows_thoughts
        self._cells = [Cell("", "") for _ in branches.all]
        self._selected = 0
        self._size = (80, 24)  # when it was painted last
        self._error: BaseException | None = None
        keys: dict[str, Callable[[], None]] = {
            "left": lambda: self._select(self._selected - 1),
            "right": lambda: self._select(self._selected + 1),
            "tab": lambda: self._select(self._selected + 1),
            "s-tab": lambda: self._select(self._selected - 1),
            "up": lambda: self._scroll(-1),
            "down": lambda: self._scroll(1),
            "pageup": lambda: self._scroll(-self._page),
            "pagedown": lambda: self._scroll(self._page),
            "home": lambda: self._scroll(-(10**9)),
            "end": lambda: self._scroll(10**9),
            "escape": self._stop_one,
            "c-c": self._stop_all,
            "<sigint>": self._stop_all,
        }
        self._later: list[KeyPress] | None = [] if is_quiet() else None  # for the prompt, if any
        if self._later is not None:
            keys |= {"enter": self._enter, "backspace": self._erase}
        self._screen: Screen[None] = Screen(
            self._paint,
            keys,
            typed=self._typed,
            every_s=1.0,
            colors=colors,
            input=create_input(always_prefer_tty=True),
        )

    def run(self) -> None:
        """Until the last event, or what it was ended by."""
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        try:
            self._screen.run()
        finally:
            self._events.close()  # of an end that was not theirs
            reader.join()
            self._screen.leave_keys(self._later or [])
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            for event in self._events:
                self._take(event)
                self._screen.refresh()
        except BaseException as error:
            self._error = error
        finally:
            self._screen.end(None)

    # --- keys ---

    def _select(self, number: int) -> None:
        self._selected = number % len(self._cells)

    def _typed(self, text: str) -> None:
        if self._later or (self._later is not None and not text.isdigit()):
            self._later += map(KeyPress, text)
        elif text.isdigit() and 0 < int(text) <= len(self._cells):
            self._select(int(text) - 1)

    def _enter(self) -> None:
        if self._later:
            self._later.append(KeyPress(Keys.ControlM, "\r"))

    def _erase(self) -> None:
        if self._later:
            self._later.pop()

    @property
    def _page(self) -> int:
        places = plan(len(self._cells), *self._size, num_footer=2)
        return max(places.rows - 1, 1)

    def _scroll(self, rows: int) -> None:
        """At its end, the newest lines are seen again as they come."""
        cell, places = self._cells[self._selected], plan(len(self._cells), *self._size, 2)
        start, lines, _ = cell.seen(places.columns, places.rows)
        top = max(start + rows, 0)
        cell.top = top if top < lines - places.rows else None

    def _stop_one(self) -> None:
        branch = self._branches.all[self._selected]
        if branch.has_ended or branch.is_stopping:
            return
        branch.is_stopping = True
        self._ask(choice=branch.number - 1)

    def _stop_all(self) -> None:
        """Listened to for no longer than one answer is: how they ended is the daemon's to keep."""
        if self.is_over:
            return
        self.is_over = True
        for branch in self._branches.all:
            branch.is_stopping = True
        closing = threading.Timer(LAST_WORDS_S, self._events.close)
        closing.daemon = True
        closing.start()
        self._ask()

    def _ask(self, **which: int) -> None:
        def ask() -> None:
            with contextlib.suppress(RadchatError, OSError):  # it has just ended, or its daemon has
                self._cancel(**which)

        threading.Thread(target=ask, daemon=True).start()

    # --- what is seen ---

    def _paint(self, columns: int, rows: int) -> Sequence[Line]:
        self._size = (columns, rows)
        for cell, branch in zip(self._cells, self._branches.all, strict=True):
            self._tell(cell, branch)
        told = self._notes[-1] if self._notes else ""
        if self._later:
            told = "typed for the prompt: " + "".join(key.data for key in self._later)
            told = one_line(told)
        keys = next((each for each in KEYS if len(each) <= columns), KEYS[-1])
        footer = [SEPARATOR.join(part for part in (self._branches.counts, told) if part), keys]
        return painted(
            self._cells, self._selected, columns, rows, header=self._header, footer=footer
        )

    def _tell(self, cell: Cell, branch: Branch) -> None:
        cell.title, cell.state = branch.title, self._branches.state(branch)
        cell.ask = self._branches.ask(branch)
        is_thinking = not branch.text and self._shows_thoughts
        cell.text = branch.thought if is_thinking else branch.text
        cell.style = "italic" if is_thinking else ""
