"""The prompt: keys, paste, history. Gives back one message; knows nothing of sessions.

Enter sends; Ctrl+J, Alt+Enter and Shift+Enter are newlines; a text that opens with three quotes
goes on until it closes with them. In multiline mode Enter is a newline too, and Alt+Enter or a line
of three quotes sends. A long paste is shown as a placeholder and sent whole.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.search import SearchDirection, start_search
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.utils import is_dumb_terminal

from radchat.chat import commands
from radchat.chat.history import SessionHistory, open_history
from radchat.chat.keyboard import waiting
from radchat.chat.text import typed, unsent

QUOTES = '"""'
PASTE_LINES, PASTE_CHARS = 8, 1000
SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")
_PLACEHOLDER = re.compile(r"\[pasted #(\d+): [^\]]*\]")

for _sequence in SHIFT_ENTER:
    ANSI_SEQUENCES[_sequence] = Keys.ControlJ


class Prompt:
    def __init__(
        self,
        *,
        history: Path | None,
        toolbar: Callable[[], str] | None = None,
        colors: bool = True,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's word for it
        output: Output | None = None,
    ) -> None:
        """``history`` None keeps none on disk; ``toolbar`` gives a line below the prompt, or ""."""
        self._pastes: list[str] = []
        self._history = open_history(history, self._expand)
        self._toolbar = toolbar
        self.is_multiline = False  # Enter is a newline
        self.had_text = False  # when Ctrl+C ended the last read
        self._offered = ""  # what stands in the line before a key, and was not typed into it
        self._starts_search = False
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=Condition(lambda: not (self._starts_search or is_searching())),
            key_bindings=self._keys(),
            enable_suspend=True,
            prompt_continuation="",
            reserve_space_for_menu=0,
            color_depth=None if colors else ColorDepth.DEPTH_1_BIT,
            input=input,
            output=output or (PlainTextOutput(sys.stdout) if is_dumb_terminal() else None),
        )
        # SIGWINCH tells of a resized window; to ask twice a second besides would keep us awake
        self._session.app.terminal_size_polling_interval = None

    def read(self, mark: str, default: str = "", *, is_unsent: bool = False) -> str:
        """One message, as typed. Raises EOFError (Ctrl+D), KeyboardInterrupt (Ctrl+C).

        ``default`` stands in the line; ``is_unsent``: the user is in the middle of typing it.
        """
        self.had_text = False
        self._offered = "" if is_unsent else default
        self.refresh()
        text = self._session.prompt(mark, default=default)
        return unquoted(typed(self._expand(text))).strip("\n")

    def choose(self, question: str) -> str:
        """One line that is no message, kept in no history; "" for Ctrl+C and Ctrl+D."""
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

    def typed_meanwhile(self) -> str:
        """What was typed since the last message was sent, unsent: nothing of it is a command or
        an Enter.
        """
        early = "".join(key.data for key in get_typeahead(self._session.input))
        return unsent(early + waiting().decode("utf-8", "replace"))

    def refresh(self) -> None:
        """Show the toolbar's new text, or none; from any thread."""
        text = self._toolbar() if self._toolbar else ""
        self._session.bottom_toolbar = text or None
        if self._session.app.is_running:
            self._session.app.invalidate()

    def say(self, write: Callable[[], None]) -> None:
        """Write a line above the prompt, if it is up; from any thread."""
        app = self._session.app
        loop = app.loop
        if not app.is_running or loop is None:
            write()
            return

        def above() -> None:
            with set_app(app):
                run_in_terminal(write)

        with contextlib.suppress(RuntimeError):  # the prompt has just ended
            loop.call_soon_threadsafe(above)

    def keep_history(self, keeps: bool | None, session: str = "") -> None:
        """Whether what is typed is for the history file, and as said in which session (its id);
        None: not known yet, told later.
        """
        if isinstance(self._history, SessionHistory):
            self._history.keep(keeps, session)

    # --- pastes ---

    def _paste(self, event: KeyPressEvent) -> None:
        text = typed(event.data)
        if text.count("\n") + 1 >= PASTE_LINES or len(text) >= PASTE_CHARS:
            text = self._keep(text)
        event.current_buffer.insert_text(text)

    def _keep(self, text: str) -> str:
        self._pastes.append(text)
        lines = text.rstrip("\n").count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{len(self._pastes)}: {size}]"

    def _expand(self, text: str) -> str:
        def whole(match: re.Match[str]) -> str:
            number = int(match[1])
            return self._pastes[number - 1] if 0 < number <= len(self._pastes) else match[0]

        return _PLACEHOLDER.sub(whole, text)

    # --- keys ---

    def _keys(self) -> KeyBindings:
        """Ours; while the history is searched, the library's own."""
        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def _send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._goes_on(buffer):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=~is_searching)
        def _other_enter(event: KeyPressEvent) -> None:
            if self.is_multiline:
                event.current_buffer.validate_and_handle()
            else:
                event.current_buffer.insert_text("\n")

        @keys.add("c-j", filter=~is_searching)
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c", filter=~is_searching)
        def _interrupt(event: KeyPressEvent) -> None:
            self.had_text = bool(event.current_buffer.text)
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        @keys.add("c-d", filter=self._is_empty() & ~is_searching)
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(exception=EOFError, style="class:exiting")

        @keys.add("/", filter=self._is_untouched() & ~is_searching)
        def _command(event: KeyPressEvent) -> None:  # never "offered words/redo"
            history = event.current_buffer.history
            if self._offered not in history.get_strings()[-1:]:
                history.append_string(self._offered)
            event.current_buffer.reset(Document("/"))

        @keys.add("c-r", filter=~is_searching)
        def _search(event: KeyPressEvent) -> None:  # noqa: ARG001
            self._starts_search = True  # its line takes the prompt's place, as of a single line
            try:
                start_search(direction=SearchDirection.BACKWARD)
            finally:
                self._starts_search = False

        @keys.add("c-g", filter=~is_searching)
        def _editor(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            buffer.text = self._expand(buffer.text)
            buffer.open_in_editor()

        keys.add(Keys.BracketedPaste, eager=True)(self._paste)
        return keys

    def _goes_on(self, buffer: Buffer) -> bool:
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

    def _is_untouched(self) -> Condition:
        """Text is offered in the line, and the cursor is where it was put: at its end."""
        return Condition(
            lambda: (
                bool(self._offered)
                and self._session.default_buffer.document == Document(self._offered)
            )
        )

    def _is_empty(self) -> Condition:
        return Condition(lambda: not self._session.default_buffer.text)


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
