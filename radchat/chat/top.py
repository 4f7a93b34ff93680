"""`cache top` and `/cache top`: what sits where, locked, next to go; live on a screen of its own.

A thread looks, every so often, and the screen shows what it saw last: a look that has to wait for
the engine's step keeps nobody from leaving.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radchat.chat import top_view
from radchat.chat.text import one_line
from radchat.chat.width import cut, pad
from radchat.errors import Busy, RadchatError

if TYPE_CHECKING:
    from radchat.chat.host import Host
    from radchat.chat.screen import Line, Screen

EVERY_S = 1.0
RESTS = 9  # times as long as a look took, at least, until the next: it keeps the daemon from others
TRIES = 10
Look = Callable[[], dict[str, Any]]


def show(host: Host, look: Look, *, every_s: float = EVERY_S, once: bool = False) -> None:
    """Live where a view may take the screen; else, or ``once``, as lines."""
    if host.shows_screens and not once:
        import sys

        Top(look, every_s, colors=host.paints(sys.stdout)).run()
        return
    for line in top_view.lines(look_once(host, look), host.columns):
        host.out(line)


def look_once(host: Host, look: Look) -> dict[str, Any]:
    """Where there is no next look, the engine's step is waited for, in tries of a second each."""
    try:
        for _ in range(TRIES - 1):
            with contextlib.suppress(Busy):
                return look()
            host.status("waiting for the engine's step")
        return look()
    finally:
        host.status("")


@dataclass(frozen=True, slots=True)
class _Seen:
    result: dict[str, Any] = field(default_factory=dict)  # empty: nothing yet
    marks: dict[top_view.Key, str] = field(default_factory=dict)
    note: str = ""  # why it is not of now


class Top:
    def __init__(self, look: Look, every_s: float, *, colors: bool) -> None:
        from radchat.chat.screen import Screen

        self._look, self._every_s = look, every_s
        self._seen, self._changes = _Seen(), top_view.Changes()
        self._orders = list(top_view.ORDERS)
        self._is_paused, self._top, self._room = False, 0, 1  # the first row shown, and how many
        self._left = threading.Event()
        keys: dict[str, Callable[[], None]] = {
            "s": self._sort,
            "p": self._pause,
            "up": lambda: self._scroll(-1),
            "down": lambda: self._scroll(1),
            "pageup": lambda: self._scroll(-self._room),
            "pagedown": lambda: self._scroll(self._room),
            "home": lambda: self._scroll(-self._num_rows),
            "end": lambda: self._scroll(self._num_rows),
            **dict.fromkeys(("q", "escape", "c-c", "c-d"), self._leave),
        }
        self._screen: Screen[RadchatError | None] = Screen(self.paint, keys, colors=colors)

    def run(self) -> None:
        """Until one leaves. Raises what ends the looking: the daemon is gone."""
        looking = threading.Thread(target=self._keep_looking, name="top", daemon=True)
        looking.start()
        try:
            error = self._screen.run()
        finally:
            self._left.set()
        looking.join()  # the connection is the caller's again
        if error is not None:
            raise error

    # -- looking ---------------------------------------------------------------------------------

    def _keep_looking(self) -> None:
        while not self._left.is_set():
            try:
                if not self._is_paused:
                    self._seen = self._look_now()
            except RadchatError as error:
                self._screen.end(error)
                return
            self._screen.refresh()
            self._left.wait(max(self._every_s, RESTS * (self._seen.result.get("look_s") or 0)))

    def _look_now(self) -> _Seen:
        try:
            result = self._look()
        except Busy as error:
            return _Seen(self._seen.result, self._seen.marks, error.message)
        return _Seen(result, self._changes.look(result["rows"]))

    # -- keys ------------------------------------------------------------------------------------

    def _sort(self) -> None:
        self._orders.append(self._orders.pop(0))
        self._top = 0

    def _pause(self) -> None:
        self._is_paused = not self._is_paused

    def _scroll(self, rows: int) -> None:
        self._top = max(0, min(self._top + rows, self._num_rows - self._room))

    def _leave(self) -> None:
        self._screen.end(None)

    @property
    def _num_rows(self) -> int:
        return len(self._seen.result.get("rows", ()))

    # -- the picture -----------------------------------------------------------------------------

    def paint(self, columns: int, rows: int) -> list[Line]:
        seen, order = self._seen, self._orders[0]
        if not seen.result:
            return [[("", cut(seen.note or "looking ...", columns))]]
        above = [cut(line, columns) for line in top_view.header(seen.result)]
        shown = top_view.ordered(seen.result["rows"], order)
        head, *body = top_view.body(seen.result, shown, seen.marks, columns)
        self._room = max(rows - len(above) - 4, 1)  # an empty line, the columns' head, two below
        self._scroll(0)
        end = self._top + self._room
        lines: list[Line] = [[("", line)] for line in above]
        lines += [[], [("", head)]]
        for row, line in zip(shown[self._top : end], body[self._top : end], strict=True):
            lines.append([("bold" if top_view.key_of(row) in seen.marks else "", line)])
        lines += [[]] * (rows - 2 - len(lines))
        lines.append([("", cut(top_view.LEGEND, columns))])
        return [*lines, [("reverse", pad(self._keys(order), columns))]]

    def _keys(self, order: str) -> str:
        state = one_line(self._seen.note) or ("paused" if self._is_paused else "")
        last = min(self._top + self._room, self._num_rows)
        rows = f"rows {min(self._top + 1, last)}-{last} of {self._num_rows}"
        keys = f"s sort: {order}   p pause   arrows scroll   q leave   {rows}"
        return f"{state}   {keys}" if state else keys
