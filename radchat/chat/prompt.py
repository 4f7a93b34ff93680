"""The prompt: gives back one message; knows nothing of sessions. Its keys are in keys.py.

Enter sends; Ctrl+J, Alt+Enter and Shift+Enter are newlines; a text that opens with three quotes
goes on until it closes with them. In multiline mode Enter is a newline too, and Alt+Enter or a line
of three quotes sends. A long paste is shown as a placeholder and sent whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.output import ColorDepth, DummyOutput, Output
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

from radchat.chat import commands, keys, typed_ahead
from radchat.chat.history import SessionHistory, open_history
from radchat.chat.keyboard import cooked, mark_pastes
from radchat.chat.keys import WantsTree as WantsTree  # noqa: PLC0414 - for who reads
from radchat.chat.pastes import Pastes
from radchat.chat.plain_lines import PlainLines
from radchat.chat.text import typed

QUOTES = '"""'
MENU_ROWS = 8
STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse dim",
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bg:default fg:default reverse",
        "completion-menu.meta.completion": "bg:default fg:default dim",
        "completion-menu.meta.completion.current": "bg:default fg:default nodim bold",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)


class Prompt:
    def __init__(
        self,
        *,
        history: Path | None,
        toolbar: Callable[[int], str] | None = None,
        completer: Completer | None = None,
        colors: bool = True,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's word for it
        output: Output | None = None,
    ) -> None:
        """``history`` None keeps none on disk; ``toolbar`` gives a line of so many columns to stand
        below the prompt, or "".
        """
        self.pastes = Pastes()
        self._history = open_history(history, self.pastes.whole)
        self._toolbar = toolbar
        self.has_menu = completer is not None
        self.is_multiline = False  # Enter is a newline
        self.had_text = False  # when Ctrl+C ended the last read
        self.offered = ""  # what stands in the line before a key, and was not typed into it
        self.starts_search = False
        self._held: list[KeyPress] = []  # typed ahead of something that went wrong
        # where nothing can be painted
        self._lines = PlainLines() if input is None and is_dumb_terminal() else None
        self._is_reading = False
        self._later: list[Callable[[], None]] = []  # to be said
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=Condition(lambda: not (self.starts_search or is_searching())),
            completer=completer,
            complete_while_typing=False,  # open_menu does it, where there is something to choose
            enable_suspend=True,
            prompt_continuation="",
            reserve_space_for_menu=MENU_ROWS if self.has_menu else 0,
            tempfile_suffix=".md",
            style=STYLE,
            include_default_pygments_style=False,
            color_depth=None if colors else ColorDepth.DEPTH_1_BIT,
            input=input,
            output=DummyOutput() if self._lines is not None else output,
        )
        self.buffer = self._session.default_buffer
        self.buffer.on_text_insert += lambda _buffer: self.open_menu()
        self._session.key_bindings = keys.bindings(self)
        app = self._session.app
        app.ttimeoutlen, app.timeoutlen = keys.ESCAPE_S, keys.SECOND_ESCAPE_S
        # SIGWINCH tells of a resized window; to ask twice a second besides would keep us awake
        app.terminal_size_polling_interval = None

    def read(self, mark: str, default: str = "") -> str:
        """One message, as typed. Raises EOFError (Ctrl+D), KeyboardInterrupt (Ctrl+C), WantsTree.

        ``default`` stands in the line; keys typed before act as if they were typed now.
        """
        self.had_text = False
        self.offered = default
        self.refresh()
        if self._lines is not None:
            text = self._read_plainly(self._lines, mark, default)
        else:
            with self._typing_ahead(default):
                text = self._session.prompt(mark, default=default)
        return unquoted(typed(self.pastes.whole(text))).strip("\n")

    def _read_plainly(self, lines: PlainLines, mark: str, default: str) -> str:
        """``default`` is shown above, and sent by Enter alone."""

        def whole(text: str) -> str | None:
            buffer = Buffer(document=Document(text))
            goes_on = self.goes_on(buffer)
            self.had_text = self.had_text or goes_on
            return None if goes_on else buffer.text

        offered = lines.offer(default)
        self.had_text = bool(offered)
        self._is_reading = True
        try:
            text = lines.message(mark, whole) or offered
        finally:
            self._is_reading = False
            self._say_later()
        if text.strip() and text not in self._history.get_strings()[-1:]:
            self._history.append_string(text)
        return text

    def choose(self, question: str) -> str:
        """One line that is no message, kept in no history; "" for Ctrl+C and Ctrl+D."""
        if self._lines is not None:
            with contextlib.suppress(KeyboardInterrupt, EOFError):
                return self._lines.message(question, str).strip()
            return ""
        session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            reserve_space_for_menu=0,
            color_depth=self._session.color_depth,
            input=self._session.input,
            output=self._session.output,
        )
        try:
            return str(session.prompt(question)).strip()
        except (KeyboardInterrupt, EOFError):
            return ""
        finally:
            mark_pastes()

    # --- what is typed between two prompts ---

    @property
    def source(self) -> Input:
        """Where keys come from."""
        return self._session.input

    def take(self) -> None:
        """What was typed until now is for the next prompt, whatever becomes of it there."""
        if self._lines is not None:
            self._lines.take()
        else:
            typed_ahead.take(self._session.input)

    def hold(self) -> None:
        """Something went wrong: what was taken is offered at the next prompt, and not sent."""
        if self._lines is not None:
            self._lines.hold()
        else:
            self._held += typed_ahead.below(self._held, self._taken())

    def _taken(self) -> list[KeyPress]:
        source = self._session.input
        store_typeahead(source, typed_ahead.early(cooked()))
        return typed_ahead.held(source)

    @contextlib.contextmanager
    def _typing_ahead(self, default: str) -> Iterator[None]:
        """Held keys first, then what waits with its Enter; in a prompt that is up and has its
        history, and before any that is typed there.
        """
        source, app = self._session.input, self._session.app
        keys = typed_ahead.below(default, self._held)
        keys += typed_ahead.early(cooked()) + get_typeahead(source)
        self._held = []

        def press() -> None:
            app.key_processor.feed_multiple(keys)
            keys.clear()
            app.key_processor.process_keys()

        def is_up(_app: Application[str]) -> None:
            if keys and app.loop is not None:
                app.loop.call_soon(press)  # behind the history, which loads as it is first shown

        app.after_render += is_up
        try:
            yield
        finally:
            app.after_render -= is_up
            store_typeahead(source, keys)  # of a prompt that never was up
            mark_pastes()

    # --- above, below and beside it; from any thread ---

    def refresh(self) -> None:
        """Show the toolbar's new text, or none."""
        has_bar = self._toolbar is not None and bool(self._bar())
        self._session.bottom_toolbar = self._bar if has_bar else None
        if self._session.app.is_running:
            self._session.app.invalidate()

    def _bar(self) -> StyleAndTextTuples:
        columns = self._session.output.get_size().columns
        text = self._toolbar(columns) if self._toolbar is not None else ""
        return [("", text)] if text else []

    def say(self, write: Callable[[], None]) -> None:
        """Write a line above the prompt, if it is up; below it, once it has ended, where a terminal
        can't put the prompt elsewhere.
        """
        if self._is_reading:
            self._later.append(write)
        elif not self._soon(lambda: run_in_terminal(write)):
            write()

    def _say_later(self) -> None:
        later, self._later = self._later, []
        for write in later:
            write()

    def has_come(self) -> None:
        """What the menu can show is more now."""

        def show() -> None:
            state = self.buffer.complete_state
            if state is None or state.current_completion is None:
                self.buffer.complete_state = None
                self.open_menu()

        self._soon(show)

    def _soon(self, work: Callable[[], object]) -> bool:
        """On the prompt's own thread; False: it is not up."""
        app = self._session.app
        loop = app.loop
        if not app.is_running or loop is None:
            return False

        def now() -> None:
            with set_app(app):
                work()

        with contextlib.suppress(RuntimeError):  # the prompt has just ended
            loop.call_soon_threadsafe(now)
        return True

    def open_menu(self, *, inserts: bool = False) -> None:
        """Where there is something to choose; ``inserts`` what all of it begins with."""
        completer = self._session.completer
        if completer is None or not self._session.app.is_running:
            return
        asked = CompleteEvent(text_inserted=True)
        if next(iter(completer.get_completions(self.buffer.document, asked)), None) is not None:
            self.buffer.start_completion(insert_common_part=inserts)

    def keep_history(self, keeps: bool | None, session: str = "") -> None:
        """Whether what is typed is for the history file, and as said in which session (its id);
        None: not known yet, told later.
        """
        if isinstance(self._history, SessionHistory):
            self._history.keep(keeps, session)

    # --- for the keys ---

    def goes_on(self, buffer: Buffer) -> bool:
        """True where Enter does not send. The line of quotes that ends a text is taken off it."""
        text = buffer.text
        if is_open_block(text):
            return True
        if not self.is_multiline or commands.is_command(text) or not text.strip():
            return False  # a command needs no second line, and /multiline is the way back
        if text.lstrip().startswith(QUOTES):
            return False  # closed, as in every mode
        above, _, last = text.rpartition("\n")
        if last.strip() != QUOTES or buffer.document.text_after_cursor.strip():
            return True
        buffer.text = above
        return False

    def is_untouched(self) -> bool:
        """Text is offered in the line, and the cursor is where it was put: at its end."""
        return bool(self.offered) and self.buffer.document == Document(self.offered)


def is_open_block(text: str) -> bool:
    """True inside three quotes that have not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """The message without the three quotes around it."""
    inner = text.strip()
    if inner.startswith(QUOTES) and inner.endswith(QUOTES) and len(inner) >= 2 * len(QUOTES):
        return inner[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text
