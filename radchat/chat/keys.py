"""The keys of the prompt that are not the library's own; /help names them (commands.KEYS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import SearchDirection, start_search

from radchat.chat.text import typed

if TYPE_CHECKING:
    from radchat.chat.prompt import Prompt

SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")
ALT_ENTER = ("\x1b[13;3u", "\x1b[27;3;13~")  # where a terminal tells it so
PASTE_ENDS = "\x1b[201~"
ESCAPE_S = 0.1  # after which a lone Esc is one, and no longer the beginning of a key
SECOND_ESCAPE_S = 0.6  # in which a second one opens the tree

for _sequence in SHIFT_ENTER:
    ANSI_SEQUENCES[_sequence] = Keys.ControlJ
for _sequence in ALT_ENTER:
    ANSI_SEQUENCES[_sequence] = (Keys.Escape, Keys.ControlM)
ANSI_SEQUENCES[PASTE_ENDS] = Keys.Ignore  # a second one: a paste had the first in it


class WantsTree(Exception):
    """Esc Esc at an empty prompt."""


def bindings(prompt: Prompt) -> KeyBindings:
    """Ours; while the history is searched, the library's own."""
    keys = KeyBindings()
    writes = ~is_searching
    _ends(keys, prompt)
    _edits(keys, prompt)
    _completes(keys, prompt)

    @keys.add("c-r", filter=writes)
    def _search(event: KeyPressEvent) -> None:  # noqa: ARG001
        prompt.starts_search = True  # its line takes the prompt's place, as of a single line
        try:
            start_search(direction=SearchDirection.BACKWARD)
        finally:
            prompt.starts_search = False

    @keys.add("c-g", filter=writes)
    @keys.add("c-x", "c-e", filter=writes)
    def _editor(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.text = prompt.pastes.whole(buffer.text)
        buffer.open_in_editor()

    return keys


def _ends(keys: KeyBindings, prompt: Prompt) -> None:
    """What ends the prompt, or is a newline."""
    writes = ~is_searching
    is_empty = Condition(lambda: not prompt.buffer.text)

    @keys.add("enter", filter=writes)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion:
            buffer.complete_state = None
            prompt.open_menu()  # of what may follow
        elif _is_pasted(event) or prompt.goes_on(buffer):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=writes)
    def _other_enter(event: KeyPressEvent) -> None:
        if prompt.is_multiline:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    @keys.add("c-j", filter=writes)
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=writes)
    def _interrupt(event: KeyPressEvent) -> None:
        prompt.had_text = bool(event.current_buffer.text)
        event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    @keys.add("c-d", filter=is_empty & writes)
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=EOFError, style="class:exiting")

    @keys.add("escape", "escape", filter=is_empty & writes)
    def _tree(event: KeyPressEvent) -> None:
        event.app.exit(exception=WantsTree, style="class:exiting")

    @keys.add("/", filter=Condition(prompt.is_untouched) & writes)
    def _command(event: KeyPressEvent) -> None:  # never "offered words/redo"
        history = event.current_buffer.history
        if prompt.offered not in history.get_strings()[-1:]:
            history.append_string(prompt.offered)
        event.current_buffer.reset(Document("/"))
        prompt.open_menu()


def _is_pasted(event: KeyPressEvent) -> bool:
    """A paste that has the mark of its end in it goes on behind it; that is not the keyboard."""
    for key in event.key_processor.input_queue:
        if key.data == PASTE_ENDS or key.key == Keys.BracketedPaste:
            return key.data == PASTE_ENDS
    return False


def _edits(keys: KeyBindings, prompt: Prompt) -> None:
    """Pastes, and the keys that take a placeholder as one letter."""
    pastes, buffer = prompt.pastes, prompt.buffer
    writes = ~is_searching
    is_behind = Condition(lambda: pastes.before(buffer.document.text_before_cursor) > 0) & writes
    is_before = Condition(lambda: pastes.behind(buffer.document.text_after_cursor) > 0) & writes

    @keys.add(Keys.BracketedPaste, eager=True)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.shown(typed(event.data)))

    @keys.add("backspace", filter=is_behind)
    @keys.add("c-w", filter=is_behind)
    @keys.add("escape", "backspace", filter=is_behind)
    def _delete_before(event: KeyPressEvent) -> None:  # noqa: ARG001
        buffer.delete_before_cursor(pastes.before(buffer.document.text_before_cursor))

    @keys.add("delete", filter=is_before)
    @keys.add("c-d", filter=is_before)
    def _delete_behind(event: KeyPressEvent) -> None:  # noqa: ARG001
        buffer.delete(pastes.behind(buffer.document.text_after_cursor))

    @keys.add("left", filter=is_behind)
    @keys.add("c-b", filter=is_behind)
    def _left(event: KeyPressEvent) -> None:  # noqa: ARG001
        buffer.cursor_position -= pastes.before(buffer.document.text_before_cursor)

    @keys.add("right", filter=is_before)
    @keys.add("c-f", filter=is_before)
    def _right(event: KeyPressEvent) -> None:  # noqa: ARG001
        buffer.cursor_position += pastes.behind(buffer.document.text_after_cursor)

    @keys.add("backspace", filter=Condition(lambda: prompt.has_menu) & ~is_behind & writes)
    def _backspace(event: KeyPressEvent) -> None:
        buffer.delete_before_cursor(event.arg)
        prompt.open_menu()  # or what is left of it


def _completes(keys: KeyBindings, prompt: Prompt) -> None:
    writes = ~is_searching

    @keys.add("tab", filter=Condition(lambda: prompt.has_menu) & writes)
    def _complete(event: KeyPressEvent) -> None:  # noqa: ARG001
        """The only one there is is taken; of several, the next is shown."""
        buffer = prompt.buffer
        state = buffer.complete_state
        if state is not None and len(state.completions) == 1:
            buffer.apply_completion(state.completions[0])
        elif state is not None:
            buffer.complete_next()
        else:
            prompt.open_menu(inserts=True)

    @keys.add("escape", filter=has_completions & writes)
    def _close(event: KeyPressEvent) -> None:  # noqa: ARG001
        prompt.buffer.cancel_completion()
