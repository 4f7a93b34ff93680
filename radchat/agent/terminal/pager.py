"""Long text on the whole screen, to walk through before it is answered for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radchat.agent.terminal.body import STYLES, Row
from radchat.chat.screen import Line, Screen
from radchat.chat.width import cut

KEYS = "Up Down PgUp PgDn Home End   q back"
BACK = ("q", "escape", "enter", "c-c", "c-d", "<sigint>", "v")


def page(title: str, rows_of: Callable[[int], Sequence[Row]], *, colors: bool) -> None:
    """Until it is left. ``rows_of``: so many columns."""
    pager = _Pager(title, rows_of)
    keys: dict[str, Callable[[], None]] = {
        "up": lambda: pager.go(-1),
        "down": lambda: pager.go(1),
        "pageup": lambda: pager.go(-pager.room),
        "pagedown": lambda: pager.go(pager.room),
        "space": lambda: pager.go(pager.room),
        "home": lambda: pager.go(-(10**9)),
        "end": lambda: pager.go(10**9),
        **dict.fromkeys(BACK, lambda: screen.end(None)),
    }
    screen: Screen[None] = Screen(pager.paint, keys, colors=colors)
    screen.run()


class _Pager:
    def __init__(self, title: str, rows_of: Callable[[int], Sequence[Row]]) -> None:
        self._title, self._rows_of = title, rows_of
        self._rows: Sequence[Row] = ()
        self._columns = 0
        self._top = 0
        self.room = 1

    def go(self, num: int) -> None:
        self._top = max(min(self._top + num, len(self._rows) - self.room), 0)

    def paint(self, columns: int, rows: int) -> Sequence[Line]:
        if columns != self._columns:
            self._rows, self._columns = self._rows_of(columns), columns
        self.room = max(rows - 2, 1)
        self.go(0)
        seen = self._rows[self._top : self._top + self.room]
        lines: list[Line] = [[("bold", cut(self._title, columns))]]
        lines += [[(STYLES[row.style][1] if row.style else "", row.text)] for row in seen]
        lines += [[] for _ in range(self.room - len(seen))]
        where = f"{self._top + 1}-{self._top + len(seen)} of {len(self._rows)}   {KEYS}"
        return [*lines, [("reverse", cut(where, columns))]]
