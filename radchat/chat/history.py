"""What was typed before, at the prompt: kept in history_file.py's file, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import History, InMemoryHistory

from radchat.chat.history_file import add, latest
from radchat.chat.text import join_surrogates
from radchat.paths import private_file


class SessionHistory(History):
    """History that no half of a surrogate, and no vanished disk, can break; pastes are in it whole:
    their placeholders mean nothing in another chat.
    """

    def __init__(self, path: Path, whole: Callable[[str], str]) -> None:
        super().__init__()
        self._path = path
        self._whole = whole
        self._session = ""  # of what is typed now
        self._keeps: bool | None = True
        self._held: list[str] = []  # until it is known whether they may be kept

    def keep(self, keeps: bool | None, session: str = "") -> None:
        self._keeps, self._session = keeps, session
        if keeps is not None:
            held, self._held = self._held, []
            for string in held:
                self.store_string(string)

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        try:
            return latest(self._path)
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        if self._keeps is None:
            self._held.append(string)
        elif self._keeps:
            with contextlib.suppress(OSError):
                add(self._path, join_surrogates(self._whole(string)), self._session)


def open_history(path: Path | None, whole: Callable[[str], str]) -> History:
    """``path`` None keeps none on disk."""
    if path is None:
        return InMemoryHistory()
    try:
        return SessionHistory(private_file(path), whole)
    except OSError:  # a read-only home is no reason not to talk
        return InMemoryHistory()
