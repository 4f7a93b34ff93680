"""A view that takes the whole screen: lines painted by a function, keys, and a clock.

The alternate screen is used, so that a resized window is painted anew and nothing of the view stays
behind: the terminal is given back as it was, however the view ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.utils import get_cwidth

from radchat.chat.keys import ESCAPE_S
from radchat.chat.typed_ahead import aside
from radchat.chat.width import cluster_width, clusters

Line: TypeAlias = list[tuple[str, str]]  # (style, text): "bold", "reverse", "fg:ansigreen", ""
Paint: TypeAlias = Callable[[int, int], Sequence[Line]]  # (columns, rows) -> what is seen
T = TypeVar("T")

REPAINT_S = 1 / 15  # at least, from one painting to the next


class Screen(Generic[T]):
    """In a chat, keys typed before it is up are not its own: they wait for the prompt.

    ``paint`` is asked for the lines whenever something has happened; what is more than the rows
    or the columns it was given is cut off. Its text must be clean (text.py).

    ``keys`` names keys as prompt_toolkit does ("up", "c-c", "escape", "x"); ``typed`` gets every
    other character, ``pasted`` what is pasted at once. All are called on the thread of ``run``.
    """

    def __init__(
        self,
        paint: Paint,
        keys: Mapping[str, Callable[[], None]],
        *,
        typed: Callable[[str], None] | None = None,
        pasted: Callable[[str], None] = lambda _text: None,
        every_s: float | None = None,
        colors: bool = True,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's word for it
        output: Output | None = None,
    ) -> None:
        """``every_s``: paint anew so often, whether or not anything has happened."""
        self._paint = paint
        self._app: Application[T] = Application(
            layout=Layout(Window(FormattedTextControl(self._text, show_cursor=False))),
            key_bindings=_bindings(keys, typed, pasted),
            full_screen=True,
            color_depth=None if colors else ColorDepth.DEPTH_1_BIT,
            refresh_interval=every_s,
            min_redraw_interval=REPAINT_S,
            input=input,
            output=output,
        )
        self._app.ttimeoutlen = self._app.timeoutlen = ESCAPE_S
        self._app.terminal_size_polling_interval = None  # SIGWINCH tells of a resized window
        self._early: list[T] = []  # ended before it was up

    def run(self) -> T:
        """Until ``end``; its result. What a key or ``paint`` raises is raised here."""
        with aside(self._app.input):
            return self._app.run(pre_run=self._begin)

    def end(self, result: T) -> None:
        """From any thread; the first call counts."""
        loop = self._app.loop
        if loop is None:
            self._early.append(result)
        else:
            loop.call_soon_threadsafe(self._leave, result)

    def refresh(self) -> None:
        """Something has changed; from any thread."""
        self._app.invalidate()

    def leave_keys(self, keys: Sequence[KeyPress]) -> None:
        """For who reads next, behind those typed before it."""
        store_typeahead(self._app.input, list(keys))

    def suspend(self) -> None:
        """As Ctrl+Z does; the view is back after `fg`."""
        self._app.suspend_to_background()

    def _begin(self) -> None:
        if self._early:
            self._leave(self._early[0])

    def _leave(self, result: T) -> None:
        if self._app.future is not None and not self._app.future.done():
            self._app.exit(result=result)

    def _text(self) -> StyleAndTextTuples:
        size = self._app.output.get_size()
        text: StyleAndTextTuples = []
        for number, line in enumerate(self._paint(size.columns, size.rows)[: size.rows]):
            text += [("", "\n")] if number else []
            text += [(style, steady(words)) for style, words in line]
        return text


def steady(text: str) -> str:
    """The library adds up the columns of a cluster's characters; a terminal draws it as one. Where
    they differ only its first character is shown, in the room of the whole.
    """
    if text.isascii():
        return text
    return "".join(map(_steady, clusters(text)))


def _steady(cluster: str) -> str:
    columns = cluster_width(cluster)
    if get_cwidth(cluster) == columns:
        return cluster
    return cluster[0] + " " * (columns - get_cwidth(cluster[0]))


def _bindings(
    keys: Mapping[str, Callable[[], None]],
    typed: Callable[[str], None] | None,
    pasted: Callable[[str], None],
) -> KeyBindings:
    bindings = KeyBindings()
    for name, action in keys.items():
        _bind(bindings, name, action)
    if "c-z" not in keys:
        bindings.add("c-z")(lambda event: event.app.suspend_to_background())
    bindings.add(Keys.BracketedPaste)(lambda event: pasted(event.data))
    if typed is not None:

        @bindings.add(Keys.Any)
        def _any(event: KeyPressEvent) -> None:
            if event.data.isprintable():
                typed(event.data)

    return bindings


def _bind(bindings: KeyBindings, name: str, action: Callable[[], None]) -> None:
    @bindings.add(name)
    def _pressed(event: KeyPressEvent) -> None:  # noqa: ARG001
        action()
