"""A full-screen view, with keys from a pipe and a screen by pyte."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial

import pyte
import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from radchat.chat.screen import Line, Screen


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


Actions = Callable[[Screen[str]], dict[str, Callable[[], None]]]


def shown(
    keys: str,
    paint: Callable[[int, int], list[Line]],
    actions: Actions,
    *,
    typed: Callable[[str], None] | None = None,
) -> tuple[str, str]:
    """(the result, every byte written)"""
    out = _Tty()
    with create_pipe_input() as pipe:
        output = Vt100_Output(out, lambda: Size(rows=5, columns=20), enable_cpr=False)
        bound: dict[str, Callable[[], None]] = {}
        names = actions(Screen(lambda _columns, _rows: [], {}))
        screen: Screen[str] = Screen(
            paint,
            {name: partial(lambda key: bound[key](), name) for name in names},
            typed=typed,
            input=pipe,
            output=output,
        )
        bound |= actions(screen)
        pipe.send_text(keys)
        return screen.run(), out.getvalue()


def test_keys_end_it_and_the_terminal_is_given_back() -> None:
    seen: list[str] = []
    result, written = shown(
        "\x1b[Axq",
        lambda columns, rows: [[("bold", f"{columns} by {rows}")], [("", "x" * 40)]] * 2,
        lambda screen: {"up": lambda: seen.append("up"), "q": lambda: screen.end("left")},
        typed=seen.append,
    )
    assert result == "left"
    assert seen == ["up", "x"]
    assert written.index("\x1b[?1049h") < written.index("\x1b[?1049l")
    screen = pyte.Screen(20, 5)
    before, _, _ = written.rpartition("\r\n\x1b[J")  # its end scrolls, where nobody sees it
    pyte.Stream(screen).feed(before)
    assert [line.rstrip() for line in screen.display] == [*["20 by 5", "x" * 20] * 2, ""]


def test_a_lone_escape_is_a_key() -> None:
    result, _ = shown(
        "\x1b", lambda _c, _r: [], lambda screen: {"escape": lambda: screen.end("esc")}
    )
    assert result == "esc"


def test_it_may_be_ended_from_another_thread_and_before_it_is_up() -> None:
    with create_pipe_input() as pipe:
        output = Vt100_Output(_Tty(), lambda: Size(rows=4, columns=20), enable_cpr=False)
        screen: Screen[int] = Screen(lambda _c, _r: [], {}, input=pipe, output=output)
        screen.end(1)
        screen.end(2)
        assert screen.run() == 1
        screen = Screen(lambda _c, _r: [], {}, input=pipe, output=output)
        thread = threading.Timer(0.05, screen.end, (3,))
        thread.start()
        assert screen.run() == 3
        thread.join()


def test_what_paint_raises_is_raised() -> None:
    def broken(_columns: int, _rows: int) -> list[Line]:
        raise ValueError("no lines")

    with pytest.raises(ValueError, match="no lines"):
        shown("", broken, lambda _screen: {})
